//! Who may do what: the rights of docs/kubernetes.md, and what happens without them.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use latchwork::ErrorKind;
use latchwork_kubernetes::{KubernetesConfig, doctor};
use latchwork_services::{Cut, KubernetesServer, Proxy};
use latchwork_store::doctor::Severity;
use serde_json::{Value, json};

use crate::common::{at, backend, examine, namespace, shared, skewed_io};

const SEC: Duration = Duration::from_secs(1);

/// A service account with these verbs on leases of a namespace; the address for it.
pub(crate) fn account(
    server: &KubernetesServer,
    space: &str,
    name: &str,
    verbs: &[&str],
) -> String {
    let core = format!("/api/v1/namespaces/{space}/serviceaccounts");
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{space}");
    let meta = json!({"metadata": {"name": name}});
    server.request("POST", &core, &meta.to_string()).expect("an account");
    set_verbs(server, space, name, verbs);
    let binding = json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": space}],
    });
    server
        .request("POST", &format!("{rbac}/rolebindings"), &binding.to_string())
        .expect("a binding");
    address(server, space, name, &token(server, space, name))
}

fn set_verbs(server: &KubernetesServer, space: &str, name: &str, verbs: &[&str]) {
    let roles = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/roles");
    let rule =
        json!({"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs});
    let rules = if verbs.is_empty() { json!([]) } else { json!([rule]) };
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": name}, "rules": rules,
    })
    .to_string();
    let made = server.request("POST", &roles, &role);
    if made.is_err() {
        server.request("PUT", &format!("{roles}/{name}"), &role).expect("a role");
    }
}

fn token(server: &KubernetesServer, space: &str, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{space}/serviceaccounts/{name}/token");
    let asks =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let answer = server.request("POST", &path, &asks.to_string()).expect("a token");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

fn address(server: &KubernetesServer, space: &str, name: &str, token: &str) -> String {
    let file = server.kubeconfig(&format!("{space}-{name}"), token, server.port()).expect("a file");
    format!("k8s://test/{space}?kubeconfig={}", file.display())
}

const LEAST: &[&str] = &["get", "list", "watch", "create", "update"];

/// Every kind of lock, a queue and a list work with the five verbs of the page, and doctor finds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "app", LEAST);
    let (a, b) = (at(&url).await, at(&url).await);
    let guard = a.mutex("nightly").acquire().await.expect("it is free");
    let waits = tokio::spawn(async move { b.mutex("nightly").acquire().await.map(drop) });
    tokio::time::sleep(SEC / 2).await;
    guard.release().await.expect("it is held");
    waits.await.expect("no panic").expect("its turn");
    let read = a.rwlock("shared/thing").read().acquire().await.expect("it is free");
    read.release().await.expect("it is held");
    let permit = a.semaphore("Pool", 3).permits(2).acquire().await.expect("it is free");
    assert_eq!(a.list("Po").await.expect("it may list").len(), 1);
    permit.release().await.expect("it is held");
    let report = examine(&url).await;
    assert!(report.worst() <= Severity::Info, "{report:?}");
    assert_eq!(report.find("rights").expect("it looks").severity, Severity::Ok);
}

/// A refusal names the verb and the remedy, and doctor says what follows from each missing right.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_right_is_named_with_its_remedy() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "reader", &["get", "list"]);
    let locks = at(&url).await;
    let error = locks.mutex("k").try_acquire().await.expect_err("it may not create");
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.may_have_applied(), "{error}");
    assert!(error.to_string().contains("cannot create resource \"leases\""), "{error}");
    assert!(error.next_step().expect("a remedy").contains(&space), "{error}");
    let report = examine(&url).await;
    let rights: Vec<_> = report.findings.iter().filter(|f| f.code == "rights").collect();
    let told = |verb: &str| rights.iter().find(|f| f.found.contains(verb)).map(|f| f.severity);
    assert_eq!(told("may not update"), Some(Severity::Critical), "{rights:?}");
    assert_eq!(told("may not create"), Some(Severity::Critical));
    assert_eq!(told("may not watch"), Some(Severity::Warning));
    assert_eq!(rights.len(), 3);
}

/// Does as an administrator what this line of `kubectl` does.
fn type_line(server: &KubernetesServer, line: &str) {
    let words: Vec<_> = line.split(' ').collect();
    let option = |name: &str| {
        let found = words.iter().find_map(|word| word.strip_prefix(&format!("--{name}=")));
        found.unwrap_or_else(|| panic!("{name}: {line}"))
    };
    let ["kubectl", "-n", space, "create", kind, name, ..] = words[..] else { panic!("{line}") };
    match kind {
        "role" => {
            assert_eq!(option("resource"), "leases.coordination.k8s.io");
            set_verbs(server, space, name, &option("verb").split(',').collect::<Vec<_>>());
        }
        "rolebinding" => {
            let (of, account) = option("serviceaccount").split_once(':').expect("an account");
            let binding = json!({
                "metadata": {"name": name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": option("role")},
                "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}],
            });
            let path =
                format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{space}/rolebindings");
            server.request("POST", &path, &binding.to_string()).expect("a binding");
        }
        _ => panic!("{line}"),
    }
}

/// H313: an administrator does what doctor prints, and doctor finds all rights.
#[tokio::test(flavor = "multi_thread")]
async fn h313_the_role_lines_that_doctor_prints_are_enough() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "app", &[]);
    let rights = async || {
        let report = examine(&url).await;
        report.findings.into_iter().filter(|one| one.code == "rights").collect::<Vec<_>>()
    };
    let missing = rights().await;
    assert_eq!(missing.len(), LEAST.len(), "{missing:?}");
    missing[0].remedy.split("; ").for_each(|line| type_line(server, line));
    let last = rights().await;
    assert!(last.iter().all(|one| one.severity == Severity::Ok), "{last:?}");
    let guard = at(&url).await.mutex("k").acquire().await.expect("it may");
    guard.release().await.expect("it is held");
}

/// Without the right to watch, waiters look by themselves every one to two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_watch_waiters_look_by_themselves() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "blind", &["get", "create", "update"]);
    let (a, b) = (at(&url).await, at(&url).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let waits = tokio::spawn(async move {
        let got = b.mutex("k").acquire().await;
        got.map(|guard| (guard, std::time::Instant::now()))
    });
    tokio::time::sleep(4 * SEC).await;
    let released = std::time::Instant::now();
    guard.release().await.expect("it is held");
    let (_guard, at) = waits.await.expect("no panic").expect("its turn");
    assert!(at - released < 4 * SEC, "{:?}", at - released);
}

/// The times of a lease are of no use to people then.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_a_clock_that_is_off() {
    let server = shared();
    let url = server.url(&namespace(server)).expect("a kubeconfig");
    let config = KubernetesConfig::parse(&url).expect("a good address");
    let io = skewed_io(Arc::new(AtomicI64::new(-2)));
    let report = doctor(config, io).await.expect("it answers");
    let found = report.find("clock").expect("it asks");
    assert!(found.found.starts_with("this host and the API server differ by 7"), "{found:?}");
    let expected = (Severity::Info, "set both clocks with a time service (NTP)");
    assert_eq!((found.severity, &*found.remedy), expected, "{found:?}");
}

/// Rights that are taken away while a lock is held: the renewals say so, the hold ends by its time, and comes no
/// second holder before that.
#[tokio::test(flavor = "multi_thread")]
async fn h173_rights_taken_away_end_a_hold_by_its_time() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "app", LEAST);
    let (locks, other) = (at(&url).await.ttl(4 * SEC), crate::common::client(server, &space).await);
    let guard = locks.mutex("k").acquire().await.expect("it is free");
    set_verbs(server, &space, "app", &[]);
    let waits = tokio::spawn(async move { other.mutex("k").acquire().await });
    let lost = tokio::time::timeout(8 * SEC, guard.lost()).await.expect("it ends");
    assert_eq!(lost.reason, latchwork::LostReason::Expired);
    let next = tokio::time::timeout(8 * SEC, waits).await.expect("it ends there too");
    let next = next.expect("no panic").expect("its turn");
    assert!(next.token() > guard.token());
    let error = locks.mutex("other").try_acquire().await.expect_err("no right is left");
    assert_eq!(error.kind(), ErrorKind::Denied);
}

/// A token that is refused is read anew from the kubeconfig, and the hold lives on.
#[tokio::test(flavor = "multi_thread")]
async fn h172_a_rotated_token_is_picked_up() {
    let server = shared();
    let space = namespace(server);
    let url = account(server, &space, "app", LEAST);
    let locks = at(&url).await.ttl(6 * SEC);
    let guard = locks.mutex("k").acquire().await.expect("it is free");
    // The account is made anew: the token of the old one is refused from now on.
    let path = format!("/api/v1/namespaces/{space}/serviceaccounts/app");
    server.request("DELETE", &path, "").expect("it was there");
    let meta = json!({"metadata": {"name": "app"}});
    let core = format!("/api/v1/namespaces/{space}/serviceaccounts");
    server.request("POST", &core, &meta.to_string()).expect("an account");
    address(server, &space, "app", &token(server, &space, "app"));
    // The server itself remembers a good token for ten seconds.
    tokio::time::sleep(14 * SEC).await;
    guard.ensure_held().expect("it was renewed with the new token");
    guard.release().await.expect("it is held");
}

/// A token of the account that is valid for as long as a Secret of this name is there.
fn token_bound_to(server: &KubernetesServer, space: &str, name: &str, secret: &str) -> String {
    let secrets = format!("/api/v1/namespaces/{space}/secrets");
    let meta = json!({"metadata": {"name": secret}});
    server.request("POST", &secrets, &meta.to_string()).expect("a secret");
    let path = format!("/api/v1/namespaces/{space}/serviceaccounts/{name}/token");
    let bound = json!({"kind": "Secret", "apiVersion": "v1", "name": secret});
    let asks = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound},
    });
    let answer = server.request("POST", &path, &asks.to_string()).expect("a token");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    answer["status"]["token"].as_str().expect("a token").to_owned()
}

/// H320: a new token is valid beside the old one, the file is replaced, connections are cut, the old token is refused.
/// By a token file, as in a pod, and by a kubeconfig.
#[tokio::test(flavor = "multi_thread")]
async fn h320_a_token_replaced_in_four_steps_loses_no_hold() {
    let server = shared();
    for has_token_file in [true, false] {
        let space = namespace(server);
        account(server, &space, "app", LEAST);
        let proxy = Proxy::plain(server.port()).expect("a proxy");
        let name = format!("{space}-rotated");
        let tokens = server.folder().join(format!("{space}.token"));
        let write = |token: &str| {
            if !has_token_file {
                return server.kubeconfig(&name, token, proxy.port()).expect("a file");
            }
            let new = tokens.with_extension("new");
            std::fs::write(&new, token).expect("a file");
            std::fs::rename(&new, &tokens).expect("a file");
            let config = server.kubeconfig(&name, "TOKEN", proxy.port()).expect("a file");
            let text = std::fs::read_to_string(&config).expect("it was written");
            let named = format!("tokenFile: {}", tokens.display());
            std::fs::write(&config, text.replace("token: TOKEN", &named)).expect("a file");
            config
        };
        let file = write(&token_bound_to(server, &space, "app", "first"));
        let locks = at(&format!("k8s://test/{space}?kubeconfig={}", file.display())).await;
        let guard = locks.mutex("k").ttl(4 * SEC).acquire().await.expect("it is free");
        write(&token_bound_to(server, &space, "app", "second"));
        proxy.cut(Cut::Reset).expect("it runs");
        tokio::time::sleep(5 * SEC).await;
        guard.ensure_held().expect("both tokens are valid");
        let old = format!("/api/v1/namespaces/{space}/secrets/first");
        server.request("DELETE", &old, "").expect("it was there");
        proxy.cut(Cut::Reset).expect("it runs");
        // The server itself remembers a good token for ten seconds.
        tokio::time::sleep(14 * SEC).await;
        guard.ensure_held().expect("it was renewed with the new token");
        guard.release().await.expect("it is held");
        let other = locks.mutex("other").acquire().await.expect("it is free");
        other.release().await.expect("it is held");
    }
}

/// An address without a server, a namespace that is not there, a context that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_a_clear_error() {
    let server = shared();
    let driver = latchwork::Driver::start().expect("a driver");
    let missing = server.url("no-such-namespace").expect("a kubeconfig");
    let store = backend(&missing, &driver).await;
    let locks = latchwork::LockManager::new(store, driver);
    let error = locks.mutex("k").try_acquire().await.expect_err("there is no namespace");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.next_step().expect("a step").contains("kubectl create namespace"), "{error}");
    let wrong = missing.replace("k8s://test/", "k8s://toast/");
    let file = server.kubeconfig("dead", "x", 1).expect("a file");
    let dead = format!("k8s://test/shop?kubeconfig={}", file.display());
    let denied = server.kubeconfig("stranger", "no-token", server.port()).expect("a file");
    let denied = format!("k8s://test/shop?kubeconfig={}", denied.display());
    let kubeconfig = "check the context in the address and the kubeconfig";
    for (url, kind, word, step) in [
        (wrong, ErrorKind::Invalid, "toast", kubeconfig),
        (
            dead,
            ErrorKind::Unreachable,
            "onnect",
            "check that the API server is running and the address is correct",
        ),
        (denied, ErrorKind::Denied, "401", ""),
        ("k8s://shop?kubeconfig=/nowhere".to_owned(), ErrorKind::Invalid, "kubeconfig", kubeconfig),
    ] {
        let driver = latchwork::Driver::start().expect("a driver");
        let config = KubernetesConfig::parse(&url).expect("a good address");
        let opened = latchwork_kubernetes::KubernetesBackend::connect(config, driver.io()).await;
        let error = opened.expect_err("it cannot work");
        assert_eq!(error.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(word), "{error}");
        assert!(error.next_step().expect("a step").contains(step), "{error}");
    }
}

/// A namespace that is being deleted, a policy, and a webhook that does not answer: none of it is a matter of rights.
#[tokio::test(flavor = "multi_thread")]
async fn h288_a_refusal_that_is_no_matter_of_rights_is_named() {
    let server = shared();
    let refusal = async |space: &str| {
        let locks = crate::common::client(server, space).await;
        let deadline = std::time::Instant::now() + 20 * SEC;
        loop {
            // The server learns of a policy a moment later.
            match locks.mutex("k").try_acquire().await {
                Err(error) => break error,
                Ok(guard) => drop(guard),
            }
            assert!(std::time::Instant::now() < deadline, "it is granted");
            let _ = server.request("DELETE", &crate::common::path(space, "k"), "");
        }
    };
    let gone = namespace(server);
    server.request("DELETE", &format!("/api/v1/namespaces/{gone}"), "").expect("it is there");
    let error = refusal(&gone).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.next_step().expect("a step").contains("is being deleted"), "{error}");

    let space = namespace(server);
    let only = json!({"matchLabels": {"kubernetes.io/metadata.name": space}});
    let rule = json!({
        "apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["leases"],
    });
    let admission = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({"metadata": {"name": space}, "spec": {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "not here"}],
    }});
    let binding = json!({"metadata": {"name": space}, "spec": {
        "policyName": space, "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": only},
    }});
    let [policies, bindings] = ["validatingadmissionpolicies", "validatingadmissionpolicybindings"]
        .map(|kind| format!("{admission}/{kind}"));
    server.request("POST", &policies, &policy.to_string()).expect("a policy");
    server.request("POST", &bindings, &binding.to_string()).expect("a binding");
    let error = refusal(&space).await;
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("not here"), "{error}");
    assert!(error.next_step().expect("a step").contains("change the policy"), "{error}");

    let space = namespace(server);
    let only = json!({"matchLabels": {"kubernetes.io/metadata.name": space}});
    let hook = json!({"metadata": {"name": space}, "webhooks": [{
        "name": "silent.example.com", "rules": [rule], "namespaceSelector": only,
        "clientConfig": {"url": "https://127.0.0.1:1/check"}, "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
    }]});
    let hooks = format!("{admission}/validatingwebhookconfigurations");
    server.request("POST", &hooks, &hook.to_string()).expect("a webhook");
    let error = refusal(&space).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(!error.may_have_applied(), "{error}");
    assert!(error.next_step().expect("a step").contains("failurePolicy"), "{error}");
}

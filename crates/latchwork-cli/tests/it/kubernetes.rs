//! The command on Kubernetes: what is seen of a lock, the manifests, and a candidate whose pod ends.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use latchwork_services::program::Running;
use latchwork_services::{ADMIN, KubernetesServer};
use latchwork_store::testing::stalls;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Holder, Store};
use crate::doctor::{at, explains_its_findings};

fn shared() -> &'static KubernetesServer {
    static SERVER: OnceLock<KubernetesServer> = OnceLock::new();
    SERVER.get_or_init(|| KubernetesServer::start().unwrap())
}

fn namespace(name: &str) -> String {
    shared().make_namespace(name).unwrap();
    shared().url(name).unwrap()
}

#[test]
fn a_lock_on_kubernetes_is_listed_shown_and_taken_away() {
    let store = Store::new();
    let url = namespace("shown");
    let holder = store.holder_with(&["--ttl", "3s"], "sleep 300", |command| {
        command.env("LATCHWORK_STORE", &url);
    });
    holder.ready();
    let listed = at(&url, &["ls"]);
    assert!(listed.stdout.contains("sleep 300"), "{listed:?}");
    let shown = at(&url, &["show", "x"]);
    assert!(shown.stdout.contains("held (a mutex)"), "{shown:?}");
    assert!(shown.stdout.contains("the Lease shown/x"), "{shown:?}");
    assert_eq!(at(&url, &["release", "--force", "x"]).code(), 0);
    let done = holder.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(at(&url, &["show", "x"]).stdout.contains("free"));
}

/// A Lease that kubectl or another program has made.
#[test]
fn show_names_a_holder_of_another_kind() {
    let url = namespace("foreign");
    let lease = "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"holderIdentity\":\"by-hand\",\"leaseDurationSeconds\":600}}";
    let path = "/apis/coordination.k8s.io/v1/namespaces/foreign/leases";
    shared().request("POST", path, lease).unwrap();
    let shown = at(&url, &["show", "x"]);
    assert!(shown.stdout.contains("by-hand"), "{shown:?}");
    assert!(shown.stdout.contains("a client of another kind"), "{shown:?}");
    let waits = at(&url, &["run", "--wait", "1s", "x", "--", "true"]);
    assert_eq!(waits.code(), 75, "{waits:?}");
    assert!(waits.stderr.contains("by-hand"), "{waits:?}");
    let release = at(&url, &["release", "--force", "x"]);
    assert_ne!(release.code(), 0, "its holder is none of ours: {release:?}");
}

/// H500: the plugin of a kubeconfig has a key in its variables and arguments, and prints it when it fails.
#[test]
fn h500_no_output_repeats_a_secret_of_a_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config");
    let ready = folder.path().join("ready");
    fs::write(&ready, "").unwrap();
    let script = format!(
        "if test -e {}; then echo '{{\"status\": {{\"token\": \"{ADMIN}\"}}}}'; else echo s3cret; echo s3cret >&2; exit 9; fi",
        ready.display()
    );
    let text = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {
            "server": format!("https://127.0.0.1:{}", shared().port()),
            "certificate-authority": shared().folder().join("certificates/apiserver.crt"),
        }}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable",
            "command": "sh", "args": ["-c", script, "s3cret"],
            "env": [{"name": "KEY", "value": "s3cret"}],
        }}}],
    });
    fs::write(&config, text.to_string()).unwrap();
    namespace("secrets");
    let url = format!("k8s://c/secrets?kubeconfig={}", config.display());
    let run = at(&url, &["run", "x", "--", "true"]);
    assert_eq!(run.code(), 0, "{run:?}");
    fs::remove_file(&ready).unwrap();
    for args in [
        &["ls"][..],
        &["--json", "ls"],
        &["doctor"],
        &["run", "-v", "--wait", "1s", "x", "--", "true"],
        &["serve", "--listen", "127.0.0.1:0"],
    ] {
        let done = at(&url, args);
        assert_eq!(done.code(), 69, "{done:?}");
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(said.contains("`sh`") && said.contains("exit status 9"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

/// Inside of a pod the address is the namespace alone: the service account's files and the variables say the rest.
#[test]
fn a_pod_needs_the_namespace_alone() {
    let server = shared();
    namespace("podded");
    let account = tempfile::tempdir().unwrap();
    fs::write(account.path().join("token"), ADMIN).unwrap();
    fs::write(account.path().join("namespace"), "podded").unwrap();
    let authority = server.folder().join("certificates/apiserver.crt");
    fs::copy(authority, account.path().join("ca.crt")).unwrap();
    let mut pod = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        pod.args(["--user", "--map-root-user"]);
    }
    // The files have a fixed place, which no other process sees.
    let files = "/var/run/secrets/kubernetes.io/serviceaccount";
    let inside = format!(
        "mount -t tmpfs none /var/run && mkdir -p {files} && cp \"$0\"/* {files} && exec \"$@\""
    );
    pod.args(["--mount", "sh", "-c", &inside]).arg(account.path());
    pod.arg(env!("CARGO_BIN_EXE_latchwork")).args(["run", "nightly", "--", "echo", "inside"]);
    pod.env("LATCHWORK_STORE", "k8s://podded").env_remove("KUBECONFIG");
    pod.env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    pod.env("KUBERNETES_SERVICE_PORT", server.port().to_string());
    let done = pod.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "inside\n");
    let lease = "/apis/coordination.k8s.io/v1/namespaces/podded/leases/nightly";
    server.request("GET", lease, "").expect("the Lease of the run");
}

#[test]
fn doctor_explains_its_findings_on_kubernetes() {
    let url = namespace("examined");
    let fit = at(&url, &["--json", "doctor"]);
    assert_eq!(fit.code(), 0, "{fit:?}");
    explains_its_findings(&serde_json::from_str(&fit.stdout).unwrap());
}

/// Each document of each file, with every field that is unknown refused; and the rights are enough.
#[test]
fn each_manifest_is_accepted_and_its_rights_are_enough() {
    let server = shared();
    namespace("manifests");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/kubernetes");
    let mut documents = 0;
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        for document in text.split("\n---\n") {
            let kind = document.lines().find_map(|line| line.strip_prefix("kind: ")).unwrap();
            let place = match kind {
                "ServiceAccount" => "/api/v1/namespaces/manifests/serviceaccounts",
                "Service" => "/api/v1/namespaces/manifests/services",
                "Deployment" => "/apis/apps/v1/namespaces/manifests/deployments",
                "CronJob" => "/apis/batch/v1/namespaces/manifests/cronjobs",
                "Role" => "/apis/rbac.authorization.k8s.io/v1/namespaces/manifests/roles",
                "RoleBinding" => {
                    "/apis/rbac.authorization.k8s.io/v1/namespaces/manifests/rolebindings"
                }
                kind => panic!("{}: {kind}?", path.display()),
            };
            let place = format!("{place}?fieldValidation=Strict");
            let made = server.create_yaml(&place, document);
            made.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            documents += 1;
        }
    }
    assert!(documents >= 9, "{documents}");
    let asks =
        "{\"apiVersion\":\"authentication.k8s.io/v1\",\"kind\":\"TokenRequest\",\"spec\":{}}";
    let place = "/api/v1/namespaces/manifests/serviceaccounts/shop/token";
    let answer: Value =
        serde_json::from_str(&server.request("POST", place, asks).unwrap()).unwrap();
    let token = answer["status"]["token"].as_str().unwrap();
    let file = server.kubeconfig("shop", token, server.port()).unwrap();
    let url = format!("k8s://test/manifests?kubeconfig={}", file.display());
    assert_eq!(at(&url, &["doctor"]).code(), 0);
    assert_eq!(at(&url, &["run", "x", "--", "true"]).code(), 0);
}

/// SIGTERM to the command, as the kubelet sends it at the end of a pod: the next candidate leads long before the ttl
/// is over.
#[test]
fn a_pod_that_ends_hands_its_leadership_over() {
    let store = Store::new();
    let url = namespace("elected");
    let candidate = |name: &str| {
        let script = "echo leads; trap 'echo ends; exit 0' TERM; while :; do sleep 0.05; done";
        let words =
            ["-v", "elect", "--ttl", "15s", "--candidate", name, "x", "--", "sh", "-c", script];
        let mut command = store.latchwork(&words);
        command.env("LATCHWORK_STORE", &url);
        Running::start(command)
    };
    let first = candidate("one");
    first.stdout.until("leads");
    let second = candidate("two");
    second.stderr.until("waiting for \"x\", held by one");
    let asked = Instant::now();
    first.signal(Signal::TERM);
    second.stdout.until("leads");
    let took = asked.elapsed();
    assert!(took < stalls::widened(Duration::from_secs(3), took), "{took:?}: the ttl is 15 s");
    assert!(first.finish().stdout.contains("ends"));
}

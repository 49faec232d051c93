//! Objects that people delete and edit while locks are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use latchwork::{ErrorKind, LostReason};
use latchwork_services::KubernetesServer;
use latchwork_store::{Attempt, Backend as _, Renewal};
use serde_json::{Value, json};

use crate::common::{client, lease, namespace, path, shared};

const SEC: Duration = Duration::from_secs(1);

/// A deleted Lease is a lock that is taken away: its holder learns of it by the watch, and tokens go on.
#[tokio::test(flavor = "multi_thread")]
async fn h170_a_deleted_lease_is_a_loss_and_tokens_go_on() {
    let server = shared();
    let space = namespace(server);
    let (a, b) = (client(server, &space).await, client(server, &space).await);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    server.request("DELETE", &path(&space, "k"), "").expect("it is there");
    let lost = tokio::time::timeout(3 * SEC, guard.lost()).await.expect("the watch tells it");
    assert_eq!(lost.reason, LostReason::Taken);
    let next = b.mutex("k").acquire().await.expect("it is free");
    assert!(next.token() > guard.token(), "{} after {}", next.token(), guard.token());
}

/// Without its annotations a Lease is that of a client of another kind, until its duration is over.
#[tokio::test(flavor = "multi_thread")]
async fn h171_removed_annotations_keep_the_key_for_its_duration() {
    let server = shared();
    let space = namespace(server);
    let (a, b) = (client(server, &space).await, client(server, &space).await);
    let a = a.ttl(4 * SEC);
    let guard = a.mutex("k").acquire().await.expect("it is free");
    let bare = "{\"metadata\":{\"annotations\":null,\"labels\":null}}";
    server.request("PATCH", &path(&space, "k"), bare).expect("a patch");
    let taken = std::time::Instant::now();
    let lost = tokio::time::timeout(3 * SEC, guard.lost()).await.expect("the watch tells it");
    assert_eq!(lost.reason, LostReason::Taken);
    assert!(b.mutex("k").try_acquire().await.expect("no fault").is_none());
    let next = tokio::time::timeout(8 * SEC, b.mutex("k").acquire()).await.expect("it ends");
    assert!(taken.elapsed() > 3 * SEC, "{:?}", taken.elapsed());
    assert!(next.expect("no fault").token() > guard.token());
}

/// A record that nobody can read is an error that names the object and the way out, and nobody is admitted. It hides
/// no other one from a list.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_admits_nobody() {
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    locks.mutex("k").acquire().await.expect("it is free").release().await.expect("it is held");
    for record in ["", "{}", "{\\\"form\\\":99}"] {
        let odd =
            format!("{{\"metadata\":{{\"annotations\":{{\"latchwork/record\":\"{record}\"}}}}}}");
        server.request("PATCH", &path(&space, "k"), &odd).expect("a patch");
        let error = locks.mutex("k").try_acquire().await.expect_err("it cannot be read");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let hint = error.next_step().expect("a way out").to_owned();
        assert!(hint.contains(&format!("kubectl -n {space} delete lease k")), "{hint}");
    }
    // A list shows the others, and names the one.
    let held = locks.mutex("l").acquire().await.expect("it is free");
    let listed = locks.list("").await.expect("it may list");
    assert_eq!(listed.iter().map(|seen| seen.key.as_str()).collect::<Vec<_>>(), ["k", "l"]);
    assert_eq!(&*listed[0].holders[0].holder.text, "(unknown: the Lease cannot be read)");
    let notes = listed[0].notes.join(" ");
    assert!(notes.contains(&format!("the Lease {space}/k cannot be read")), "{notes}");
    assert!(notes.contains("delete lease k"), "{notes}");
    assert_eq!(listed[1].holders[0].token, Some(held.token().grant_number()));
    server.request("DELETE", &path(&space, "k"), "").expect("it is there");
    drop(locks.mutex("k").acquire().await.expect("it is free again"));
}

/// H547: a PUT of what is there already is answered with the version that there was, which is older than those of other
/// objects. It is no sign of a restore, after which a key of a lost hold stays closed for its ttl.
#[tokio::test(flavor = "multi_thread")]
async fn h547_what_changes_nothing_keeps_no_other_key_closed() {
    let server = shared();
    let space = namespace(server);
    let (a, b) = (client(server, &space).await, client(server, &space).await);
    let permits = a.semaphore("permits", 3);
    let _permit = permits.acquire().await.expect("it is free");
    let (first, second) = (a.rwlock("shared").read(), a.rwlock("shared").read());
    let mut first = first.acquire().await.expect("it is free");
    let mut second = second.acquire().await.expect("it is free for readers");
    let upgrades = tokio::spawn(async move { first.upgrade().await.map(|_| first) });
    let waits = async || {
        let seen = lease(server, &space, "shared");
        let record = seen["metadata"]["annotations"]["latchwork/record"].as_str();
        record.is_some_and(|record| record.contains("\"line\":"))
    };
    crate::common::until("the first waits", 5 * SEC, waits).await;
    let held = b.mutex("k").acquire().await.expect("it is free");
    assert!(a.mutex("k").try_acquire().await.expect("no fault").is_none());
    // The first one after the grant writes its token. The newest version that is known then is that of another object.
    for _ in 0..2 {
        assert!(matches!(permits.resize().await, Ok(latchwork::Resized::Yes { .. })));
        a.mutex("other").acquire().await.expect("free").release().await.expect("held");
    }
    let refused = second.upgrade().await.expect_err("the first came first");
    assert_eq!(refused.kind(), ErrorKind::UpgradeConflict, "{refused}");
    held.release().await.expect("it is held");
    // With a ttl of 30 s.
    let next = tokio::time::timeout(10 * SEC, a.mutex("k").acquire()).await;
    drop(next.expect("nothing closed it").expect("no fault"));
    second.release().await.expect("it is held");
    drop(upgrades.await.expect("no panic").expect("the other reader has left"));
}

/// H548: a policy of the cluster takes the annotations of all Leases away, or puts the old ones back. No acquire succeeds,
/// and the error says where to look.
#[tokio::test(flavor = "multi_thread")]
async fn h548_a_policy_that_changes_leases_gives_no_hold() {
    let server = shared();
    for what in [
        "[JSONPatch{op: 'remove', path: '/metadata/annotations'}]",
        "[JSONPatch{op: 'replace', path: '/spec', value: oldObject.spec}, \
          JSONPatch{op: 'replace', path: '/metadata/annotations', value: oldObject.metadata.annotations}]",
    ] {
        let space = namespace(server);
        let locks = client(server, &space).await;
        for key in ["k", "probe"] {
            locks.mutex(key).acquire().await.expect("free").release().await.expect("held");
        }
        apply(server, &space, what).await;
        let error = locks.mutex("k").try_acquire().await.expect_err("it is not as it was written");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(error.to_string().contains("a mutating webhook or policy"), "{error}");
        let step = error.next_step().expect("a next step");
        assert!(step.contains("mutatingadmissionpolicies"), "{step}");
    }
}

/// Makes a policy of the cluster for changes of the Leases of a namespace, and waits until it applies to the one called
/// `probe`.
async fn apply(server: &KubernetesServer, space: &str, what: &str) {
    const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
    let policy = json!({
        "metadata": { "name": space },
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": space } },
                "resourceRules": [{
                    "apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"],
                    "operations": ["UPDATE"], "resources": ["leases"],
                }],
            },
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": what } }],
        },
    });
    let binding = json!({ "metadata": { "name": space }, "spec": { "policyName": space } });
    for (kind, object) in
        [("mutatingadmissionpolicies", policy), ("mutatingadmissionpolicybindings", binding)]
    {
        server.request("POST", &format!("{ADMISSION}/{kind}"), &object.to_string()).expect(kind);
    }
    let mut n = 0;
    crate::common::until("the policy applies", 30 * SEC, async || {
        n += 1;
        let noted = json!({ "metadata": { "annotations": { "n": n.to_string() } } });
        let sent = server.request("PATCH", &path(space, "probe"), &noted.to_string()).is_ok();
        let round = |of: &Value| of["metadata"]["annotations"]["n"].clone();
        sent && round(&lease(server, space, "probe")) != round(&noted)
    })
    .await;
}

/// Labels, annotations and owners of others stay on the object.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_note_on_the_object_stays() {
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    let guard = locks.mutex("k").acquire().await.expect("it is free");
    let noted = "{\"metadata\":{\"annotations\":{\"team\":\"shop\"},\"labels\":{\"app\":\"web\"}}}";
    server.request("PATCH", &path(&space, "k"), noted).expect("a patch");
    guard.ensure_held().expect("nobody took it");
    guard.release().await.expect("it is held");
    let seen: Value = lease(server, &space, "k");
    assert_eq!(seen["metadata"]["annotations"]["team"], "shop");
    assert_eq!(seen["metadata"]["labels"]["app"], "web");
    assert_eq!(seen["metadata"]["labels"]["latchwork/lock"], "true");
    assert_eq!(seen["spec"]["holderIdentity"], "");
}

/// A holder whose wall clock is an hour off, in either direction, and is set by two hours at each second renewal, is
/// neither taken over early nor kept for long.
#[tokio::test(flavor = "multi_thread")]
async fn h174_a_wall_clock_an_hour_off_harms_nobody() {
    let server = shared();
    let space = namespace(server);
    let other = client(server, &space).await;
    for hours in [-1, 1] {
        let off = Arc::new(AtomicI64::new(hours));
        let holder = crate::common::skewed(server, &space, off.clone()).await;
        let claim = crate::common::claim("k", 3 * SEC);
        let granted = holder.try_acquire(&claim).await.expect("no fault");
        let Attempt::Granted(grant) = granted else { panic!("it is free") };
        let seen = lease(server, &space, "k");
        let renewed = seen["spec"]["renewTime"].as_str().expect("a time").to_owned();
        let rival = other.mutex("k");
        let start = std::time::Instant::now();
        while start.elapsed() < 7 * SEC {
            let renewed_now = holder.renew_all(std::slice::from_ref(&claim)).await;
            assert!(matches!(renewed_now[0], Ok(Renewal::Held { .. })), "{renewed_now:?}");
            assert!(rival.try_acquire().await.expect("no fault").is_none(), "{renewed}");
            if start.elapsed().as_secs() % 2 == 1 {
                off.store(-off.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            tokio::time::sleep(SEC).await;
        }
        // It is not heard of again.
        let ended = std::time::Instant::now();
        let next = tokio::time::timeout(8 * SEC, rival.acquire()).await.expect("it ends");
        let next = next.expect("no fault");
        println!("{hours} h: {renewed}, followed after {:?}", ended.elapsed());
        // Its last renewal was a second before.
        assert!(ended.elapsed() > SEC && ended.elapsed() < 5 * SEC, "{:?}", ended.elapsed());
        assert!(next.token().grant_number() > grant.token);
        next.release().await.expect("it is held");
    }
}

/// H241: the ticket from before a second detach, delivered again.
#[tokio::test(flavor = "multi_thread")]
async fn h241_an_old_ticket_gives_no_second_guard() {
    let server = shared();
    let space = namespace(server);
    let locks = client(server, &space).await;
    let first = locks.mutex("k").acquire().await.expect("it is free").detach().await;
    let first = first.expect("it is held");
    let second = locks.adopt(&first).await.expect("it is held").detach().await.expect("it is held");
    let refused = locks.adopt(&first).await.expect_err("a later one was made");
    assert_eq!(refused.kind(), ErrorKind::Lost, "{refused}");
    assert!(refused.to_string().contains("detached again"), "{refused}");
    let guard = locks.adopt(&second).await.expect("it is held");
    assert_eq!(locks.adopt(&first).await.expect_err("as before").kind(), ErrorKind::Lost);
    guard.release().await.expect("it is held");
}

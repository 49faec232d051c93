//! Bounds of Kubernetes: how large an object may be, and how many there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use latchwork::ErrorKind;
use tokio::task::JoinSet;

use crate::common::{client, lease, namespace, shared};

const SEC: Duration = Duration::from_secs(1);

/// So many waiters with so long texts that the object has room for four.
#[tokio::test(flavor = "multi_thread")]
async fn h239_waiters_without_room_in_the_object_wait_too() {
    const WAITERS: u32 = 7;
    let server = shared();
    let space = namespace(server);
    let text = "x".repeat(50_000);
    let (holder, others) = (client(server, &space).await, client(server, &space).await);
    let held = holder.mutex("k").ttl(9 * SEC).holder(&*text).acquire().await.expect("it is free");
    let (served, mut waits) = (Arc::new(AtomicU32::new(0)), JoinSet::new());
    for _ in 0..WAITERS {
        let (locks, text, served) = (others.clone(), text.clone(), served.clone());
        waits.spawn(async move {
            let lock = locks.mutex("k").holder(text).fair().ttl(60 * SEC);
            let guard = lock.acquire().await.expect("it waits");
            served.fetch_add(1, Ordering::SeqCst);
            guard.release().await.expect("it is held");
        });
        // Each change is a large one.
        tokio::time::sleep(SEC).await;
    }
    // The holder has renewed the record while it was as full as it may be.
    assert_eq!(served.load(Ordering::SeqCst), 0);
    held.ensure_held().expect("it was renewed");
    let record =
        lease(server, &space, "k")["metadata"]["annotations"]["latchwork/record"].to_string();
    let places = record.matches("asked_ms").count() - 1;
    println!("{places} places in {} bytes", record.len());
    assert!((3..WAITERS as usize).contains(&places), "{places} places");
    held.release().await.expect("it is held");
    let all = tokio::time::timeout(90 * SEC, waits.join_all()).await;
    all.expect("all are served");
    assert_eq!(served.load(Ordering::SeqCst), WAITERS);
}

/// A quota of objects is no matter of rights: the error names it.
#[tokio::test(flavor = "multi_thread")]
async fn h240_an_exceeded_quota_is_named_with_its_remedy() {
    let server = shared();
    let space = namespace(server);
    let quotas = format!("/api/v1/namespaces/{space}/resourcequotas");
    let hard = "\"hard\":{\"count/leases.coordination.k8s.io\":\"0\"}";
    let quota = format!("{{\"metadata\":{{\"name\":\"few\"}},\"spec\":{{{hard}}}}}");
    server.request("POST", &quotas, &quota).expect("a quota");
    // No controller runs here that would count.
    let counted = format!("{{\"status\":{{{hard},{}}}}}", hard.replace("hard", "used"));
    server.request("PATCH", &format!("{quotas}/few/status"), &counted).expect("a status");
    let locks = client(server, &space).await;
    let deadline = std::time::Instant::now() + 20 * SEC;
    let error = loop {
        // The server learns of the quota a moment later.
        match locks.mutex("k").try_acquire().await {
            Err(error) => break error,
            Ok(guard) => drop(guard),
        }
        assert!(std::time::Instant::now() < deadline, "no quota");
        let free = crate::common::path(&space, "k");
        let _ = server.request("DELETE", &free, "");
    };
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let (said, hint) = (error.to_string(), error.next_step().expect("a remedy").to_owned());
    assert!(said.contains("exceeded quota: few"), "{said}");
    assert!(hint.contains(&format!("kubectl -n {space} describe quota")), "{hint}");
    assert!(!hint.contains("verbs"), "{hint}");
}

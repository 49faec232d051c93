//! Work that runs under a lock: `Lock::with` and `Election::lead`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use latchwork_store::*;

use crate::engine::support::*;

#[tokio::test(start_paused = true)]
async fn with_runs_work_under_the_lock_and_releases() {
    let world = World::new();
    let lock = world.locks.mutex("k");
    let done = lock
        .with(async |guard| {
            guard.ensure_held().unwrap();
            assert!(lock.try_acquire().await.unwrap().is_none(), "it is held");
            guard.token()
        })
        .await
        .unwrap();
    let next = lock.try_acquire().await.unwrap().expect("it was released");
    assert!(next.token() > done);
}

#[tokio::test(start_paused = true)]
async fn with_drops_the_work_of_a_lost_lock() {
    let world = World::new();
    let (_, other) = world.another();
    let ended = Arc::new(AtomicU32::new(0));
    let error = world
        .locks
        .mutex("k")
        .ttl(3 * SEC)
        .with(async |guard| {
            let token = guard.token();
            assert_eq!(other.force_release("k").await.unwrap().evicted.len(), 1);
            world.io.sleep(60 * SEC).await;
            ended.fetch_add(1, Ordering::SeqCst);
            token
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.next_step().is_some_and(|step| step.contains("token")), "{error}");
    assert_eq!(ended.load(Ordering::SeqCst), 0);
}

/// The work is done and was protected, so the caller gets its result.
#[tokio::test(start_paused = true)]
async fn with_returns_the_result_if_the_release_is_not_answered() {
    let world = World::new();
    let store = world.store.clone();
    let lock = world.locks.mutex("k");
    let done = lock.with(async |_| {
        store.plan(|asked| match asked {
            Asked::Release => Fault::LoseRequest,
            _ => Fault::None,
        });
        7
    });
    assert_eq!(done.await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_loses_leads_again_in_a_later_term() {
    let world = World::new();
    let (_, other) = world.another();
    let election = world.locks.election("k").ttl(3 * SEC);
    let mut terms = Vec::new();
    let led = election.lead(async |leadership| {
        terms.push(leadership.term());
        if terms.len() < 3 {
            other.force_release("k").await.unwrap();
            world.io.sleep(60 * SEC).await;
        }
        terms.len()
    });
    assert_eq!(led.await.unwrap(), 3);
    assert!(terms.is_sorted() && terms[0] < terms[2], "{terms:?}");
    assert!(election.leader().await.unwrap().is_none(), "it resigned");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_keeps_campaigning_during_an_outage() {
    let world = World::new();
    world.store.plan(|_| Fault::LoseRequest);
    let (store, io) = (world.store.clone(), world.io.clone());
    let back = tokio::spawn(async move {
        io.sleep(300 * SEC).await;
        store.behave();
    });
    let election = world.locks.election("k");
    assert_eq!(election.lead(async |_| 7).await.unwrap(), 7);
    back.await.unwrap();
    let refused = world.locks.election("").lead(async |_| 7).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "what asking again cannot change is returned");
}

//! Calls of the store are counted: once each, by key and by kind.

use latchwork::BlockOn;
use latchwork::testing::{Call, TestStore};

use super::SEC;

#[tokio::test]
async fn a_lock_is_released_exactly_once() {
    let store = TestStore::new();
    let locks = store.locks();
    locks.mutex("by call").acquire().await.unwrap().release().await.unwrap();
    drop(locks.mutex("by drop").acquire().await.unwrap());
    locks.mutex("by scope").with(async |_| ()).await.unwrap();
    store.settle().await;
    for key in ["by call", "by drop", "by scope"] {
        assert_eq!(store.count_of(key, Call::Acquire), 1, "{key}");
        assert_eq!(store.count_of(key, Call::Release), 1, "{key}");
    }
    assert_eq!((store.count(Call::Acquire), store.count(Call::Release)), (3, 3));
    assert_eq!((store.count(Call::Wait), store.count(Call::Renew)), (0, 0));
}

/// An acquire that is given up is withdrawn: a release as well.
#[tokio::test]
async fn an_acquire_that_timed_out_is_withdrawn_once() {
    let store = TestStore::new();
    let held = store.locks().mutex("k").acquire().await.unwrap();
    let lock = store.locks().mutex("k");
    let timed_out = store.run_within(9 * SEC, lock.acquire_within(SEC)).await.unwrap();
    assert!(timed_out.is_err());
    store.settle().await;
    assert_eq!(store.count(Call::Release), 1);
    held.release().await.unwrap();
    assert_eq!(store.count(Call::Release), 2);
}

/// Inside of a process a lock goes from waiter to waiter without the store.
#[tokio::test]
async fn a_handover_notifies_no_other_process() {
    let store = TestStore::new();
    let locks = store.locks();
    let held = locks.mutex("k").acquire().await.unwrap();
    let lock = locks.mutex("k");
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    store.settle().await;
    held.release().await.unwrap();
    let next = waiter.await.unwrap();
    assert_eq!((store.count(Call::Acquire), store.count(Call::Release)), (1, 0));
    next.release().await.unwrap();
    assert_eq!((store.count(Call::Acquire), store.count(Call::Release)), (1, 1));
}

#[test]
fn reads_are_counted_for_threads_that_block() {
    let store = TestStore::new();
    let locks = store.locks();
    locks.inspect("k").block_on().unwrap();
    locks.list("").block_on().unwrap();
    assert_eq!((store.count_of("k", Call::Inspect), store.count(Call::Inspect)), (1, 2));
}

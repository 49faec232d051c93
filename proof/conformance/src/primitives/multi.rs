//! Several locks, all or none.

use std::time::Duration;

use latchwork::{LockManager, MultiLock};
use latchwork_store::ErrorKind;

use crate::case::{Case, case};
use crate::stage::Stage;

const ONE: &str = "multi/one";
const TWO: &str = "multi/two";
const THREE: &str = "multi/three";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(all_or_none),
        case!(a_waiting_multi_lock_holds_only_earlier_locks),
        case!(opposite_orders_do_not_deadlock),
        case!(the_loss_of_one_is_the_loss_of_all),
        case!(the_same_lock_twice_is_invalid),
    ]
}

async fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.mutex(name).try_acquire().await.unwrap().is_some()
}

/// All are held or none, also when time runs out.
async fn all_or_none(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let multi = a.locks.multi([TWO, ONE, THREE]);
    let all = multi.acquire().await.unwrap();
    let keys: Vec<&str> = all.tokens().map(|(key, _)| key).collect();
    assert_eq!(keys, [ONE, THREE, TWO]);
    all.ensure_held().unwrap();
    for name in [ONE, TWO, THREE] {
        assert!(!is_free(&b.locks, name).await, "{name} is held");
    }
    all.release().await.unwrap();
    let held = b.locks.mutex(TWO).acquire().await.unwrap();
    assert!(multi.try_acquire().await.unwrap().is_none(), "one of them is held");
    let error = multi.acquire_within(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains(TWO), "{error}");
    for name in [ONE, THREE] {
        let key = b.locks.mutex(name).key().unwrap().clone();
        stage.soon_free(&b.client, &key, "all or none").await;
    }
    held.release().await.unwrap();
    multi.acquire().await.unwrap().release().await.unwrap();
}

/// What stands behind the one that is waited for stays free.
async fn a_waiting_multi_lock_holds_only_earlier_locks(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = b.locks.mutex(THREE).acquire().await.unwrap();
    let multi = a.locks.multi([ONE, TWO, THREE]);
    let mut waiter = Box::pin(multi.acquire());
    assert!(stage.within(stage.a_while(), &mut waiter).await.is_none(), "one of them is held");
    let key = a.locks.mutex(TWO).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "it comes after the one that is waited for").await;
    assert!(!is_free(&b.locks, ONE).await, "it comes before");
    held.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

/// Two that name the same locks in opposite orders both get them, again and again.
async fn opposite_orders_do_not_deadlock(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.multi([ONE, TWO, THREE]), b.locks.multi([THREE, TWO, ONE]));
    let turns = |multi: MultiLock| async move {
        for _ in 0..5 {
            let all = multi.acquire_within(Duration::from_secs(60)).await.unwrap();
            all.ensure_held().unwrap();
            all.release().await.unwrap();
        }
    };
    tokio::join!(turns(ours), turns(theirs));
}

/// One lock that is taken away ends the hold of all.
async fn the_loss_of_one_is_the_loss_of_all(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let all = MultiLock::of([ONE, TWO].map(|name| a.brief.mutex(name).ttl(stage.short())))
        .acquire()
        .await
        .unwrap();
    b.locks.force_release(TWO).await.unwrap();
    all.lost().await;
    all.ensure_held().unwrap_err();
    assert_eq!(all.release().await.unwrap_err().kind(), ErrorKind::Lost);
    let key = b.locks.mutex(ONE).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "the others were released").await;
}

/// It would wait for itself.
async fn the_same_lock_twice_is_invalid(stage: Stage) {
    let a = stage.peer().await;
    for names in [&[ONE, TWO, ONE][..], &[]] {
        let error = a.locks.multi(names).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

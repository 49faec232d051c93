//! A mutex that its owner may enter again.

use latchwork::Owner;

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(an_owner_enters_again), case!(others_wait_until_the_last_guard_is_dropped)]
}

/// Each acquire of the owner has a guard of its own, and the last one releases.
async fn an_owner_enters_again(stage: Stage) {
    let a = stage.peer().await;
    let me = Owner::named("me");
    let mutex = a.locks.reentrant(NAME);
    let outer = mutex.acquire(&me).await.unwrap();
    let inner = mutex.acquire(&me).await.unwrap();
    let third = mutex.try_acquire(&me).await.unwrap().expect("it is our own");
    assert_eq!((outer.token(), third.token()), (inner.token(), inner.token()));
    outer.release().await.unwrap();
    drop(third);
    inner.ensure_held().unwrap();
    inner.release().await.unwrap();
    let key = a.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&a.client, &key, "the last guard is gone").await;
}

/// Other owners, other processes and plain mutexes stand outside.
async fn others_wait_until_the_last_guard_is_dropped(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (me, you) = (Owner::named("me"), Owner::named("you"));
    let (ours, theirs) = (a.locks.reentrant(NAME), b.locks.reentrant(NAME));
    let outer = ours.acquire(&me).await.unwrap();
    let inner = ours.acquire(&me).await.unwrap();
    let token = inner.token();
    assert!(ours.try_acquire(&you).await.unwrap().is_none(), "another owner here");
    assert!(theirs.try_acquire(&me).await.unwrap().is_none(), "the same name elsewhere");
    drop(inner);
    let mutex = b.locks.mutex(NAME);
    let mut waiter = Box::pin(mutex.acquire());
    assert!(stage.within(stage.a_while(), &mut waiter).await.is_none(), "the outer guard lives");
    outer.release().await.unwrap();
    assert!(waiter.await.unwrap().token() > token);
}

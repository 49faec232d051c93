//! A semaphore: up to a limit of permits together.

use latchwork_store::ErrorKind;

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(permits_are_limited_over_all_processes, |e| e.permits),
        case!(small_requests_do_not_overtake_a_large_one, |e| e.permits && e.fifo),
        case!(another_limit_is_a_mismatch, |e| e.permits),
        case!(an_impossible_request_is_refused_at_once),
        case!(is_refused_by_a_store_that_cannot_count, |e| !e.permits),
    ]
}

/// What processes hold together never passes the limit.
async fn permits_are_limited_over_all_processes(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.semaphore(NAME, 3), b.locks.semaphore(NAME, 3));
    let two = ours.permits(2).acquire().await.unwrap();
    let one = theirs.permit().acquire().await.unwrap();
    assert!(ours.permit().try_acquire().await.unwrap().is_none(), "3 of 3 are taken");
    one.release().await.unwrap();
    assert!(theirs.permits(2).try_acquire().await.unwrap().is_none(), "1 of 3 is free");
    let again = theirs.permit().acquire().await.unwrap();
    for guard in [&two, &again] {
        guard.ensure_held().unwrap();
    }
    let all = theirs.permits(3);
    let (all, ..) = tokio::join!(all.acquire(), async {
        stage.settle().await;
        two.release().await.unwrap();
        again.release().await.unwrap();
    });
    all.unwrap().release().await.unwrap();
}

/// First come, first served: small requests do not starve a large one.
async fn small_requests_do_not_overtake_a_large_one(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.semaphore(NAME, 3), b.locks.semaphore(NAME, 3));
    let first = ours.permits(2).acquire().await.unwrap();
    let large = theirs.permits(3);
    let mut large = Box::pin(large.acquire());
    assert!(stage.within(stage.a_while(), &mut large).await.is_none(), "1 of 3 is free");
    let small = ours.permit().try_acquire().await.unwrap();
    assert!(small.is_none(), "a small request passed a large one that waits");
    first.release().await.unwrap();
    large.await.unwrap().release().await.unwrap();
    ours.permit().acquire().await.unwrap().release().await.unwrap();
}

/// Two processes that disagree about the limit are told so.
async fn another_limit_is_a_mismatch(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = a.locks.semaphore(NAME, 3).permit().acquire().await.unwrap();
    let error = b.locks.semaphore(NAME, 4).permit().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    held.release().await.unwrap();
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "nobody is left").await;
    b.locks.semaphore(NAME, 4).permit().acquire().await.unwrap().release().await.unwrap();
}

/// Numbers that make no sense are refused with the name of the field.
async fn an_impossible_request_is_refused_at_once(stage: Stage) {
    let a = stage.peer().await;
    for (take, of, field) in [(0, 3, "take"), (4, 3, "take"), (0, 0, "of")] {
        let error = a.locks.semaphore(NAME, of).permits(take).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().starts_with(field), "{error}");
    }
}

/// A store without permits says so at once.
async fn is_refused_by_a_store_that_cannot_count(stage: Stage) {
    let a = stage.peer().await;
    stage.refused(a.locks.semaphore(NAME, 3).permit().try_acquire().await);
    stage.refused(a.locks.semaphore(NAME, 3).permits(2).acquire().await);
}

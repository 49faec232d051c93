//! A hold that passes to another process, on stores that allow it.

use latchwork::HoldState;
use latchwork_store::ErrorKind;

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(adoption_keeps_the_token),
        case!(an_unadopted_hold_ends_with_its_ttl),
        case!(a_ticket_of_an_ended_hold_is_refused),
    ]
}

/// Whether the store lets a process go on with the claim of another.
async fn detaches(stage: &Stage) -> bool {
    stage.client().await.backend.renews_for_others()
}

/// In between nobody gets the lock, and the adopted hold lives on renewals.
async fn adoption_keeps_the_token(stage: Stage) {
    let (a, b, c) = (stage.peer().await, stage.peer().await, stage.peer().await);
    let ttl = stage.short() * 2;
    let guard = a.brief.mutex(NAME).ttl(ttl).acquire().await.unwrap();
    let token = guard.token();
    if !detaches(&stage).await {
        let error = guard.detach().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let key = a.locks.mutex(NAME).key().unwrap().clone();
        stage.soon_free(&a.client, &key, "it was released as by a drop").await;
        return;
    }
    let ticket = guard.detach().await.unwrap();
    a.locks.close().await;
    assert!(c.locks.mutex(NAME).try_acquire().await.unwrap().is_none());
    // With the token of another manager's count, the next holder would be fenced.
    let error = b.locks.clone().token_floor(token).adopt(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let adopted = b.locks.adopt(&ticket).await.unwrap();
    assert_eq!(adopted.token(), token);
    stage.sleep(ttl * 3 / 2).await;
    assert_eq!(adopted.state(), HoldState::Held);
    assert!(c.locks.mutex(NAME).try_acquire().await.unwrap().is_none());
    adopted.release().await.unwrap();
    let next = c.locks.mutex(NAME).acquire_within(ttl * 2).await.unwrap();
    assert!(next.token() > token);
}

/// The process may die with the ticket in its hands.
async fn an_unadopted_hold_ends_with_its_ttl(stage: Stage) {
    if !detaches(&stage).await {
        return;
    }
    let (a, b) = (stage.peer().await, stage.peer().await);
    let guard = a.brief.mutex(NAME).ttl(stage.short()).acquire().await.unwrap();
    let start = stage.now();
    let ticket = guard.detach().await.unwrap();
    let next = b.locks.mutex(NAME).acquire().await.unwrap();
    let took = stage.now().since(start);
    assert!(took >= stage.short() && took <= stage.short() * 4, "{took:?} of {:?}", stage.short());
    let error = b.locks.adopt(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    next.ensure_held().unwrap();
}

/// Adopting it acquires nothing.
async fn a_ticket_of_an_ended_hold_is_refused(stage: Stage) {
    if !detaches(&stage).await {
        return;
    }
    let (a, b) = (stage.peer().await, stage.peer().await);
    let ticket = a.locks.mutex(NAME).acquire().await.unwrap().detach().await.unwrap();
    b.locks.adopt(&ticket).await.unwrap().release().await.unwrap();
    let error = b.locks.adopt(&ticket).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "nothing was acquired").await;
    let error = b.locks.adopt("lwd1.x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

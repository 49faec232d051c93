//! A token floor: the tokens of this store are above those of the store before.

use latchwork_store::{ErrorKind, Fencing, FencingToken};

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(every_token_is_above_the_floor, |e| e.fencing != Fencing::None),
        case!(a_floor_without_room_above_it_is_refused),
    ]
}

/// Tokens, what is shown of them, and those of forced releases.
async fn every_token_is_above_the_floor(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let floor = FencingToken::from_grant(3_000_000_000_000_000).handed_over(7).unwrap();
    let (a, b) = (a.locks.token_floor(floor), b.locks.token_floor(floor));
    let first = a.mutex(NAME).acquire().await.unwrap();
    let mut newest = first.token();
    assert!(newest > floor, "{newest} above {floor}");
    let shown = b.inspect(NAME).await.unwrap();
    assert_eq!(shown.holders[0].token.map(FencingToken::from_grant), Some(newest));
    first.release().await.unwrap();
    let second = b.mutex(NAME).acquire().await.unwrap();
    assert!(second.token() > newest, "{} above {newest}", second.token());
    newest = second.token();
    let forced = a.force_release(NAME).await.unwrap();
    assert!(forced.token.is_none_or(|token| token > newest), "{forced:?}");
    drop(second);
    let third = a.mutex(NAME).acquire().await.unwrap();
    assert!(third.token() > newest, "{} above {newest}", third.token());
    third.release().await.unwrap();
}

/// A floor that leaves too few numbers is never used.
async fn a_floor_without_room_above_it_is_refused(stage: Stage) {
    let a = stage.peer().await;
    let locks = a.locks.token_floor(FencingToken::from_grant(u64::MAX));
    let error = locks.mutex(NAME).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("token_floor"), "{error}");
}

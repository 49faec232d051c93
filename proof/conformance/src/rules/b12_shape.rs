//! B12: a key used as two kinds of lock, or with two permit limits, answers `Mismatch`.

use latchwork_store::{BackendErrorKind, Effect, Mode, Released};

use crate::case::{Case, case};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(two_kinds_on_one_key_do_not_match, |e| e.shared || e.permits),
        case!(two_limits_on_one_key_do_not_match, |e| e.permits),
        case!(a_free_key_takes_any_kind),
    ]
}

fn modes(stage: &Stage) -> Vec<Mode> {
    let mut modes = stage.filling_modes();
    modes.retain(|mode| !matches!(mode, Mode::Permits { .. }));
    if stage.expected().permits {
        modes.extend([1, 2, 3].map(|of| Mode::Permits { take: 1, of }));
    }
    modes
}

async fn mismatch(stage: &Stage, held: Mode, wanted: Mode) {
    let (a, b) = (stage.client().await, stage.client().await);
    let (first, other) = (stage.claim(held), stage.claim(wanted));
    stage.granted(&a, &first, "the key is free").await;
    let error = match b.attempt(&other).await {
        Err(error) => error,
        Ok(answer) => panic!("{wanted:?} on a key held as {held:?}: {answer:?}"),
    };
    assert_eq!(error.kind, BackendErrorKind::Mismatch, "{wanted:?} on {held:?}: {error:?}");
    if error.effect == Effect::NotApplied {
        assert_eq!(b.release(&other).await, Released::NotHeld, "{wanted:?} on {held:?}");
    } else {
        b.release(&other).await;
    }
    let shape = Some(held.shape());
    let why = "a mismatch changes and leaves nothing";
    stage.soon(&b, &first.key, why, |shown| shown.shape == shape && shown.waiters.is_empty()).await;
    a.held(&first, "a mismatch does not touch it").await;
    a.released(&first, "it was held").await;
}

/// Every pair of different kinds: the one that came second is told, and leaves nothing.
async fn two_kinds_on_one_key_do_not_match(stage: Stage) {
    for held in modes(&stage) {
        for wanted in modes(&stage) {
            if held.shape() != wanted.shape() {
                mismatch(&stage, held, wanted).await;
            }
        }
    }
}

/// Two limits on one key would let in more than either: the second is told.
async fn two_limits_on_one_key_do_not_match(stage: Stage) {
    for (held, wanted) in [(2, 3), (3, 2), (1, 1_000_000)] {
        mismatch(
            &stage,
            Mode::Permits { take: 1, of: held },
            Mode::Permits { take: 1, of: wanted },
        )
        .await;
    }
}

/// A key that nobody holds or waits for has no kind yet.
async fn a_free_key_takes_any_kind(stage: Stage) {
    let a = stage.client().await;
    for _ in 0..2 {
        for mode in modes(&stage) {
            let claim = stage.claim(mode);
            stage.soon(&a, &claim.key, "it is free", |shown| shown.shape.is_none()).await;
            stage.granted(&a, &claim, "a free key has no kind").await;
            assert_eq!(a.show(&claim.key).await.shape, Some(mode.shape()));
            a.released(&claim, "it was held").await;
        }
    }
}

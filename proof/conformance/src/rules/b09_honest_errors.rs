//! B9: contention is not an error; `NotApplied` only when certain.

use latchwork_store::{Attempt, BackendError, BackendErrorKind, Cause, Claim, Effect, Linger, Mode, Released};

use crate::case::{Case, case};
use crate::harness::{Client, Fault};
use crate::stage::Stage;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(capabilities_are_as_expected),
        case!(contention_is_an_answer),
        case!(shared_claims_are_refused_clearly, |e| !e.shared),
        case!(permits_are_refused_clearly, |e| !e.permits),
        case!(a_linger_is_refused_clearly, |e| !e.linger),
        case!(a_lost_request_is_no_answer),
        case!(a_lost_answer_may_have_applied),
    ]
}

/// The backend says of itself what its author says, and can grant what the trials ask for.
async fn capabilities_are_as_expected(stage: Stage) {
    let client = stage.client().await;
    let (can, expected) = (client.backend.capabilities(), stage.expected());
    assert_eq!(can.shared, expected.shared, "shared");
    assert_eq!(can.upgrade, expected.upgrade, "upgrade");
    assert_eq!(can.permits, expected.permits, "permits");
    assert_eq!(can.mixed_limits, expected.mixed_limits, "mixed limits");
    assert_eq!(can.resize, expected.resize, "resize");
    assert_eq!(can.fifo, expected.fifo, "fifo");
    assert_eq!(can.linger, expected.linger, "linger");
    assert_eq!(can.push, expected.push, "push");
    assert_eq!(can.fencing, expected.fencing, "fencing");
    assert!(!can.store.is_empty(), "the store has an address for messages");
    for ttl in [can.default_ttl, stage.short(), stage.claim(Mode::Exclusive).ttl] {
        assert!(can.ttl.contains(&ttl), "{ttl:?} is outside of {:?}", can.ttl);
    }
    assert_eq!(client.backend.capabilities(), can, "the answer never changes");
}

/// Who finds the key held is told so, by whom, and when to look again: `Blocked`, never an error.
async fn contention_is_an_answer(stage: Stage) {
    let (a, b) = (stage.client().await, stage.client().await);
    for mode in stage.filling_modes() {
        let held = stage.claim(mode);
        let rival = if mode == Mode::Read { Mode::Write } else { mode };
        stage.granted(&a, &held, "the key is free").await;
        for _ in 0..3 {
            let blocked = b.blocked(&stage.passer(rival), "the key is held").await;
            assert_eq!(blocked.cause, Cause::Held, "{mode:?}");
            assert!(blocked.holder.is_none_or(|text| text == held.holder), "{mode:?}");
            let soon = blocked.retry_after.is_none_or(|after| after <= held.ttl * 2);
            assert!(soon, "{mode:?}: look again after {:?}", blocked.retry_after);
            assert!(blocked.retry_after.is_none_or(|after| !after.is_zero()), "{mode:?}");
        }
        a.released(&held, "it was held").await;
    }
}

fn is_clear(error: &BackendError, what: &str) {
    assert_eq!(error.kind, BackendErrorKind::Unsupported, "{what}: {error:?}");
    assert_eq!(error.effect, Effect::NotApplied, "{what}: a refusal changes nothing");
    assert!(!error.message.is_empty(), "{what}: a refusal says why");
}

async fn refuses(stage: &Stage, mode: Mode) {
    let a = stage.client().await;
    let claim = stage.claim(mode);
    let error = a.attempt(&claim).await.expect_err("it cannot do this");
    is_clear(&error, &format!("{mode:?}"));
    assert!(a.show(&claim.key).await.is_free(), "{mode:?}: a refusal leaves nothing");
    let plain = stage.claim(Mode::Exclusive);
    stage.granted(&a, &plain, "a refusal leaves nothing").await;
}

/// A store without read and write claims refuses them with `Unsupported`.
async fn shared_claims_are_refused_clearly(stage: Stage) {
    refuses(&stage, Mode::Read).await;
    let again = Stage::again(&stage).await;
    refuses(&again, Mode::Write).await;
}

/// A store without permit claims refuses them with `Unsupported`.
async fn permits_are_refused_clearly(stage: Stage) {
    refuses(&stage, Mode::Permits { take: 1, of: 2 }).await;
}

/// A store that cannot linger refuses to, with `Unsupported`, and the claim is still held.
async fn a_linger_is_refused_clearly(stage: Stage) {
    let a = stage.client().await;
    let claim = stage.claim(Mode::Exclusive);
    stage.granted(&a, &claim, "the key is free").await;
    let linger = Linger::For(stage.short());
    let error = a.backend.release(&claim, linger).await.expect_err("it cannot linger");
    is_clear(&error, "a linger");
    a.held(&claim, "a refused release does not apply").await;
    a.released(&claim, "it was held").await;
    stage.granted(&a, &stage.claim(Mode::Exclusive), "the key is free").await;
}

/// While requests are lost, verbs fail as `Unreachable` or do not answer; they never make an
/// answer up.
async fn a_lost_request_is_no_answer(stage: Stage) {
    faulty(&stage, Fault::LoseRequests).await;
}

/// When only the answer is lost the verb may have applied, and must not say that it did not.
async fn a_lost_answer_may_have_applied(stage: Stage) {
    faulty(&stage, Fault::LoseAnswers).await;
}

/// A release when the fault has ended. A connection that was begun before that may still fail, and a busy client notices
/// its end late.
async fn released(stage: &Stage, client: &Client, claim: &Claim) -> Released {
    let start = stage.now();
    let is_early = || stage.now().since(start) <= stage.lateness(start);
    loop {
        match client.backend.release(claim, Linger::None).await {
            Err(error) if error.effect == Effect::NotApplied => stage.settle().await,
            Err(error) if error.kind == BackendErrorKind::Unreachable && is_early() => {
                stage.settle().await;
            }
            answer => return answer.expect("a release without fault"),
        }
    }
}

async fn faulty(stage: &Stage, fault: Fault) {
    let (a, b) = (stage.client().await, stage.client().await);
    let held = stage.claim(Mode::Exclusive);
    let token = stage.granted(&a, &held, "the key is free").await.token;
    if !a.set_fault(fault) {
        return plain_faults(stage, &a, &b, &held).await;
    }
    let limit = stage.short();
    let other = stage.claim(held.mode).with(|it| it.key = latchwork_store::Key::new("other").expect("good"));

    let renewal = stage.within(limit, a.backend.renew_all(std::slice::from_ref(&held))).await;
    if let Some(answers) = renewal {
        assert_eq!(answers.len(), 1);
        let error = answers[0].as_ref().expect_err("the store cannot be heard");
        assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
    }
    let attempt = stage.within(limit, a.attempt(&other)).await;
    let certain = match attempt {
        Some(Ok(answer)) => panic!("the store cannot be heard, but {answer:?}"),
        Some(Err(error)) => {
            assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
            error.effect == Effect::NotApplied
        }
        None => false,
    };
    if certain {
        assert!(b.show(&other.key).await.is_free(), "`NotApplied`, but there it is");
    }
    a.set_fault(Fault::None);
    let again = stage.within(limit * 4, released(stage, &a, &other)).await.expect("it answers again");
    assert!(!certain || again == Released::NotHeld, "`NotApplied`, but it was there");
    stage.granted(&b, &other_of(stage, &other), "what may have applied was released").await;
    assert_eq!(a.held(&held, "no error ends a claim").await.1, token);
}

fn other_of(stage: &Stage, claim: &Claim) -> Claim {
    stage.claim(claim.mode).with(|it| it.key = claim.key.clone())
}

/// For a harness that cannot disturb the way: an error that can be had without a fault, a refusal
/// of shape, must be certain and true.
async fn plain_faults(stage: &Stage, a: &Client, b: &Client, held: &Claim) {
    let other_shape = if stage.expected().shared {
        Mode::Read
    } else {
        Mode::Permits { take: 1, of: 2 }
    };
    let claim = stage.claim(other_shape);
    let error = match b.attempt(&claim).await {
        Err(error) => error,
        Ok(Attempt::Granted(_) | Attempt::Blocked(_)) => panic!("the key is a mutex"),
    };
    if error.effect == Effect::NotApplied {
        let shown = a.show(&held.key).await;
        assert!(shown.waiters.is_empty() && shown.holders.len() == 1, "{shown:?}");
        assert_eq!(b.release(&claim).await, Released::NotHeld);
    }
}

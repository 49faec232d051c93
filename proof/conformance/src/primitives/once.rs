//! A task that is done once in each period.

use std::time::Duration;

use latchwork::Period;
use latchwork::once::{Begun, OnceOutcome, Reset, Run, Skipped};
use latchwork_store::Mode;

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(success_closes_the_period_for_all, |e| e.linger),
        case!(a_skip_names_the_host_and_time_of_the_run, |e| e.linger),
        case!(failure_opens_it_for_others, |e| e.linger),
        case!(a_run_that_was_dropped_opens_it_for_others, |e| e.linger),
        case!(a_host_that_dies_opens_it_after_its_ttl, |e| e.linger),
        case!(the_next_period_is_open, |e| e.linger),
        case!(a_run_into_the_next_period_leaves_that_one_open, |e| e.linger),
        case!(a_waiting_host_learns_of_success, |e| e.linger),
        case!(a_waiting_host_takes_over_after_a_failure, |e| e.linger),
        case!(a_reset_opens_the_task_again, |e| e.linger),
        case!(a_reset_leaves_a_run_alone, |e| e.linger),
        case!(a_reset_of_an_open_task_says_so, |e| e.linger),
        case!(a_reset_admits_the_waiter, |e| e.linger),
        case!(is_refused_by_a_store_that_cannot_keep_a_key_closed, |e| !e.linger),
    ]
}

/// A period that does not end during a trial.
fn long() -> Period {
    Period::parse("100y", None).expect("a good period")
}

const SHORT: Duration = Duration::from_secs(5);

fn short() -> Period {
    Period::parse("5s", None).expect("a good period")
}

fn begun(begun: Begun) -> Run {
    match begun {
        Begun::Run(run) => run,
        Begun::Skipped(why) => panic!("expected to begin, was told: {why}"),
    }
}

fn skipped(begun: Begun) -> Skipped {
    match begun {
        Begun::Run(run) => panic!("expected to be told why not, got {run:?}"),
        Begun::Skipped(why) => why,
    }
}

/// Nobody does it again in the period of a success.
async fn success_closes_the_period_for_all(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.once(NAME, long()), b.locks.once(NAME, long()));
    let run = begun(ours.try_begin().await.unwrap());
    run.ensure_held().unwrap();
    let why = skipped(theirs.try_begin().await.unwrap());
    assert!(matches!(why, Skipped::Running { .. }), "{why:?}");
    run.succeed().await.unwrap();
    for once in [&ours, &theirs] {
        let why = skipped(once.try_begin().await.unwrap());
        assert!(matches!(why, Skipped::Done { .. }), "{why:?}");
    }
    let outcome = theirs.run(async |_| Ok::<(), ()>(())).await.unwrap();
    assert!(matches!(outcome, OnceOutcome::Skipped(Skipped::Done { .. })), "{outcome:?}");
}

/// By the clock of the host that did it, also to one that waited for its end.
async fn a_skip_names_the_host_and_time_of_the_run(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let ours = a.locks.once(NAME, long()).holder("web-2");
    let theirs = b.locks.once(NAME, long()).holder("web-3");
    let run = begun(ours.try_begin().await.unwrap());
    let wall = || stage.io().clock().wall();
    let (told, times) = tokio::join!(theirs.begin_within(Duration::from_secs(60)), async {
        stage.settle().await;
        let before = wall();
        run.succeed().await.unwrap();
        (before, wall())
    });
    for why in [skipped(told.unwrap()), skipped(ours.try_begin().await.unwrap())] {
        assert!(why.to_string().starts_with("done by web-2 at 20"), "{why}");
        let Skipped::Done { at: Some(at), .. } = why else { panic!("{why:?}") };
        // Stores keep whole milliseconds.
        let (before, after) = (times.0 - Duration::from_millis(1), times.1);
        assert!(before <= at && at <= after, "{at:?}, done from {before:?} to {after:?}");
    }
}

/// A failure leaves the task to whoever tries next.
async fn failure_opens_it_for_others(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let outcome =
        a.locks.once(NAME, long()).run(async |_| Err::<(), _>("no paper")).await.unwrap();
    assert!(matches!(outcome, OnceOutcome::Failed("no paper")), "{outcome:?}");
    let outcome = b.locks.once(NAME, long()).run(async |_| Ok::<_, ()>(7)).await.unwrap();
    assert!(matches!(outcome, OnceOutcome::Done(7)), "{outcome:?}");
}

/// A run that nobody closed is a failure.
async fn a_run_that_was_dropped_opens_it_for_others(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    drop(begun(a.locks.once(NAME, long()).try_begin().await.unwrap()));
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "dropped").await;
    drop(begun(b.locks.once(NAME, long()).try_begin().await.unwrap()));
}

/// A dead host leaves the task to who waits.
async fn a_host_that_dies_opens_it_after_its_ttl(stage: Stage) {
    let (dead, b) = (stage.client().await, stage.peer().await);
    stage.granted(&dead, &stage.short_claim(Mode::Exclusive), "the key is free").await;
    let once = b.locks.once(NAME, long());
    assert!(matches!(skipped(once.try_begin().await.unwrap()), Skipped::Running { .. }));
    drop(begun(once.begin_within(Duration::from_secs(100)).await.unwrap()));
}

/// What was done in one period can be done in the next one from its first moment on, and not before.
async fn the_next_period_is_open(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    // A process that has had the key before may ask for it in a shorter way.
    b.locks.mutex(NAME).acquire().await.unwrap().release().await.unwrap();
    let run = begun(a.locks.once(NAME, short()).try_begin().await.unwrap());
    let end = run.period().end;
    run.succeed().await.unwrap();
    let theirs = b.locks.once(NAME, short());
    let wall = || stage.io().clock().wall();
    match theirs.try_begin().await.unwrap() {
        Begun::Skipped(why) => assert!(matches!(why, Skipped::Done { .. }), "{why:?}"),
        Begun::Run(run) => {
            assert!(wall() >= end, "begun again in the same period");
            run.fail().await.unwrap();
        }
    }
    stage.sleep(end.saturating_sub(wall())).await;
    // Whatever the store's clock, and in whatever units it counts.
    let start = stage.now();
    let run = begun(theirs.try_begin().await.unwrap());
    assert!(run.period().start >= end, "{:?} after {end:?}", run.period());
    let took = stage.now().since(start);
    assert!(took <= SHORT / 2 + stage.lateness(start), "began {took:?} into the period");
}

/// Success closes the period in which the run started, not the one in which it ended.
async fn a_run_into_the_next_period_leaves_that_one_open(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let run = begun(a.locks.once(NAME, short()).try_begin().await.unwrap());
    let first = run.period();
    stage.sleep(SHORT).await;
    run.succeed().await.unwrap();
    let next = begun(b.locks.once(NAME, short()).begin_within(SHORT / 10).await.unwrap());
    assert!(next.period().start >= first.end, "{:?} after {first:?}", next.period());
}

/// Who waits for another run hears that there is nothing left to do.
async fn a_waiting_host_learns_of_success(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let run = begun(a.locks.once(NAME, long()).try_begin().await.unwrap());
    let once = b.locks.once(NAME, long());
    let (told, closed) = tokio::join!(once.begin_within(Duration::from_secs(60)), async {
        stage.settle().await;
        run.succeed().await
    });
    closed.unwrap();
    assert!(matches!(skipped(told.unwrap()), Skipped::Done { .. }));
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon(&b.client, &key, "nobody waits", |seen| seen.waiters.is_empty()).await;
}

/// Who waits for another run begins when that one fails.
async fn a_waiting_host_takes_over_after_a_failure(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let run = begun(a.locks.once(NAME, long()).try_begin().await.unwrap());
    let token = run.token();
    let once = b.locks.once(NAME, long());
    let (told, failed) = tokio::join!(once.begin_within(Duration::from_secs(60)), async {
        stage.settle().await;
        run.fail().await
    });
    failed.unwrap();
    assert!(begun(told.unwrap()).token() > token);
}

/// The next run has the greater token, and closes the task anew.
async fn a_reset_opens_the_task_again(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.once(NAME, long()), b.locks.once(NAME, long()));
    let run = begun(ours.try_begin().await.unwrap());
    let token = run.token();
    run.succeed().await.unwrap();
    // Whatever period the caller knows of.
    let reset = b.locks.once(NAME, short()).reset().await.unwrap();
    let Reset::Opened { closed_for: Some(left) } = reset else { panic!("{reset:?}") };
    assert!(left > SHORT, "{left:?}");
    let next = begun(theirs.try_begin().await.unwrap());
    assert!(next.token() > token, "{:?} after {token:?}", next.token());
    next.succeed().await.unwrap();
    let why = skipped(ours.try_begin().await.unwrap());
    assert!(matches!(why, Skipped::Done { .. }), "{why:?}");
}

/// It names the holder, and what is running closes the task when it succeeds.
async fn a_reset_leaves_a_run_alone(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.once(NAME, long()).holder("us"), b.locks.once(NAME, long()));
    let run = begun(ours.try_begin().await.unwrap());
    for once in [&ours, &theirs] {
        let reset = once.reset().await.unwrap();
        assert_eq!(reset, Reset::Running { holder: Some("us".into()) });
    }
    run.ensure_held().unwrap();
    run.succeed().await.unwrap();
    let why = skipped(theirs.try_begin().await.unwrap());
    assert!(matches!(why, Skipped::Done { .. }), "{why:?}");
}

/// One that was never done, one that failed, and one that was reset before.
async fn a_reset_of_an_open_task_says_so(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.once(NAME, long()), b.locks.once(NAME, long()));
    assert_eq!(theirs.reset().await.unwrap(), Reset::NotClosed);
    begun(ours.try_begin().await.unwrap()).fail().await.unwrap();
    assert_eq!(theirs.reset().await.unwrap(), Reset::NotClosed);
    begun(ours.try_begin().await.unwrap()).succeed().await.unwrap();
    assert!(matches!(theirs.reset().await.unwrap(), Reset::Opened { .. }));
    assert_eq!(ours.reset().await.unwrap(), Reset::NotClosed);
    drop(begun(ours.try_begin().await.unwrap()));
}

/// A mutex of the same name waits until the period is over, or until it is opened.
async fn a_reset_admits_the_waiter(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let once = a.locks.once(NAME, long());
    begun(once.try_begin().await.unwrap()).succeed().await.unwrap();
    let mutex = b.locks.mutex(NAME);
    let mut waits = std::pin::pin!(mutex.acquire());
    let early = stage.within(Duration::from_millis(50), &mut waits).await;
    assert!(early.is_none(), "admitted to a closed key");
    assert!(matches!(once.reset().await.unwrap(), Reset::Opened { .. }));
    waits.await.unwrap().release().await.unwrap();
}

/// Before the work, not after it.
async fn is_refused_by_a_store_that_cannot_keep_a_key_closed(stage: Stage) {
    let a = stage.peer().await;
    let once = a.locks.once(NAME, long());
    stage.refused(once.try_begin().await);
    stage.refused(once.reset().await);
}

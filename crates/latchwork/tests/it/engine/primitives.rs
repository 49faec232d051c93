//! The primitives where holds are lost, requests get none of their answers, and clocks are set.

use std::time::Duration;

use latchwork::once::{Begun, NotClosed, OnceOutcome, Reset, Run, Skipped};
use latchwork::{AdaptiveTtl, Driver, HoldState, LockManager, Once, Owner, Period};
use latchwork_store::*;

use crate::engine::support::*;

fn daily() -> Period {
    Period::daily("UTC").unwrap()
}

async fn begin(once: &Once) -> Run {
    match once.try_begin().await.unwrap() {
        Begun::Run(run) => run,
        Begun::Skipped(why) => panic!("{why}"),
    }
}

/// The last of an owner's guards frees the lock in the moment in which another one leaves.
#[test]
fn guards_of_an_owner_that_are_released_at_once_were_not_lost() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        let driver = Driver::start().unwrap();
        let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (me, mutex) = (Owner::named("me"), locks.reentrant("k"));
            tasks.spawn(async move {
                for _ in 0..20_000 {
                    mutex.acquire(&me).await.unwrap().release().await.unwrap();
                }
            });
        }
        tasks.join_all().await;
    });
}

#[tokio::test(start_paused = true)]
async fn entering_again_asks_the_store_nothing() {
    let world = World::new();
    let (me, mutex) = (Owner::named("me"), world.locks.reentrant("k"));
    let outer = mutex.acquire(&me).await.unwrap();
    let inner = mutex.acquire(&me).await.unwrap();
    drop(outer);
    inner.release().await.unwrap();
    assert_eq!(world.store.asked(), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_owner_side_by_side_share_one_hold() {
    let world = World::new();
    world.store.plan(|_| Fault::DelayAnswer(100 * MS));
    let (me, mutex) = (Owner::named("me"), world.locks.reentrant("k"));
    let (one, two, at_once) =
        tokio::join!(mutex.acquire(&me), mutex.acquire_within(&me, SEC), mutex.try_acquire(&me));
    assert_eq!(one.unwrap().token(), two.unwrap().token());
    assert!(at_once.unwrap().is_none(), "a single try waits for nobody");
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_lost_its_hold_enters_a_new_one() {
    let world = World::new();
    let (me, mutex) = (Owner::named("me"), world.locks.reentrant("k").ttl(10 * SEC));
    let lost = mutex.acquire(&me).await.unwrap();
    world.clock.suspend(11 * SEC);
    let fresh = mutex.acquire(&me).await.unwrap();
    assert!(fresh.token() > lost.token());
    assert!(matches!(lost.state(), HoldState::Lost(_)));
    // The guards of the lost hold have no share in the new one.
    assert_eq!(lost.release().await.unwrap_err().kind(), ErrorKind::Lost);
    fresh.ensure_held().unwrap();
    let again = mutex.acquire(&me).await.unwrap();
    drop(fresh);
    again.ensure_held().unwrap();
    again.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_acquire_was_dropped_can_come_again() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let (me, mutex) = (Owner::named("me"), world.locks.reentrant("k"));
    assert!(world.io.within(SEC, mutex.acquire(&me)).await.is_none());
    let error = mutex.acquire_within(&me, SEC).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    held.release().await.unwrap();
    mutex.acquire_within(&me, SEC).await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_and_threads_are_owners() {
    assert_ne!(Owner::current_thread(), Owner::named("main"));
    assert_eq!(Owner::current_thread(), Owner::current_thread());
    let one = tokio::spawn(async { (Owner::current_task(), Owner::current_task()) }).await.unwrap();
    let two = tokio::spawn(async { Owner::current_task() }).await.unwrap();
    assert!(one.0.is_some() && one.0 == one.1 && one.0 != two, "{one:?} {two:?}");
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_is_free_takes_one_trip() {
    let world = World::new();
    world.store.plan(|_| Fault::DelayAnswer(100 * MS));
    let start = world.io.now();
    let all = world.locks.multi(["a", "b", "c"]).acquire().await.unwrap();
    assert_eq!(world.io.now().since(start), 100 * MS);
    assert_eq!(world.store.asked(), (3, 0));
    all.release().await.unwrap();
    assert_eq!(world.io.now().since(start), 200 * MS);
    assert_eq!(world.store.asked(), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_multi_lock_restarts_after_a_loss() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("b").acquire().await.unwrap();
    let multi = world.locks.multi(["a", "b"]);
    let mut waiter = Box::pin(multi.acquire());
    assert!(world.io.within(SEC, &mut waiter).await.is_none());
    let evicted = other.force_release("a").await.unwrap();
    assert_eq!(evicted.evicted.len(), 1, "the first was held while the second was waited for");
    // Told at the next renewal, it gives up its place at the second and takes the first again.
    assert!(world.io.within(15 * SEC, &mut waiter).await.is_none());
    let first = other.inspect("a").await.unwrap();
    assert_eq!(first.holders.len(), 1, "{first:?}");
    held.release().await.unwrap();
    let all = waiter.await.unwrap();
    all.ensure_held().unwrap();
    assert!(all.guards()[0].token() > evicted.token.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_taken_out_is_released_alone() {
    let world = World::new();
    let mut all = world.locks.multi(["a", "b"]).acquire().await.unwrap();
    assert!(all.take("c").is_none());
    all.take("a").unwrap().release().await.unwrap();
    assert!(world.locks.mutex("a").try_acquire().await.unwrap().is_some());
    assert!(world.locks.mutex("b").try_acquire().await.unwrap().is_none());
    assert!(all.take("b").is_none(), "the last one stays");
    all.ensure_held().unwrap();
    all.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_is_refused_is_free_when_the_error_comes() {
    let world = World::new();
    let (_, other) = world.another();
    let _taken = other.mutex("b").acquire().await.unwrap();
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::DelayRequest(50 * MS),
        _ => Fault::None,
    });
    let error = world.locks.multi(["a", "b"]).acquire_within(SEC).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(other.mutex("a").try_acquire().await.unwrap().is_some());
    // A store that does not answer is not waited for.
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::Hang,
        _ => Fault::None,
    });
    let start = world.io.now();
    world.locks.multi(["c", "b"]).acquire_within(SEC).await.unwrap_err();
    assert!(world.io.now() <= start.plus(1_250 * MS));
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_that_fails_gives_everything_back() {
    let world = World::new();
    let (_, other) = world.another();
    let mut third = 0;
    world.store.plan(move |asked| match asked {
        Asked::Try => {
            third += 1;
            if third == 3 { Fault::LoseAnswer } else { Fault::None }
        }
        _ => Fault::None,
    });
    world.locks.multi(["a", "b", "c"]).try_acquire().await.unwrap_err();
    world.io.sleep(SEC).await;
    for name in ["a", "b", "c"] {
        assert!(other.mutex(name).try_acquire().await.unwrap().is_some(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn closing_a_period_survives_a_lost_answer() {
    let world = World::new();
    let (_, other) = world.another();
    let once = world.locks.once("k", daily());
    let run = begin(&once).await;
    let mut lost = false;
    world.store.plan(move |asked| match asked {
        Asked::Release if !std::mem::replace(&mut lost, true) => Fault::LoseRequest,
        _ => Fault::None,
    });
    let done_at = world.io.clock().wall();
    run.succeed().await.unwrap_err();
    world.io.sleep(SEC).await;
    let told = other.once("k", daily()).try_begin().await.unwrap();
    let Begun::Skipped(Skipped::Done { at, .. }) = told else { panic!("{told:?}") };
    assert_eq!(at, Some(done_at), "when it was done, not when the store heard of it");
}

#[tokio::test(start_paused = true)]
async fn a_lost_run_leaves_the_period_open() {
    let world = World::new();
    let once = world.locks.once("k", daily()).ttl(10 * SEC);
    let outcome = once
        .run(async |run| {
            world.clock.suspend(11 * SEC);
            run.ensure_held().unwrap_err();
            Ok::<_, ()>("done all the same")
        })
        .await
        .unwrap();
    assert!(matches!(outcome, OnceOutcome::DoneNotClosed(_, NotClosed::Lost)), "{outcome:?}");
    let (_, other) = world.another();
    begin(&other.once("k", daily())).await.fail().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn work_that_outlives_its_hold_is_dropped() {
    let world = World::new();
    let once = world.locks.once("k", daily()).max_hold(5 * SEC);
    let work = once.run(async |_| {
        world.io.sleep(10 * SEC).await;
        Ok::<_, ()>(())
    });
    let outcome = work.await.unwrap();
    let OnceOutcome::Lost(lost) = outcome else { panic!("{outcome:?}") };
    assert_eq!(lost.reason, LostReason::MaxHold);
}

#[tokio::test(start_paused = true)]
async fn a_closed_period_opens_at_its_end() {
    let world = World::new();
    let (_, other) = world.another();
    let every = Period::parse("1h", None).unwrap();
    let run = begin(&world.locks.once("k", every.clone())).await;
    // Somebody sets this host's clock to last week.
    world.clock.set_wall_back(Duration::from_secs(7 * 24 * 3600));
    run.succeed().await.unwrap();
    world.io.sleep(Duration::from_secs(3600)).await;
    begin(&other.once("k", every)).await.fail().await.unwrap();
}

/// A run under way may fail, so its end is waited for; a period that is done is not.
#[tokio::test(start_paused = true)]
async fn a_task_waits_for_a_run_and_not_for_a_period() {
    let world = World::new();
    let (_, other) = world.another();
    let every = Period::parse("1h", None).unwrap();
    let run = begin(&world.locks.once("k", every.clone())).await;
    let task = other.once("k", every);
    let start = world.io.now();
    let (begun, ()) = tokio::join!(task.begin_within(10 * SEC), async {
        world.io.sleep(2 * SEC).await;
        run.fail().await.unwrap();
    });
    assert!(world.io.now().since(start) >= 2 * SEC);
    let Begun::Run(run) = begun.unwrap() else { panic!("the run had failed") };
    run.succeed().await.unwrap();
    let start = world.io.now();
    assert!(matches!(task.begin_within(10 * SEC).await.unwrap(), Begun::Skipped(_)));
    assert!(world.io.now().since(start) < SEC);
}

/// A mutex on a key that is kept closed for a while is acquired when that is over.
#[tokio::test(start_paused = true)]
async fn a_mutex_waits_for_a_key_that_is_kept_closed() {
    let world = World::new();
    let one = latchwork_store::testing::claim("k");
    world.store.inner.try_acquire(&one).await.unwrap();
    world.store.inner.release(&one, Linger::For(5 * SEC)).await.unwrap();
    let start = world.io.now();
    let guard = world.locks.mutex("k").acquire_within(20 * SEC).await.unwrap();
    assert!((5 * SEC..6 * SEC).contains(&world.io.now().since(start)));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_observer_continues_after_an_error() {
    use futures_util::StreamExt;

    let world = World::new();
    let election = world.locks.election("k").candidate("us");
    let leadership = election.campaign().await.unwrap();
    let mut seen = std::pin::pin!(election.observe());
    assert_eq!(seen.next().await.unwrap().unwrap().unwrap().term, leadership.term());
    // Nothing changes: nothing is told.
    assert!(world.io.within(10 * SEC, seen.next()).await.is_none());
    leadership.resign().await.unwrap();
    assert_eq!(seen.next().await.unwrap().unwrap(), None);
    world.locks.close().await;
    assert_eq!(seen.next().await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn leaders_of_one_process_have_terms_that_the_store_knows() {
    let world = World::new();
    let election = world.locks.election("k");
    let first = election.campaign().await.unwrap();
    let term = first.term();
    let (second, _) = tokio::join!(election.campaign(), first.resign());
    let second = second.unwrap();
    assert!(second.term() > term);
    assert_eq!(election.leader().await.unwrap().unwrap().term, second.term());
}

#[tokio::test(start_paused = true)]
async fn an_owner_enters_though_another_call_of_its_own_is_not_polled() {
    let world = World::new();
    let (me, mutex) = (Owner::named("me"), world.locks.reentrant("k"));
    world.store.plan(|_| Fault::DelayAnswer(100 * MS));
    let (mut first, mut second) = (Box::pin(mutex.acquire(&me)), Box::pin(mutex.acquire(&me)));
    let held = tokio::select! {
        biased;
        held = &mut first => held.unwrap(),
        _ = &mut second => panic!("the first has the turn"),
    };
    // The second has been given the turn by now, and nobody polls it.
    let again = world.io.within(SEC, mutex.acquire(&me)).await.expect("at once").unwrap();
    let tried = mutex.try_acquire(&me).await.unwrap().expect("it is our own");
    assert_eq!((again.token(), tried.token()), (held.token(), held.token()));
    assert_eq!(second.await.unwrap().token(), held.token());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_multi_lock_survives_a_lost_answer() {
    let world = World::new();
    let mut lost = 0;
    world.store.plan(move |asked| match asked {
        Asked::Try => {
            lost += 1;
            if lost == 2 { Fault::LoseAnswer } else { Fault::None }
        }
        _ => Fault::None,
    });
    let all = world.locks.multi(["a", "b", "c"]).acquire_within(10 * SEC).await.unwrap();
    all.ensure_held().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_multi_lock_ends_in_time_when_the_store_stands_still() {
    let world = World::new();
    world.store.plan(|_| Fault::Hang);
    let start = world.io.now();
    world.locks.multi(["a", "b"]).acquire_within(50 * MS).await.unwrap_err();
    assert!(world.io.now().since(start) < SEC);
}

#[tokio::test(start_paused = true)]
async fn the_longest_hold_of_several_counts_from_when_all_are_had() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("b").acquire().await.unwrap();
    let multi = world.locks.clone().max_hold(5 * SEC).multi(["a", "b"]);
    let mut waiter = Box::pin(multi.acquire());
    assert!(world.io.within(SEC, &mut waiter).await.is_none());
    let first = other.inspect("a").await.unwrap().holders[0].id;
    assert!(world.io.within(60 * SEC, &mut waiter).await.is_none());
    assert_eq!(other.inspect("a").await.unwrap().holders[0].id, first, "held all the time");
    held.release().await.unwrap();
    let all = waiter.await.unwrap();
    world.io.sleep(4 * SEC).await;
    all.ensure_held().unwrap();
    assert_eq!(all.lost().await.reason, LostReason::MaxHold);
    assert_eq!(world.locks.clone().mutex("a").try_acquire().await.unwrap().map(drop), None);
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn an_adaptive_leader_keeps_its_candidate_text() {
    let world = World::new();
    let locks = world.locks.clone().adaptive_ttl(AdaptiveTtl::default());
    let election = locks.election("k").candidate("10.0.0.7:80");
    for _ in 0..20 {
        election.campaign().await.unwrap().resign().await.unwrap();
    }
    let _leadership = election.campaign().await.unwrap();
    assert_eq!(&*election.leader().await.unwrap().unwrap().candidate, "10.0.0.7:80");
}

#[tokio::test(start_paused = true)]
async fn a_closing_that_is_repeated_closes_for_no_longer() {
    let world = World::new();
    let (_, other) = world.another();
    let every = Period::parse("1h", None).unwrap();
    let run = begin(&world.locks.once("k", every.clone())).await;
    let end = run.period().end;
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::Hang,
        _ => Fault::None,
    });
    run.succeed().await.unwrap_err();
    world.io.sleep(10 * SEC).await;
    world.store.behave();
    world.io.sleep(10 * SEC).await;
    world.io.sleep(end.saturating_sub(world.io.clock().wall())).await;
    begin(&other.once("k", every)).await.fail().await.unwrap();
    let late = world.io.clock().wall().saturating_sub(end);
    assert!(late <= 2 * SEC, "{late:?} into the period");
}

#[tokio::test(start_paused = true)]
async fn a_candidate_does_not_lead_under_the_name_of_one_that_gave_up() {
    let world = World::new();
    let (_, other) = world.another();
    let held = other.mutex("k").acquire().await.unwrap();
    let (one, two) =
        (world.locks.election("k").candidate("one"), world.locks.election("k").candidate("two"));
    let mut first = Box::pin(one.campaign());
    assert!(world.io.within(SEC, &mut first).await.is_none());
    let mut second = Box::pin(two.campaign());
    assert!(world.io.within(SEC, &mut second).await.is_none());
    drop(first);
    let (leadership, _) = tokio::join!(second, held.release());
    let _leadership = leadership.unwrap();
    assert_eq!(&*one.leader().await.unwrap().unwrap().candidate, "two");
}

/// The store keeps a key closed by a wall clock, and that was three years ahead for one run.
#[tokio::test(start_paused = true)]
async fn h114_a_period_closed_by_a_wrong_clock_is_not_done() {
    const YEARS: Duration = Duration::from_secs(3 * 365 * 24 * 3600);
    let world = World::new();
    let once = world.locks.once("k", daily());
    world.clock.pause_machine(YEARS);
    begin(&once).await.succeed().await.unwrap();
    let told = once.try_begin().await.unwrap();
    assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "{told:?}");
    world.clock.set_wall_back(YEARS);
    let error = once.try_begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.to_string().contains("whose clock was wrong"), "{error}");
    assert!(error.next_step().unwrap().contains("latchwork once --reset"), "{error}");
    let reset = once.reset().await.unwrap();
    let Reset::Opened { closed_for: Some(left) } = reset else { panic!("{reset:?}") };
    assert!(left > YEARS, "{left:?}");
    begin(&once).await.succeed().await.unwrap();
    let told = once.try_begin().await.unwrap();
    assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "{told:?}");
}

/// A reset that is not answered says so, and the next one settles it.
#[tokio::test(start_paused = true)]
async fn a_reset_whose_answer_is_lost_is_an_error_and_can_be_repeated() {
    let world = World::new();
    let once = world.locks.once("k", daily());
    begin(&once).await.succeed().await.unwrap();
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::LoseAnswer,
        _ => Fault::None,
    });
    let error = once.reset().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.may_have_applied(), "{error}");
    world.store.plan(|_| Fault::None);
    assert_eq!(once.reset().await.unwrap(), Reset::NotClosed, "it was opened");
    begin(&once).await.fail().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn h114_a_task_done_with_another_period_is_not_done() {
    let world = World::new();
    let (_, other) = world.another();
    let every = |text| Period::parse(text, Some("UTC")).unwrap();
    // The paused clock starts in the midst of a January day.
    for (first, second) in [("1y", "1d"), ("1d", "1y"), ("1mo", "1d")] {
        let name = format!("{first} and {second}");
        begin(&world.locks.once(&name, every(first))).await.succeed().await.unwrap();
        let error = other.once(&name, every(second)).try_begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{name}: {error}");
        let told = other.once(&name, every(first)).try_begin().await.unwrap();
        assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "{name}: {told:?}");
    }
}

/// Two hosts that try three times a minute, from half past two to after the hour that is repeated.
#[tokio::test(start_paused = true)]
async fn h541_a_task_of_each_minute_runs_in_both_passes() {
    const FROM: Duration = Duration::from_secs(1_824_942_600);
    const MINUTE: Duration = Duration::from_secs(60);
    let world = World::new();
    let (_, other) = world.another();
    world.clock.pause_machine(FROM - world.io.clock().wall());
    // At 3:00 on 2027-10-31 the clocks go back to 2:00.
    let every = Period::parse("* * * * *", Some("Europe/Berlin")).unwrap();
    let tasks = [world.locks.once("k", every.clone()), other.once("k", every)];
    let mut starts = Vec::new();
    while world.io.clock().wall() < FROM + 100 * MINUTE {
        for task in &tasks {
            if let Begun::Run(run) = task.try_begin().await.unwrap() {
                starts.push(run.period().start);
                run.succeed().await.unwrap();
            }
        }
        world.io.sleep(20 * SEC).await;
    }
    let each: Vec<_> = (0..100).map(|minute| FROM + minute * MINUTE).collect();
    assert_eq!(starts, each);
}

/// A host may be some minutes off, and the hour of another time zone shows.
#[tokio::test(start_paused = true)]
async fn h114_a_clock_off_by_minutes_is_tolerated() {
    let world = World::new();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let once = world.locks.once("k", daily());
    begin(&once).await.succeed().await.unwrap();
    world.clock.set_wall_back(minutes(10));
    let told = once.try_begin().await.unwrap();
    assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "{told:?}");
    let elsewhere = world.locks.once("k", Period::daily("Europe/Berlin").unwrap());
    assert_eq!(elsewhere.try_begin().await.unwrap_err().kind(), ErrorKind::Mismatch);
}

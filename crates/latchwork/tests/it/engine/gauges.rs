//! The gauges of held locks and of waiters: right meanwhile, and back at zero whatever happened.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use latchwork::observers::Metrics;
use latchwork::{Driver, Event, LockManager, Observer, Owner};
use latchwork_store::*;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::engine::support::*;

/// A world whose managers report to the same metrics, and what those say.
struct Watched {
    world: World,
    locks: LockManager,
    /// Another process on the same store.
    other: LockManager,
    other_store: Arc<Faulty>,
    text: PrometheusHandle,
}

impl Watched {
    fn number(&self, name: &str) -> i64 {
        let text = self.text.render();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |number| number.parse().unwrap())
    }

    /// Held locks, and acquires that wait.
    fn gauges(&self) -> (i64, i64) {
        (self.number("latchwork_held"), self.number("latchwork_waiting"))
    }

    /// The gauges once everything that can run has run.
    async fn settled(&self) -> (i64, i64) {
        self.world.settle().await;
        self.gauges()
    }

    /// The gauges when every ttl is over.
    async fn at_the_end(&self) -> (i64, i64) {
        self.world.io.sleep(100 * SEC).await;
        self.settled().await
    }
}

/// Polls a future once.
async fn is_pending(future: &mut (impl Future + Unpin)) -> bool {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx).is_pending())).await
}

/// Runs a test on one paused thread, where the metrics of that thread alone are read.
fn watched(test: impl AsyncFnOnce(&Watched)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let text = recorder.handle();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let world = World::new();
            let metrics = Arc::new(Metrics::new());
            let locks = world.locks.clone().ttl(10 * SEC).observer(metrics.clone());
            let (other_store, other) = world.another();
            let other = other.ttl(10 * SEC).observer(metrics);
            test(&Watched { world, locks, other, other_store, text }).await;
        });
    });
}

#[test]
fn gauges_count_holds_and_waiters() {
    watched(async |it: &Watched| {
        let held = it.locks.mutex("k").acquire().await.unwrap();
        assert_eq!(it.gauges(), (1, 0), "at once, without a wait");
        assert!(it.other.mutex("k").try_acquire().await.unwrap().is_none());
        assert_eq!(it.gauges(), (1, 0), "a single try does not wait");
        let mutex = it.other.mutex("k");
        let (next, ()) = tokio::join!(mutex.acquire(), async {
            assert_eq!(it.settled().await, (1, 1));
            held.release().await.unwrap();
        });
        assert_eq!(it.settled().await, (1, 0));
        next.unwrap().release().await.unwrap();
        assert_eq!(it.gauges(), (0, 0), "when the release is answered");
        assert_eq!(it.number("latchwork_abandoned_waits_total"), 0);
    });
}

#[test]
fn a_handover_keeps_locks_and_deadlines() {
    watched(async |it: &Watched| {
        let mut tasks = tokio::task::JoinSet::new();
        let first = it.locks.mutex("k").acquire().await.unwrap();
        for _ in 0..5 {
            let (mutex, io) = (it.locks.mutex("k"), it.world.io.clone());
            tasks.spawn(async move {
                let guard = mutex.acquire().await.unwrap();
                io.sleep(MS).await;
                drop(guard);
            });
        }
        assert_eq!(it.settled().await, (1, 5));
        first.release().await.unwrap();
        assert_eq!(it.settled().await, (1, 4));
        tasks.join_all().await;
        assert!(it.number("latchwork_handovers_total") >= 4);
        assert_eq!(it.settled().await, (0, 0));
    });
}

/// The hold is on its way to a waiter whose future is dropped before it is polled again.
#[test]
fn an_undelivered_hold_ends_once() {
    watched(async |it: &Watched| {
        let held = it.locks.mutex("k").acquire().await.unwrap();
        let mutex = it.locks.mutex("k");
        let mut waiting = Box::pin(mutex.acquire());
        assert!(is_pending(&mut waiting).await);
        assert_eq!(it.gauges(), (1, 1));
        held.release().await.unwrap();
        assert_eq!(it.gauges(), (1, 1), "handed over");
        drop(waiting);
        assert_eq!(it.settled().await, (0, 0));
        assert_eq!(it.number("latchwork_abandoned_waits_total"), 1);
    });
}

#[test]
fn a_lost_lock_counts_no_more_however_it_was_lost() {
    watched(async |it: &Watched| {
        let short = it.locks.mutex("short").max_hold(SEC).acquire().await.unwrap();
        let taken = it.locks.mutex("taken").acquire().await.unwrap();
        let silent = it.locks.mutex("silent").acquire().await.unwrap();
        assert_eq!(it.gauges(), (3, 0));
        short.lost().await;
        assert_eq!(it.settled().await, (2, 0));
        it.other.force_release("taken").await.unwrap();
        taken.lost().await;
        assert_eq!(it.settled().await, (1, 0));
        it.world.store.plan(|_| Fault::Hang);
        silent.lost().await;
        assert_eq!(it.settled().await, (0, 0));
        // What comes after a loss is no second end.
        drop((short, taken));
        silent.release().await.unwrap_err();
        it.world.store.behave();
        assert_eq!(it.at_the_end().await, (0, 0));
    });
}

/// The guard finds the loss, and with it goes the last that knows of the manager.
#[test]
fn the_last_guards_release_reports_a_loss() {
    watched(async |it: &Watched| {
        let Watched { world, text, .. } = it;
        let locks = LockManager::on_io(world.store.clone(), world.io.clone())
            .ttl(10 * SEC)
            .observer(Arc::new(Metrics::new().with_label("manager", "own")));
        let guard = locks.mutex("own").acquire().await.unwrap();
        let held = |number: &str| {
            let line = format!("latchwork_held{{manager=\"own\"}} {number}");
            assert!(text.render().contains(&line), "{}", text.render());
        };
        held("1");
        drop(locks);
        // No timer fires, so nobody else has noticed.
        world.clock.suspend(60 * SEC);
        guard.ensure_held().unwrap_err();
        drop(guard);
        held("0");
        world.settle().await;
        held("0");
    });
}

#[test]
fn an_acquire_dropped_at_any_poll_resets_the_gauges() {
    for polls in 0..12 {
        for fault in [Fault::None, Fault::DelayAnswer(MS), Fault::DelayRequest(MS)] {
            for (fair, locally) in [(false, true), (false, false), (true, true), (true, false)] {
                watched(async |it: &Watched| {
                    it.world.store.plan(move |_| fault);
                    let holder = if locally { &it.locks } else { &it.other };
                    let held = holder.mutex("k").acquire().await.unwrap();
                    let mutex = it.locks.mutex("k");
                    let mutex = if fair { mutex.fair() } else { mutex };
                    let mut waiting = Box::pin(mutex.acquire());
                    for _ in 0..polls {
                        assert!(is_pending(&mut waiting).await);
                        it.world.io.sleep(MS / 2).await;
                    }
                    drop(waiting);
                    assert_eq!(it.number("latchwork_waiting"), 0, "{polls} {fault:?}");
                    drop(held);
                    assert_eq!(it.at_the_end().await, (0, 0), "{polls} {fault:?}");
                });
            }
        }
    }
}

#[test]
fn a_wait_that_times_out_or_fails_has_ended() {
    watched(async |it: &Watched| {
        let held = it.locks.mutex("k").acquire().await.unwrap();
        for locks in [&it.locks, &it.other] {
            let mutex = locks.mutex("k");
            let (answer, ()) = tokio::join!(mutex.acquire_within(SEC), async {
                assert_eq!(it.settled().await, (1, 1));
            });
            answer.unwrap_err();
            assert_eq!(it.gauges(), (1, 0));
        }
        // A store that does not answer is waited for as well.
        it.world.store.plan(|_| Fault::LoseRequest);
        let mutex = it.locks.mutex("away");
        let (answer, ()) = tokio::join!(mutex.acquire(), async {
            it.world.io.sleep(SEC).await;
            assert_eq!(it.gauges(), (1, 1));
        });
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(it.gauges().1, 0);
        assert_eq!(it.number("latchwork_abandoned_waits_total"), 3);
        it.world.store.behave();
        drop(held);
        assert_eq!(it.at_the_end().await, (0, 0));
    });
}

#[test]
fn a_release_that_is_never_answered_ends_with_the_ttl() {
    watched(async |it: &Watched| {
        let guard = it.locks.mutex("k").acquire().await.unwrap();
        it.world.store.plan(|_| Fault::Hang);
        drop(guard);
        assert_eq!(it.settled().await, (1, 0), "others are still kept out");
        assert_eq!(it.at_the_end().await, (0, 0));
        assert_eq!(it.number("latchwork_release_failures_total"), 1);
    });
}

#[test]
fn a_manager_that_is_closed_holds_nothing_and_waits_for_nothing() {
    watched(async |it: &Watched| {
        let held = it.locks.mutex("k").acquire().await.unwrap();
        let elsewhere = it.other.mutex("elsewhere").acquire().await.unwrap();
        it.world.store.plan(|_| Fault::DelayAnswer(100 * MS));
        let (mutex, behind) = (it.locks.mutex("elsewhere"), it.locks.mutex("k"));
        let late = it.locks.mutex("late");
        let (one, two, three, ()) =
            tokio::join!(mutex.acquire(), behind.acquire(), late.acquire(), async {
                it.world.io.sleep(50 * MS).await;
                assert_eq!(it.gauges(), (2, 1), "the first asks the store, the second waits");
                it.locks.close().await;
            });
        // The third is granted when the manager is closed already.
        for answer in [one, two, three] {
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Closed);
        }
        assert_eq!(it.settled().await, (1, 0), "what another manager holds stays");
        drop((held, elsewhere));
        assert_eq!(it.at_the_end().await, (0, 0));
    });
}

#[test]
fn readers_permits_and_owners_count_each_hold_once() {
    watched(async |it: &Watched| {
        let rwlock = it.locks.rwlock("rw");
        let readers =
            [rwlock.read().acquire().await.unwrap(), rwlock.read().acquire().await.unwrap()];
        let permits = it.locks.semaphore("s", 3).permits(2).acquire().await.unwrap();
        let (reentrant, owner) = (it.locks.reentrant("r"), Owner::named("one"));
        let entered =
            [reentrant.acquire(&owner).await.unwrap(), reentrant.acquire(&owner).await.unwrap()];
        assert_eq!(it.gauges(), (4, 0), "an owner that enters again holds one lock");
        let (write, more) = (rwlock.write(), it.locks.semaphore("s", 3).permits(2));
        let (one, two, ()) = tokio::join!(write.acquire(), more.acquire(), async {
            assert_eq!(it.settled().await, (4, 2));
            drop((readers, permits));
        });
        drop(entered);
        assert_eq!(it.settled().await, (2, 0));
        drop((one, two));
        assert_eq!(it.settled().await, (0, 0));
    });
}

/// Two processes, slow answers, lost requests, short holds, losses, and acquires dropped at random.
#[test]
fn dropped_acquires_leave_the_gauges_at_zero() {
    watched(async |it: &Watched| {
        for store in [&it.world.store, &it.other_store] {
            let mut n = 0u32;
            store.plan(move |_| {
                n += 1;
                match n % 11 {
                    0 => Fault::DelayAnswer(2 * MS),
                    3 => Fault::DelayRequest(MS),
                    5 => Fault::LoseAnswer,
                    7 => Fault::LoseRequest,
                    _ => Fault::None,
                }
            });
        }
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..20 {
            let (locks, io) =
                (if task % 2 == 0 { &it.locks } else { &it.other }.clone(), it.world.io.clone());
            tasks.spawn(async move {
                for round in 0..200 {
                    let mut mutex = locks.mutex(format!("k{}", (task + round) % 3));
                    if round % 5 == 0 {
                        mutex = mutex.fair();
                    }
                    if round % 7 == 0 {
                        mutex = mutex.max_hold(MS);
                    }
                    let patience = random_between(Duration::ZERO, 12 * MS);
                    if let Some(Ok(guard)) = io.within(patience, mutex.acquire()).await
                        && round % 3 == 0
                    {
                        io.sleep(2 * MS).await;
                        let _ = io.within(MS, guard.release()).await;
                    }
                }
            });
        }
        it.world.io.sleep(50 * MS).await;
        let (held, waiting) = it.gauges();
        // A hold counts until the store has answered its release, even if another client has the key by then.
        assert!((0..=40).contains(&held) && (1..=20).contains(&waiting), "{held}, {waiting}");
        tasks.join_all().await;
        assert_eq!(it.number("latchwork_waiting"), 0);
        assert_eq!(it.at_the_end().await, (0, 0));
        let grants = it.number("latchwork_acquired_total{contended=\"true\"}")
            + it.number("latchwork_acquired_total{contended=\"false\"}");
        assert!(grants > 100, "{grants}");
        assert!(it.number("latchwork_lost_total{reason=\"max_hold\"}") > 0);
        assert!(it.number("latchwork_abandoned_waits_total") > 0);
    });
}

/// What was granted and has not ended.
#[derive(Default)]
struct Balance(AtomicI64);

impl Observer for Balance {
    fn event(&self, event: &Event<'_>) {
        let change = match event {
            Event::Acquired { .. } => 1,
            Event::Released { .. } | Event::Lost { .. } => -1,
            Event::ReleaseFailed { held: Some(_), .. } => -1,
            _ => 0,
        };
        self.0.fetch_add(change, Ordering::SeqCst);
    }
}

/// The threads of a manager that is dropped give a release up after a moment.
#[test]
fn a_failed_release_at_shutdown_is_reported() {
    let driver = Driver::start().unwrap();
    let io = driver.io();
    let store = faulty(MemoryBackend::new(io.clone()), &io, 1);
    let balance = Arc::new(Balance::default());
    let locks = LockManager::new(store.clone(), driver).observer(balance.clone());
    let guard = latchwork::block_on(locks.mutex("k").acquire()).unwrap();
    assert_eq!(balance.0.load(Ordering::SeqCst), 1);
    store.plan(|_| Fault::Hang);
    drop((guard, locks));
    let start = std::time::Instant::now();
    while balance.0.load(Ordering::SeqCst) != 0 {
        assert!(start.elapsed() < 20 * SEC, "its end is not told");
        std::thread::sleep(5 * MS);
    }
}

//! Thousands of holds: a store that needs its time, stands still, or is silent in part.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::{Event, Guard, LockManager, Observer};
use latchwork_store::testing::{PausedClock, paused_io};
use latchwork_store::*;

use crate::engine::support::{MS, SEC};

type Answer = Result<Renewal, BackendError>;

/// Serves claims one after the other, over a store in memory.
#[derive(Debug)]
struct Counter {
    inner: Arc<MemoryBackend>,
    io: Io,
    /// The one who serves, and how long a claim takes.
    served: tokio::sync::Mutex<Duration>,
    /// Says all answers of a call at its end.
    says_all_at_once: bool,
    /// No answer comes for keys that begin so.
    silent: Mutex<Option<&'static str>>,
    calls: AtomicUsize,
    most_calls: AtomicUsize,
}

impl Counter {
    async fn serve(&self, claims: &[Claim], say: impl Fn(usize, Answer)) {
        let calls = self.calls.fetch_add(1, Ordering::SeqCst) + 1;
        let _call = Call(&self.calls);
        self.most_calls.fetch_max(calls, Ordering::SeqCst);
        if self.says_all_at_once {
            let takes = self.served.lock().await;
            self.io.sleep(*takes * claims.len() as u32).await;
        }
        let mut is_silent = false;
        for (n, claim) in claims.iter().enumerate() {
            let silent = *self.silent.lock().unwrap();
            if silent.is_some_and(|prefix| claim.key.as_str().starts_with(prefix)) {
                is_silent = true;
                continue;
            }
            if !self.says_all_at_once {
                let takes = self.served.lock().await;
                self.io.sleep(*takes).await;
            }
            say(n, self.inner.renew_all(std::slice::from_ref(claim)).await.remove(0));
        }
        if is_silent {
            std::future::pending::<()>().await;
        }
    }
}

/// A call under way.
struct Call<'a>(&'a AtomicUsize);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for Counter {
    latchwork_store::pass_on!(inner: capabilities, try_acquire, wait, release, inspect);

    fn renew_all<'a>(&'a self, claims: &'a [Claim]) -> Verb<'a, Vec<Answer>> {
        Box::pin(async move {
            let answers = Mutex::new(vec![None; claims.len()]);
            self.serve(claims, |n, answer| answers.lock().unwrap()[n] = Some(answer)).await;
            answers.into_inner().unwrap().into_iter().map(Option::unwrap).collect()
        })
    }

    fn renew_each<'a>(&'a self, claims: &'a [Claim], answers: &'a Answers) -> Verb<'a, ()> {
        Box::pin(async move {
            if self.says_all_at_once {
                let all = self.renew_all(claims).await.into_iter().enumerate();
                return all.for_each(|(n, answer)| answers.say(n, answer));
            }
            self.serve(claims, |n, answer| answers.say(n, answer)).await;
        })
    }
}

#[derive(Default)]
struct Troubles {
    failed: AtomicUsize,
    lost: AtomicUsize,
}

impl Observer for Troubles {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::RenewFailed { .. } => self.failed.fetch_add(1, Ordering::SeqCst),
            Event::Lost { .. } => self.lost.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
    }
}

struct World {
    store: Arc<Counter>,
    clock: Arc<PausedClock>,
    locks: LockManager,
    troubles: Arc<Troubles>,
}

impl World {
    fn new(says_all_at_once: bool) -> Self {
        let (io, clock) = paused_io();
        let store = Arc::new(Counter {
            inner: MemoryBackend::new(io.clone()),
            io: io.clone(),
            served: tokio::sync::Mutex::new(MS),
            says_all_at_once,
            silent: Mutex::default(),
            calls: AtomicUsize::default(),
            most_calls: AtomicUsize::default(),
        });
        let troubles = Arc::<Troubles>::default();
        let locks = LockManager::on_io(store.clone(), io).observer(troubles.clone());
        Self { store, clock, locks, troubles }
    }

    async fn serving_takes(&self, each: Duration) {
        *self.store.served.lock().await = each;
    }

    /// Takes so many locks, a hundred at a time with a pause after each.
    async fn hold(&self, prefix: &str, count: usize, ttl: Duration, pause: Duration) -> Vec<Guard> {
        let locks = self.locks.clone().ttl(ttl);
        let mut guards = Vec::new();
        for n in 0..count {
            guards.push(locks.mutex(format!("{prefix}/{n}")).acquire().await.unwrap());
            if n % 100 == 99 {
                tokio::time::sleep(pause).await;
            }
        }
        guards
    }

    /// How many renewals had no answer, and how many holds were lost.
    fn troubles(&self) -> (usize, usize) {
        let Troubles { failed, lost } = &*self.troubles;
        (failed.load(Ordering::SeqCst), lost.load(Ordering::SeqCst))
    }
}

/// All is due after a stall, and the store needs longer for it than one verb may take.
#[tokio::test(start_paused = true)]
async fn h100_many_holds_survive_a_stall() {
    let world = World::new(false);
    let guards = world.hold("k", 1_800, 6 * SEC, 100 * MS).await;
    world.clock.suspend(2_500 * MS);
    tokio::time::sleep(12 * SEC).await;
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    assert_eq!(world.troubles(), (0, 0));
}

/// Each call is done in time, and all of them together are not.
#[tokio::test(start_paused = true)]
async fn h100_the_limit_of_a_renewal_counts_from_its_own_start() {
    let world = World::new(true);
    world.serving_takes(Duration::ZERO).await;
    let guards = world.hold("k", 14 * 512, 30 * SEC, Duration::ZERO).await;
    // 0.4 s a call, two at a time: the last begin when more than twice the limit is over.
    world.serving_takes(MS * 8 / 10).await;
    tokio::time::sleep(25 * SEC).await;
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    assert_eq!(world.troubles(), (0, 0));
}

/// The ttl of one hold is short, and thousands of others are due before it.
#[tokio::test(start_paused = true)]
async fn h100_a_short_lease_does_not_wait_for_long_ones() {
    let world = World::new(false);
    let long = world.hold("long", 6_000, 60 * SEC, Duration::ZERO).await;
    tokio::time::sleep(18 * SEC).await;
    let short = world.hold("short", 1, 4 * SEC, Duration::ZERO).await;
    // All of the long ones fall due, and six seconds are needed for them.
    tokio::time::sleep(12 * SEC).await;
    assert!(short.iter().chain(&long).all(|guard| guard.ensure_held().is_ok()));
    assert_eq!(world.troubles().1, 0);
}

/// One claim of many has no answer: the others have theirs, and it is asked for again. With a lock delay as well.
#[tokio::test(start_paused = true)]
async fn h99_a_late_answer_fails_no_other_renewal() {
    for delay in [Duration::ZERO, SEC] {
        let mut world = World::new(false);
        let slow = world.hold("slow", 1, 12 * SEC, Duration::ZERO).await;
        world.locks = world.locks.lock_delay(delay);
        let others = world.hold("k", 100, 12 * SEC, Duration::ZERO).await;
        *world.store.silent.lock().unwrap() = Some("slow");
        tokio::time::sleep(7 * SEC).await;
        let (failed, lost) = world.troubles();
        assert!(failed <= 2 && lost == 0, "{failed} and {lost}");
        *world.store.silent.lock().unwrap() = None;
        tokio::time::sleep(12 * SEC).await;
        assert!(slow.iter().chain(&others).all(|guard| guard.ensure_held().is_ok()));
        assert!(slow.iter().chain(&others).all(|guard| guard.ttl() == 12 * SEC));
    }
}

/// While the store stands still, and after it, it is asked for so much at a time as it can answer.
#[tokio::test(start_paused = true)]
async fn h99_after_an_outage_renewals_do_not_come_all_at_once() {
    let world = World::new(false);
    let guards = world.hold("k", 8_000, 60 * SEC, Duration::ZERO).await;
    world.serving_takes(Duration::ZERO).await;
    *world.store.silent.lock().unwrap() = Some("k");
    tokio::time::sleep(28 * SEC).await;
    *world.store.silent.lock().unwrap() = None;
    world.serving_takes(MS).await;
    // What was asked for during the outage is given up.
    tokio::time::sleep(2 * SEC).await;
    world.store.most_calls.store(0, Ordering::SeqCst);
    tokio::time::sleep(40 * SEC).await;
    let most = world.store.most_calls.load(Ordering::SeqCst);
    assert!(most <= 4, "{most} at a time");
    assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()));
    assert_eq!(world.troubles().1, 0);
}

/// A part of the store says nothing. What is kept elsewhere is renewed all the same.
#[tokio::test(start_paused = true)]
async fn h99_claims_without_an_answer_keep_no_others_waiting() {
    let world = World::new(false);
    world.serving_takes(Duration::ZERO).await;
    let silent = world.hold("silent", 20 * 512, 24 * SEC, Duration::ZERO).await;
    tokio::time::sleep(SEC).await;
    let others = world.hold("k", 512, 24 * SEC, Duration::ZERO).await;
    *world.store.silent.lock().unwrap() = Some("silent");
    tokio::time::sleep(60 * SEC).await;
    assert!(silent.iter().all(|guard| guard.ensure_held().is_err()));
    assert!(others.iter().all(|guard| guard.ensure_held().is_ok()));
}

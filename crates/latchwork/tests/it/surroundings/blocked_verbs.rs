//! A store whose verbs block their thread, as file I/O does on a disk that stalls.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use latchwork::{Driver, Guard, LockManager};
use latchwork_store::clock::boot_time;
use latchwork_store::*;

use latchwork_store::testing::stalls;

const STALL: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(2);

/// A store in memory that blocks the thread in some verbs of some keys.
#[derive(Debug)]
struct Stalling {
    inner: Arc<MemoryBackend>,
    stalls: AtomicU32,
}

impl Stalling {
    fn stall(&self, claim: &Claim, verb: &str) {
        if claim.key.as_str() == verb {
            self.stalls.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(STALL);
        }
    }
}

impl Backend for Stalling {
    latchwork_store::pass_on!(inner: capabilities, try_acquire, wait, inspect);

    fn blocks(&self) -> bool {
        true
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            claims.iter().for_each(|claim| self.stall(claim, "renew"));
            let mut answers = self.inner.renew_all(claims).await;
            for (claim, answer) in claims.iter().zip(&mut answers) {
                if claim.key.as_str() == "unconfirmed" {
                    *answer = Err(BackendError::no_answer(TTL / 4));
                }
            }
            answers
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            self.stall(claim, "release");
            self.inner.release(claim, linger).await
        })
    }
}

struct World {
    store: Arc<Stalling>,
    locks: LockManager,
    io: Io,
    start: Moment,
}

impl World {
    fn new() -> Self {
        let driver = Driver::start().unwrap();
        let io = driver.io();
        let inner = MemoryBackend::new(io.clone());
        let store = Arc::new(Stalling { inner, stalls: AtomicU32::new(0) });
        let locks = LockManager::new(store.clone(), driver).ttl(TTL);
        stalls::start();
        Self { store, locks, io, start: boot_time() }
    }

    async fn hold(&self, name: &str) -> Guard {
        self.locks.mutex(name).acquire().await.unwrap()
    }

    async fn until_stalled(&self, stalls: u32) -> Instant {
        while self.store.stalls.load(Ordering::SeqCst) < stalls {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Instant::now()
    }

    /// Waits for the loss, which has to come within 50 ms of the end of the validity.
    async fn lost_in_time(&self, guard: &Guard) {
        let until = guard.valid_until();
        let (lost, ran) = tokio::join!(guard.lost(), guard.run(pending::<()>()));
        let late = boot_time().since(until);
        assert_eq!(lost.reason, LostReason::Expired);
        assert_eq!(ran, Err(lost));
        // A wake-up may pass through three threads, each of which may be as late.
        let bound = Duration::from_millis(50) + 3 * stalls::since(self.start).longest;
        assert!(late <= bound, "told {late:?} after the end, with {bound:?} allowed");
    }
}

/// A release that nobody waits for blocks; a hold that is not confirmed ends in time, and another one
/// is renewed meanwhile.
#[tokio::test]
async fn h88_a_blocked_release_delays_no_loss_and_no_renewal() {
    let world = World::new();
    let (unconfirmed, kept) = (world.hold("unconfirmed").await, world.hold("kept").await);
    drop(world.hold("release").await);
    let stalled = world.until_stalled(1).await;
    world.lost_in_time(&unconfirmed).await;
    tokio::time::sleep((STALL - TTL / 4).saturating_sub(stalled.elapsed())).await;
    assert_eq!(kept.ensure_held(), Ok(kept.token()), "renewed while a verb blocked");
}

/// A renewal of one key blocks; the others are renewed, and that one ends in time.
#[tokio::test]
async fn h88_a_blocked_renewal_delays_no_loss_and_no_other_renewal() {
    let world = World::new();
    let blocked = world.hold("renew").await;
    // Not due together with the other one.
    tokio::time::sleep(TTL / 6).await;
    let kept = world.hold("kept").await;
    let stalled = world.until_stalled(1).await;
    world.lost_in_time(&blocked).await;
    tokio::time::sleep((STALL - TTL / 4).saturating_sub(stalled.elapsed())).await;
    assert_eq!(kept.ensure_held(), Ok(kept.token()), "renewed while a verb blocked");
}

/// What a store spawns must not block. If it does, renewals wait, and the clock does not.
#[tokio::test]
async fn h88_a_blocked_task_of_a_store_delays_no_loss() {
    let world = World::new();
    let unconfirmed = world.hold("unconfirmed").await;
    world.io.spawn(async { std::thread::sleep(STALL) });
    world.lost_in_time(&unconfirmed).await;
}

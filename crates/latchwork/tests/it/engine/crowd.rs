//! Many who enter the line of one key at once, at a store whose tries read the whole line.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::testing::paused_io;
use latchwork_store::*;
use tokio::task::JoinSet;

use crate::engine::support::{MS, SEC};

/// Answers tries one after the other, over a store in memory. What was given up is done all the
/// same.
#[derive(Debug)]
struct OneByOne {
    inner: Arc<MemoryBackend>,
    io: Io,
    /// How long a try takes.
    takes: Duration,
    /// The claims that have tried, where the next tries of a claim take no time.
    known: Option<Mutex<HashSet<ClaimId>>>,
    serving: Arc<tokio::sync::Mutex<()>>,
    at_once: Option<usize>,
    under_way: AtomicUsize,
    most: AtomicUsize,
    /// Tries have no answer.
    is_silent: AtomicBool,
    /// Says of each claim that it may have ended, before the grant arrives.
    is_doubtful: AtomicBool,
    doubts: Doubts,
    renewals: AtomicUsize,
    tries: AtomicUsize,
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Backend for OneByOne {
    latchwork_store::pass_on!(inner: capabilities, wait, release, inspect);

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.doubts)
    }

    fn tries_at_once(&self) -> Option<usize> {
        self.at_once
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            self.tries.fetch_add(1, Ordering::SeqCst);
            let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            let _under_way = UnderWay(&self.under_way);
            self.most.fetch_max(now, Ordering::SeqCst);
            if self.is_silent.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let is_first = |known: &Mutex<HashSet<_>>| known.lock().unwrap().insert(claim.id);
            if self.known.as_ref().is_none_or(is_first) {
                let (done, told) = tokio::sync::oneshot::channel();
                let (io, serving, takes) = (self.io.clone(), self.serving.clone(), self.takes);
                self.io.spawn(async move {
                    let turn = serving.lock().await;
                    io.sleep(takes).await;
                    drop(turn);
                    let _ = done.send(());
                });
                told.await.unwrap();
            }
            let answer = self.inner.try_acquire(claim).await;
            if self.is_doubtful.load(Ordering::SeqCst) {
                self.doubts.raise(claim.id);
                self.io.sleep(MS).await;
            }
            answer
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        self.renewals.fetch_add(claims.len(), Ordering::SeqCst);
        self.inner.renew_all(claims)
    }
}

fn world(takes: Duration, at_once: Option<usize>) -> (Arc<OneByOne>, LockManager, Io) {
    world_where(takes, at_once, false)
}

fn world_where(
    takes: Duration,
    at_once: Option<usize>,
    looks_are_short: bool,
) -> (Arc<OneByOne>, LockManager, Io) {
    let (io, _clock) = paused_io();
    let store = Arc::new(OneByOne {
        inner: MemoryBackend::new(io.clone()),
        io: io.clone(),
        takes,
        known: looks_are_short.then(Mutex::default),
        serving: Arc::default(),
        at_once,
        under_way: AtomicUsize::new(0),
        most: AtomicUsize::new(0),
        is_silent: AtomicBool::new(false),
        is_doubtful: AtomicBool::new(false),
        doubts: Doubts::default(),
        renewals: AtomicUsize::new(0),
        tries: AtomicUsize::new(0),
    });
    let locks = LockManager::on_io(store.clone(), io.clone()).ttl(30 * SEC);
    (store, locks, io)
}

/// How many of a crowd are not served that enters the line of one semaphore at once.
async fn failed_of(crowd: usize, locks: &LockManager) -> usize {
    let mut tasks = JoinSet::new();
    for _ in 0..crowd {
        let permits = locks.semaphore("k", 1_000);
        tasks.spawn(async move { permits.permit().acquire().await.map(drop) });
    }
    tasks.join_all().await.into_iter().filter(Result::is_err).count()
}

#[tokio::test(start_paused = true)]
async fn h107_a_crowd_is_admitted_in_small_groups() {
    // Together they take 40 s, and a try is given up after 2 s.
    let (store, locks, _) = world(100 * MS, Some(4));
    assert_eq!(failed_of(400, &locks).await, 0);
    assert_eq!(store.most.load(Ordering::SeqCst), 4);
    // The control: where tries need not wait, nearly none is answered in time.
    let (store, locks, _) = world(100 * MS, None);
    assert!(failed_of(400, &locks).await > 200);
    assert_eq!(store.most.load(Ordering::SeqCst), 400);
}

#[tokio::test(start_paused = true)]
async fn h107_a_woken_waiter_goes_first() {
    let (store, locks, io) = world(100 * MS, Some(2));
    let one = locks.semaphore("k", 1);
    let held = one.permit().acquire().await.unwrap();
    let waiter = locks.semaphore("k", 1);
    let waiter = tokio::spawn(async move { waiter.permit().acquire().await });
    io.sleep(SEC).await;
    let mut crowd = JoinSet::new();
    for _ in 0..100 {
        let permits = locks.semaphore("k", 1);
        crowd.spawn(async move { permits.permit().acquire_within(60 * SEC).await.map(drop) });
    }
    io.sleep(SEC).await;
    let (start, tries) = (io.now(), store.tries.load(Ordering::SeqCst));
    held.release().await.unwrap();
    let guard = waiter.await.unwrap().unwrap();
    assert!(io.now().since(start) <= 500 * MS, "after {:?}", io.now().since(start));
    assert!(tries < 50, "the crowd still comes: {tries}");
    drop((guard, crowd));
}

/// A crowd comes for 60 s. A place ends after 30 s if nobody looks after it.
#[tokio::test(start_paused = true)]
async fn h107_places_are_kept_while_a_crowd_comes() {
    let (_, locks, io) = world_where(100 * MS, Some(4), true);
    let held = locks.semaphore("k", 1).permit().acquire().await.unwrap();
    let (served, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut crowd = JoinSet::new();
    for n in 0..600 {
        let (permits, served) = (locks.semaphore("k", 1), served.clone());
        crowd.spawn(async move {
            drop(permits.permit().acquire().await.unwrap());
            served.send(n).unwrap();
        });
        io.sleep(MS).await;
    }
    drop(served);
    io.sleep(90 * SEC).await;
    held.release().await.unwrap();
    let mut came = Vec::new();
    while let Some(n) = order.recv().await {
        came.push(n);
    }
    assert_eq!(came.len(), 600);
    assert!(came.is_sorted(), "first come, first served: {came:?}");
}

#[tokio::test(start_paused = true)]
async fn h107_a_silent_store_does_not_block_the_gate() {
    let (store, locks, io) = world(MS, Some(2));
    store.is_silent.store(true, Ordering::SeqCst);
    let mut stuck = JoinSet::new();
    for _ in 0..4 {
        let permits = locks.semaphore("k", 9);
        stuck.spawn(async move { permits.permit().acquire().await.map(drop) });
    }
    io.sleep(10 * MS).await;
    store.is_silent.store(false, Ordering::SeqCst);
    // Two have no answer, and count for a quarter of a second.
    let start = io.now();
    drop(locks.semaphore("k", 9).permit().acquire_within(SEC).await.unwrap());
    assert!(io.now().since(start) < 300 * MS, "after {:?}", io.now().since(start));
    // What waits for its turn keeps to its own limit.
    store.is_silent.store(true, Ordering::SeqCst);
    let mut more = JoinSet::new();
    for _ in 0..100 {
        let permits = locks.semaphore("k", 9);
        more.spawn(async move { permits.permit().acquire().await.map(drop) });
    }
    io.sleep(10 * MS).await;
    let start = io.now();
    let permits = locks.semaphore("k", 9);
    let error = permits.permit().acquire_within(SEC).await.unwrap_err();
    assert_eq!((error.kind(), io.now().since(start)), (ErrorKind::TimedOut, SEC));
    let start = io.now();
    let error = permits.permit().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(
        error.next_step(),
        Some("check the store's load, and how many tasks of this process wait for the key")
    );
    assert!(io.now().since(start) <= 4 * SEC, "after {:?}", io.now().since(start));
    // A key of its own has a gate of its own.
    store.is_silent.store(false, Ordering::SeqCst);
    let start = io.now();
    drop(locks.semaphore("other", 9).permit().acquire().await.unwrap());
    assert!(io.now().since(start) < 10 * MS);
}

/// A claim may end while its grant is under way; the word of that may come first.
#[tokio::test(start_paused = true)]
async fn h116_a_doubt_before_the_grant_is_kept() {
    let (store, locks, io) = world(MS, None);
    store.is_doubtful.store(true, Ordering::SeqCst);
    let guard = locks.mutex("k").acquire().await.unwrap();
    io.sleep(10 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1, "the store was asked at once");
    guard.release().await.unwrap();
    let guard = locks.mutex("k").acquire().await.unwrap();
    store.is_doubtful.store(false, Ordering::SeqCst);
    drop(guard);
    let next = locks.mutex("k").acquire().await.unwrap();
    io.sleep(10 * MS).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), 1, "this one is another claim");
    drop(next);
}

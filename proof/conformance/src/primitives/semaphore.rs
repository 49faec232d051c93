//! A semaphore: up to a limit of permits together.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use latchwork::{Resize, Resized, Semaphore};
use latchwork_store::ErrorKind;

use crate::case::{Case, case};
use crate::stage::{NAME, Peer, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(permits_are_limited_over_all_processes, |e| e.permits),
        case!(small_requests_do_not_overtake_a_large_one, |e| e.permits && e.fifo),
        case!(another_limit_is_a_mismatch, |e| e.permits),
        case!(a_rolling_deployment_changes_the_limit, |e| e.mixed_limits),
        case!(a_raised_limit_admits_a_waiting_acquire, |e| e.resize),
        case!(an_operator_changes_the_limit_under_load, |e| e.resize),
        case!(a_policy_needs_a_store_of_mixed_limits, |e| e.permits && !e.mixed_limits),
        case!(a_fixed_limit_is_not_resized, |e| e.permits && !e.resize),
        case!(an_impossible_request_is_refused_at_once),
        case!(is_refused_by_a_store_that_cannot_count, |e| !e.permits),
    ]
}

/// What processes hold together never passes the limit.
async fn permits_are_limited_over_all_processes(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.semaphore(NAME, 3), b.locks.semaphore(NAME, 3));
    let two = ours.permits(2).acquire().await.unwrap();
    let one = theirs.permit().acquire().await.unwrap();
    assert!(ours.permit().try_acquire().await.unwrap().is_none(), "3 of 3 are taken");
    one.release().await.unwrap();
    assert!(theirs.permits(2).try_acquire().await.unwrap().is_none(), "1 of 3 is free");
    let again = theirs.permit().acquire().await.unwrap();
    for guard in [&two, &again] {
        guard.ensure_held().unwrap();
    }
    let all = theirs.permits(3);
    let (all, ..) = tokio::join!(all.acquire(), async {
        stage.settle().await;
        two.release().await.unwrap();
        again.release().await.unwrap();
    });
    all.unwrap().release().await.unwrap();
}

/// First come, first served: small requests do not starve a large one.
async fn small_requests_do_not_overtake_a_large_one(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.semaphore(NAME, 3), b.locks.semaphore(NAME, 3));
    let first = ours.permits(2).acquire().await.unwrap();
    let large = theirs.permits(3);
    let mut large = Box::pin(large.acquire());
    stage.waits(&b, &mut large, "1 of 3 is free").await;
    let small = ours.permit().try_acquire().await.unwrap();
    assert!(small.is_none(), "a small request passed a large one that waits");
    first.release().await.unwrap();
    large.await.unwrap().release().await.unwrap();
    ours.permit().acquire().await.unwrap().release().await.unwrap();
}

/// Two processes that disagree about the limit are told so.
async fn another_limit_is_a_mismatch(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let held = a.locks.semaphore(NAME, 3).permit().acquire().await.unwrap();
    let error = b.locks.semaphore(NAME, 4).permit().try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    assert!(error.next_step().unwrap().contains("resize policy"), "{error}");
    held.release().await.unwrap();
    let key = b.locks.mutex(NAME).key().unwrap().clone();
    stage.soon_free(&b.client, &key, "nobody is left").await;
    b.locks.semaphore(NAME, 4).permit().acquire().await.unwrap().release().await.unwrap();
}

/// Numbers that make no sense are refused with the name of the field.
async fn an_impossible_request_is_refused_at_once(stage: Stage) {
    let a = stage.peer().await;
    for (take, of, field) in [(0, 3, "take"), (4, 3, "take"), (0, 0, "of")] {
        let error = a.locks.semaphore(NAME, of).permits(take).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.message().starts_with(field), "{error}");
    }
}

/// A store without permits says so at once.
async fn is_refused_by_a_store_that_cannot_count(stage: Stage) {
    let a = stage.peer().await;
    stage.refused(a.locks.semaphore(NAME, 3).permit().try_acquire().await);
    stage.refused(a.locks.semaphore(NAME, 3).permits(2).acquire().await);
}

/// How many permits are held, from the grant to before the release.
#[derive(Default)]
struct Held {
    now: AtomicU32,
    allowed: AtomicU32,
    wanted: AtomicU32,
    most: AtomicU32,
}

impl Held {
    fn enter(&self, take: u32) {
        let now = self.now.fetch_add(take, Ordering::SeqCst) + take;
        let allowed = self.allowed.load(Ordering::SeqCst);
        assert!(now <= allowed, "{now} are held, and the largest limit is {allowed}");
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    /// Whether as many permits were held at a time as this step wants to see.
    fn is_enough(&self) -> bool {
        self.most.load(Ordering::SeqCst) >= self.wanted.load(Ordering::SeqCst)
    }
}

fn deployed(peer: &Peer, of: u32) -> Semaphore {
    peer.locks.semaphore(NAME, of).resize_policy(Resize::ToMine)
}

/// Clients with the limits take turns until `stop`: each acquire is granted, and no hold is lost.
async fn take_turns(stage: &Stage, fleet: &[Semaphore], held: &Held, stop: &AtomicBool) {
    let turns = fleet.iter().enumerate().map(async |(n, semaphore)| {
        let take = 1 + n as u32 % 2;
        while !stop.load(Ordering::SeqCst) {
            let guard =
                semaphore.permits(take).acquire().await.expect("a deployment fails nowhere");
            held.enter(take);
            let start = stage.now();
            stage.sleep(Duration::from_millis(2)).await;
            while !held.is_enough() && stage.now().since(start) < stage.a_while() {
                stage.settle().await;
            }
            guard.ensure_held().expect("a deployment evicts nobody");
            held.now.fetch_sub(take, Ordering::SeqCst);
            guard.release().await.expect("a deployment evicts nobody");
        }
    });
    join_all(turns).await;
}

/// The fleet goes from 3 to 5 permits and back while its clients contend. No acquire fails, no holder is
/// evicted, and the permits held never exceed the larger limit of the clients that run.
async fn a_rolling_deployment_changes_the_limit(stage: Stage) {
    let peers = [stage.peer().await, stage.peer().await, stage.peer().await];
    let held = Held::default();
    // How many clients of six have the new limit, and the most that is held before the next step.
    for (new, wanted) in [(0, 2), (3, 4), (6, 4), (3, 4), (0, 2)] {
        let fleet: Vec<_> =
            (0..6).map(|n| deployed(&peers[n % 3], if n < new { 5 } else { 3 })).collect();
        held.allowed.store(if new > 0 { 5 } else { 3 }, Ordering::SeqCst);
        held.wanted.store(wanted, Ordering::SeqCst);
        held.most.store(0, Ordering::SeqCst);
        let stop = AtomicBool::new(false);
        let enough = async {
            let start = stage.now();
            while !held.is_enough() {
                let waited = stage.now().since(start);
                assert!(waited < Duration::from_secs(60), "{new} of 6: {wanted} were never held");
                stage.settle().await;
            }
            stop.store(true, Ordering::SeqCst);
        };
        tokio::join!(take_turns(&stage, &fleet, &held, &stop), enough);
        assert_eq!(held.now.load(Ordering::SeqCst), 0);
    }
}

/// An operator raises the limit: the waiters are admitted without a release.
async fn a_raised_limit_admits_a_waiting_acquire(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    assert_eq!(a.locks.semaphore(NAME, 5).resize().await.unwrap(), Resized::Unused);
    let full = a.locks.semaphore(NAME, 3).permits(3).acquire().await.unwrap();
    let waiting = b.locks.semaphore(NAME, 3);
    let mut waiting = Box::pin(waiting.acquire());
    stage.waits(&b, &mut waiting, "3 of 3 are taken").await;
    let resized = b.locks.semaphore(NAME, 5).resize().await.unwrap();
    assert_eq!(resized, Resized::Yes { from: 3, to: 5, held: 3 });
    let admitted = waiting.await.unwrap();
    full.ensure_held().unwrap();
    let operated = b.locks.semaphore(NAME, 2).resize_policy(Resize::Follow);
    let follower = operated.try_acquire().await.unwrap().expect("1 of 5 is free");
    assert!(operated.try_acquire().await.unwrap().is_none(), "5 of 5 are taken");
    let error = b.locks.semaphore(NAME, 3).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    for guard in [full, admitted, follower] {
        guard.release().await.unwrap();
    }
}

/// An operator sets one limit after the other while clients contend. No acquire fails, no holder is evicted,
/// and all end once the limit is large enough for each.
async fn an_operator_changes_the_limit_under_load(stage: Stage) {
    let peers = [stage.peer().await, stage.peer().await, stage.peer().await];
    let held = Held::default();
    held.allowed.store(5, Ordering::SeqCst);
    let follower = |n: usize| peers[n % 3].locks.semaphore(NAME, 5).resize_policy(Resize::Follow);
    let fleet: Vec<_> = (0..6).map(follower).collect();
    let stop = AtomicBool::new(false);
    let operator = async {
        for of in [3, 1, 5, 2, 4, 1, 5, 3, 2, 5] {
            peers[1].locks.semaphore(NAME, of).resize().await.expect("a limit can be set");
            stage.sleep(Duration::from_millis(5)).await;
        }
        stop.store(true, Ordering::SeqCst);
    };
    tokio::join!(take_turns(&stage, &fleet, &held, &stop), operator);
    assert_eq!(held.now.load(Ordering::SeqCst), 0);
}

/// A policy that the store cannot keep is refused before any request.
async fn a_policy_needs_a_store_of_mixed_limits(stage: Stage) {
    let a = stage.peer().await;
    let step = stage.refused(deployed(&a, 3).try_acquire().await);
    assert!(step.contains("leave the policy at never"), "{step}");
}

/// A store that cannot set a limit says so.
async fn a_fixed_limit_is_not_resized(stage: Stage) {
    let a = stage.peer().await;
    let step = stage.refused(a.locks.semaphore(NAME, 3).resize().await);
    assert!(step.contains("let all clients finish, and start them with the new limit"), "{step}");
}

//! Which thread and which runtime a manager is used from changes nothing but the speed.
//!
//! Connections are moved by the runtime of the caller. It may be blocked, end, be one of several, or
//! not exist.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use latchwork::{BlockOn, LockManager, connect};
use latchwork_store::testing::stalls;
use latchwork_wire::EventLoop;
use tokio::runtime::Builder;

use super::stores::*;
use crate::executors::{other_executor, runtime};

/// What a machine may add to any time.
const SLACK: Duration = Duration::from_secs(1);

macro_rules! on_each_store {
    ($test:ident: $($(#[$attr:meta])* $name:ident in $store:ident;)*) => {$(
        $(#[$attr])*
        #[test]
        fn $name() {
            stalls::start();
            let (_server, url) = $store();
            $test(&url);
        }
    )*};
}

#[track_caller]
fn in_time(start: Instant, limit: Duration) {
    stalls::in_time(start, limit + SLACK);
}

async fn cycles(locks: &LockManager, key: &str, count: u32) {
    for _ in 0..count {
        let guard = locks.mutex(key).acquire().await.unwrap();
        guard.ensure_held().unwrap();
        guard.release().await.unwrap();
    }
}

/// A thread with a current-thread runtime that is blocked until what is returned is dropped, in the
/// middle of its work with the manager.
fn blocked_runtime(locks: &LockManager) -> mpsc::Sender<()> {
    let (stop, stopped) = mpsc::channel::<()>();
    let (stands, standing) = mpsc::channel();
    let locks = locks.clone();
    thread::spawn(move || {
        runtime().block_on(async {
            cycles(&locks, "warm", 5).await;
            stands.send(()).unwrap();
            let _ = stopped.recv();
        });
    });
    standing.recv().unwrap();
    stop
}

/// The hold outlives its ttl three times, with nobody but Latchwork's thread to renew it.
fn a_hold_survives(url: &str) {
    let locks = connect(url).block_on().unwrap().ttl(Duration::from_secs(2));
    let other = connect(url).block_on().unwrap();
    runtime().block_on(async {
        cycles(&locks, "k", 3).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        thread::sleep(Duration::from_secs(7));
        guard.ensure_held().unwrap();
        let tried = thread::spawn(move || other.mutex("k").try_acquire().block_on().unwrap());
        assert!(tried.join().unwrap().is_none());
        guard.release().await.unwrap();
    });
}

/// Guards come from runtimes that have ended.
fn a_release_takes_milliseconds(url: &str) {
    let locks = connect(url).block_on().unwrap();
    let times = (0..10).map(|round| {
        let guard = runtime().block_on(async {
            cycles(&locks, "k", 3).await;
            locks.mutex("k").acquire().await.unwrap()
        });
        guard.ensure_held().unwrap();
        let start = Instant::now();
        match round % 3 {
            0 => guard.release().block_on().unwrap(),
            1 => other_executor(guard.release()).unwrap(),
            _ => runtime().block_on(guard.release()).unwrap(),
        }
        in_time(start, Duration::from_millis(10));
        start.elapsed()
    });
    let fastest = times.min().unwrap();
    // A connection that has to be made anew, or a wait for the ended runtime, takes longer.
    assert!(fastest < Duration::from_millis(50), "the fastest of ten took {fastest:?}");
}

/// The key is granted to a waiter whose runtime is blocked, and has to pass on.
fn a_grant_passes_on(url: &str) {
    let (holder, waiter, next) = (
        connect(url).block_on().unwrap(),
        connect(url).block_on().unwrap(),
        connect(url).block_on().unwrap(),
    );
    let held = holder.mutex("k").acquire().block_on().unwrap();
    let (waits, waiting) = mpsc::channel();
    let (stop, stopped) = mpsc::channel::<()>();
    let blocked = thread::spawn(move || {
        runtime().block_on(async {
            cycles(&waiter, "warm", 3).await;
            let mutex = waiter.mutex("k");
            let mut acquire = std::pin::pin!(mutex.acquire());
            tokio::select! {
                _ = &mut acquire => panic!("it is held"),
                () = tokio::time::sleep(Duration::from_millis(500)) => {}
            }
            waits.send(()).unwrap();
            let _ = stopped.recv();
            // It begins anew.
            acquire.await.unwrap().release().await.unwrap();
        });
    });
    waiting.recv().unwrap();
    let start = Instant::now();
    held.release().block_on().unwrap();
    let guard = next.mutex("k").acquire_within(Duration::from_secs(25)).block_on().unwrap();
    // Two seconds in which it may be polled, and what the far side takes to see the grant.
    in_time(start, Duration::from_millis(2_500));
    guard.release().block_on().unwrap();
    drop(stop);
    blocked.join().unwrap();
}

/// Runtimes, a blocked thread and another executor share a manager, beside a runtime that is blocked.
fn all_are_served(url: &str) {
    let locks = connect(url).block_on().unwrap();
    let blocked = blocked_runtime(&locks);
    let start = Instant::now();
    let threads: Vec<_> = (0..5)
        .map(|kind| {
            let locks = locks.clone();
            thread::spawn(move || {
                let work = async {
                    cycles(&locks, &format!("own-{kind}"), 20).await;
                    cycles(&locks, "shared", 5).await;
                };
                match kind {
                    0 => work.block_on(),
                    1 => other_executor(work),
                    2 | 3 => runtime().block_on(work),
                    _ => Builder::new_multi_thread()
                        .worker_threads(2)
                        .enable_all()
                        .build()
                        .unwrap()
                        .block_on(work),
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    in_time(start, Duration::from_secs(10));
    drop(blocked);
}

/// Threads that block have entered a runtime that nobody drives: those of `block_on`, of another executor, and of that
/// runtime's handle. What several of them send would go out together there.
fn nobody_needs_its_runtime(url: &str) {
    let undriven = runtime();
    let locks = connect(url).block_on().unwrap();
    let (ended, ends) = mpsc::channel();
    for n in 0..6 {
        let (locks, handle, ended) = (locks.clone(), undriven.handle().clone(), ended.clone());
        thread::spawn(move || {
            let work = async { cycles(&locks, &format!("own-{n}"), 20).await };
            let entered = (n % 3 < 2).then(|| handle.enter());
            match n % 3 {
                0 => work.block_on(),
                1 => other_executor(work),
                _ => handle.block_on(work),
            }
            drop(entered);
            ended.send(n).unwrap();
        });
    }
    let start = Instant::now();
    for _ in 0..6 {
        ends.recv_timeout(Duration::from_secs(30)).expect("a thread waits for the runtime");
    }
    in_time(start, Duration::from_secs(10));
}

#[test]
fn h461_a_thread_that_blocks_has_no_runtime() {
    let runtime = runtime();
    let _entered = runtime.enter();
    assert!(EventLoop::current().is_some());
    assert!(async { EventLoop::current().is_none() }.block_on());
    assert!(EventLoop::current().is_some());
}

on_each_store! { nobody_needs_its_runtime:
    h461_a_runtime_that_nobody_drives_delays_no_thread_on_files in files;
    #[cfg(feature = "redis")]
    h461_a_runtime_that_nobody_drives_delays_no_thread_on_redis in redis;
    #[cfg(feature = "redis")]
    h461_a_runtime_that_nobody_drives_delays_no_thread_on_redlock in redlock;
    #[cfg(feature = "etcd")]
    h461_a_runtime_that_nobody_drives_delays_no_thread_on_etcd in etcd;
    #[cfg(feature = "postgres")]
    h461_a_runtime_that_nobody_drives_delays_no_thread_on_postgres in postgres;
}

on_each_store! { a_hold_survives:
    a_hold_survives_a_blocked_runtime_on_files in files;
    #[cfg(feature = "redis")]
    a_hold_survives_a_blocked_runtime_on_redis in redis;
    #[cfg(feature = "redis")]
    a_hold_survives_a_blocked_runtime_on_redlock in redlock;
    #[cfg(feature = "redis")]
    a_hold_survives_a_blocked_runtime_on_a_cluster in cluster;
    #[cfg(feature = "etcd")]
    a_hold_survives_a_blocked_runtime_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    a_hold_survives_a_blocked_runtime_on_zookeeper in zookeeper;
}

on_each_store! { a_release_takes_milliseconds:
    a_release_after_its_runtime_takes_milliseconds_on_files in files;
    #[cfg(feature = "redis")]
    a_release_after_its_runtime_takes_milliseconds_on_redis in redis;
    #[cfg(feature = "redis")]
    a_release_after_its_runtime_takes_milliseconds_on_redlock in redlock;
    #[cfg(feature = "redis")]
    a_release_after_its_runtime_takes_milliseconds_on_a_cluster in cluster;
}

on_each_store! { a_grant_passes_on:
    a_grant_to_a_blocked_runtime_passes_on_on_files in files;
    #[cfg(feature = "redis")]
    a_grant_to_a_blocked_runtime_passes_on_on_redis in redis;
    #[cfg(feature = "redis")]
    a_grant_to_a_blocked_runtime_passes_on_on_redlock in redlock;
    #[cfg(feature = "redis")]
    a_grant_to_a_blocked_runtime_passes_on_on_a_cluster in cluster;
    #[cfg(feature = "etcd")]
    a_grant_to_a_blocked_runtime_passes_on_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    a_grant_to_a_blocked_runtime_passes_on_on_zookeeper in zookeeper;
}

on_each_store! { all_are_served:
    callers_of_every_kind_share_a_manager_on_files in files;
    #[cfg(feature = "redis")]
    callers_of_every_kind_share_a_manager_on_redis in redis;
    #[cfg(feature = "redis")]
    callers_of_every_kind_share_a_manager_on_redlock in redlock;
    #[cfg(feature = "redis")]
    callers_of_every_kind_share_a_manager_on_a_cluster in cluster;
    #[cfg(feature = "etcd")]
    callers_of_every_kind_share_a_manager_on_etcd in etcd;
    #[cfg(feature = "zookeeper")]
    callers_of_every_kind_share_a_manager_on_zookeeper in zookeeper;
}

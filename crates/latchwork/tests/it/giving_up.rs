//! Waiters that give up behind a holder of their own process, which holds for long.
//!
//! The test starts this program again; the test named `child` plays the process whose memory is measured. With
//! `LATCHWORK_GIVE_UPS=2000000` so many waiters give up in each way.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use latchwork::{ErrorKind, LockManager};
use latchwork_services::child::{Process, role, say};
use latchwork_services::{RedisOptions, RedisServer};
use rustix::time::{ClockId, clock_gettime};

/// So many give up, unless the surroundings say otherwise.
const TIMES: u32 = 30_000;
/// In so many rounds.
const ROUNDS: u32 = 3;
/// What has to be there once: threads, pools, tables.
const BEFORE: u32 = 3_000;

const WAYS: [&str; 6] = ["timeout", "moment", "fair", "campaign", "cancelled", "behind_a_leader"];

/// Polls a future once and drops it.
async fn polled_once(future: impl Future) {
    let mut future = pin!(future);
    let pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it is held");
}

async fn give_up(locks: &LockManager, way: &str, times: u32) {
    let mutex = locks.mutex("k");
    let election = locks.election("k");
    for n in 0..times {
        let given = match way {
            // A timer takes a millisecond at least: a few of them are enough.
            "moment" if n % 50 == 0 => mutex.acquire_within(Duration::from_micros(10)).await,
            "fair" => mutex.clone().fair().acquire_within(Duration::ZERO).await,
            "campaign" => match election.campaign_within(Duration::ZERO).await {
                Ok(_) => panic!("somebody leads"),
                Err(error) => Err(error),
            },
            "cancelled" => {
                polled_once(mutex.acquire()).await;
                continue;
            }
            _ => mutex.acquire_within(Duration::ZERO).await,
        };
        let error = given.expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    }
}

/// The memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The processor time of this process: a stall of the machine is no part of it.
fn spent() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn child() {
    let Some((way, url)) = role() else { return };
    let times = std::env::var("LATCHWORK_GIVE_UPS").map_or(TIMES, |times| times.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = latchwork::connect(&url).await.unwrap();
        let holder = match &*way {
            "behind_a_leader" => latchwork::connect(&url).await.unwrap(),
            _ => locks.clone(),
        };
        // What stays of each makes every round grow; the allocator's own rooms come once. A release that walks them is
        // slow each time; one whose code is not in the processor's caches is slow once.
        let (mut least, mut fastest) = (u64::MAX, Duration::MAX);
        for round in 0..=ROUNDS {
            let guard = holder.mutex("k").acquire().await.unwrap();
            let leads = {
                let leader = locks.mutex("k");
                tokio::spawn(async move { leader.acquire().await })
            };
            tokio::time::sleep(Duration::from_millis(50)).await;
            let before = resident();
            give_up(&locks, &way, if round == 0 { BEFORE } else { times / ROUNDS }).await;
            let grown = resident().saturating_sub(before);
            let before = spent();
            guard.release().await.unwrap();
            let took = spent() - before;
            if round > 0 {
                (least, fastest) = (least.min(grown), fastest.min(took));
            }
            drop(leads.await.unwrap().expect("its turn"));
        }
        say(least);
        say(fastest.as_micros());
    });
}

/// However many give up, and however they do, nothing of them stays, and the holder's release does not walk them.
#[test]
fn h236_waiters_that_give_up_leave_nothing() {
    leave_nothing("mem:giving-up", &WAYS, Duration::from_millis(1));
}

/// A release there has to send a request.
#[test]
fn h236_waiters_that_give_up_leave_nothing_on_redis() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    leave_nothing(&server.url(), &WAYS[..5], Duration::from_millis(10));
}

fn leave_nothing(url: &str, ways: &[&str], longest: Duration) {
    for way in ways {
        let mut process = Process::start(&format!("giving_up::{way}"), url);
        let grown: u64 = process.line().parse().unwrap();
        let micros: u64 = process.line().parse().unwrap();
        process.end();
        println!(
            "{way}: grown by {grown} KiB in a round, released in {micros} us of processor time"
        );
        assert!(grown < 1_024 / u64::from(ROUNDS), "{way}: {grown} KiB stay");
        assert!(u128::from(micros) < longest.as_micros(), "{way}: the release took {micros} us");
    }
}

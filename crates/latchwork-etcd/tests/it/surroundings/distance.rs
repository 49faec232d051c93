//! Members that are far from each other, and more leases than fit into a moment.
//!
//! A follower asks the leader about each keep-alive, so what it costs is a round trip between the two.
//! What CI runs has fewer locks and a longer way: as many keep-alives are too many there. The full
//! size, by hand:
//!
//! ```sh
//! LATCHWORK_FULL=1 cargo test --release -p latchwork-etcd --test surroundings -- h99 --test-threads=1 --nocapture
//! ```
//!
//! Instead of 1 it takes the number of locks, the microseconds between two members and the seconds of a
//! ttl, separated by commas.

use std::time::{Duration, Instant};

use latchwork_services::{EtcdCluster, EtcdOptions};

use crate::common::*;
use crate::surroundings::holds::{hold_many, left_after, observed};

struct Size {
    locks: usize,
    trip: Duration,
    ttl: Duration,
}

/// What CI runs, or the full size of it.
fn size(locks: usize, trip_us: u64, ttl: u32, full: (usize, u64, u32)) -> Size {
    let (locks, trip_us, ttl) = match std::env::var("LATCHWORK_FULL") {
        Ok(own) if own.contains(',') => {
            let of: Vec<u64> = own.split(',').map(|number| number.parse().unwrap()).collect();
            (of[0] as usize, of[1], of[2] as u32)
        }
        Ok(_) => full,
        Err(_) => (locks, trip_us, ttl),
    };
    Size { locks, trip: Duration::from_micros(trip_us), ttl: ttl * SEC }
}

/// Members with a way between them, and their address with the followers first.
fn cluster(size: &Size) -> (EtcdCluster, usize, String) {
    let cluster = EtcdCluster::start_with_proxies(3, &EtcdOptions::new()).unwrap();
    cluster.set_round_trip(size.trip);
    let follower = (cluster.leader().unwrap() + 1) % 3;
    let host = |n: usize| format!("127.0.0.1:{}", cluster.members()[(follower + n) % 3].port());
    let url = format!("etcd://{}", [host(0), host(1), host(2)].join(","));
    (cluster, follower, url)
}

/// Which members the client knows.
enum Known {
    /// Both followers, then the leader.
    All,
    /// The followers.
    Followers,
    /// One follower.
    Follower,
}

fn run_size(size: &Size, known: &Known, outage: impl AsyncFnOnce(&mut EtcdCluster, usize)) {
    let (mut cluster, follower, mut url) = cluster(size);
    match known {
        Known::All => {}
        Known::Followers => url.truncate(url.rfind(',').unwrap()),
        Known::Follower => url = cluster.members()[follower].url(),
    }
    run(async {
        let (locks, troubles) = observed(&url).await;
        let locks = locks.ttl(size.ttl);
        let start = Instant::now();
        let guards = hold_many(&locks, size.locks).await;
        eprintln!("{} locks in {:?}", size.locks, start.elapsed());
        let start = Instant::now();
        outage(&mut cluster, follower).await;
        // Until everything was renewed twice after it.
        let left = left_after(&guards, size.ttl).await;
        eprintln!(
            "{left} of {} left after {:?}; {:?} renewals failed, {} did not",
            size.locks,
            start.elapsed(),
            troubles.seen().0,
            troubles.renewed.load(std::sync::atomic::Ordering::SeqCst),
        );
        assert_eq!((left, troubles.seen().1), (size.locks, 0));
    });
}

/// Nothing goes wrong: there are only many, and the leader is not next door.
#[test]
fn h99_many_holds_at_a_far_follower_are_all_renewed() {
    let size = size(1_500, 10_000, 15, (4_000, 2_300, 15));
    run_size(&size, &Known::Follower, async |_, _| tokio::time::sleep(size.ttl).await);
}

/// A member stands still for eight seconds, and the other one that the client knows is far from the
/// leader, too.
#[test]
fn h99_many_holds_survive_a_follower_that_was_stopped() {
    let size = size(1_500, 10_000, 18, (8_000, 2_300, 24));
    run_size(&size, &Known::Followers, async |cluster, follower| {
        tokio::time::sleep(size.ttl / 4).await;
        cluster.member_mut(follower).stop().unwrap();
        tokio::time::sleep(8 * SEC).await;
        cluster.member_mut(follower).cont().unwrap();
    });
}

/// All members stand still for eight seconds, and then everything is due.
#[test]
fn h99_many_holds_survive_an_outage_of_all_members() {
    let size = size(1_500, 6_000, 18, (8_000, 800, 24));
    run_size(&size, &Known::All, async |cluster, _| {
        tokio::time::sleep(size.ttl / 4).await;
        for member in 0..3 {
            cluster.member_mut(member).stop().unwrap();
        }
        tokio::time::sleep(8 * SEC).await;
        for member in 0..3 {
            cluster.member_mut(member).cont().unwrap();
        }
    });
}

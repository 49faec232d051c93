//! Members that are apart: what an acquire and a hand-off take in round trips between them.

use std::time::Duration;

use latchwork_services::{
    Direction, EtcdCluster, EtcdOptions, ZooKeeperEnsemble, ZooKeeperOptions,
};

use crate::bars::{self, GROWTH_DISTANCE};
use crate::growth::exponent::slope;
use crate::handoffs::handoffs;
use crate::peers::{self, ETCD_CONCURRENCY, Kind, LATCHWORK, RSLOCK, ZOOKEEPER_CLIENT};
use crate::roles::{Outcome, now};
use crate::stats::{head, median, micros, row, shortened};
use crate::store::{Five, SlowLink, Store, Which, ping, redis};
use crate::times::Times;

/// Round trips in milliseconds.
const TRIPS: &[u64] = &[0, 1, 2, 5];
const LENGTH: Duration = Duration::from_millis(1_500);
const MEMBERS: usize = 3;

/// Moves members apart, and lets somebody use them.
type Apart = Box<dyn Fn(Duration, &mut dyn FnMut(&str) -> Outcome) -> Outcome>;

fn members(which: Which) -> Outcome<(&'static str, Kind, Apart)> {
    Ok(match which {
        Which::Etcd => {
            let cluster = EtcdCluster::start_with_proxies(MEMBERS, &EtcdOptions::new())?;
            let apart: Apart = Box::new(move |trip, work| {
                cluster.set_round_trip(trip);
                work(&cluster.url())
            });
            ("etcd, 3 members", ETCD_CONCURRENCY, apart)
        }
        Which::ZooKeeper => {
            let options = ZooKeeperOptions::new().links();
            let ensemble = ZooKeeperEnsemble::start(MEMBERS, &options)?;
            let apart: Apart = Box::new(move |trip, work| {
                for from in 0..MEMBERS {
                    for to in (0..MEMBERS).filter(|to| *to != from) {
                        let link = ensemble.link(from, to)?;
                        link.delay(Direction::ToServer, trip / 2);
                        link.delay(Direction::ToClient, trip / 2);
                    }
                }
                work(&ensemble.url())
            });
            ("ZooKeeper, 3 servers", ZOOKEEPER_CLIENT, apart)
        }
        // The servers know nothing of each other: it is the clients who are far.
        _ => {
            let five = Five::start()?;
            let apart: Apart =
                Box::new(move |trip, work| work(&SlowLink::new(&five, trip / 2)?.address()));
            ("Redlock, 5 servers", RSLOCK, apart)
        }
    })
}

pub(crate) fn run(which: Which) -> Outcome {
    let (name, other, apart) = members(which)?;
    let (kinds, missing) = peers::install(&[LATCHWORK, other]);
    let redis = redis()?;
    // What servers do for the first time takes longer.
    apart(Duration::ZERO, &mut |url| measure(&LATCHWORK, url).map(drop))?;
    for kind in &kinds {
        let series = format!("{} on {name}", kind.name);
        println!("{series}, by the round trip between members:\n");
        head(
            "round trip, as set | as measured | acquire and release p50 | in trips | p99 | hand-off p50 | in trips",
        );
        // The trip as measured, and medians, in microseconds.
        let mut all: Vec<[f64; 3]> = Vec::new();
        for millis in &TRIPS[..shortened(TRIPS.len(), 3)] {
            let trip = Duration::from_millis(*millis);
            let (link, mut seen) = (ping(&redis, trip / 2)? * 1e3, [f64::NAN; 3]);
            apart(trip, &mut |url| {
                seen = measure(kind, url)?;
                Ok(())
            })?;
            let [cycle, p99, handoff] = seen;
            let first = all.first().copied().unwrap_or([link, cycle, handoff]);
            // What there is beyond the time without a distance, in round trips.
            let trips = |now: f64, then: f64| format!("{:.1}", (now - then) / (link - first[0]));
            row(&[
                format!("{millis} ms"),
                micros(link),
                micros(cycle),
                trips(cycle, first[1]),
                micros(p99),
                micros(handoff),
                trips(handoff, first[2]),
            ]);
            bars::note(GROWTH_DISTANCE.name, &series, &millis.to_string(), cycle / 1e3);
            all.push([link, cycle, handoff]);
        }
        let fit = |of: usize| {
            let trips = slope(&all.iter().map(|seen| (seen[0], seen[of])).collect::<Vec<_>>());
            trips.map_or("-".into(), |trips| format!("{trips:.2}"))
        };
        println!(
            "\nBy least squares, a cycle takes {} round trips, a hand-off {}.\n",
            fit(1),
            fit(2)
        );
    }
    for (kind, reason) in missing {
        println!("{} is missing: {reason}\n", kind.name);
    }
    Ok(())
}

/// Median and 99th percentile of a cycle, and the median of a hand-off, in microseconds.
fn measure(kind: &Kind, url: &str) -> Outcome<[f64; 3]> {
    let mut worker = kind.start(url, 0)?;
    let mut line = String::new();
    // The first round has what happens once.
    for _ in 0..2 {
        let until = now() + shortened(LENGTH, LENGTH / 3).as_nanos() as u64;
        worker.tell(&format!("cycle 1 {until}"))?;
        line = worker.line()?;
    }
    let (_, times) = Times::after_numbers(&line)?;
    let cycles = times.get(1).ok_or("times")?;
    Ok([cycles.quantile(0.5), cycles.quantile(0.99), median(&mut handoffs(kind, url)?)])
}

//! Members that are apart: what an acquire and a hand-off take in round trips between them.

use std::time::Duration;

use latchwork_services::{
    Direction, EtcdCluster, EtcdOptions, RedisOptions, RedisServer, ZooKeeperEnsemble,
    ZooKeeperOptions,
};

use crate::Outcome;
use crate::growth::exponent::slope;
use crate::growth::picture::Chart;
use crate::growth::served::Which;
use crate::handoffs::handoffs;
use crate::peers::{self, ETCD_CONCURRENCY, Kind, LATCHWORK, RSLOCK, ZOOKEEPER_CLIENT};
use crate::redlock_servers::Five;
use crate::stats::{head, median, micros, row, shortened};
use crate::store::{SlowLink, Store};
use crate::stores::ping;
use crate::times::Times;
use crate::{bars, stats};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Round trips in milliseconds.
const TRIPS: &[u64] = &[0, 1, 2, 5];
const LENGTH: Duration = Duration::from_millis(1_500);
const MEMBERS: usize = 3;

pub(crate) const ACQUIRE: Chart = Chart {
    name: "growth-distance",
    title: "Members that are apart: a free acquire and release, median in ms",
    size: "round trip between members (Redlock: from the client to each server) in ms",
};

/// A store whose members can be moved apart.
enum Members {
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeeperEnsemble),
    /// The servers know nothing of each other: it is the clients who are far.
    Redlock(Five),
}

impl Members {
    fn start(which: Which) -> Result<Self> {
        Ok(match which {
            Which::Etcd => {
                Self::Etcd(EtcdCluster::start_with_proxies(MEMBERS, &EtcdOptions::new())?)
            }
            Which::ZooKeeper => Self::ZooKeeper(ZooKeeperEnsemble::start(
                MEMBERS,
                &ZooKeeperOptions::new().links(),
            )?),
            Which::Redlock => Self::Redlock(Five::start()?),
            other => return Err(format!("{other:?} has no members").into()),
        })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd, 3 members",
            Self::ZooKeeper(_) => "ZooKeeper, 3 servers",
            Self::Redlock(_) => "Redlock, 5 servers",
        }
    }

    fn kinds(&self) -> Vec<Kind> {
        match self {
            Self::Etcd(_) => vec![LATCHWORK, ETCD_CONCURRENCY],
            Self::ZooKeeper(_) => vec![LATCHWORK, ZOOKEEPER_CLIENT],
            Self::Redlock(_) => vec![LATCHWORK, RSLOCK],
        }
    }

    /// Moves them apart, and lets somebody use them.
    fn at<T>(&self, trip: Duration, work: impl FnOnce(&str) -> Result<T>) -> Result<T> {
        match self {
            Self::Etcd(cluster) => {
                cluster.set_round_trip(trip);
                work(&cluster.url())
            }
            Self::ZooKeeper(ensemble) => {
                for from in 0..MEMBERS {
                    for to in (0..MEMBERS).filter(|to| *to != from) {
                        let link = ensemble.link(from, to)?;
                        link.delay(Direction::ToServer, trip / 2);
                        link.delay(Direction::ToClient, trip / 2);
                    }
                }
                work(&ensemble.url())
            }
            Self::Redlock(five) => work(&SlowLink::new(five, trip / 2)?.address()),
        }
    }
}

/// Medians in microseconds at one distance.
struct Seen {
    /// What a round trip over such a link takes.
    trip: f64,
    cycle: f64,
    cycle_p99: f64,
    handoff: f64,
}

pub(crate) fn run(which: Which) -> Outcome {
    let members = Members::start(which)?;
    let (kinds, missing) = peers::install(members.kinds());
    let redis = RedisServer::start(&RedisOptions::new())?;
    // What servers do for the first time takes longer.
    members.at(Duration::ZERO, |url| measure(&LATCHWORK, url, 0.0).map(drop))?;
    let trips = if stats::is_short() { &TRIPS[..3] } else { TRIPS };
    for kind in &kinds {
        println!("{} on {}, by the round trip between members:\n", kind.name, members.name());
        head(&[
            "round trip, as set",
            "as measured",
            "acquire and release p50",
            "in trips",
            "p99",
            "hand-off p50",
            "in trips",
        ]);
        let mut all: Vec<Seen> = Vec::new();
        for millis in trips {
            let trip = Duration::from_millis(*millis);
            let link = ping(&SlowLink::new(&redis, trip / 2)?)? * 1e3;
            let seen = members.at(trip, |url| measure(kind, url, link))?;
            let first = all.first().unwrap_or(&seen);
            // What there is beyond the time without a distance, in round trips.
            let trips = |now: f64, then: f64| format!("{:.1}", (now - then) / (link - first.trip));
            row(&[
                format!("{millis} ms"),
                micros(link),
                micros(seen.cycle),
                trips(seen.cycle, first.cycle),
                micros(seen.cycle_p99),
                micros(seen.handoff),
                trips(seen.handoff, first.handoff),
            ]);
            let series = format!("{} on {}", kind.name, members.name());
            bars::note(ACQUIRE.name, &series, &millis.to_string(), seen.cycle / 1e3);
            all.push(seen);
        }
        let fit = |of: fn(&Seen) -> f64| {
            slope(&all.iter().map(|seen| (seen.trip, of(seen))).collect::<Vec<_>>())
        };
        let shown = |trips: Option<f64>| trips.map_or("-".into(), |trips| format!("{trips:.2}"));
        println!(
            "\nBy least squares, a cycle takes {} round trips, a hand-off {}.\n",
            shown(fit(|seen| seen.cycle)),
            shown(fit(|seen| seen.handoff))
        );
    }
    for (kind, reason) in missing {
        println!("{} is missing: {reason}\n", kind.name);
    }
    Ok(())
}

fn measure(kind: &Kind, url: &str, trip: f64) -> Result<Seen> {
    let mut worker = kind.start("free", url, &[])?;
    let length = shortened(LENGTH, LENGTH / 3).as_millis();
    // The first round has what happens once.
    worker.tell(&format!("1 {length}"))?;
    worker.line()?;
    worker.tell(&format!("1 {length}"))?;
    let (_, times) = Times::after_numbers(&worker.line()?)?;
    let handoff = median(&mut handoffs(kind, url)?);
    Ok(Seen { trip, cycle: times.quantile(0.5), cycle_p99: times.quantile(0.99), handoff })
}

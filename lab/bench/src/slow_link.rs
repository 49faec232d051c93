//! A free lock over a slow link: what counts is how often bytes go there and back.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer, RedisOptions, RedisServer};

use crate::Outcome;
use crate::free_cycles::{Entry, commands, in_turns_of, rate, times};
use crate::peers::{self, Kind, LATCHWORK};
use crate::stats::{head, micros, row, shortened};
use crate::store::{SlowLink, Store};
use crate::stores::{DELAY, ping};
use crate::zookeeper;

/// Of one of the rounds.
const LENGTH: Duration = Duration::from_millis(600);

pub(crate) fn run() -> Outcome {
    let redis = RedisServer::start(&RedisOptions::new())?;
    let etcd = EtcdServer::start(&EtcdOptions::new())?;
    let zookeeper = zookeeper::start()?;
    let of_zookeeper = vec![peers::ZOOKEEPER_CLIENT, peers::CURATOR, peers::KAZOO];
    let stores: [(&dyn Store, Vec<Kind>); 3] = [
        (&redis, peers::on_redis().into()),
        (&etcd, vec![peers::ETCD_CONCURRENCY]),
        (&zookeeper, of_zookeeper),
    ];
    for (store, kinds) in stores {
        let far = SlowLink::new(store, DELAY)?;
        let trip = round_trip(&redis)?;
        let (kinds, missing) = peers::install(kinds);
        let mut entries = vec![Entry::latchwork(LATCHWORK.name, &far)?];
        for kind in &kinds {
            entries.push(Entry::of(kind, &far)?);
        }
        let samples = in_turns_of(&mut entries, 1, shortened(LENGTH, LENGTH / 2))?;
        println!("{}, one task and a free key:\n", store.name());
        let titles = [
            "what",
            "cycles a second",
            "cycle p50",
            "cycle p99",
            "trips a cycle",
            "latchwork's cycle to it",
            "commands a cycle",
        ];
        head(&titles);
        let middles: Vec<f64> = samples.iter().map(|rows| times(rows).quantile(0.5)).collect();
        for ((entry, rows), middle) in entries.iter().zip(&samples).zip(&middles) {
            row(&[
                entry.name().into(),
                format!("{:.1}", rate(rows)),
                micros(*middle),
                micros(times(rows).quantile(0.99)),
                format!("{:.1}", middle / 1e3 / trip),
                format!("{:.2}", middles[0] / middle),
                format!("{:.2}", commands(rows)),
            ]);
        }
        peers::missing_rows(&missing, titles.len());
        println!(
            "\nA trip there and back took {trip:.1} ms in the median (a PING to Redis over such a link).\n"
        );
    }
    Ok(())
}

/// That of a link like the others, in milliseconds.
fn round_trip(redis: &RedisServer) -> Result<f64, Box<dyn std::error::Error>> {
    ping(&SlowLink::new(redis, DELAY)?)
}

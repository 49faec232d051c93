//! Many locks on etcd that one process holds and renews.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer};

use crate::Outcome;
use crate::contest::stands;
use crate::etcd_contend::requests;
use crate::peers;
use crate::redis_held::held_by_one;
use crate::stats::{head, row, shortened};

const LOCKS: usize = 1_000;
const TTL: Duration = Duration::from_secs(30);
/// The most processor time, in percent of a core.
const MOST: f64 = 5.0;

pub(crate) fn run() -> Outcome {
    let (kinds, missing) = peers::install(vec![peers::LATCHWORK, peers::ETCD_CONCURRENCY]);
    let ttl = shortened(TTL, TTL / 5);
    println!("{LOCKS} locks with a ttl of {} s, each renewed every third of it:\n", ttl.as_secs());
    head(&[
        "what",
        "requests a second",
        "client CPU",
        "latchwork's CPU to it",
        "goal",
        "still held",
    ]);
    let mut ours = f64::NAN;
    for kind in &kinds {
        let server = EtcdServer::start(&EtcdOptions::new())?;
        let seen = held_by_one(kind, &server.url(), LOCKS, ttl, ttl, || requests(&server))?;
        let verdict = if kind.name == "latchwork" {
            ours = seen.cpu;
            // A shorter ttl is renewed more often.
            let most = MOST * TTL.as_secs_f64() / ttl.as_secs_f64();
            stands(format!("< {most} %"), seen.cpu < most)
        } else {
            "-".into()
        };
        row(&[
            kind.name.into(),
            format!("{:.1}", seen.commands),
            format!("{:.3} % of one core", seen.cpu),
            format!("{:.2}", ours / seen.cpu),
            verdict,
            seen.held,
        ]);
    }
    peers::missing_rows(&missing, 6);
    Ok(())
}

//! How long a free lock takes while a load goes on, by HTTP or by the library, each in a process of its own.

use std::time::Duration;

use super::api::{Api, Hold, grant, lock, unlock};
use super::http::Client;
use super::service::{CHILD, SERVICE};
use crate::goals::{self, Goal};
use crate::roles::{Outcome, input, now};
use crate::stats::{head, micros, row, shortened};
use crate::times::Times;
use crate::worker::Worker;

/// Between two cycles: one client of many, which does not take a processor for itself.
const PAUSE: Duration = Duration::from_millis(1);
/// Of the locks that are taken.
const TTL: Duration = Duration::from_secs(15);
const LENGTH: Duration = Duration::from_secs(1);

/// A way to take a lock.
enum Way {
    Library(latchwork::Lock),
    Http(Api, Client),
    /// By etcd's gateway, all locks with one lease of the client.
    OneLease(Client, String),
}

enum Held {
    Library(latchwork::Guard),
    Http(Hold),
    Key(String),
}

impl Way {
    async fn open(word: &str, address: &str) -> Outcome<Self> {
        if word == "library" {
            let locks = latchwork::connect(address).await?;
            return Ok(Self::Library(locks.mutex("probe/library")));
        }
        let mut client = Client::connect(address.parse()?).await?;
        Ok(match Api::of(word) {
            Some(api) => Self::Http(api, client),
            None => {
                let lease = grant(&mut client, TTL * 100).await?;
                Self::OneLease(client, lease)
            }
        })
    }

    async fn acquire(&mut self) -> Outcome<Held> {
        Ok(match self {
            Self::Library(free) => Held::Library(free.try_acquire().await?.ok_or("not free")?),
            Self::Http(api, client) => {
                Held::Http(api.acquire(client, "probe/http", TTL, Duration::ZERO).await?)
            }
            Self::OneLease(client, lease) => Held::Key(lock(client, "probe/one", lease).await?),
        })
    }

    async fn release(&mut self, held: Held) -> Outcome {
        match (self, held) {
            (_, Held::Library(guard)) => Ok(guard.release().await?),
            (Self::Http(_, client), Held::Http(hold)) => hold.release(client).await,
            (Self::OneLease(client, _), Held::Key(key)) => unlock(client, &key).await,
            _ => Err("what it did not take".into()),
        }
    }
}

/// `WAY ADDRESS`; for each line of milliseconds says how long the acquires and the cycles took.
pub(super) async fn run(args: &[String]) -> Outcome {
    let [word, address] = args else { return Err("WAY ADDRESS".into()) };
    let mut opened = None;
    let mut lines = input();
    while let Some(line) = lines.recv().await {
        // Not before it is needed: a service closes a connection over which nothing is asked.
        let way = match &mut opened {
            Some(way) => way,
            None => opened.insert(Way::open(word, address).await?),
        };
        let until = now() + line.parse::<u64>()? * 1_000_000;
        let (mut acquires, mut cycles) = (Times::default(), Times::default());
        while now() < until {
            let start = now();
            let held = way.acquire().await?;
            acquires.record(now() - start);
            way.release(held).await?;
            cycles.record(now() - start);
            tokio::time::sleep(PAUSE).await;
        }
        println!("times {acquires} times {cycles}");
    }
    Ok(())
}

/// A way that is measured.
pub(super) struct Probe {
    name: &'static str,
    worker: Worker,
    acquires: Times,
    cycles: Times,
}

impl Probe {
    pub(super) fn start(name: &'static str, way: &str, address: &str) -> Outcome<Self> {
        let worker = Worker::own(&[CHILD, "probe", way, address])?;
        Ok(Self { name, worker, acquires: Times::default(), cycles: Times::default() })
    }

    /// The microseconds that 99 of 100 acquires do not exceed.
    pub(super) fn p99(&self) -> f64 {
        self.acquires.quantile(0.99)
    }
}

/// Lets each take and release free locks, in turns.
pub(super) fn in_turns(probes: &mut [Probe]) -> Outcome {
    for _ in 0..shortened(15, 3) {
        for probe in &mut *probes {
            probe.worker.tell(&LENGTH.as_millis().to_string())?;
            let line = probe.worker.line()?;
            let (_, times) = Times::after_numbers(&line)?;
            let [acquires, cycles] = &times[..] else { return Err("two times".into()) };
            probe.acquires.merge(acquires);
            probe.cycles.merge(cycles);
        }
    }
    Ok(())
}

/// The most that the p99 of a free acquire by HTTP may be above the library's, in milliseconds.
const HOP: f64 = 1.5;

/// The table; the p99 of an acquire is compared with that of the library.
pub(super) fn table(probes: &[Probe], library: f64) {
    head(
        "a free lock | acquire p50 | acquire p99 | p99 above the library's | goal | cycle p50 | cycle p99 | cycles",
    );
    for probe in probes {
        let above = (probe.p99() - library) / 1e3;
        let goal = (probe.name == SERVICE).then(|| Goal::at_most(HOP).unit("ms").judge(above));
        row(&[
            probe.name.into(),
            micros(probe.acquires.quantile(0.5)),
            micros(probe.p99()),
            if above == 0.0 { "-".into() } else { format!("{above:.2} ms") },
            goals::cell(&Vec::from_iter(goal)),
            micros(probe.cycles.quantile(0.5)),
            micros(probe.cycles.quantile(0.99)),
            probe.cycles.count().to_string(),
        ]);
    }
}

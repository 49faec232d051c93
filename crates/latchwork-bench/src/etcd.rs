//! Locks on etcd, against the bare writes of a lock and Go's package.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::etcd_bare::Bare;
use crate::free_cycles::{self, Entry};
use crate::peers::{self, ETCD_CONCURRENCY, LATCHWORK, LATCHWORK_HANDOVER};
use crate::{contest, handoffs, held_by_one};

fn start() -> Result<EtcdServer, Box<dyn std::error::Error>> {
    Ok(EtcdServer::start(&EtcdOptions::new())?)
}

pub(crate) fn free() -> Outcome {
    let server = start()?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let there = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bare = Bare::connect(&server, &there).map_err(|error| error.to_string())?;
    let locks = here.block_on(latchwork::connect(&server.url()))?;
    let (kinds, missing) = peers::install(vec![ETCD_CONCURRENCY]);
    let mut entries = vec![
        Entry::here(
            "bare, connection on its own thread",
            |_| Some(0.9),
            &here,
            |n| bare.clone().cycles(n),
        ),
        Entry::latchwork("latchwork, with fencing token", &here, locks),
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &server.url(), |_| Some(1.0))?);
    }
    free_cycles::run(entries, &missing, "")
}

pub(crate) fn contend() -> Outcome {
    let kinds = vec![LATCHWORK, LATCHWORK_HANDOVER, ETCD_CONCURRENCY];
    let goal = |kind: &str, _| (kind == ETCD_CONCURRENCY.name).then_some(10.0);
    contest::run(&start()?, kinds, (5, Duration::from_secs(3)), goal)
}

pub(crate) fn handoff() -> Outcome {
    let goal = |kind: &str| (kind == ETCD_CONCURRENCY.name).then_some(1.0);
    handoffs::run(&start()?, vec![LATCHWORK, ETCD_CONCURRENCY], goal)
}

pub(crate) fn held() -> Outcome {
    held_by_one::run(vec![LATCHWORK, ETCD_CONCURRENCY], start)
}

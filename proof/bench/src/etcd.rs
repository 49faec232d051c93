//! Locks on etcd, against the bare writes of a lock and Go's package.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::etcd_bare::Bare;
use crate::free_cycles::{self, Entry};
use crate::goals::Goal;
use crate::peers::{self, ETCD_CONCURRENCY, Kind, LATCHWORK, LATCHWORK_HANDOVER, WATCH_AND_PUT};
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
        Entry::here("bare", &here, |n| bare.clone().cycles(n))
            .goal(|_| Some(0.9))
            .counted(&server, &LATCHWORK),
        Entry::latchwork("latchwork, with fencing token", &here, locks)
            .counted(&server, &LATCHWORK),
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &server)?);
    }
    free_cycles::run(entries, &missing, &server, "")
}

pub(crate) fn contend() -> Outcome {
    let kinds = vec![LATCHWORK, LATCHWORK_HANDOVER, ETCD_CONCURRENCY];
    let rounds = (5, Duration::from_secs(3));
    contest::run(&start()?, kinds, contest::APART, rounds, Kind::contended_goal)
}

pub(crate) fn local() -> Outcome {
    let kinds = vec![LATCHWORK_HANDOVER, LATCHWORK, ETCD_CONCURRENCY];
    let rounds = (3, Duration::from_secs(2));
    contest::run(&start()?, kinds, contest::LOCAL, rounds, Kind::contended_goal)
}

pub(crate) fn handoff() -> Outcome {
    // Most of the time is two transactions on the disk of the server, which each client pays.
    let goal = |kind: &Kind| kind.is_peer().then(|| Goal::at_most(0.95));
    handoffs::run(&start()?, vec![LATCHWORK, WATCH_AND_PUT, ETCD_CONCURRENCY], goal)
}

pub(crate) fn held() -> Outcome {
    held_by_one::run(vec![LATCHWORK, ETCD_CONCURRENCY], start)
}

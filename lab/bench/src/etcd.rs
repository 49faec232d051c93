//! Locks on etcd, against the bare writes of a lock and Go's package.

use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer};

use crate::Outcome;
use crate::free_cycles::{self, Entry};
use crate::goals::Goal;
use crate::peers::{self, ETCD_CONCURRENCY, Kind, LATCHWORK, LATCHWORK_HANDOVER, WATCH_AND_PUT};
use crate::{contest, free_child, handoffs, held_by_one};

fn start() -> Result<EtcdServer, Box<dyn std::error::Error>> {
    Ok(EtcdServer::start(&EtcdOptions::new())?)
}

pub(crate) fn free() -> Outcome {
    let server = start()?;
    let (kinds, missing) = peers::install(vec![ETCD_CONCURRENCY]);
    let mut entries = vec![
        Entry::apart("bare", free_child::BARE_ETCD, &server.url(), &[])?
            .goal(|_| Some(0.9))
            .counted(&server, &LATCHWORK),
        Entry::latchwork("latchwork, with fencing token", &server)?,
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &server)?);
    }
    free_cycles::run(entries, &missing, &server, "")
}

pub(crate) fn contend() -> Outcome {
    let kinds = vec![LATCHWORK, LATCHWORK_HANDOVER, ETCD_CONCURRENCY];
    let rounds = (5, Duration::from_secs(3));
    contest::run(&start()?, kinds, contest::APART, rounds, |kind, _| kind.contended_goal())
}

pub(crate) fn local() -> Outcome {
    let kinds = vec![LATCHWORK_HANDOVER, LATCHWORK, ETCD_CONCURRENCY];
    let rounds = (3, Duration::from_secs(2));
    contest::run(&start()?, kinds, contest::LOCAL, rounds, |kind, _| kind.contended_goal())
}

pub(crate) fn handoff() -> Outcome {
    // Most of the time is two transactions on the disk of the server, which each client pays.
    let goal = |kind: &Kind| kind.is_peer().then(|| Goal::at_most(0.95));
    handoffs::run(&start()?, vec![LATCHWORK, WATCH_AND_PUT, ETCD_CONCURRENCY], goal)
}

pub(crate) fn held() -> Outcome {
    held_by_one::run(vec![LATCHWORK, ETCD_CONCURRENCY], start)
}

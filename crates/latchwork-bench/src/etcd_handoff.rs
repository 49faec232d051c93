//! From one process to another on etcd, when the lock is held for about 200 ms.

use latchwork_services::{EtcdOptions, EtcdServer};

use crate::Outcome;
use crate::handoffs;
use crate::peers;
use crate::stats::shortened;

const ROUNDS: usize = 3;

pub(crate) fn run() -> Outcome {
    let server = EtcdServer::start(&EtcdOptions::new())?;
    let (kinds, missing) = peers::install(vec![peers::LATCHWORK, peers::ETCD_CONCURRENCY]);
    let mut samples: Vec<Vec<f64>> = kinds.iter().map(|_| Vec::new()).collect();
    for _ in 0..shortened(ROUNDS, 1) {
        for (kind, samples) in kinds.iter().zip(&mut samples) {
            samples.extend(handoffs::handoffs(kind, &server.url())?);
        }
    }
    handoffs::table(&kinds, &missing, &mut samples, |kind| {
        (kind == "etcd-concurrency").then_some(1.0)
    });
    Ok(())
}

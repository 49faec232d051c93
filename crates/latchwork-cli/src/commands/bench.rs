//! `latchwork bench`: measures a store from here.

use latchwork::{Error, ErrorKind, LockManager};

use super::close;
use crate::args::BenchArgs;
use crate::bench::{Plan, Workload, draw, measure};
use crate::exit;
use crate::output::Output;

/// Measures, prints the table, and draws.
pub(crate) async fn run(args: &BenchArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let locks = latchwork::connect(store).await?.namespace(&args.namespace);
    refuse_keys_of_others(&locks, args).await?;
    let plan = Plan {
        store: store.to_owned(),
        namespace: args.namespace.clone(),
        length: args.length,
        processes: args.processes,
    };
    let is_shared = !store.starts_with("mem:");
    let mut all = Vec::new();
    for workload in Workload::ALL {
        // Processes that share no store contend for nothing.
        if !is_shared && matches!(workload, Workload::Contended | Workload::HandOff) {
            continue;
        }
        output.progress(&format!("measuring: {}", workload.name()));
        all.push((workload, measure(&plan, &locks, workload).await?));
    }
    let code = output.measured(&locks.capabilities().store, &plan, &all);
    if let Some(file) = &args.svg {
        let svg = draw(&locks.capabilities().store, &all)?;
        std::fs::write(file, svg).map_err(|error| {
            let message = format!("svg: cannot write {}: {error}", file.display());
            Error::new(ErrorKind::Invalid, message).next_step("name a file that can be written")
        })?;
    }
    close(&locks).await;
    let overlaps: u64 = all.iter().map(|(_, measured)| measured.overlaps).sum();
    if overlaps > 0 {
        let message = format!(
            "the lock was broken: {overlaps} holds began before the one before them had ended \
             (namespace {:?}, store {}); look whether anybody else changes these keys, and ask \
             latchwork doctor",
            args.namespace,
            locks.capabilities().store
        );
        output.fail("Overlap", &message);
        return Ok(exit::BROKEN);
    }
    Ok(code)
}

/// A bench that takes somebody's lock is an outage.
async fn refuse_keys_of_others(locks: &LockManager, args: &BenchArgs) -> Result<(), Error> {
    let Some(seen) = locks.list("").await?.into_iter().next() else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Mismatch,
        "the bench only uses keys of its own, and this one is in use",
    )
    .key(&seen.key)
    .store(locks.capabilities().store.clone())
    .next_step(format!(
        "wait until {:?} is free of locks (of another bench?), or choose another --namespace",
        args.namespace
    )))
}

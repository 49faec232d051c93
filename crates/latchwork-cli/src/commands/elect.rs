//! `latchwork elect`: runs a command as long as this candidate leads, or tells who leads.

use std::pin::pin;

use futures_util::StreamExt;
use latchwork::{Error, Leader};

use super::under_lock::{Admitted, Task};
use crate::args::ElectArgs;
use crate::output::Output;
use crate::process::hold::Hold;

/// Campaigns, runs the command, and campaigns again when the leadership is lost.
pub(crate) async fn run(args: &ElectArgs, store: &str, output: &Output) -> Result<u8, Error> {
    if args.observe {
        return observe(args, store, output).await;
    }
    let task = Task {
        names: std::slice::from_ref(&args.name),
        command: &args.command,
        holder: args.candidate.as_deref(),
        max_hold: args.max_hold,
        store,
        output,
    };
    loop {
        let led = task.run(async |manager| {
            let mut election = manager.election(&args.name);
            if let Some(ttl) = args.ttl {
                election = election.ttl(ttl);
            }
            if let Some(max_hold) = args.max_hold {
                election = election.max_hold(max_hold);
            }
            let leadership = election.campaign().await?;
            Ok(Admitted::Hold(Hold::One(leadership.into())))
        });
        let over = led.await?;
        if !over.lost || args.one_term {
            return Ok(over.code);
        }
    }
}

/// Prints who leads, and each change, until a signal ends it.
async fn observe(args: &ElectArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let manager = latchwork::connect(store).await?;
    let mut changes = pin!(manager.election(&args.name).observe());
    while let Some(change) = changes.next().await {
        let leader: Option<Leader> = change?;
        let code = output.leader(&args.name, leader.as_ref());
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

//! `latchwork elect`: runs a command as long as this candidate leads, or tells who leads.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use latchwork::{Election, Error, ErrorKind, Leadership};

use super::nested::{self, WantedMode};
use super::under_lock::{Admitted, Task};
use super::{Context, nap, variables, within};
use crate::args::ElectArgs;
use crate::output::Output;
use crate::process::hold::Hold;

/// Between a campaign that the store did not answer and the next.
const PAUSE: Duration = Duration::from_secs(1);

/// How often to check whether an observer is read.
const LOOK: Duration = Duration::from_secs(1);

/// The interval between checks for the store's directory.
const NEW: Duration = Duration::from_millis(100);

/// Campaigns, runs the command, and campaigns again when the leadership is lost.
pub(crate) async fn run(args: &ElectArgs, place: &Context) -> Result<u8, Error> {
    if args.observe {
        return observe(args, place).await;
    }
    let words = args.words.all();
    let ttl = variables::ttl(args.ttl)?;
    let task = Task {
        names: std::slice::from_ref(&args.name),
        command: &words,
        holder: None,
        max_hold: args.max_hold,
        lock_delay: None,
        wait: None,
        place,
    };
    let mut session = task.open().await?;
    loop {
        let led = session.term(async |manager| {
            nested::refuse(place, manager, task.names, WantedMode::Alone, nested::RENAME).await?;
            let mut election = manager.election(&args.name);
            if let Some(candidate) = &args.candidate {
                election = election.candidate(&**candidate);
            }
            if let Some(ttl) = ttl {
                election = election.ttl(ttl);
            }
            if let Some(max_hold) = args.max_hold {
                election = election.max_hold(max_hold);
            }
            let leadership = campaign(&election, &args.name, &place.output).await?;
            Ok(Admitted::Hold(Hold::One(leadership.into())))
        });
        let over = match led.await {
            Ok(over) if over.lost && !args.one_term => match over.told_to_end() {
                Some(over) => Ok(over),
                None => continue,
            },
            over => over,
        };
        return session.end(over).await;
    }
}

/// Campaigns for as long as it takes, also while the store is away: that is when most leaderships
/// are lost.
async fn campaign(election: &Election, name: &str, output: &Output) -> Result<Leadership, Error> {
    let mut failures = 0;
    loop {
        match election.campaign().await {
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                let message = format!("cannot campaign: {error}; trying again");
                failures += 1;
                // The first may be a moment; the second is for everybody.
                match failures {
                    2 => output.note("unreachable", &message, &[("key", name)]),
                    _ => output.detail("unreachable", &message, &[("key", name)]),
                }
                nap(PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// Prints who leads, and each change, until a signal ends it or nobody reads it any more.
async fn observe(args: &ElectArgs, place: &Context) -> Result<u8, Error> {
    let output = &place.output;
    let mut told = None;
    if place.is_missing() {
        let code = output.leader(&args.name, None);
        if code != 0 {
            return Ok(code);
        }
        told = Some(None);
        while !place.exists() {
            if !output.is_read() {
                return Ok(0);
            }
            nap(NEW).await;
        }
    }
    let manager = place.look().await?;
    let mut changes = pin!(manager.election(&args.name).observe());
    while output.is_read() {
        let Some(change) = within(LOOK, changes.next()).await else { continue };
        match change {
            Some(Ok(leader)) if told.as_ref() == Some(&leader) => {}
            Some(Ok(leader)) => {
                let code = output.leader(&args.name, leader.as_ref());
                if code != 0 {
                    return Ok(code);
                }
                told = Some(leader);
            }
            // What asking again cannot change.
            Some(Err(error)) if !is_passing(&error) => return Err(error),
            Some(Err(error)) => {
                let message = format!("cannot read the leader: {error}; retrying");
                output.note("unreachable", &message, &[("key", &args.name)]);
            }
            None => break,
        }
    }
    Ok(0)
}

/// Whether the store may answer otherwise in a while.
fn is_passing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Denied | ErrorKind::Corrupt)
}

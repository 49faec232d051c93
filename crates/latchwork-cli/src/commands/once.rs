//! `latchwork once`: runs a command once in each period.

use latchwork::{Begun, Error, Skipped};

use super::under_lock::{Admitted, Task};
use crate::args::OnceArgs;
use crate::exit;
use crate::output::{Output, coarse};
use crate::process::hold::Hold;

/// Runs the command if it was not done in this period and nobody is at it.
pub(crate) async fn run(args: &OnceArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let every = args.period()?;
    let task = Task {
        names: std::slice::from_ref(&args.name),
        command: &args.command,
        holder: args.holder.as_deref(),
        max_hold: args.max_hold,
        wait: Some(args.wait.unwrap_or_default()),
        store,
        output,
    };
    let done = task.run(async |manager, wait| {
        let mut once = manager.once(&args.name, every);
        if let Some(ttl) = args.ttl {
            once = once.ttl(ttl);
        }
        if let Some(max_hold) = args.max_hold {
            once = once.max_hold(max_hold);
        }
        let begun = match wait {
            Some(limit) if !limit.is_zero() => once.begin_within(limit).await?,
            _ => once.try_begin().await?,
        };
        Ok(match begun {
            Begun::Run(run) => Admitted::Hold(Hold::Task(run)),
            Begun::Skipped(why) => Admitted::Nothing(skip(args, &why, output)),
        })
    });
    done.await
}

/// Says why there is nothing to do.
fn skip(args: &OnceArgs, why: &Skipped, output: &Output) -> u8 {
    let message = match why {
        Skipped::Done { closed_for: Some(left) } => format!("{why}, closed for {}", coarse(*left)),
        _ => why.to_string(),
    };
    let event = match why {
        Skipped::Done { .. } => "done",
        Skipped::Running { .. } => "running",
        _ => "quarantine",
    };
    output.detail(event, &format!("skipped {:?}: {message}", args.name), &[("key", &args.name)]);
    // A store that may have forgotten what was done is nothing that a scheduler should not hear of.
    let is_quiet = !args.must_run && !matches!(why, Skipped::Quarantine { .. });
    if is_quiet { 0 } else { exit::TIMED_OUT }
}

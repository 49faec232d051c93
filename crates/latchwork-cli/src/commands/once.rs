//! `latchwork once`: runs a command once in each period.

use std::time::Duration;

use jiff::tz::TimeZone;
use latchwork::once::{Begun, Reset, Skipped};
use latchwork::{Error, ErrorKind, Period};
use latchwork_store::clock::wall_time;
use latchwork_store::doctor::operand;

use super::nested::{self, WantedMode};
use super::under_lock::{Admitted, Task};
use super::{Context, locking, variables};
use crate::args::OnceArgs;
use crate::exit;
use crate::output::Done;
use crate::process::hold::Hold;

/// Runs the command if it was not done in this period and nobody is at it.
pub(crate) async fn run(args: &OnceArgs, place: &Context) -> Result<u8, Error> {
    if args.reset {
        return reset(args, place).await;
    }
    let words = args.words.all();
    let (every, ttl) = (period(args)?, variables::ttl(args.ttl)?);
    let task = Task {
        names: std::slice::from_ref(&args.name),
        command: &words,
        holder: args.holder.as_deref(),
        max_hold: args.max_hold,
        lock_delay: args.lock_delay,
        wait: Some(variables::wait(args.wait.time())?.unwrap_or_default()),
        place,
    };
    let done = task.run(async |manager, wait| {
        nested::refuse(place, manager, task.names, WantedMode::Alone, nested::RENAME).await?;
        let mut once = manager.once(&args.name, every);
        if let Some(ttl) = ttl {
            once = once.ttl(ttl);
        }
        if let Some(max_hold) = args.max_hold {
            once = once.max_hold(max_hold);
        }
        if let Some(delay) = args.lock_delay {
            once = once.lock_delay(delay);
        }
        if args.force {
            // A run that is under way stays as it is, and is found to be running below.
            once.reset().await?;
        }
        let begun = match wait {
            Some(limit) if !limit.is_zero() => {
                let begin = async |left: Option<Duration>| {
                    once.begin_within(left.unwrap_or_default()).await
                };
                locking::patiently(Some(limit), begin).await?
            }
            _ => once.try_begin().await?,
        };
        Ok(match begun {
            Begun::Run(run) => Admitted::Hold(Hold::Task(run)),
            Begun::Skipped(why) => Admitted::Nothing(skip(args, &why, place)),
        })
    });
    done.await.map_err(|error| match error.next_step() {
        // The library names its own call beside the option.
        Some(step) if error.kind() == ErrorKind::Mismatch && step.contains("Once::reset") => error
            .with_next_step(format!(
                "use one period on all hosts and check their clocks; then open the task with \
                 `latchwork once --reset {}`",
                operand(&place.key(&args.name))
            )),
        _ => error,
    })
}

/// The period that the command line names. A reset names none, and does not depend on it.
fn period(args: &OnceArgs) -> Result<Period, Error> {
    Period::parse(args.every.as_deref().unwrap_or("1d"), args.tz.as_deref())
}

/// Opens the task again if it is closed.
async fn reset(args: &OnceArgs, place: &Context) -> Result<u8, Error> {
    let output = &place.output;
    if place.is_missing() {
        return Ok(output.reset(&args.name, false, None));
    }
    let manager = place.connect().await?;
    let reset = manager.once(&args.name, period(args)?).reset().await;
    super::close(&manager).await;
    let holder = match reset? {
        Reset::Opened { closed_for } => return Ok(output.reset(&args.name, true, closed_for)),
        Reset::Running { holder } => holder,
        _ => return Ok(output.reset(&args.name, false, None)),
    };
    let by = holder.map(|holder| format!(" by {holder}")).unwrap_or_default();
    output.fail(
        "Running",
        &format!(
            "nothing was reset: {:?} is being run{by}; wait for its end, or see `latchwork show {}`",
            args.name,
            operand(&place.key(&args.name))
        ),
    );
    Ok(exit::TIMED_OUT)
}

/// Says why there is nothing to do.
fn skip(args: &OnceArgs, why: &Skipped, place: &Context) -> u8 {
    place.output.skipped(&args.name, why, &sentence(args, why));
    // A store that may have forgotten what was done is nothing that a scheduler should not hear of.
    let is_quiet = !args.must_run && !matches!(why, Skipped::Quarantine { .. });
    if is_quiet { 0 } else { exit::TIMED_OUT }
}

/// Of what is done, the time is of the zone that the period is counted in.
fn sentence(args: &OnceArgs, why: &Skipped) -> String {
    let Skipped::Done { closed_for, by, at, .. } = why else { return why.to_string() };
    let zone = args.tz.as_deref().and_then(|zone| TimeZone::get(zone).ok());
    Done { by: by.clone(), at: *at, left: *closed_for }.sentence(wall_time(), zone.as_ref())
}

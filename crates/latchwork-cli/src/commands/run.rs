//! `latchwork run`: takes locks, runs a command, releases.

use latchwork::{Error, ErrorKind};

use super::under_lock::{Admitted, Task};
use super::{Place, locking, nested, variables};
use crate::args::RunArgs;
use crate::exit;

/// Runs the command under the locks.
pub(crate) async fn run(args: &RunArgs, place: &Place) -> Result<u8, Error> {
    let (lock, words) = (&args.lock, args.words.all());
    if args.inherit
        && let Some(code) = nested::inherit(place, &lock.names, &words).await?
    {
        return Ok(code);
    }
    // Permits may be left for an inner command.
    if lock.permits.is_none_or(|permits| permits.take == permits.of) {
        nested::refuse(place, &lock.names).await?;
    }
    let ttl = variables::ttl(lock.ttl)?;
    let task = Task {
        names: &lock.names,
        command: &words,
        holder: lock.holder.as_deref(),
        max_hold: lock.max_hold,
        wait: variables::wait(lock.wait)?,
        place,
    };
    let done = task.run(async |manager, wait| {
        locking::acquire(lock, ttl, wait, manager).await.map(Admitted::Hold)
    });
    match done.await {
        Err(error) if error.kind() == ErrorKind::TimedOut => {
            if args.conflict_exit_code == exit::TIMED_OUT {
                return Err(error);
            }
            // An exit code of one's own says it all; the text is for those who watch.
            place.output.note("busy", &error.to_string(), &[]);
            Ok(args.conflict_exit_code)
        }
        done => done,
    }
}

//! `latchwork run`: takes locks, runs a command, releases.

use std::ffi::OsString;

use latchwork::{Error, ErrorKind};

use super::under_lock::{Admitted, Task, is_executable, program_of};
use super::{Context, locking, nested, variables};
use crate::args::RunArgs;
use crate::exit;

/// Runs the command under the locks.
pub(crate) async fn run(args: &RunArgs, place: &Context) -> Result<u8, Error> {
    let (lock, words) = (&args.lock, args.words.all());
    let (ttl, wait) = (variables::ttl(lock.ttl)?, variables::wait(lock.wait.time())?);
    tell_if_words_may_be_a_command(place, &lock.names, &words);
    let task = Task {
        names: &lock.names,
        command: &words,
        holder: lock.holder.as_deref(),
        max_hold: lock.max_hold,
        lock_delay: lock.lock_delay,
        wait,
        place,
    };
    let done = task.run(async |manager, wait| {
        if args.inherit
            && let Some(hold) = nested::borrow(place, manager, lock).await?
        {
            return Ok(Admitted::Hold(hold));
        }
        nested::refuse(place, manager, &lock.names, lock.into(), nested::INHERIT).await?;
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

/// Says what is a name and what the command, where a reader may take it otherwise: in
/// `run x git log -- file`, `file` is the command, as behind every `--`.
fn tell_if_words_may_be_a_command(place: &Context, names: &[String], words: &[OsString]) {
    let (Some(second), Some(command)) = (names.get(1), words.first()) else { return };
    if !is_program(second) {
        return;
    }
    let command = command.to_string_lossy();
    let message = format!(
        "{second:?} is read as the name of a second lock, and {command:?} as the command; to run {second:?}, write \
         a -- before it"
    );
    place.output.note("names", &message, &[]);
}

/// Whether a shell would find a program of this name.
fn is_program(name: &str) -> bool {
    program_of(name.as_ref()).is_some_and(|file| is_executable(&file))
}

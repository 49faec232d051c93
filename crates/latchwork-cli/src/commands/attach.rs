//! `latchwork attach`: a line of what `hold` prints, by which a shell makes the hold its own.

use std::io::ErrorKind;

use crate::args::AttachArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, Wish};
use crate::keeper::keep::ATTACH_WITHIN;
use crate::keeper::shell::runner_under;
use crate::output::{Output, coarse};

/// Tells the keeper to keep the lock for the process that runs this one.
pub(crate) fn run(args: &AttachArgs, output: &Output) -> u8 {
    let Some(shell) = runner_under(args.shell) else {
        let message = format!(
            "process {} did not start this command, or has ended; evaluate the output of `latchwork hold` in the \
             shell that should hold the lock",
            args.shell
        );
        output.fail("Invalid", &message);
        return exit::USAGE;
    };
    match args.id.ask(&Wish::Attach(shell)) {
        Ok(Answer::Attached) => 0,
        Ok(Answer::Ended(code, message)) => {
            output.fail("Lost", &message);
            code
        }
        Ok(_) => {
            output.fail(
                "Invalid",
                "the lock is held for another shell; run latchwork hold in this one",
            );
            exit::USAGE
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let message = format!(
                "the lock is no longer held: it was lost or released, or no shell evaluated the output of \
                 `latchwork hold` within {}; run latchwork hold again",
                coarse(ATTACH_WITHIN)
            );
            output.fail("Lost", &message);
            exit::LOST
        }
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            output.fail(
                "Denied",
                "`latchwork hold` was run by another user or in another container (PID namespace); run it where \
                 the script runs",
            );
            exit::DENIED
        }
        Err(error) => {
            output.fail("Broken", &format!("cannot ask the keeper of the lock: {error}"));
            exit::BROKEN
        }
    }
}

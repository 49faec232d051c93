//! `latchwork attach`: a line of what `hold` prints, by which a shell makes the hold its own.

use std::io::ErrorKind;

use crate::args::AttachArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, Wish};
use crate::keeper::keep::ATTACH_WITHIN;
use crate::output::{Output, coarse};

/// Tells the keeper to keep the lock for the process that runs this one.
pub(crate) fn run(args: &AttachArgs, output: &Output) -> u8 {
    match args.id.ask(&Wish::Attach) {
        Ok(Answer::Attached) => 0,
        Ok(Answer::Another) => {
            output.fail(
                "Invalid",
                "the lock is held for another shell; run latchwork hold in this one",
            );
            exit::USAGE
        }
        Ok(Answer::Ended(code, message)) => {
            output.fail("Lost", &message);
            code
        }
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let message = format!(
                "the lock is not held any more: it was lost or released, or what `latchwork hold` printed was \
                 not evaluated within {}; run latchwork hold again",
                coarse(ATTACH_WITHIN)
            );
            output.fail("Lost", &message);
            exit::LOST
        }
        Err(error) => {
            output.fail("Broken", &format!("cannot ask the keeper of the lock: {error}"));
            exit::BROKEN
        }
    }
}

//! `latchwork release`: ends what `hold` took for this shell, or takes locks away from their holders.

use latchwork::{Error, ErrorKind};
use rustix::process::Pid;

use super::{Place, around, key_of};
use crate::args::ReleaseArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, Wish};
use crate::output::Output;

/// Evicts the holders, and moves the token on so that they are fenced.
pub(crate) async fn by_force(args: &ReleaseArgs, place: &Place) -> Result<u8, Error> {
    let manager = place.connect().await?;
    let mut code = 0;
    for name in &args.names {
        let released = manager.force_release(name).await?;
        code = code.max(place.output.released(&place.key(name), &released.evicted, released.token));
    }
    super::close(&manager).await;
    Ok(code)
}

/// Asks the keepers of this shell to release their locks. They know the store.
pub(crate) fn own(args: &ReleaseArgs, namespace: &str, output: &Output) -> Result<u8, Error> {
    let holds = around::holds();
    let mut code = 0;
    if args.names.is_empty() {
        let answers = holds.iter().filter_map(|hold| hold.ask(&Wish::Release(args.pid)).ok());
        let (mut others, mut is_released) = (None, false);
        for answer in answers {
            match answer {
                Answer::Ended(ended, message) => {
                    is_released = true;
                    code = code.max(said(ended, &message, output));
                }
                Answer::Another(pid) => others = pid.or(others),
                Answer::Attached | Answer::Unknown => {}
            }
        }
        return if is_released { Ok(code) } else { Err(not_ours("no lock", others)) };
    }
    for name in &args.names {
        let wish = Wish::ReleaseKey(args.pid, key_of(namespace, name));
        let mut others = None;
        let released = holds.iter().find_map(|hold| match hold.ask(&wish).ok()? {
            Answer::Ended(ended, message) => Some((ended, message)),
            Answer::Another(pid) => {
                others = pid;
                None
            }
            Answer::Attached | Answer::Unknown => None,
        });
        let Some((ended, message)) = released else {
            return Err(not_ours(&format!("no lock {name:?}"), others));
        };
        code = code.max(said(ended, &message, output));
    }
    Ok(code)
}

/// The error for what is not to be released from here; `holder` is a process that holds it.
fn not_ours(what: &str, holder: Option<Pid>) -> Error {
    match holder {
        Some(pid) => {
            let message = format!(
                "`latchwork hold` holds {what} for the shell that runs this command, but for process {pid}"
            );
            Error::new(ErrorKind::Invalid, message).next_step(format!(
                "run the release in that shell; in a subshell of it, add --pid {pid}"
            ))
        }
        None => {
            let message = format!("`latchwork hold` holds {what} for this shell");
            Error::new(ErrorKind::Invalid, message)
                .next_step("add --force and a name to take a lock away from its holder")
        }
    }
}

fn said(code: u8, message: &str, output: &Output) -> u8 {
    match code {
        0 => output.detail("released", message, &[]),
        exit::LOST => output.fail("Lost", message),
        _ => output.note("unreleased", message, &[]),
    }
    code
}

//! `latchwork release`: ends what `hold` took for this shell, or takes locks away from their holders.

use latchwork::{Error, ErrorKind};

use super::Place;
use crate::args::ReleaseArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, HoldId};

/// Releases locks.
pub(crate) async fn run(args: &ReleaseArgs, place: &Place) -> Result<u8, Error> {
    if args.force { by_force(args, place).await } else { own(args, place) }
}

/// Evicts the holders, and moves the token on so that they are fenced.
async fn by_force(args: &ReleaseArgs, place: &Place) -> Result<u8, Error> {
    let manager = place.connect().await?;
    let mut code = 0;
    for name in &args.names {
        let released = manager.force_release(name).await?;
        code = code.max(place.output.released(&place.key(name), &released.evicted, released.token));
    }
    super::close(&manager).await;
    Ok(code)
}

/// Asks the keepers of this shell to release their locks.
fn own(args: &ReleaseArgs, place: &Place) -> Result<u8, Error> {
    let holds = HoldId::of_shell();
    let not_ours = |problem: String| {
        Error::new(ErrorKind::Invalid, problem)
            .next_step("add --force to take a lock away from its holder")
    };
    let mut code = 0;
    if args.names.is_empty() {
        let mut answers = 0;
        for hold in &holds {
            if let Some(ended) = ask(hold, None) {
                answers += 1;
                code = code.max(said(ended, place));
            }
        }
        return if answers > 0 {
            Ok(code)
        } else {
            Err(not_ours("`latchwork hold` holds no lock for this shell".into()))
        };
    }
    for name in &args.names {
        let key = place.key(name);
        match holds.iter().find_map(|hold| ask(hold, Some(&key))) {
            Some(ended) => code = code.max(said(ended, place)),
            None => {
                return Err(not_ours(format!(
                    "`latchwork hold` does not hold {name:?} for this shell"
                )));
            }
        }
    }
    Ok(code)
}

/// The code and the message of a keeper that ended for this; `None` if it has ended before or holds another
/// lock.
fn ask(hold: &HoldId, key: Option<&str>) -> Option<(u8, String)> {
    match hold.ask(key) {
        Ok(Answer::Ended(code, message)) => Some((code, message)),
        Ok(Answer::Another) | Err(_) => None,
    }
}

fn said((code, message): (u8, String), place: &Place) -> u8 {
    match code {
        0 => place.output.detail("released", &message, &[]),
        exit::LOST => place.output.fail("Lost", &message),
        _ => place.output.note("unreleased", &message, &[]),
    }
    code
}

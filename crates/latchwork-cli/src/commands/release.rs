//! `latchwork release`: ends what `hold` took for this shell, or takes locks away from their holders.

use latchwork::{Error, ErrorKind};

use super::{Place, around, key_of};
use crate::args::ReleaseArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, HoldId, Wish};
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
    let not_ours = |problem: String| {
        Error::new(ErrorKind::Invalid, problem)
            .next_step("add --force and a name to take a lock away from its holder")
    };
    let mut code = 0;
    if args.names.is_empty() {
        let mut answers = 0;
        for hold in &holds {
            if let Some(ended) = ask(hold, &Wish::Release) {
                answers += 1;
                code = code.max(said(ended, output));
            }
        }
        return if answers > 0 {
            Ok(code)
        } else {
            Err(not_ours("`latchwork hold` holds no lock for this shell".into()))
        };
    }
    for name in &args.names {
        let wish = Wish::ReleaseKey(key_of(namespace, name));
        match holds.iter().find_map(|hold| ask(hold, &wish)) {
            Some(ended) => code = code.max(said(ended, output)),
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
fn ask(hold: &HoldId, wish: &Wish) -> Option<(u8, String)> {
    match hold.ask(wish) {
        Ok(Answer::Ended(code, message)) => Some((code, message)),
        Ok(Answer::Another | Answer::Attached) | Err(_) => None,
    }
}

fn said((code, message): (u8, String), output: &Output) -> u8 {
    match code {
        0 => output.detail("released", &message, &[]),
        exit::LOST => output.fail("Lost", &message),
        _ => output.note("unreleased", &message, &[]),
    }
    code
}

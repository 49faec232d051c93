//! A command that runs under a lock and asks for the same lock again.
//!
//! It would wait for the command that started it, which waits for it: for ever. The outer command left its
//! keys and tokens in the environment, and the store says whether that hold still goes on, and as what.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use latchwork::store::{Mode, Party};
use latchwork::{Error, ErrorKind, LockManager};

use super::around::{self, Outer};
use super::under_lock::Failed;
use super::{Place, connect};
use crate::args::{LockArgs, Permits};

/// What a command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// A lock that shares with nobody.
    Alone,
    /// To be a reader.
    Read,
    /// To be the only one, where there are readers.
    Write,
    /// Some of the permits.
    Some(Permits),
}

impl From<&LockArgs> for Asked {
    fn from(args: &LockArgs) -> Self {
        match args.permits {
            Some(permits) => Self::Some(permits),
            None if args.read => Self::Read,
            None if args.write => Self::Write,
            None => Self::Alone,
        }
    }
}

impl Asked {
    /// Whether a hold in this mode gives all that is asked for.
    fn is_covered_by(self, outer: Mode) -> bool {
        match (self, outer) {
            (Self::Alone, Mode::Exclusive) => true,
            (Self::Read, Mode::Read | Mode::Write) | (Self::Write, Mode::Write) => true,
            (Self::Some(permits), Mode::Permits { take, of }) => {
                of == permits.of && take >= permits.take
            }
            _ => false,
        }
    }

    /// Whether it can be had while these go on. A reader beside a reader cannot: one who waits to write would
    /// stand between them, and wait for the first.
    fn is_free_beside(self, outer: &[Mode]) -> bool {
        let Self::Some(Permits { take, of }) = self else { return outer.is_empty() };
        let all = outer.iter().try_fold(take, |all, mode| match mode {
            Mode::Permits { take, of: limit } if *limit == of => all.checked_add(*take),
            _ => None,
        });
        all.is_some_and(|all| all <= of)
    }
}

/// The holds of a name around this command that still go on, with their tokens and modes.
async fn held_outside(
    place: &Place,
    manager: &LockManager,
    name: &str,
) -> Result<Vec<(Outer, Mode)>, Error> {
    let key = place.key(name);
    let mut outside = around::all();
    outside.retain(|outer| outer.key == key);
    if outside.is_empty() {
        return Ok(Vec::new());
    }
    let seen = manager.inspect(name).await?;
    let floor = place.token_floor;
    let mode_of = |outer: &Outer| outer.party(&seen, floor).map(|party: &Party| party.mode);
    Ok(outside.into_iter().filter_map(|outer| mode_of(&outer).map(|mode| (outer, mode))).collect())
}

/// Refuses a command that would wait for the one around it. Without such a command the store is not asked.
///
/// # Errors
///
/// `Invalid` if a command or a shell around this one holds one of the names.
pub(super) async fn refuse(
    place: &Place,
    manager: &LockManager,
    names: &[String],
    asked: Asked,
    step: &str,
) -> Result<(), Error> {
    for name in names {
        let held = held_outside(place, manager, name).await?;
        let modes: Vec<Mode> = held.iter().map(|(_, mode)| *mode).collect();
        if !asked.is_free_beside(&modes)
            && let Some((outer, _)) = held.last()
        {
            return Err(waits_for_itself(name, outer, step));
        }
    }
    Ok(())
}

/// The next step for `run`.
pub(super) const INHERIT: &str =
    "use `latchwork run --inherit` to run under that hold, or another name";
/// That for what cannot run under another hold.
pub(super) const RENAME: &str = "use another name";
/// That for `hold`.
pub(super) const SKIP: &str = "leave out this `hold`, or use another name";

fn waits_for_itself(name: &str, outer: &Outer, step: &str) -> Error {
    let who = if outer.hold().is_some() { "shell" } else { "command" };
    let message = format!(
        "{name:?} is held by the {who} that started this command (token {}), so waiting would never end",
        outer.token
    );
    Error::new(ErrorKind::Invalid, message).next_step(step)
}

/// Becomes the command, under the hold of the command around this one. Returns if it holds none of the
/// names: then they are still to be taken.
///
/// The command stays in the process group of the outer one, which is ended as a whole if the lock is lost.
///
/// # Errors
///
/// `Invalid` if it holds some of the names and not the others, or holds one as less than is asked for.
pub(super) async fn inherit(
    place: &Place,
    args: &LockArgs,
    wait: Option<std::time::Duration>,
    words: &[OsString],
) -> Result<Option<u8>, Error> {
    let outside = around::all();
    let is_outside = |name: &String| outside.iter().any(|outer| outer.key == place.key(name));
    if !args.names.iter().any(is_outside) {
        return Ok(None);
    }
    let holder = args.holder.as_deref().unwrap_or_default();
    let manager = connect::connect(place, wait, holder).await?.manager;
    let tokens = tokens_outside(place, &manager, &args.names, args.into()).await;
    super::close(&manager).await;
    let tokens = tokens?;
    let Some(tokens) = tokens else { return Ok(None) };
    let keys: Vec<_> = args.names.iter().map(|name| place.key(name)).collect();
    let tokens = tokens.join("\n");
    place.output.detail("inherited", &format!("runs under the outer hold, token {tokens}"), &[]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(around::KEY, keys.join("\n")).env(around::TOKEN, tokens);
    for (name, value) in place.store.environment() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    place.store.keep_over_exec();
    let failed = Failed::start(words, &command.exec());
    place.output.fail("Command", &failed.message);
    Ok(Some(failed.code))
}

/// The tokens of the names that are held around this command, in the order of the names; `None` if none is.
async fn tokens_outside(
    place: &Place,
    manager: &LockManager,
    names: &[String],
    asked: Asked,
) -> Result<Option<Vec<String>>, Error> {
    let (mut tokens, mut missing) = (Vec::with_capacity(names.len()), Vec::new());
    for name in names {
        let held = held_outside(place, manager, name).await?;
        let enough = held.iter().rfind(|(_, mode)| asked.is_covered_by(*mode));
        match (enough, held.last()) {
            (Some((outer, _)), _) => tokens.push(outer.token.clone()),
            (None, Some((outer, mode))) => return Err(is_too_little(name, outer, *mode)),
            (None, None) => missing.push(name),
        }
    }
    if tokens.is_empty() {
        return Ok(None);
    }
    if !missing.is_empty() {
        let message = format!("the outer command holds some of these locks, but not {missing:?}");
        return Err(Error::new(ErrorKind::Invalid, message).next_step(
            "acquire all of them in the outer command, or run --inherit for those that it holds and a `run` of \
             its own for the rest",
        ));
    }
    Ok(Some(tokens))
}

fn is_too_little(name: &str, outer: &Outer, mode: Mode) -> Error {
    let held = match mode {
        Mode::Exclusive => "as a plain lock".to_owned(),
        Mode::Read => "with --read".to_owned(),
        Mode::Write => "with --write".to_owned(),
        Mode::Permits { take, of } => format!("with --permits {take}/{of}"),
    };
    let message = format!(
        "the outer command holds {name:?} {held} (token {}), but this one asks for another kind or for more",
        outer.token
    );
    Error::new(ErrorKind::Invalid, message)
        .next_step("use the same kind in both, and acquire at least as much in the outer command")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(take: u32, of: u32) -> Asked {
        Asked::Some(Permits { take, of })
    }

    #[test]
    fn a_hold_covers_equal_or_smaller_requests() {
        let permits = Mode::Permits { take: 2, of: 3 };
        for (asked, outer, is_covered) in [
            (Asked::Alone, Mode::Exclusive, true),
            (Asked::Read, Mode::Read, true),
            (Asked::Read, Mode::Write, true),
            (Asked::Write, Mode::Write, true),
            (Asked::Write, Mode::Read, false),
            (Asked::Alone, Mode::Read, false),
            (Asked::Write, Mode::Exclusive, false),
            (some(1, 3), permits, true),
            (some(2, 3), permits, true),
            (some(3, 3), permits, false),
            (some(1, 4), permits, false),
        ] {
            assert_eq!(asked.is_covered_by(outer), is_covered, "{asked:?} under {outer:?}");
        }
    }

    #[test]
    fn permits_that_are_left_are_free_and_a_readers_place_is_not() {
        let one = Mode::Permits { take: 1, of: 3 };
        assert!(some(1, 3).is_free_beside(&[one, one]));
        assert!(!some(2, 3).is_free_beside(&[one, one]));
        assert!(!some(1, 4).is_free_beside(&[one]));
        assert!(!Asked::Read.is_free_beside(&[Mode::Read]));
        assert!(Asked::Read.is_free_beside(&[]));
    }
}

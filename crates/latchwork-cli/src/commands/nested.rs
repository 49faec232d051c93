//! A command that runs under a lock and asks for the same lock again.
//!
//! It would wait for the command that started it, which waits for it: for ever. The outer command left its
//! keys and tokens in the environment. It says itself whether its hold still goes on, and the store as what.

use std::{io, slice};

use latchwork::{Error, ErrorKind, HoldState, LockManager};
use latchwork_store::Mode;

use super::around::{self, Outer, Word};
use super::{Context, within};
use crate::args::{LockArgs, Permits, ResizePolicy};
use crate::keeper::loan::{self, Loan};
use crate::process::hold::Hold;

/// What a command line asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WantedMode {
    /// A lock that shares with nobody.
    Alone,
    /// To be a reader.
    Read,
    /// To be the only one, where there are readers.
    Write,
    /// Some of the permits.
    Some(Permits),
    /// Some of the permits, whatever the limit of the others.
    SomeOfAny(Permits),
}

impl From<&LockArgs> for WantedMode {
    fn from(args: &LockArgs) -> Self {
        match args.permits {
            Some(permits) if matches!(args.resize, None | Some(ResizePolicy::Never)) => {
                Self::Some(permits)
            }
            Some(permits) => Self::SomeOfAny(permits),
            None if args.read => Self::Read,
            None if args.write => Self::Write,
            None => Self::Alone,
        }
    }
}

impl WantedMode {
    /// Whether a hold in this mode gives all that is asked for.
    fn is_covered_by(self, outer: Mode) -> bool {
        match (self, outer) {
            (Self::Alone, Mode::Exclusive) => true,
            (Self::Read, Mode::Read | Mode::Write) | (Self::Write, Mode::Write) => true,
            (Self::Some(permits), Mode::Permits { take, of }) => {
                of == permits.of && take >= permits.take
            }
            (Self::SomeOfAny(permits), Mode::Permits { take, .. }) => take >= permits.take,
            _ => false,
        }
    }

    /// Whether it can be acquired while these are held. A reader beside a reader cannot: a writer may wait between
    /// them, for the first.
    fn is_free_beside(self, outer: &[Mode]) -> bool {
        let (Self::Some(Permits { take, of }) | Self::SomeOfAny(Permits { take, of })) = self
        else {
            return outer.is_empty();
        };
        let is_any = matches!(self, Self::SomeOfAny(_));
        let all = outer.iter().try_fold(take, |all, mode| match mode {
            Mode::Permits { take, of: limit } if is_any || *limit == of => all.checked_add(*take),
            _ => None,
        });
        all.is_some_and(|all| all <= of)
    }
}

/// A hold around this command that still goes on.
struct OuterHold {
    outer: Outer,
    mode: Mode,
    /// Why its holder cannot be asked, if it cannot: the store alone says so.
    silence: Option<Option<io::Error>>,
}

/// The holds of a name around this command that still go on.
///
/// The store lists a hold also when its holder has ended or has lost it by its own clock: for the rest of the
/// ttl and the lock delay.
async fn held_outside(
    place: &Context,
    manager: &LockManager,
    name: &str,
) -> Result<Vec<OuterHold>, Error> {
    let key = place.key(name);
    let mut outside = Vec::new();
    for outer in around::all().into_iter().filter(|outer| outer.key == key) {
        match outer.ask().await {
            Word::Held => outside.push((outer, None)),
            Word::Silent(why) => outside.push((outer, Some(why))),
            Word::Over => {}
        }
    }
    if outside.is_empty() {
        return Ok(Vec::new());
    }
    let seen = manager.inspect(name).await?;
    let held = |(outer, silence): (Outer, Option<Option<io::Error>>)| {
        let party = outer.party(&seen, place.token_floor)?;
        let goes_on = silence.is_none() || !outer.is_in_delay(party);
        goes_on.then_some(OuterHold { mode: party.mode, outer, silence })
    };
    Ok(outside.into_iter().filter_map(held).collect())
}

/// Refuses a command that would wait for the one around it. Without such a command the store is not asked.
///
/// # Errors
///
/// `Invalid` if a command or a shell around this one holds one of the names.
pub(super) async fn refuse(
    place: &Context,
    manager: &LockManager,
    names: &[String],
    asked: WantedMode,
    step: &str,
) -> Result<(), Error> {
    for name in names {
        let held = held_outside(place, manager, name).await?;
        let modes: Vec<Mode> = held.iter().map(|held| held.mode).collect();
        if !asked.is_free_beside(&modes)
            && let Some(held) = held.last()
        {
            return Err(waits_for_itself(name, &held.outer, step));
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

fn who(outer: &Outer) -> &'static str {
    if outer.hold().is_some() { "shell" } else { "command" }
}

fn waits_for_itself(name: &str, outer: &Outer, step: &str) -> Error {
    let who = who(outer);
    let message = format!(
        "{name:?} is held by the {who} that started this command (token {}), so waiting would never end",
        outer.token
    );
    Error::new(ErrorKind::Invalid, message).with_next_step(step)
}

/// Borrows the holds of the command around this one; `None` if it holds none of the names: then they are still
/// to be taken.
///
/// # Errors
///
/// `Invalid` if it holds some of the names and not the others, or holds one as less than is asked for, or for an
/// option that only its own hold could obey; what keeps its holder from answering.
pub(super) async fn borrow(
    place: &Context,
    manager: &LockManager,
    args: &LockArgs,
) -> Result<Option<Hold>, Error> {
    let asked = WantedMode::from(args);
    let (mut loans, mut missing) = (Vec::with_capacity(args.names.len()), Vec::new());
    for name in &args.names {
        let held = held_outside(place, manager, name).await?;
        let enough = held.iter().rfind(|held| asked.is_covered_by(held.mode));
        let loan = match (enough, held.last()) {
            (Some(held), _) => loan(name, held).await?,
            (None, Some(held)) => return Err(is_too_little(name, &held.outer, held.mode)),
            (None, None) => None,
        };
        match loan {
            Some(loan) => loans.push(loan),
            None => missing.push(name),
        }
    }
    if loans.is_empty() {
        return Ok(None);
    }
    if !missing.is_empty() {
        let message = format!("the outer command holds some of these locks, but not {missing:?}");
        return Err(Error::new(ErrorKind::Invalid, message).with_next_step(
            "acquire all of them in the outer command, or run --inherit for those that it holds and a `run` of \
             its own for the rest",
        ));
    }
    // --max-hold limits the time of the command under any hold.
    for (option, is_given) in [
        ("--ttl", args.ttl.is_some()),
        ("--lock-delay", args.lock_delay.is_some()),
        ("--holder", args.holder.is_some()),
    ] {
        if is_given {
            let message =
                format!("{option}: with --inherit, the hold is that of the outer command");
            let step = format!("give {option} to the outer command, or leave it out");
            return Err(Error::new(ErrorKind::Invalid, message).with_next_step(step));
        }
    }
    Ok(Some(Hold::Borrowed(loans)))
}

/// Borrows this hold; `None` if it is over meanwhile.
async fn loan(name: &str, held: &OuterHold) -> Result<Option<Loan>, Error> {
    let OuterHold { outer, silence, .. } = held;
    if let Some(why) = silence {
        return Err(cannot_ask(name, outer, why.as_ref()));
    }
    let Some(lender) = outer.lender() else { return Err(cannot_ask(name, outer, None)) };
    match within(around::ANSWER, Loan::of(lender, &outer.key, &outer.token)).await {
        Some(Ok(Some(loan))) => confirmed(name, outer, loan).await,
        Some(Ok(None)) => Ok(None),
        Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
        Some(Err(error)) => Err(cannot_ask(name, outer, Some(&error))),
        None => Err(cannot_ask(name, outer, Some(&io::ErrorKind::TimedOut.into()))),
    }
}

/// Waits until its holder is in no doubt. `None` if it has lost the hold.
async fn confirmed(name: &str, outer: &Outer, loan: Loan) -> Result<Option<Loan>, Error> {
    let settled = loan::until(slice::from_ref(&loan), |state| match state {
        HoldState::Held => Some(true),
        HoldState::Lost(_) => Some(false),
        _ => None,
    });
    let is_held = within(around::ANSWER, settled).await;
    match is_held {
        Some(true) => Ok(Some(loan)),
        Some(false) => Ok(None),
        None => {
            let message = format!(
                "{name:?} may still be held by the {} that started this command, but the store has not confirmed \
                 that since a clock was set or the machine was paused",
                who(outer)
            );
            let step = "check that the outer latchwork process reaches the store, and run this command again";
            Err(Error::new(ErrorKind::Unreachable, message).with_next_step(step))
        }
    }
}

/// Nothing may run under a hold whose holder does not confirm it.
fn cannot_ask(name: &str, outer: &Outer, why: Option<&io::Error>) -> Error {
    let who = who(outer);
    let error = |kind, problem: &str| {
        Error::new(
            kind,
            format!("{name:?} may still be held by the {who} that started this command, {problem}"),
        )
    };
    match why.map(|why| (why.kind(), why)) {
        None => error(ErrorKind::Invalid, "but its version of latchwork cannot be asked")
            .with_next_step("use one version of latchwork inside and outside"),
        Some((io::ErrorKind::PermissionDenied, _)) => error(
            ErrorKind::Denied,
            "but it cannot be asked from here: it belongs to another user or network namespace",
        )
        .with_next_step("run this command as the same user and in the same network namespace, outside of the container"),
        Some((io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock, _)) => {
            error(ErrorKind::Unreachable, "but it does not answer")
                .with_next_step("its latchwork process may be stopped: continue it (kill -CONT)")
        }
        Some((_, why)) => error(ErrorKind::Corrupt, &format!("but asking it failed: {why}")),
    }
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
    Error::new(ErrorKind::Invalid, message).with_next_step(
        "use the same kind in both, and acquire at least as much in the outer command",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(take: u32, of: u32) -> WantedMode {
        WantedMode::Some(Permits { take, of })
    }

    #[test]
    fn a_hold_covers_equal_or_smaller_requests() {
        let permits = Mode::Permits { take: 2, of: 3 };
        for (asked, outer, is_covered) in [
            (WantedMode::Alone, Mode::Exclusive, true),
            (WantedMode::Read, Mode::Read, true),
            (WantedMode::Read, Mode::Write, true),
            (WantedMode::Write, Mode::Write, true),
            (WantedMode::Write, Mode::Read, false),
            (WantedMode::Alone, Mode::Read, false),
            (WantedMode::Write, Mode::Exclusive, false),
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
        assert!(!WantedMode::Read.is_free_beside(&[Mode::Read]));
        assert!(WantedMode::Read.is_free_beside(&[]));
    }
}

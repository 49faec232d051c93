//! The holds of the commands and the shell around this one, as the environment tells of them.

use std::io;
use std::time::Duration;

use latchwork::{Error, ErrorKind, FencingToken};
use latchwork_store::{Party, Snapshot};
use rustix::process::{Pid, getpid};
use serde::{Deserialize, Serialize};

use super::{Context, within};
use crate::keeper::hold_id::{Answer, HoldId, Wish};
use crate::process::hold::Hold;

/// The variable with the keys that a command runs under, one a line.
pub(super) const KEY: &str = "LATCHWORK_KEY";
/// The variable with their tokens, in the same order.
pub(super) const TOKEN: &str = "LATCHWORK_TOKEN";
/// The variable with all that is held around a command: a JSON array of [`Outer`].
pub(super) const HELD: &str = "LATCHWORK_HELD";

/// The kernel starts no program with a variable that is longer than 128 KiB.
const LONGEST: usize = 64 * 1024;

/// How long a holder may take to report the validity that remains.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// A lock that somebody around this command held when it started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outer {
    pub(super) key: String,
    /// As text: numbers of this size are not for every reader of JSON.
    pub(super) token: String,
    /// What its tokens were to be larger than.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    floor: Option<String>,
    /// What the store says of the holder.
    holder: String,
    /// The hold that it is, if a keeper holds it for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hold: Option<String>,
    /// The same for one that a command holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// The network namespace in which its holder listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    net: Option<String>,
    /// For how long the store lists it after its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
}

/// The state of a hold around this command.
pub(super) enum Word {
    /// Its holder has it.
    Held,
    /// It is over.
    Over,
    /// Its holder cannot be asked, for this reason; `None` for a version that answers nothing.
    Silent(Option<io::Error>),
}

/// The result of a question to the keeper of a hold.
pub(super) enum Reached {
    Answer(Answer),
    /// It has ended. Somebody else may listen where it did.
    Ended,
    /// It may go on, and this is why it is out of reach.
    Away(&'static str),
}

impl Reached {
    /// The error for a keeper that is out of reach.
    pub(super) fn away(why: &str, verb: &str) -> Error {
        let message = format!("cannot reach the keeper process of `latchwork hold`: {why}");
        Error::new(ErrorKind::Denied, message).with_next_step(format!(
            "run `latchwork {verb}` where `latchwork hold` was run, outside of the container"
        ))
    }
}

/// The processes to ask keepers for, one after the other: the named one or this one.
///
/// A process that has replaced a shell is for its holds first: to the kernel it is a command of the shell around that one.
pub(super) fn shells(named: Option<Pid>) -> Vec<Option<Pid>> {
    match named {
        Some(pid) => vec![Some(pid)],
        None => vec![Some(getpid()), None],
    }
}

impl Outer {
    /// Asks the keeper of the hold.
    ///
    /// # Errors
    ///
    /// `Unreachable` if it does not answer.
    pub(super) fn reach(&self, hold: &HoldId, wish: &Wish) -> Result<Reached, Error> {
        if self.is_elsewhere() {
            return Ok(Reached::Away("it is in another network namespace"));
        }
        match hold.ask(wish) {
            Ok(answer) => Ok(Reached::Answer(answer)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Reached::Away("it belongs to another user or is in another PID namespace"))
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let message = "the keeper process of `latchwork hold` does not answer";
                Err(Error::new(ErrorKind::Unreachable, message).with_next_step(
                    "it may be stopped: continue it (kill -CONT), or end the shell; the lock ends with it",
                ))
            }
            Err(_) => Ok(Reached::Ended),
        }
    }

    pub(super) fn hold(&self) -> Option<HoldId> {
        HoldId::read(self.hold.as_deref()?)
    }

    /// Where its holder is asked for it.
    pub(super) fn lender(&self) -> Option<HoldId> {
        self.hold().or_else(|| HoldId::read(self.run.as_deref()?))
    }

    /// Whether its holder listens in another network namespace than this process, which cannot reach it then.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!((&self.net, network()), (Some(its), Some(own)) if *its != own)
    }

    fn goes_on(&self) -> bool {
        self.is_elsewhere() || self.lender().is_none_or(|lender| lender.goes_on())
    }

    /// Asks its holder.
    pub(super) async fn ask(&self) -> Word {
        let Some(lender) = self.lender() else { return Word::Silent(None) };
        if self.is_elsewhere() {
            return Word::Silent(Some(io::ErrorKind::PermissionDenied.into()));
        }
        match within(ANSWER, lender.terms(&self.key)).await {
            // That of a shell may have got another token since; a keeper has one hold in its life.
            Some(Ok(Some(terms))) if self.hold.is_some() || terms.token == self.token => Word::Held,
            Some(Ok(_)) => Word::Over,
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Word::Over,
            Some(Err(error)) => Word::Silent(Some(error)),
            None => Word::Silent(Some(io::ErrorKind::TimedOut.into())),
        }
    }

    /// Whether the store lists this claim only for its lock delay.
    pub(super) fn is_in_delay(&self, party: &Party) -> bool {
        let delay = Duration::from_millis(self.delay_ms.unwrap_or_default());
        !delay.is_zero() && party.remaining.is_some_and(|left| left <= delay)
    }

    /// The claim of this hold, if the store still knows it; `floor` is the one that its answer was made with.
    ///
    /// Another store of the kind may have given the same token for this name, so the holder is compared as well.
    pub(super) fn party<'a>(
        &self,
        seen: &'a Snapshot,
        floor: Option<FencingToken>,
    ) -> Option<&'a Party> {
        let read = |text: &str| text.parse().ok().map(FencingToken::from_raw);
        let own_floor = self.floor.as_deref().map(read);
        let grant = grant_of(read(&self.token)?, own_floor.flatten())?;
        let is_this = |party: &&Party| {
            let token = party.token.map(FencingToken::from_grant);
            token.and_then(|token| grant_of(token, floor)) == Some(grant)
                && *party.holder.text == *self.holder
        };
        seen.holders.iter().find(is_this)
    }
}

/// The store's own number of a grant, whatever floor its token has.
fn grant_of(token: FencingToken, floor: Option<FencingToken>) -> Option<u64> {
    token.grant_number().checked_sub(floor.map_or(0, |floor| floor.grant_number() + 1))
}

/// All of them, the oldest first.
pub(super) fn all() -> Vec<Outer> {
    let text = std::env::var(HELD).unwrap_or_default();
    let values: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    values.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect()
}

/// The holds of the shells around this process, the oldest first: one entry for each keeper.
pub(super) fn holds() -> Vec<Outer> {
    let mut all = all();
    all.retain(|outer| outer.hold().is_some());
    all.dedup_by_key(|outer| outer.hold.clone());
    all
}

/// What is said of the locks that a command or a shell gets.
pub(super) struct Mine<'a> {
    pub(super) holder: &'a str,
    pub(super) lender: Option<&'a HoldId>,
    /// Whether a keeper lends them, which can also release them.
    pub(super) is_of_shell: bool,
    pub(super) lock_delay: Option<Duration>,
}

impl Mine<'_> {
    fn outer(&self, place: &Context, key: String, token: String) -> Outer {
        let lender = self.lender.map(|id| id.as_str().to_owned());
        let (hold, run) = if self.is_of_shell { (lender, None) } else { (None, lender) };
        let delay = self.lock_delay.filter(|delay| !delay.is_zero());
        Outer {
            key,
            token,
            floor: place.token_floor.map(|floor| floor.to_string()),
            holder: self.holder.to_owned(),
            hold,
            run,
            net: self.lender.and_then(|_| network()),
            delay_ms: delay.map(|delay| u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// The network namespace of this process, as far as /proc tells.
fn network() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/net").ok()?;
    Some(link.to_str()?.trim_matches(|c: char| !c.is_ascii_digit()).to_owned())
}

/// The value of the variable with this hold added to those around. What is borrowed is among them.
pub(super) fn with(place: &Context, hold: &Hold, mine: &Mine<'_>) -> String {
    let own = hold.names().into_iter().zip(hold.each_token()).filter(|_| !hold.is_borrowed());
    text(own.map(|(key, token)| mine.outer(place, key, token)))
}

/// The value of the variable after this hold has got another token.
pub(super) fn with_token(of: &Outer, token: &str) -> String {
    let mut all = all();
    for outer in all.iter_mut().filter(|outer| outer.key == of.key && outer.hold == of.hold) {
        token.clone_into(&mut outer.token);
    }
    serde_json::to_string(&all).unwrap_or_default()
}

/// What is over is left out.
fn text(mine: impl Iterator<Item = Outer>) -> String {
    let mut all = all();
    all.retain(Outer::goes_on);
    all.extend(mine);
    serde_json::to_string(&all).unwrap_or_default()
}

/// Refuses names that the environment of a command has no room for, before they are taken.
///
/// # Errors
///
/// `Invalid` if they are too long together.
pub(super) fn check_room(place: &Context, names: &[String], holder: &str) -> Result<(), Error> {
    let id = HoldId::random();
    let token = u64::MAX.to_string();
    let lock_delay = Some(Duration::MAX);
    let mine = Mine { holder, lender: Some(&id), is_of_shell: true, lock_delay };
    let of_name = |name: &String| mine.outer(place, place.key(name), token.clone());
    let keys: usize = names.iter().map(|name| place.key(name).len() + 1).sum();
    let (variable, length) = match keys {
        0..=LONGEST => (HELD, text(names.iter().map(of_name)).len()),
        keys => (KEY, keys),
    };
    if length <= LONGEST {
        return Ok(());
    }
    let message = format!(
        "{variable}, which tells a command of its locks, would exceed 64 KiB ({length} bytes)"
    );
    let step = "shorten the names, or take fewer locks at a time";
    Err(Error::new(ErrorKind::Invalid, message).with_next_step(step))
}

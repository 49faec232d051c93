//! The holds of the commands and the shell around this one, as the environment tells of them.

use latchwork::store::{Party, Snapshot};
use latchwork::{Error, ErrorKind, FencingToken};
use serde::{Deserialize, Serialize};

use super::Place;
use crate::keeper::hold_id::HoldId;
use crate::process::hold::Hold;

/// The variable with the keys that a command runs under, one a line.
pub(super) const KEY: &str = "LATCHWORK_KEY";
/// The variable with their tokens, in the same order.
pub(super) const TOKEN: &str = "LATCHWORK_TOKEN";
/// The variable with all that is held around a command: a JSON array of [`Outer`].
pub(super) const HELD: &str = "LATCHWORK_HELD";

/// The kernel starts no program with a variable that is longer than 128 KiB.
const LONGEST: usize = 64 * 1024;

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
}

impl Outer {
    pub(super) fn hold(&self) -> Option<HoldId> {
        HoldId::read(self.hold.as_deref()?)
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

/// The holds of the shells around this process, the oldest first.
pub(super) fn holds() -> Vec<HoldId> {
    let mut ids: Vec<HoldId> = all().iter().filter_map(Outer::hold).collect();
    ids.dedup();
    ids
}

/// The value of the variable with this hold added to those around.
pub(super) fn with(place: &Place, hold: &Hold, holder: &str, id: Option<&HoldId>) -> String {
    let mine = hold.names().into_iter().zip(hold.each_token());
    text(mine.map(|(key, token)| outer(place, key, token, holder, id)))
}

fn outer(place: &Place, key: String, token: String, holder: &str, id: Option<&HoldId>) -> Outer {
    Outer {
        key,
        token,
        floor: place.token_floor.map(|floor| floor.to_string()),
        holder: holder.to_owned(),
        hold: id.map(|id| id.as_str().to_owned()),
    }
}

/// What a shell has released is left out.
fn text(mine: impl Iterator<Item = Outer>) -> String {
    let mut all = all();
    all.retain(|outer| outer.hold().is_none_or(|hold| hold.goes_on()));
    all.extend(mine);
    serde_json::to_string(&all).unwrap_or_default()
}

/// Refuses names that the environment of a command has no room for, before they are taken.
///
/// # Errors
///
/// `Invalid` if they are too long together.
pub(super) fn check_room(place: &Place, names: &[String], holder: &str) -> Result<(), Error> {
    let id = HoldId::random();
    let token = u64::MAX.to_string();
    let of_name = |name: &String| outer(place, place.key(name), token.clone(), holder, Some(&id));
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
    Err(Error::new(ErrorKind::Invalid, message).next_step(step))
}

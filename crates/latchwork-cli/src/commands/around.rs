//! The holds of the commands and the shell around this one, as the environment tells of them.

use latchwork::FencingToken;
use latchwork::store::{Party, Snapshot};
use serde_json::{Value, json};

use crate::keeper::hold_id::HoldId;

/// The variable with the keys that a command runs under, one a line.
pub(super) const KEY: &str = "LATCHWORK_KEY";
/// The variable with their tokens, in the same order.
pub(super) const TOKEN: &str = "LATCHWORK_TOKEN";
/// The variable with all that is held around a command: a JSON array, with `[key, token]` for what a command
/// holds and `[key, token, id]` for what a keeper holds for a shell.
pub(super) const HELD: &str = "LATCHWORK_HELD";

/// The kernel takes no variable that is longer than 128 KiB. The oldest are left out before that.
const LONGEST: usize = 64 * 1024;

/// A lock that somebody around this command held when it started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outer {
    pub(super) key: String,
    pub(super) token: String,
    /// The hold that it is, if a keeper holds it for a shell.
    pub(super) hold: Option<HoldId>,
}

impl Outer {
    fn read(value: &Value) -> Option<Self> {
        let text = |at: usize| value.get(at)?.as_str().map(str::to_owned);
        let hold = value.get(2).and_then(Value::as_str).and_then(HoldId::read);
        Some(Self { key: text(0)?, token: text(1)?, hold })
    }

    fn write(&self) -> Value {
        match &self.hold {
            None => json!([self.key, self.token]),
            Some(id) => json!([self.key, self.token, id.as_str()]),
        }
    }

    /// The claim of this hold, if the store still knows it.
    pub(super) fn party<'a>(&self, seen: &'a Snapshot) -> Option<&'a Party> {
        let is_this = |party: &&Party| {
            party.token.is_some_and(|it| FencingToken::from_grant(it).to_string() == self.token)
        };
        seen.holders.iter().find(is_this)
    }
}

/// All of them, the oldest first.
pub(super) fn all() -> Vec<Outer> {
    let text = std::env::var(HELD).unwrap_or_default();
    let values: Vec<Value> = serde_json::from_str(&text).unwrap_or_default();
    values.iter().filter_map(Outer::read).collect()
}

/// Whether a command or a shell that holds a lock started this one.
pub(super) fn is_inside() -> bool {
    std::env::var_os(HELD).is_some()
}

/// The holds of the shells around this process, the oldest first.
pub(super) fn holds() -> Vec<HoldId> {
    let mut ids: Vec<HoldId> = all().into_iter().filter_map(|outer| outer.hold).collect();
    ids.dedup();
    ids
}

/// The value of the variable with these added to those around. What a shell has released is left out.
pub(super) fn with(keys: Vec<String>, tokens: Vec<String>, hold: Option<&HoldId>) -> String {
    let mut outer = all();
    outer.retain(|outer| outer.hold.as_ref().is_none_or(HoldId::goes_on));
    let mine = keys.into_iter().zip(tokens);
    outer.extend(mine.map(|(key, token)| Outer { key, token, hold: hold.cloned() }));
    text(&outer)
}

fn text(all: &[Outer]) -> String {
    let mut length = 2;
    let parts = all.iter().rev().map(|outer| outer.write().to_string());
    let mut kept: Vec<String> = parts
        .take_while(|part| {
            length += part.len() + 1;
            length <= LONGEST
        })
        .collect();
    kept.reverse();
    format!("[{}]", kept.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer(key: &str, hold: Option<HoldId>) -> Outer {
        Outer { key: key.to_owned(), token: "1792".to_owned(), hold }
    }

    #[test]
    fn a_hold_is_read_as_it_was_written() {
        for outer in [outer("a\nb", None), outer("it's \"x\"", Some(HoldId::random()))] {
            let value: Value = serde_json::from_str(&outer.write().to_string()).unwrap();
            assert_eq!(Outer::read(&value), Some(outer));
        }
    }

    #[test]
    fn what_is_too_long_loses_the_oldest() {
        let all: Vec<_> = (0..5_000).map(|number| outer(&format!("k{number}"), None)).collect();
        let text = text(&all);
        assert!(text.len() <= LONGEST, "{}", text.len());
        let kept: Vec<Value> = serde_json::from_str(&text).unwrap();
        let kept: Vec<_> = kept.iter().filter_map(Outer::read).collect();
        assert_eq!(kept, all[all.len() - kept.len()..]);
        assert!(kept.len() > 1_000);
    }
}

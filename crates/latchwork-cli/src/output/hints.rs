//! Commands that a message names: they use the store of the command that prints them.

use std::borrow::Cow;

/// How a command begins in a message.
const START: &str = "`latchwork ";

/// The commands that read or change a store by its address. The others ask the keeper of a shell, or are written by
/// the caller.
const OF_A_STORE: [&str; 8] =
    ["show ", "status ", "ls", "--json ls", "doctor", "init", "once --reset ", "release --force "];

/// The text with these options, which name a store, in each command that needs one: without them it would look for the
/// lock in another store, and say that it is free.
pub(super) fn with_store<'t>(text: &'t str, options: &str) -> Cow<'t, str> {
    if options.is_empty() || !text.contains(START) {
        return text.into();
    }
    let mut parts = text.split(START);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(START);
        if OF_A_STORE.iter().any(|verb| part.starts_with(verb)) {
            out.push_str(options);
            out.push(' ');
        }
        out.push_str(part);
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_read_a_store_name_it() {
        let options = "--store redis://h";
        for (text, said) in [
            ("see `latchwork show x`", "see `latchwork --store redis://h show x`"),
            (
                "`latchwork init`, then `latchwork once --reset -- -x`",
                "`latchwork --store redis://h init`, then `latchwork --store redis://h once --reset -- -x`",
            ),
            ("run `latchwork release` there", "run `latchwork release` there"),
            ("the keeper of `latchwork hold`", "the keeper of `latchwork hold`"),
            ("held by latchwork show x", "held by latchwork show x"),
        ] {
            assert_eq!(with_store(text, options), said);
            assert_eq!(with_store(text, ""), text);
        }
    }
}

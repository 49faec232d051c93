//! Words that people type in place of a verb.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// What other tools call a verb, and the verbs that may be meant.
const MEANT: [(&str, &[&str]); 9] = [
    ("acquire", &["run", "hold"]),
    ("take", &["run", "hold"]),
    ("exec", &["run"]),
    ("cron", &["once"]),
    ("leader", &["elect"]),
    ("lead", &["elect"]),
    ("locks", &["ls"]),
    ("get", &["show"]),
    ("check", &["status", "doctor"]),
];

/// The verbs whose letters may stand in another order.
const VERBS: [&str; 14] = [
    "run", "lock", "hold", "once", "elect", "ls", "list", "top", "show", "status", "release",
    "doctor", "serve", "man",
];

/// An error for an unknown verb, with the verb that may be meant.
pub(super) fn with_tip(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(verbs) = meant(word)
    {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(verbs));
    }
    error
}

fn meant(word: &str) -> Option<Vec<String>> {
    let letters = |word: &str| {
        let mut letters: Vec<_> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    let listed = MEANT.iter().find(|(other, _)| *other == word).map(|(_, verbs)| verbs.to_vec());
    let swapped = || {
        let verb = VERBS.iter().find(|verb| letters(verb) == letters(word))?;
        Some(vec![*verb])
    };
    let verbs = listed.or_else(swapped)?;
    Some(verbs.into_iter().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn words_of_other_tools_and_swapped_letters_are_answered() {
        for (word, verbs) in [
            ("acquire", &["run", "hold"][..]),
            ("rnu", &["run"]),
            ("sl", &["ls"]),
            ("hlod", &["hold"]),
        ] {
            assert_eq!(meant(word).unwrap(), verbs);
        }
        assert_eq!(meant("frobnicate"), None);
    }

    #[test]
    fn each_verb_of_a_tip_is_one() {
        let command = crate::args::Cli::command();
        let all = MEANT.iter().flat_map(|(_, verbs)| verbs.iter()).chain(&VERBS);
        for verb in all.filter(|verb| cfg!(feature = "top") || **verb != "top") {
            let is_left_out = *verb == "serve" && !cfg!(feature = "serve");
            assert!(is_left_out || command.find_subcommand(verb).is_some(), "{verb}");
        }
    }
}

//! Words that people type in place of a verb, and names that look like options.

use std::ffi::OsString;

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
const VERBS: [&str; 17] = [
    "run",
    "lock",
    "hold",
    "once",
    "elect",
    "ls",
    "list",
    "top",
    "show",
    "status",
    "release",
    "upgrade",
    "downgrade",
    "resize",
    "doctor",
    "serve",
    "man",
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

/// An error for a letter that is no option, with the whole word in its place: the name that begins with a dash.
pub(super) fn with_whole_word(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(letter)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let letter = letter.strip_prefix('-').filter(|rest| rest.chars().count() == 1);
    let has_letter = |word: &&str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        letters.zip(letter).is_some_and(|(all, one)| all.len() > one.len() && all.contains(one))
    };
    let mut words = words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    if error.kind() == ErrorKind::UnknownArgument
        && let Some(word) = words.find(has_letter).map(str::to_owned)
    {
        let tip = format!("to pass '{word}' as a value, use '-- {word}'");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        error.insert(ContextKind::InvalidArg, ContextValue::String(word));
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

//! The `--` before a command, put where it is missing and only one reading is possible.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};

/// The commands that run another one, after one name.
const RUNNERS: [&str; 3] = ["run", "once", "elect"];
/// Programs that everybody gives a `-c`, and nobody names a lock after.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// These arguments, with a `--` before the second word of a command that runs another:
/// `run NAME make -j4` becomes `run NAME -- make -j4`.
///
/// Where a `--` stands anywhere, nothing changes: all words before it are names.
///
/// # Errors
///
/// For `run NAME WORD -c TEXT`: the word may be a command or a second name. One of a shell is a command.
pub(super) fn insert(
    all: Vec<OsString>,
    command: impl FnOnce() -> Command,
) -> Result<Vec<OsString>, clap::Error> {
    if all.iter().any(|word| word == "--") || !all.iter().any(is_runner) {
        return Ok(all);
    }
    let mut command = command();
    command.build();
    match place(&all, &command) {
        Some(at) if has_shell_text(&all[at..], &command) => Err(ambiguous(&all, &mut command)),
        Some(at) => {
            let mut all = all;
            all.insert(at, "--".into());
            Ok(all)
        }
        None => Ok(all),
    }
}

/// Whether these words may be names in front of a `-c TEXT`.
fn has_shell_text(words: &[OsString], command: &Command) -> bool {
    let program = words[0].to_string_lossy();
    if SHELLS.iter().any(|shell| program.rsplit('/').next() == Some(shell)) {
        return false;
    }
    let Some(run) = command.find_subcommand("run") else { return false };
    let text = words.iter().position(|word| word.as_encoded_bytes().starts_with(b"-"));
    text.is_some_and(|at| {
        let is_whole = words[at].as_encoded_bytes().ends_with(b"c");
        gives(run, &words[at], 'c') && (!is_whole || words.len() > at + 1)
    })
}

fn ambiguous(all: &[OsString], command: &mut Command) -> clap::Error {
    let verb = all.iter().find(|word| is_runner(word)).map(|word| word.to_string_lossy());
    let verb = verb.unwrap_or_default();
    let message = format!(
        "a word between the name and -c may be a command or a second name; to run a command, write: \
         latchwork {verb} NAME -- COMMAND -c ...; to run a text under the locks, write: latchwork {verb} -c TEXT NAME..."
    );
    let error = |command: &mut Command| command.error(ErrorKind::ArgumentConflict, &message);
    match command.find_subcommand_mut(&*verb) {
        Some(runner) => error(runner),
        None => error(command),
    }
}

fn is_runner(word: &OsString) -> bool {
    RUNNERS.iter().any(|runner| word == runner)
}

/// The verb of a command line, which its options may stand before.
pub(crate) fn verb(all: &[OsString], mut command: Command) -> Option<OsString> {
    command.build();
    let mut words = all.iter().skip(1);
    while let Some(word) = words.next() {
        match option(&command, word) {
            Some(true) => drop(words.next()),
            Some(false) => {}
            None => return Some(word.clone()),
        }
    }
    None
}

/// Where the command begins.
fn place(all: &[OsString], command: &Command) -> Option<usize> {
    let mut known = command;
    let mut names = 0;
    let mut at = 1;
    while at < all.len() {
        let word = &all[at];
        if let Some(takes_value) = option(known, word) {
            // All words beside the text of a shell are names.
            if !std::ptr::eq(known, command) && gives(known, word, 'c') {
                return None;
            }
            at += 1 + usize::from(takes_value);
            continue;
        }
        if std::ptr::eq(known, command) {
            if !is_runner(word) {
                return None;
            }
            known = command.find_subcommand(word)?;
        } else if names == 1 {
            return Some(at);
        } else {
            names += 1;
        }
        at += 1;
    }
    None
}

/// If the word is an option: whether the next word is its value.
fn option(command: &Command, word: &OsStr) -> Option<bool> {
    let text = word.to_string_lossy();
    let takes_value = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    if let Some(long) = text.strip_prefix("--") {
        let (name, has_value) =
            long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(name));
        return Some(!has_value && arg.is_some_and(takes_value));
    }
    let short = text.strip_prefix('-').filter(|rest| !rest.is_empty())?;
    // Of several letters in one word the last may take a value; one before it has the rest of the word.
    let mut letters = short.chars();
    while let Some(letter) = letters.next() {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        if arg.is_some_and(takes_value) {
            return Some(letters.as_str().is_empty());
        }
    }
    Some(false)
}

/// Whether this word has this option, of one letter.
fn gives(command: &Command, word: &OsStr, wanted: char) -> bool {
    let text = word.to_string_lossy();
    let Some(short) = text.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
        return false;
    };
    let takes_value = |letter: char| {
        let arg = command.get_arguments().find(|arg| arg.get_short() == Some(letter));
        arg.is_some_and(|arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append))
    };
    let mut letters = short.chars();
    // What stands behind a letter that takes a value is that value.
    letters.find(|&letter| letter == wanted || takes_value(letter)) == Some(wanted)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn inserted(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let words = insert(words, crate::args::Cli::command).unwrap();
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    #[test]
    fn the_command_begins_after_the_name() {
        for (line, with) in [
            ("lw run x true", "lw run x -- true"),
            ("lw run x ls -l /", "lw run x -- ls -l /"),
            ("lw run --wait 5 x ls -l", "lw run --wait 5 x -- ls -l"),
            ("lw run x --wait 5 ls -l", "lw run x --wait 5 -- ls -l"),
            ("lw run x --wait=5 ls", "lw run x --wait=5 -- ls"),
            ("lw run -vE 3 x ls", "lw run -vE 3 x -- ls"),
            ("lw run -E3 x ls", "lw run -E3 x -- ls"),
            ("lw --store run -v run x ls run", "lw --store run -v run x -- ls run"),
            ("lw once --every 1d x ./job a", "lw once --every 1d x -- ./job a"),
            ("lw elect x ./job", "lw elect x -- ./job"),
            ("lw run x sh -c text", "lw run x -- sh -c text"),
            ("lw run x /bin/bash -c text", "lw run x -- /bin/bash -c text"),
            ("lw run x make -j4 -c text", "lw run x -- make -j4 -c text"),
            ("lw run -E3 --ttl -c x ls -c", "lw run -E3 --ttl -c x -- ls -c"),
        ] {
            assert_eq!(inserted(line), with);
        }
    }

    #[test]
    fn a_word_before_a_text_is_a_name_or_a_command() {
        for line in [
            "lw run a b -c text",
            "lw run a b c -c text",
            "lw run a b -ctext",
            "lw run -v a b -vc text",
            "lw once --every 1d a b -c text",
            "lw elect a b -c text",
        ] {
            let words = line.split(' ').map(OsString::from).collect();
            let error = insert(words, crate::args::Cli::command).unwrap_err();
            assert_eq!(error.exit_code(), 2, "an error of usage");
            let verb =
                ["run", "once", "elect"].into_iter().find(|verb| line.contains(verb)).unwrap();
            let step = format!("latchwork {verb} NAME -- COMMAND -c");
            assert!(error.to_string().contains(&step), "{line}: {error}");
        }
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        for line in [
            "lw run a b -- true",
            "lw run x git log -- file",
            "lw run x",
            "lw run x -c ls",
            "lw run -c ls x y",
            "lw run -vc ls x y",
            "lw run -cls x y",
            "lw run",
            "lw ls run",
            "lw show run x",
            "lw run --help",
            "lw",
        ] {
            assert_eq!(inserted(line), line);
        }
    }
}

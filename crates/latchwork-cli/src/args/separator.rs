//! The `--` before a command, put where it is missing and only one reading is possible.

use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Command};

use super::values::NO_OPTION;

/// The commands that run another one, after one name.
const RUNNERS: [&str; 4] = ["run", "lock", "once", "elect"];
/// Programs that everybody gives a `-c`, and nobody names a lock after.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "fish"];

/// These arguments, with a `--` before the second word of a command that runs another:
/// `run NAME make -j4` becomes `run NAME -- make -j4`.
///
/// Where a `--` stands anywhere, nothing changes: all words before it are names. Only if there is none, the names stand
/// behind it, such as those that begin with a dash: `run -- -NAME -- COMMAND`, and, because no command begins so,
/// `run -- -NAME COMMAND`.
///
/// # Errors
///
/// For `run NAME WORD -c TEXT`: the word may be a command or a second name. One of a shell is a command.
pub(super) fn insert(
    all: Vec<OsString>,
    command: impl FnOnce() -> Command,
) -> Result<Vec<OsString>, clap::Error> {
    if !all.iter().any(is_runner) {
        return Ok(all);
    }
    let mut command = command();
    // Only these: to build the arguments of all verbs takes longer than a free lock.
    for runner in RUNNERS.into_iter().filter(|runner| all.iter().any(|word| word == runner)) {
        command.find_subcommand_mut(runner).into_iter().for_each(Command::build);
    }
    if let Some(at) = all.iter().position(|word| word == "--") {
        return Ok(match has_no_name(&all[..at], &command) {
            Some(is_complete) => names_behind(&all, at, is_complete),
            None => all,
        });
    }
    match place(&all, &command) {
        Some((at, runner)) if has_shell_text(&all[at..], runner) => {
            Err(ambiguous(&all, &mut command))
        }
        Some((at, _)) => {
            let mut all = all;
            all.insert(at, "--".into());
            Ok(all)
        }
        None => Ok(all),
    }
}

/// Whether the words before a `--` have no name for a verb that runs a command: then whether they are complete without
/// one, because of `-c`, `--reset` or `--observe`.
fn has_no_name(words: &[OsString], command: &Command) -> Option<bool> {
    let (mut known, mut is_complete) = (command, false);
    let mut at = 1;
    while at < words.len() {
        let word = &words[at];
        let takes_value = option([known, command], word);
        match takes_value {
            Some(_) if std::ptr::eq(known, command) => {}
            Some(_) => {
                let is_one = ["--reset", "--observe"].iter().any(|one| word == one);
                is_complete |= is_one || gives(known, word, 'c');
            }
            None if std::ptr::eq(known, command) && is_runner(word) => {
                known = command.find_subcommand(word)?;
            }
            None => return None,
        }
        at += 1 + usize::from(takes_value == Some(true));
    }
    // A value that is the -- itself is read by clap.
    (at == words.len() && !std::ptr::eq(known, command)).then_some(is_complete)
}

/// The same words, with the names in front of the `--`, and marked if they would be taken for options.
fn names_behind(all: &[OsString], at: usize, is_complete: bool) -> Vec<OsString> {
    let (before, behind) = (&all[..at], &all[at + 1..]);
    let is_dashed = |word: &OsString| word.as_encoded_bytes().starts_with(b"-");
    let count = match behind.iter().position(|word| word == "--") {
        Some(second) => second,
        None if is_complete => behind.len(),
        None => usize::from(behind.first().is_some_and(is_dashed)),
    };
    if count == 0 {
        return all.to_vec();
    }
    let (names, rest) = behind.split_at(count);
    let marked = names.iter().map(|name| {
        let mut word = OsString::new();
        if is_dashed(name) {
            word.push(NO_OPTION.to_string());
        }
        word.push(name);
        word
    });
    // What follows is the command, or the options of one that is still to come.
    let is_command = rest.first().is_some_and(|word| word != "--" && !is_dashed(word));
    let separator = is_command.then(|| OsString::from("--"));
    before.iter().cloned().chain(marked).chain(separator).chain(rest.iter().cloned()).collect()
}

/// Whether these words may be names in front of a `-c TEXT`.
fn has_shell_text(words: &[OsString], runner: &Command) -> bool {
    let program = words[0].to_string_lossy();
    if SHELLS.iter().any(|shell| program.rsplit('/').next() == Some(shell)) {
        return false;
    }
    let text = words.iter().position(|word| word.as_encoded_bytes().starts_with(b"-"));
    text.is_some_and(|at| {
        let is_whole = words[at].as_encoded_bytes().ends_with(b"c");
        gives(runner, &words[at], 'c') && (!is_whole || words.len() > at + 1)
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
pub(crate) fn verb(all: &[OsString], command: &Command) -> Option<OsString> {
    let mut words = all.iter().skip(1);
    while let Some(word) = words.next() {
        match option([command; 2], word) {
            Some(true) => drop(words.next()),
            Some(false) => {}
            None => return Some(word.clone()),
        }
    }
    None
}

/// Where the command begins, and the verb that runs it.
fn place<'c>(all: &[OsString], command: &'c Command) -> Option<(usize, &'c Command)> {
    let mut known = command;
    let mut names = 0;
    let mut at = 1;
    while at < all.len() {
        let word = &all[at];
        if let Some(takes_value) = option([known, command], word) {
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
            return Some((at, known));
        } else {
            names += 1;
        }
        at += 1;
    }
    None
}

/// If the word is an option of a verb, or one that all have: whether the next word is its value.
fn option(of: [&Command; 2], word: &OsStr) -> Option<bool> {
    let text = word.to_string_lossy();
    let arguments = || of.into_iter().flat_map(Command::get_arguments);
    let takes_value = |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    if let Some(long) = text.strip_prefix("--") {
        let (name, has_value) =
            long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        let arg = arguments().find(|arg| arg.get_long() == Some(name));
        return Some(!has_value && arg.is_some_and(takes_value));
    }
    let short = text.strip_prefix('-').filter(|rest| !rest.is_empty())?;
    // Of several letters in one word the last may take a value; one before it has the rest of the word.
    let mut letters = short.chars();
    while let Some(letter) = letters.next() {
        let arg = arguments().find(|arg| arg.get_short() == Some(letter));
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

    /// As clap advises for a word that it has taken for an option.
    #[test]
    fn names_that_begin_with_a_dash_stand_behind_a_separator() {
        for (line, with) in [
            ("lw run -- -x -- ls -l", "lw run \0-x -- ls -l"),
            ("lw run -v -- -x y -- ls", "lw run -v \0-x y -- ls"),
            ("lw run -- -x ls -l", "lw run \0-x -- ls -l"),
            ("lw lock -w 5 -- -x ls -l", "lw lock -w 5 \0-x -- ls -l"),
            ("lw run -c ls -- -x -y", "lw run -c ls \0-x \0-y"),
            ("lw run -- -x -c ls", "lw run \0-x -c ls"),
            ("lw run -- -x -- -- y", "lw run \0-x -- -- y"),
            ("lw once --reset -- -x", "lw once --reset \0-x"),
            ("lw elect --observe -- -x", "lw elect --observe \0-x"),
            ("lw once --every 1d -- -x -- ls", "lw once --every 1d \0-x -- ls"),
            ("lw run -- a b -- ls", "lw run a b -- ls"),
            ("lw -v --store u run -- -x -- ls", "lw -v --store u run \0-x -- ls"),
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
            "lw run -- ls -l",
            "lw run --holder -- x ls",
            "lw run x -- -x -- y",
            "lw show -- -x run",
            "lw -- run -x -- y",
            "lw",
        ] {
            assert_eq!(inserted(line), line);
        }
    }
}

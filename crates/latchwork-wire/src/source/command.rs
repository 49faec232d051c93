//! A command whose output is the address of a store.

use std::io;
use std::path::Path;
use std::process::Command;

use latchwork_store::{Error, ErrorKind as Kind};

use crate::program::{self, LIMIT, Ran, how};

/// How much of what it has printed is repeated, from the end.
const REPEATED: usize = 300;

/// What a command prints, without white space at its ends.
///
/// # Errors
///
/// `Invalid` with the command, its exit status and its errors; never with its output, which may have a
/// password.
pub(super) fn output(text: &str, folder: Option<&Path>) -> Result<String, Error> {
    let failed = |problem: String, step: &'static str| {
        let message = format!("store command `{text}`: {problem}");
        Error::new(Kind::Invalid, message).with_next_step(step)
    };
    const ALONE: &str = "run it alone: it has to print the store's address and to exit with 0";
    let ran =
        run(text, folder).map_err(|error| failed(format!("cannot be run: {error}"), ALONE))?;
    let said = said(&ran.errors);
    match ran.status {
        None => {
            let problem = format!("did not end within {} s, and was killed{said}", LIMIT.as_secs());
            Err(failed(problem, ALONE))
        }
        Some(status) if !status.success() => Err(failed(format!("{}{said}", how(status)), ALONE)),
        Some(_) => match String::from_utf8(ran.output) {
            Ok(address) if address.trim().is_empty() => {
                Err(failed(format!("printed nothing{said}"), ALONE))
            }
            Ok(address) if address.trim().contains('\n') => {
                let step = "let it print the address alone; other words belong on standard error";
                Err(failed("printed more than one line".into(), step))
            }
            Ok(address) => Ok(address.trim().to_owned()),
            Err(_) => Err(failed("printed what is not UTF-8".into(), ALONE)),
        },
    }
}

fn said(errors: &[u8]) -> String {
    let errors = String::from_utf8_lossy(errors);
    let errors = errors.trim();
    if errors.is_empty() {
        return String::new();
    }
    let skipped = errors.chars().count().saturating_sub(REPEATED);
    let end: String = errors.chars().skip(skipped).collect();
    format!(", saying: {}{}", if skipped > 0 { ".." } else { "" }, end.replace('\n', " / "))
}

fn run(text: &str, folder: Option<&Path>) -> io::Result<Ran> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text);
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    program::run(&mut command)
}

#[cfg(test)]
mod tests {
    use latchwork_store::clock::boot_time;

    use super::*;

    #[test]
    fn a_command_prints_the_address() {
        let printed = output("printf '  redis://:pw@h\\n\\n'", None);
        assert_eq!(printed.unwrap(), "redis://:pw@h");
        assert_eq!(output("pwd", Some(Path::new("/dev"))).unwrap(), "/dev");
        // A process that it leaves behind has its pipes.
        let begun_at = boot_time();
        assert_eq!(output("sleep 30 & echo mem:", None).unwrap(), "mem:");
        assert!(boot_time().since(begun_at) < LIMIT);
    }

    #[test]
    fn a_failure_names_the_command_its_status_and_its_words() {
        for (text, words) in [
            ("echo no token >&2; exit 7", "exit status 7, saying: no token"),
            ("kill -9 $$", "ended by signal 9"),
            ("true", "printed nothing"),
            ("echo s3cret; echo s3cret", "more than one line"),
            ("echo s3cret; exit 1", "exit status 1"),
            ("printf '\\377s3cret'", "not UTF-8"),
            ("no-such-program-here", "exit status 127"),
        ] {
            let error = output(text, None).unwrap_err().to_string();
            let named = format!("store command `{text}`: ");
            assert!(error.contains(words) && error.contains(&named), "{error}");
            assert!(!error.replace(&named, "").contains("s3cret"), "{error}");
        }
    }
}

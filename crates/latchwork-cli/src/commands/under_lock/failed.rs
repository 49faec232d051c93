//! A command that did not run, or could not be watched.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use latchwork_wire::system::refusal_step;

use crate::exit;

/// What to say of it, and with which code to exit.
pub(crate) struct Failed {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// Whether the command may have run.
    pub(crate) has_run: bool,
}

/// Whether its mode lets somebody execute the file.
pub(crate) fn is_executable(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

fn is_script(file: &Path) -> bool {
    let mut start = [0; 2];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

/// The file that a word leads to: by `PATH`, unless it has a slash.
pub(crate) fn program_of(word: &OsStr) -> Option<PathBuf> {
    if word.as_encoded_bytes().contains(&b'/') {
        return Some(word.into());
    }
    let search = std::env::var_os("PATH")?;
    std::env::split_paths(&search).map(|place| place.join(word)).find(|file| is_executable(file))
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        let message = format!("cannot watch the command: {error}; {}", refusal_step(&error));
        Self { code: exit::BROKEN, message, has_run: true }
    }
}

impl Failed {
    /// Why there is no guardian.
    pub(crate) fn no_guardian(error: &io::Error) -> Self {
        let step = refusal_step(error);
        let message = format!("cannot start the guardian process: {error}; {step}");
        Self { code: exit::BROKEN, message, has_run: false }
    }

    /// A guardian that said this at its end, before the command started or while it ran.
    pub(crate) fn unguarded(words: &str, has_run: bool) -> Self {
        let why = if words.is_empty() { "it did not say why" } else { words };
        let message = match has_run {
            false => format!("cannot start the guardian process, which ended at its start: {why}"),
            true => format!("the guardian process died, and the command was ended: {why}"),
        };
        Self { code: exit::BROKEN, message, has_run }
    }

    /// Why these words could not be started.
    pub(crate) fn start(words: &[OsString], error: &io::Error) -> Self {
        let program = words[0].to_string_lossy();
        if error.kind() == io::ErrorKind::Other {
            return Self { code: exit::BROKEN, message: error.to_string(), has_run: false };
        }
        let code = match error.kind() {
            io::ErrorKind::NotFound => exit::NOT_FOUND,
            io::ErrorKind::TimedOut => {
                let message = format!("{program} was not started: the lock was about to expire");
                return Self { code: exit::LOST, message, has_run: false };
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::BROKEN,
            _ => exit::NOT_EXECUTABLE,
        };
        let file = program_of(&words[0]).unwrap_or_default();
        let reason = match code {
            exit::NOT_FOUND if is_executable(&file) && !is_script(&file) => {
                "the loader that it names is missing; it was built for another system or C library".to_owned()
            }
            exit::NOT_FOUND if is_executable(&file) => {
                "the interpreter in its first line is missing; check the #! line, also for Windows line ends (CRLF)"
                    .to_owned()
            }
            exit::NOT_FOUND if program.contains(' ') && words.len() == 1 => {
                "command not found; remove the quotes, or let the shell run it: \
                 latchwork run NAME -c 'COMMAND ...'"
                    .to_owned()
            }
            // Without a -- the word after the first name is the command.
            exit::NOT_FOUND if words.len() > 1 && !std::env::args_os().any(|word| word == "--") => {
                format!(
                    "command not found; if {program:?} is the name of another lock, write a -- before the command: \
                     latchwork run NAME NAME -- COMMAND"
                )
            }
            exit::NOT_FOUND => "command not found".to_owned(),
            _ if file.is_dir() => "it is a directory".to_owned(),
            _ if error.kind() == io::ErrorKind::PermissionDenied && is_executable(&file) => {
                "not executable here; its file system may be mounted noexec, or its interpreter may not run".to_owned()
            }
            _ if error.kind() == io::ErrorKind::PermissionDenied => {
                "not executable; check its mode (chmod +x)".to_owned()
            }
            _ if error.kind() == io::ErrorKind::ArgumentListTooLong => {
                "arguments and environment exceed the system's limit (E2BIG)".to_owned()
            }
            _ => error.to_string(),
        };
        Self { code, message: format!("{program}: {reason}"), has_run: false }
    }
}

//! A command whose output is the address of a store.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process_group};

use latchwork_store::clock::boot_time;
use latchwork_store::{Error, ErrorKind as Kind};

/// How long a command may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How often a command that prints nothing is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// No address is longer, and no error is read further.
const LONGEST: usize = 64 * 1024;
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

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "failed".into(),
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

struct Ran {
    /// None if it was killed.
    status: Option<ExitStatus>,
    output: Vec<u8>,
    errors: Vec<u8>,
}

fn run(text: &str, folder: Option<&Path>) -> io::Result<Ran> {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if let Some(folder) = folder {
        command.current_dir(folder);
    }
    let mut child = command.spawn()?;
    let read = read(&mut child);
    if !matches!(read, Ok(Ran { status: Some(_), .. })) {
        // What it has started may have its pipes.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
    }
    read
}

/// Reads until the command has ended; a process that it has left running is not waited for.
fn read(child: &mut Child) -> io::Result<Ran> {
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    for pipe in [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)] {
        pipe.map_or(Ok(()), |pipe| fcntl_setfl(pipe, OFlags::NONBLOCK))?;
    }
    let mut ran = Ran { status: None, output: Vec::new(), errors: Vec::new() };
    let begun_at = boot_time();
    loop {
        let ended = child.try_wait()?;
        drain(&mut out, &mut ran.output)?;
        drain(&mut err, &mut ran.errors)?;
        if ended.is_some() || boot_time().since(begun_at) >= LIMIT {
            return Ok(Ran { status: ended, ..ran });
        }
        let open = [out.as_ref().map(AsFd::as_fd), err.as_ref().map(AsFd::as_fd)];
        let mut open: Vec<_> = open
            .into_iter()
            .flatten()
            .map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN))
            .collect();
        let nap = Timespec { tv_sec: 0, tv_nsec: LOOK.as_nanos() as _ };
        match poll(&mut open, Some(&nap)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes what there is; a pipe that has ended, or says too much, is closed.
fn drain(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 4096];
    while let Some(open) = pipe {
        match open.read(&mut part) {
            Ok(0) => *pipe = None,
            Ok(length) => into.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if into.len() > LONGEST {
            *pipe = None;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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

//! `latchwork upgrade` and `latchwork downgrade`: change what `hold` took for this shell.

use std::io;

use latchwork::{Error, ErrorKind};
use latchwork_store::doctor::quoted;
use rustix::process::{Pid, getpid};

use super::around::{self, Outer};
use super::{key_of, variables};
use crate::args::{Command, HeldArgs};
use crate::exit;
use crate::keeper::hold_id::{Answer, Wish};
use crate::output::Output;

/// Asks the keeper of this shell, and prints what the shell is to evaluate.
pub(crate) fn run(command: &Command, namespace: &str, output: &Output) -> Result<u8, Error> {
    let (args, mode, wait) = match command {
        Command::Upgrade(args) => (&args.held, "write", variables::wait(args.wait.time())?),
        Command::Downgrade(args) => (&args.held, "read", None),
        _ => return Ok(0),
    };
    let key = key_of(namespace, &args.name);
    let wish = |of| match mode {
        "write" => Wish::Upgrade(of, wait, key.clone()),
        _ => Wish::Downgrade(of, key.clone()),
    };
    // A process that has replaced a shell is for its holds first, as for a release.
    let shells = match args.pid {
        Some(pid) => vec![Some(pid)],
        None => vec![Some(getpid()), None],
    };
    let mut around = around::all();
    around.retain(|outer| outer.key == key);
    let mut another = None;
    let mut over = false;
    for outer in &around {
        for shell in &shells {
            let Some(hold) = outer.hold() else { continue };
            match hold.ask(&wish(*shell)) {
                Ok(Answer::Changed(token)) => return Ok(changed(outer, mode, &token, output)),
                Ok(Answer::Refused(kind, code, message)) => {
                    output.fail(&kind, &message);
                    return Ok(code);
                }
                Ok(Answer::Another(pid)) => another = pid.or(another),
                Ok(_) => {}
                Err(error) => match unreachable(outer, &error) {
                    Some(error) => return Err(error),
                    None => over = true,
                },
            }
        }
    }
    if over && another.is_none() {
        output.fail("Lost", "the lock is no longer held: it was released earlier, or lost");
        return Ok(exit::LOST);
    }
    Err(not_held(args, another, mode))
}

/// Prints the new token, for the shell or as JSON.
fn changed(outer: &Outer, mode: &str, token: &str, output: &Output) -> u8 {
    let key = &outer.key;
    let held = around::with_token(outer, token);
    let variables = [(around::KEY, &**key), (around::TOKEN, token), (around::HELD, &*held)];
    let set: String =
        variables.iter().map(|(name, value)| format!("{name}={}; ", quoted(value))).collect();
    let names = variables.map(|(name, _)| name).join(" ");
    output.changed(key, mode, token, &format!("{set}export {names};"))
}

/// Why a keeper cannot be asked; `None` if it has ended.
fn unreachable(outer: &Outer, error: &io::Error) -> Option<Error> {
    let (kind, why, step) = match error.kind() {
        io::ErrorKind::PermissionDenied => (
            ErrorKind::Denied,
            "it belongs to another user or is in another PID namespace",
            "run this command where `latchwork hold` was run, outside of the container",
        ),
        io::ErrorKind::TimedOut => (
            ErrorKind::Unreachable,
            "it does not answer",
            "it may be stopped: continue it (kill -CONT), or end the shell; the lock ends with it",
        ),
        _ if outer.is_elsewhere() => (
            ErrorKind::Denied,
            "it is in another network namespace",
            "run this command where `latchwork hold` was run, outside of the container",
        ),
        _ => return None,
    };
    let message = format!("cannot ask the keeper process of `latchwork hold`: {why}");
    Some(Error::new(kind, message).with_next_step(step))
}

fn not_held(args: &HeldArgs, another: Option<Pid>, mode: &str) -> Error {
    let name = &args.name;
    match another {
        Some(pid) => {
            let message = format!("this shell holds no lock {name:?}; process {pid} does");
            Error::new(ErrorKind::Invalid, message).with_next_step(format!(
                "run this command there, or add --pid {pid} in a subshell of it"
            ))
        }
        None => {
            let before = if mode == "write" { "--read" } else { "--write" };
            Error::new(ErrorKind::Invalid, format!("this shell holds no lock {name:?}"))
                .with_next_step(format!("take it by `latchwork hold {before}` first"))
        }
    }
}

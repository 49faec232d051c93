//! `latchwork upgrade` and `latchwork downgrade`: change what `hold` took for this shell.

use latchwork::{Error, ErrorKind};
use latchwork_store::doctor::quoted;
use rustix::process::Pid;

use super::around::{self, Outer, Reached};
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
    let shells = around::shells(args.pid);
    let mut around = around::all();
    around.retain(|outer| outer.key == key);
    let mut another = None;
    let mut over = false;
    for outer in &around {
        for shell in &shells {
            let Some(hold) = outer.hold() else { continue };
            match outer.reach(&hold, &wish(*shell))? {
                Reached::Answer(Answer::Changed(token)) => {
                    return Ok(changed(outer, mode, &token, output));
                }
                Reached::Answer(Answer::Refused(kind, code, message)) => {
                    output.fail(&kind, &message);
                    return Ok(code);
                }
                Reached::Answer(Answer::Another(pid)) => another = pid.or(another),
                Reached::Answer(_) => {}
                Reached::Away(why) => {
                    let verb = if mode == "write" { "upgrade" } else { "downgrade" };
                    return Err(Reached::away(why, verb));
                }
                Reached::Ended => over = true,
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

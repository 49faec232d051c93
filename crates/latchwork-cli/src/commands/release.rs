//! `latchwork release`: ends what `hold` took for this shell, or takes locks away from their holders.

use std::io;

use latchwork::{Error, ErrorKind};
use latchwork_store::doctor::operand;
use rustix::process::{Pid, getpid};

use super::around::{self, Outer};
use super::{Context, key_of};
use crate::args::ReleaseArgs;
use crate::exit;
use crate::keeper::hold_id::{Answer, Wish};
use crate::output::{Output, is_done};

/// Evicts the holders, and moves the token on so that they are fenced.
pub(crate) async fn by_force(args: &ReleaseArgs, place: &Context) -> Result<u8, Error> {
    let output = &place.output;
    if place.is_missing() {
        let codes =
            args.names.iter().map(|name| output.released(&place.key(name), &[], None, None));
        return Ok(codes.max().unwrap_or(0));
    }
    let manager = place.connect().await?;
    let mut code = 0;
    for name in &args.names {
        let released = manager.force_release(name).await?;
        let mut closed = None;
        if released.evicted.is_empty() {
            closed = Some(manager.inspect(name).await?).filter(is_done);
        }
        let (evicted, token) = (&released.evicted, released.token);
        code = code.max(output.released(&place.key(name), evicted, token, closed.as_ref()));
    }
    super::close(&manager).await;
    Ok(code)
}

/// Asks the keepers of this shell to release their locks. They know the store.
pub(crate) fn own(args: &ReleaseArgs, namespace: &str, output: &Output) -> Result<u8, Error> {
    // A process that has replaced a shell is for its holds first: to the kernel it is a command of the shell
    // around that one.
    let shells = match args.pid {
        Some(pid) => vec![Some(pid)],
        None => vec![Some(getpid()), None],
    };
    if args.names.is_empty() {
        return all(&shells, output);
    }
    let mut code = 0;
    for name in &args.names {
        let key = key_of(namespace, name);
        let mut around = around::all();
        around.retain(|outer| outer.key == key);
        let mut asked = Asked::default();
        for outer in &around {
            for shell in &shells {
                if asked.released.is_empty() {
                    asked.ask(outer, &Wish::ReleaseKey(*shell, key.clone()))?;
                }
            }
        }
        code = code.max(asked.said(&format!("no lock {name:?}"), &operand(&key), output)?);
    }
    Ok(code)
}

/// Releases all holds of the first of these shells that has any.
fn all(shells: &[Option<Pid>], output: &Output) -> Result<u8, Error> {
    let mut asked = Asked::default();
    for shell in shells {
        for outer in around::holds() {
            asked.ask(&outer, &Wish::Release(*shell))?;
        }
        if !asked.released.is_empty() {
            break;
        }
    }
    asked.said("no lock", "NAME", output)
}

/// What keepers have answered.
#[derive(Default)]
struct Asked {
    /// The codes and messages of those that released.
    released: Vec<(u8, String)>,
    /// A process for which one goes on.
    another: Option<Pid>,
    /// Whether one has ended before.
    is_over: bool,
    /// Why one is out of reach that may go on.
    out_of_reach: Option<&'static str>,
}

impl Asked {
    fn ask(&mut self, outer: &Outer, wish: &Wish) -> Result<(), Error> {
        let Some(hold) = outer.hold() else { return Ok(()) };
        if outer.is_elsewhere() {
            self.out_of_reach = Some("it is in another network namespace");
            return Ok(());
        }
        match hold.ask(wish) {
            Ok(Answer::Ended(code, message)) => self.released.push((code, message)),
            Ok(Answer::Another(pid)) => self.another = pid.or(self.another),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.out_of_reach =
                    Some("it belongs to another user or is in another PID namespace");
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let message = "the keeper process of `latchwork hold` does not answer";
                return Err(Error::new(ErrorKind::Unreachable, message).with_next_step(
                    "it may be stopped: continue it (kill -CONT), or end the shell; the lock ends with it",
                ));
            }
            // Somebody else may listen where one did that has ended.
            Err(_) => self.is_over = true,
        }
        Ok(())
    }

    /// Tells of it. `what` is what was not found to release, if nothing was, and `name` how its name is typed.
    fn said(self, what: &str, name: &str, output: &Output) -> Result<u8, Error> {
        if !self.released.is_empty() {
            let codes = self.released.iter().map(|(code, message)| said(*code, message, output));
            return Ok(codes.max().unwrap_or(0));
        }
        if let Some(pid) = self.another {
            let message = format!("this shell holds {what}; process {pid} does");
            return Err(Error::new(ErrorKind::Invalid, message).with_next_step(format!(
                "run `latchwork release` there, or add --pid {pid} in a subshell of it"
            )));
        }
        if let Some(why) = self.out_of_reach {
            let message = format!("cannot reach the keeper process of `latchwork hold`: {why}");
            return Err(Error::new(ErrorKind::Denied, message).with_next_step(
                "run `latchwork release` where `latchwork hold` was run, outside of the container",
            ));
        }
        if self.is_over {
            output.fail("Lost", "nothing to release: the lock was released earlier, or lost");
            return Ok(exit::LOST);
        }
        let message = format!("this shell holds {what}");
        Err(Error::new(ErrorKind::Invalid, message).with_next_step(format!(
            "to take a lock from another holder, run `latchwork release --force {name}`"
        )))
    }
}

fn said(code: u8, message: &str, output: &Output) -> u8 {
    match code {
        0 => output.detail("released", message, &[]),
        exit::LOST => output.fail("Lost", message),
        // A command runs under the hold.
        exit::TIMED_OUT => output.fail("Running", message),
        _ => output.note("unreleased", message, &[]),
    }
    code
}

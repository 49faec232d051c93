//! `latchwork release`: ends what `hold` took for this shell, or takes locks away from their holders.

use latchwork::{Error, ErrorKind};
use latchwork_store::doctor::operand;
use rustix::process::Pid;

use super::around::{self, Outer, Reached};
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
    let shells = around::shells(args.pid);
    if args.names.is_empty() {
        return all(&shells, output);
    }
    let mut code = 0;
    for name in &args.names {
        let key = key_of(namespace, name);
        let mut around = around::all();
        around.retain(|outer| outer.key == key);
        let mut asked = KeeperAnswers::default();
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
    let mut asked = KeeperAnswers::default();
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
struct KeeperAnswers {
    /// The codes and messages of those that released.
    released: Vec<(u8, String)>,
    /// A process for which one goes on.
    another: Option<Pid>,
    /// Whether one has ended before.
    is_over: bool,
    /// Why one is out of reach that may go on.
    out_of_reach: Option<&'static str>,
}

impl KeeperAnswers {
    fn ask(&mut self, outer: &Outer, wish: &Wish) -> Result<(), Error> {
        let Some(hold) = outer.hold() else { return Ok(()) };
        match outer.reach(&hold, wish)? {
            Reached::Answer(Answer::Ended(code, message)) => self.released.push((code, message)),
            Reached::Answer(Answer::Another(pid)) => self.another = pid.or(self.another),
            Reached::Answer(_) => {}
            Reached::Away(why) => self.out_of_reach = Some(why),
            Reached::Ended => self.is_over = true,
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
            return Err(Reached::away(why, "release"));
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

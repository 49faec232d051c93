//! `latchwork hold`: takes locks for several commands of a script.

use std::fmt::Write as _;

use latchwork::{Error, ErrorKind};

use super::connect::{Connected, connect};
use super::progress::Progress;
use super::under_lock::default_holder;
use super::{Place, close, locking, nested, variables};
use crate::args::HoldArgs;
use crate::exit;
use crate::keeper::hold_id::{HoldId, VARIABLE};
use crate::keeper::keep::Keeper;
use crate::keeper::launch::{Launcher, launch};
use crate::keeper::shell::Shell;
use crate::process::hold::Hold;
use crate::process::signals::Signals;
use crate::process::timer::watch;

/// Starts a keeper, and prints what the shell is to evaluate once it holds the locks.
pub(crate) fn run(args: &HoldArgs, place: &Place) -> u8 {
    let shell = match Shell::find(args.pid) {
        Ok(shell) => shell,
        Err(error) => {
            let message =
                format!("--pid: cannot watch the process that the hold belongs to: {error}");
            place.output.fail("Invalid", &message);
            return exit::USAGE;
        }
    };
    let launched = launch(|launcher| match super::start_runtime(&place.output) {
        Ok(runtime) => {
            let kept = runtime.block_on(keep(args, place, shell, launcher));
            std::mem::forget(runtime);
            kept.unwrap_or_else(|error| super::failed(&place.output, &error))
        }
        Err(code) => code,
    });
    match launched {
        Ok(Ok(assignments)) => place.output.raw(format!("{assignments}\n").as_bytes()),
        Ok(Err(code)) => code,
        Err(error) => {
            place.output.fail("Broken", &format!("cannot start the keeper process: {error}"));
            exit::BROKEN
        }
    }
}

/// The keeper: acquires the locks, reports them, and keeps them.
async fn keep(
    args: &HoldArgs,
    place: &Place,
    shell: Shell,
    launcher: Launcher,
) -> Result<u8, Error> {
    let lock = &args.lock;
    place.tell();
    super::refuse_a_store_of_one_process(place.store.address())?;
    nested::refuse(place, &lock.names).await?;
    let (ttl, wait) = (variables::ttl(lock.ttl)?, variables::wait(lock.wait)?);
    let mut signals = Signals::ending().map_err(|error| broken("listen to signals", &error))?;
    let words = ["latchwork hold".into()];
    let holder = lock.holder.clone().unwrap_or_else(|| default_holder(&words));
    let Connected { manager, left, mut heard, .. } = connect(place, wait, &holder).await?;
    let key = lock.names.join("\n");
    let hold = {
        let gone = watch(launcher.end()).map_err(|error| broken("watch the command", &error))?;
        let mut acquire = std::pin::pin!(locking::acquire(lock, ttl, left, &manager));
        let mut progress = Progress::new(&place.output);
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => break acquired?,
                Some(heard) = heard.recv() => progress.heard(heard, &key),
                // Ctrl-C, for example. Dropping the acquire withdraws the claim.
                _ = gone.readable() => return Ok(exit::BROKEN),
            }
        }
    };
    let id = HoldId::random();
    let listener = id.listen().map_err(|error| broken("open a socket", &error))?;
    launcher.report(&assignments(&hold, &id)).map_err(|error| broken("report", &error))?;
    let on_loss = args.on_loss.signal();
    let keeper = Keeper { hold, shell, listener, max_hold: lock.max_hold, on_loss };
    let code = keeper.keep(&mut signals).await.map_err(|error| broken("wait", &error))?;
    close(&manager).await;
    Ok(code)
}

fn broken(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the keeper cannot {what}: {error}"))
}

/// What the shell evaluates: the keys and tokens of all its holds, and where their keepers listen.
fn assignments(hold: &Hold, id: &HoldId) -> String {
    let earlier = HoldId::of_shell();
    let mut text = String::new();
    let names = [nested::KEY, nested::TOKEN, VARIABLE];
    let mut set = |name: &str, mine: String, is_list: bool| {
        let earlier = std::env::var(name).unwrap_or_default();
        let all = match earlier.is_empty() || !is_list {
            true => mine,
            false => format!("{earlier}\n{mine}"),
        };
        // Writing to a String does not fail.
        let _ = write!(text, "{name}={}; ", quoted(&all));
    };
    // Those of a command around the shell stay as well: its locks are held, too.
    let is_inside = nested::is_inside() || !earlier.is_empty();
    set(names[0], hold.keys(), is_inside);
    set(names[1], hold.tokens(), is_inside);
    set(names[2], id.as_str().to_owned(), true);
    let _ = write!(text, "export {}", names.join(" "));
    text
}

/// A word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_for_the_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
    }
}

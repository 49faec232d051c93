//! `latchwork hold`: takes locks for several commands of a script.

use std::io::IsTerminal;
use std::os::unix::net::UnixStream;

use latchwork::{Error, ErrorKind};
use rustix::process::Signal;

use super::connect::{Connected, connect};
use super::progress::Progress;
use super::under_lock::default_holder;
use super::{Place, around, close, locking, nested, variables};
use crate::args::HoldArgs;
use crate::exit;
use crate::keeper::hold_id::HoldId;
use crate::keeper::keep::Keeper;
use crate::keeper::launch::{Forked, Launched, Launcher, fork, leave_the_shell};
use crate::keeper::requests::Requests;
use crate::keeper::shell::Shell;
use crate::output;
use crate::process::hold::Hold;
use crate::process::signals::{Signals, be_hit_by};
use crate::process::timer::watch;

/// Starts a keeper, and prints what the shell is to evaluate once it holds the locks.
pub(crate) fn run(args: &HoldArgs, place: &Place) -> u8 {
    let shell = match args.pid.map(Shell::of).transpose() {
        Ok(shell) => shell,
        Err(error) => {
            let message = format!(
                "--pid: cannot watch this process: {error}; write the number of one that is running"
            );
            place.output.fail("Invalid", &message);
            return exit::USAGE;
        }
    };
    let forked = fork(|socket| match super::start_runtime(&place.output) {
        Ok(runtime) => {
            let kept = runtime.block_on(keep(args, place, shell, socket));
            std::mem::forget(runtime);
            kept.unwrap_or_else(|error| super::failed(&place.output, &error))
        }
        Err(code) => code,
    });
    let forked = match forked {
        Ok(forked) => forked,
        Err(error) => {
            place.output.fail("Broken", &format!("cannot start the keeper process: {error}"));
            return exit::BROKEN;
        }
    };
    let runtime = match super::start_runtime(&place.output) {
        Ok(runtime) => runtime,
        Err(code) => return code,
    };
    let ended = runtime.block_on(wait(forked, args, place));
    std::mem::forget(runtime);
    match ended {
        Ok(Ended::Exit(code)) => code,
        Ok(Ended::Signal(signal)) => {
            let code = exit::code_of_signal(signal.as_raw());
            output::fail_in_shell(code);
            be_hit_by(signal, false);
            code
        }
        Err(error) => {
            place.output.fail("Broken", &format!("cannot wait for the keeper process: {error}"));
            exit::BROKEN
        }
    }
}

/// How the process that the shell waits for ends.
enum Ended {
    Exit(u8),
    Signal(Signal),
}

/// Waits for the keeper, and prints its lines.
async fn wait(forked: Forked, args: &HoldArgs, place: &Place) -> std::io::Result<Ended> {
    let (lines, printed) = match forked.wait(args.pid.is_none()).await? {
        Launched::Lines(lines, printed) => (lines, printed),
        Launched::Ended(code) => return Ok(Ended::Exit(code)),
        Launched::Signal(signal) => return Ok(Ended::Signal(signal)),
        Launched::Unwanted => return Ok(Ended::Exit(exit::BROKEN)),
    };
    if std::io::stdout().is_terminal() {
        let message = "nobody evaluates these lines, so the lock will be released; use: \
                       held=$(latchwork hold NAME) && eval \"$held\" || exit";
        place.output.note("unread", message, &[]);
    }
    if place.output.write(format!("{lines}\n").as_bytes()).is_err() {
        return Ok(Ended::Exit(exit::BROKEN));
    }
    printed.tell().await?;
    Ok(Ended::Exit(0))
}

/// The keeper: acquires the locks, reports them, and keeps them.
async fn keep(
    args: &HoldArgs,
    place: &Place,
    shell: Option<Shell>,
    socket: UnixStream,
) -> Result<u8, Error> {
    let lock = &args.lock;
    let mut launcher =
        Launcher::new(socket).map_err(|error| broken("reach the command", &error))?;
    place.tell();
    super::refuse_a_store_of_one_process(place.store.address())?;
    let (ttl, wait) = (variables::ttl(lock.ttl)?, variables::wait(lock.wait)?);
    let mut signals = Signals::ending().map_err(|error| broken("listen to signals", &error))?;
    let words = ["latchwork hold".into()];
    let holder = lock.holder.clone().unwrap_or_else(|| default_holder(&words));
    let key = lock.names.join("\n");
    let end_of_shell = async {
        match shell.as_ref().and_then(|shell| watch(shell.end().ok()?).ok()) {
            Some(end) => drop(end.readable().await),
            None => std::future::pending().await,
        }
    };
    let acquired = async {
        let Connected { manager, left, mut heard, .. } = connect(place, wait, &holder).await?;
        nested::refuse(place, &manager, &lock.names, lock.into()).await?;
        let hold = {
            let mut acquire = std::pin::pin!(locking::acquire(lock, ttl, left, &manager));
            let mut progress = Progress::new(&place.output);
            loop {
                tokio::select! {
                    biased;
                    acquired = &mut acquire => break acquired?,
                    Some(heard) = heard.recv() => progress.heard(heard, &key),
                }
            }
        };
        Ok::<_, Error>((manager, hold))
    };
    let (manager, hold) = tokio::select! {
        biased;
        acquired = acquired => acquired?,
        // Ctrl-C, for example. Dropping the acquire withdraws the claim.
        () = launcher.gone() => return Ok(exit::BROKEN),
        () = end_of_shell => return Ok(exit::BROKEN),
    };
    let id = HoldId::random();
    let requests = Requests::listen(&id).map_err(|error| broken("open a socket", &error))?;
    let lines = lines(&hold, &id).map_err(|error| broken("find its own program", &error))?;
    // One that has ended has printed nothing either.
    if !launcher.report(&lines).await.unwrap_or(false) {
        let _ = hold.give_back(false).await;
        close(&manager).await;
        return Ok(exit::BROKEN);
    }
    leave_the_shell().map_err(|error| broken("leave the shell", &error))?;
    let (is_named, on_loss) = (shell.is_some(), args.on_loss.signal());
    let keeper = Keeper { hold, shell, is_named, requests, max_hold: lock.max_hold, on_loss };
    let code = keeper.keep(&mut signals).await.map_err(|error| broken("wait", &error))?;
    close(&manager).await;
    Ok(code)
}

fn broken(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the keeper cannot {what}: {error}"))
}

/// What the shell evaluates: first it makes the hold its own, then it sets the keys and tokens. It fails with
/// the code of the first.
fn lines(hold: &Hold, id: &HoldId) -> std::io::Result<String> {
    let program = std::env::current_exe()?;
    let held = around::with(hold.names(), hold.each_token(), Some(id));
    let variables =
        [(around::KEY, hold.keys()), (around::TOKEN, hold.tokens()), (around::HELD, held)];
    let set = variables.each_ref().map(|(name, value)| format!("{name}={}; ", quoted(value)));
    let names = variables.map(|(name, _)| name);
    Ok(format!(
        "{} attach {} && {{ {}export {}; }} || (exit $?)",
        quoted(&program.to_string_lossy()),
        id.as_str(),
        set.concat(),
        names.join(" "),
    ))
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

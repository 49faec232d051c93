//! The commands, one file each, and what they share.

mod completions;
mod doctor;
mod elect;
mod init;
mod ls;
mod news;
mod once;
mod release;
mod run;
mod show;
mod under_lock;

use std::time::Duration;

use futures_util::FutureExt;
use latchwork::{Error, ErrorKind, LockManager};

use crate::args::{Cli, Command};
use crate::exit;
use crate::output::Output;
use crate::process::timer::Naps;

/// How long what a command leaves to the background may take at its end.
const CLOSING: Duration = Duration::from_secs(1);

/// Does what the command line says, and says with which code to exit.
pub(crate) fn run(cli: Cli) -> u8 {
    let output = Output::new(cli.json, cli.verbose);
    if let Command::Completions(args) = &cli.command {
        return completions::run(args, &output);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            output.fail("Broken", &format!("cannot start: {error}"));
            return exit::BROKEN;
        }
    };
    // On the main thread: it starts the command, and must live as long as it does.
    let done = runtime.block_on(async {
        let store = cli.store.map_or_else(latchwork::default_store, Ok)?;
        refuse_a_store_of_one_process(&store, &cli.command)?;
        match &cli.command {
            Command::Run(args) => run::run(args, &store, &output).await,
            Command::Once(args) => once::run(args, &store, &output).await,
            Command::Elect(args) => elect::run(args, &store, &output).await,
            Command::Ls(args) => ls::run(args, &store, &output).await,
            Command::Show(args) => show::run(args, &store, &output).await,
            Command::Release(args) => release::run(args, &store, &output).await,
            Command::Doctor => doctor::run(&store, &output).await,
            Command::Init => init::run(&store, &output).await,
            Command::Completions(_) => Ok(0),
        }
    });
    // Nothing of it is left that matters, and the process ends now.
    std::mem::forget(runtime);
    done.unwrap_or_else(|error| {
        output.error(&error);
        exit::code_of(&error)
    })
}

/// Locks in `mem:` end with the process that took them, so they exclude no other command, and no
/// other command can see them.
fn refuse_a_store_of_one_process(store: &str, command: &Command) -> Result<(), Error> {
    let takes_or_sees_locks = match command {
        Command::Run(_) | Command::Once(_) | Command::Elect(_) => true,
        Command::Ls(_) | Command::Show(_) | Command::Release(_) => true,
        Command::Doctor | Command::Init => false,
        Command::Completions(_) => false,
    };
    if !store.starts_with("mem:") || !takes_or_sees_locks {
        return Ok(());
    }
    let message =
        "store: mem: is the memory of one process; a lock there excludes no other command";
    Err(Error::new(ErrorKind::Invalid, message).next_step(
        "leave --store out for a directory of this user, or name a store that is shared",
    ))
}

/// Gives what runs in the background a moment to end.
async fn close(manager: &LockManager) {
    let _ = within(CLOSING, manager.close()).await;
}

/// A pause on the boot clock; none without a timer, for what is repeated after it takes time itself.
async fn nap(length: Duration) {
    if let Ok(naps) = Naps::new() {
        let _ = naps.nap(length).await;
    }
}

/// Runs `future` for at most `limit`, on the boot clock.
async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    // As a rule it is there at once, and needs no timer.
    if let Some(output) = future.as_mut().now_or_never() {
        return Some(output);
    }
    let Ok(naps) = Naps::new() else { return Some(future.await) };
    tokio::select! {
        biased;
        output = &mut future => Some(output),
        _ = naps.nap(limit) => None,
    }
}

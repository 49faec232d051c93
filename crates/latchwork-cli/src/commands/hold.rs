//! `latchwork hold`: takes locks for several commands of a script.

use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use futures_util::stream::FuturesUnordered;
use latchwork::{Error, ErrorKind};
use latchwork_store::doctor::quoted;
use rustix::process::Signal;

use super::around::{self, Mine};
use super::connect::{Connected, connect};
use super::progress::Progress;
use super::under_lock::default_holder;
use super::{Context, close, locking, nested, variables};
use crate::args::HoldArgs;
use crate::exit;
use crate::keeper::hold_id::HoldId;
use crate::keeper::keep::{ATTACH_WITHIN, Keeper};
use crate::keeper::launch::{Forked, Launched, Launcher, fork, leave_the_shell};
use crate::keeper::lender::Loans;
use crate::keeper::requests::Requests;
use crate::keeper::shell::{Shell, caller, is_for_the_first};
use crate::output::{self, coarse};
use crate::process::hold::Hold;
use crate::process::signals::{Signals, be_hit_by};
use crate::process::timer::watch;

/// How its output reaches a shell.
const USE: &str = "use: held=$(latchwork hold NAME) && eval \"$held\" || exit";

/// Starts a keeper, and prints what the shell is to evaluate once it holds the locks.
pub(crate) fn run(args: &HoldArgs, place: &Context) -> u8 {
    if prints_to_nobody() {
        let message = format!(
            "standard output is closed or /dev/null, so no shell evaluates these lines; {USE}"
        );
        place.output.fail("Invalid", &message);
        return exit::USAGE;
    }
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
    // Before the fork: the keeper is no child of the shell.
    let caller = format!("latchwork hold for {}", caller(args.pid));
    let forked = fork(|socket| match super::start_runtime(&place.output) {
        Ok(runtime) => {
            let kept = runtime.block_on(keep(args, place, shell, socket, &caller));
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
async fn wait(forked: Forked, args: &HoldArgs, place: &Context) -> std::io::Result<Ended> {
    let (lines, printed) = match forked.wait(args.pid.is_none()).await? {
        Launched::Lines(lines, printed) => (lines, printed),
        Launched::Ended(code) => return Ok(Ended::Exit(code)),
        Launched::Signal(signal) => return Ok(Ended::Signal(signal)),
        Launched::Unwanted => return Ok(Ended::Exit(exit::BROKEN)),
    };
    if std::io::stdout().is_terminal() {
        let message = format!(
            "standard output is a terminal, so no shell evaluates these lines and the lock is released in {}; {USE}",
            coarse(ATTACH_WITHIN)
        );
        place.output.note("unread", &message, &[]);
    }
    // On files the lock is free when the keeper has ended.
    if place.store.directory().is_none() && is_for_the_first(args.pid) {
        let message = "this script is the first process of its container (PID 1): at its end the kernel kills the \
                       keeper too, and the lock is free only after its ttl. Write `trap 'latchwork release' EXIT` \
                       into the script, or start the container with an init (docker run --init)";
        place.output.note("first_process", message, &[]);
    }
    if place.output.write(format!("{lines}\n").as_bytes()).is_err() {
        printed.withdraw().await;
        return Ok(Ended::Exit(exit::BROKEN));
    }
    printed.tell().await?;
    Ok(Ended::Exit(0))
}

/// The keeper: acquires the locks, reports them, and keeps them.
async fn keep(
    args: &HoldArgs,
    place: &Context,
    shell: Option<Shell>,
    socket: UnixStream,
    caller: &str,
) -> Result<u8, Error> {
    let lock = &args.lock;
    let launcher = Launcher::new(socket).map_err(|error| broken("reach the command", &error))?;
    place.tell();
    super::refuse_a_store_of_one_process(&place.store)?;
    place.check_for_locks()?;
    let (ttl, wait) = (variables::ttl(lock.ttl)?, variables::wait(lock.wait.time())?);
    let program = Program::of_this_process();
    let mut signals = Signals::ending().map_err(|error| broken("listen to signals", &error))?;
    let holder = lock.holder.clone().unwrap_or_else(|| default_holder(&[caller.into()]));
    let key = lock.names.join("\n");
    around::check_room(place, &lock.names, &holder)?;
    let end_of_shell = async {
        match shell.as_ref().and_then(|shell| watch(shell.end().ok()?).ok()) {
            Some(end) => drop(end.readable().await),
            None => std::future::pending().await,
        }
    };
    let acquired = async {
        let Connected { manager, left, mut heard, .. } = connect(place, wait, &holder).await?;
        nested::refuse(place, &manager, &lock.names, lock.into(), nested::SKIP).await?;
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
    let mine =
        Mine { holder: &holder, lender: Some(&id), is_of_shell: true, lock_delay: lock.lock_delay };
    let lines = lines(&hold, &id, &program, place, &mine);
    leave_the_shell().map_err(|error| broken("leave the shell", &error))?;
    let keeper = Keeper {
        hold,
        shell,
        evaluator: None,
        is_attached: false,
        requests,
        loans: Loans::new(manager.lifeline()),
        max_hold: lock.max_hold,
        lock_delay: lock.lock_delay,
        on_loss: args.on_loss.signal(),
        releasing: FuturesUnordered::new(),
        changing: FuturesUnordered::new(),
    };
    let kept = keeper.keep(launcher, &lines, &mut signals).await;
    let code = kept.map_err(|error| broken("wait", &error))?;
    close(&manager).await;
    Ok(code)
}

fn broken(what: &str, error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the keeper cannot {what}: {error}"))
}

/// What the shell evaluates: first it makes the hold its own, then it sets the keys and tokens. It fails with
/// the code of the first.
fn lines(hold: &Hold, id: &HoldId, program: &Program, place: &Context, mine: &Mine<'_>) -> String {
    let mut variables = vec![(around::KEY, hold.keys()), (around::TOKEN, hold.tokens())];
    variables.push((around::HELD, around::with(place, hold, mine)));
    variables.extend(place.token_floor.map(|floor| (variables::TOKEN_FLOOR, floor.to_string())));
    let set: String =
        variables.iter().map(|(name, value)| format!("{name}={}; ", quoted(value))).collect();
    let names: Vec<_> = variables.iter().map(|(name, _)| *name).collect();
    format!(
        "{} attach {} $$ && {{ {set}export {}; }} || (exit $?)",
        quoted(&program.path()),
        id.as_str(),
        names.join(" "),
    )
}

/// Where the shell finds this program.
struct Program(Option<String>);

impl Program {
    /// It may be replaced by another version while the lock is waited for.
    fn of_this_process() -> Self {
        Self(std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned)))
    }

    fn path(&self) -> String {
        match &self.0 {
            Some(path) if Path::new(path).exists() => path.clone(),
            // It has another name now, or none, or one that is no text.
            _ => format!("/proc/{}/exe", std::process::id()),
        }
    }
}

/// Whether what is printed reaches nobody. The standard library opens /dev/null for what is closed.
fn prints_to_nobody() -> bool {
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    let output = rustix::fs::fstat(std::io::stdout());
    matches!((null, output), (Ok(null), Ok(output)) if null == output.st_rdev)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_quoted_for_the_shell() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
    }

    #[test]
    fn a_program_that_is_not_there_any_more_is_found_by_its_process() {
        assert_eq!(Program(Some("/bin/sh".to_owned())).path(), "/bin/sh");
        for gone in [Some("/bin/sh (deleted)".to_owned()), None] {
            let path = Program(gone).path();
            assert_eq!(std::fs::read_link(&path).unwrap(), std::env::current_exe().unwrap());
        }
    }
}

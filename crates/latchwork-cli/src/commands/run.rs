//! `latchwork run`: takes a lock, runs a command, releases.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use latchwork::clock::boot_time;
use latchwork::{Error, ErrorKind, Guard, LockManager, Lost, LostReason, Released};
use rustix::process::Signal;

use super::news::News;
use super::{close, within};
use crate::args::RunArgs;
use crate::exit;
use crate::output::{Output, coarse};
use crate::process::child::{Child, Start};
use crate::process::deadlines::Deadlines;
use crate::process::guardian::Guardian;
use crate::process::signals::{Mask, Signals, be_hit_by, block_ttou};
use crate::process::supervise::{Ended, Loss, Run, State};
use crate::process::terminal::Terminal;
use crate::process::timer::Naps;

/// How long the release may keep the caller waiting; it goes on in the background until latchwork
/// ends, and then the ttl does the rest.
const RELEASING: Duration = Duration::from_secs(3);

/// Runs the command under the lock.
pub(crate) async fn run(args: &RunArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let mask = block_ttou();
    let holder = args.holder.clone().unwrap_or_else(|| default_holder(&args.command));
    let (news, mut lines) = News::new(output.tells_waiting(), output.is_verbose());
    let manager = latchwork::connect(store).await?.holder(holder.clone()).observer(news.clone());
    let mut signals = Signals::ending().map_err(broken)?;
    let outcome = {
        let mut acquire = std::pin::pin!(acquire(args, &manager));
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => break Ok(acquired),
                Some(line) = lines.recv() => {
                    let holder = line.holder.as_deref().map(|holder| ("holder", holder));
                    let fields: Vec<_> = [("key", &*args.name)].into_iter().chain(holder).collect();
                    output.note("waiting", &line.message, &fields);
                }
                signal = signals.next() => break Err(signal),
            }
        }
    };
    let guard = match outcome {
        Ok(Ok(guard)) => guard,
        Ok(Err(error)) => {
            close(&manager).await;
            return Err(error);
        }
        Err(signal) => return Ok(give_up(signal, &manager).await),
    };
    let token = guard.token().to_string();
    let fields = [("key", &*args.name), ("token", &token), ("holder", &holder)];
    output.detail("acquired", &format!("acquired {:?}, token {token}", args.name), &fields);
    let mut terminal = Terminal::open();
    let held = Held { args, store, output, manager: &manager, guard: &guard, mask };
    let ended = held.run(&mut signals, terminal.as_mut()).await;
    let mut shared = false;
    if let Some(terminal) = &mut terminal {
        shared = terminal.is_lent() && terminal.is_shared();
        terminal.take_back();
        if !matches!(ended, Ok(Ended::Exited(_)) | Err(_)) {
            // The command could not clean up behind itself.
            terminal.restore_modes();
        }
    }
    let released = within(RELEASING, guard.release()).await;
    let mut code = match &ended {
        Ok(ended) => report(*ended, args, &news, output),
        Err(Failed { code, message }) => {
            output.fail("Command", message);
            *code
        }
    };
    match released {
        Some(Ok(Released::Yes)) => {
            output.detail("released", &format!("released {:?}", args.name), &fields);
        }
        Some(Ok(Released::NotHeld)) if matches!(ended, Ok(Ended::Exited(_) | Ended::Killed(_))) => {
            // The command was not protected up to its end.
            output.fail("Lost", &format!("lost {:?} before the command had ended", args.name));
            code = exit::LOST;
        }
        Some(Ok(Released::NotHeld)) => {}
        Some(Err(error)) => {
            output.note("unreleased", &format!("not released yet: {error}"), &fields);
        }
        None => {
            let message = "not released: the store does not answer; it will expire";
            output.note("unreleased", message, &fields);
        }
    }
    close(&manager).await;
    if terminal.is_some() && matches!(ended, Ok(Ended::Killed(n)) if n == Signal::INT.as_raw()) {
        // So that a script that runs latchwork ends on Ctrl-C as it would without it; what shares
        // latchwork's group has not seen one that went to the command alone.
        be_hit_by(Signal::INT, shared);
    }
    Ok(code)
}

/// Takes the lock as the command line asks.
async fn acquire(args: &RunArgs, manager: &LockManager) -> Result<Guard, Error> {
    let mut mutex = manager.mutex(&args.name);
    if let Some(ttl) = args.ttl {
        mutex = mutex.ttl(ttl);
    }
    if let Some(max_hold) = args.max_hold {
        mutex = mutex.max_hold(max_hold);
    }
    if args.fair {
        mutex = mutex.fair();
    }
    match args.wait {
        None => mutex.acquire().await,
        Some(Duration::ZERO) => match mutex.try_acquire().await? {
            Some(guard) => Ok(guard),
            None => Err(busy(args, manager).await),
        },
        Some(limit) => mutex.acquire_within(limit).await,
    }
}

/// Says who has the lock.
async fn busy(args: &RunArgs, manager: &LockManager) -> Error {
    let seen = manager.inspect(&args.name).await.ok();
    let holder = seen.as_ref().and_then(|seen| seen.holders.first());
    let message = match holder {
        Some(party) => format!("{:?} is held by {}", args.name, party.holder),
        None => format!("{:?} is taken", args.name),
    };
    Error::new(ErrorKind::TimedOut, message)
}

/// A signal came while waiting: withdraw the claim, then let the signal do what it does.
async fn give_up(signal: Signal, manager: &LockManager) -> u8 {
    close(manager).await;
    be_hit_by(signal, false);
    exit::code_of_signal(signal.as_raw())
}

/// A run that holds its lock.
struct Held<'a> {
    args: &'a RunArgs,
    store: &'a str,
    output: &'a Output,
    manager: &'a LockManager,
    guard: &'a Guard,
    mask: Mask,
}

/// The command did not run, or could not be watched.
struct Failed {
    code: u8,
    message: String,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self { code: exit::BROKEN, message: error.to_string() }
    }
}

impl Held<'_> {
    /// Starts guardian and command, and returns when the command has ended and the lock may go.
    async fn run(
        &self,
        signals: &mut Signals,
        mut terminal: Option<&mut Terminal>,
    ) -> Result<Ended, Failed> {
        signals.add_passed_on()?;
        let naps = Naps::new()?;
        let capabilities = self.manager.capabilities();
        let deadlines = Deadlines::new(self.guard.ttl(), boot_time(), self.args.max_hold);
        let lifeline = capabilities.lifeline.as_ref().map(|lifeline| lifeline.0.as_fd());
        let guardian = Guardian::start(lifeline).map_err(|error| Failed {
            code: exit::BROKEN,
            message: format!("cannot start the guardian process: {error}"),
        })?;
        let due = deadlines.due(self.guard.valid_until());
        guardian.kill_at(due.guardian);
        let child = Child::start(Start {
            words: &self.args.command,
            environment: self.environment(),
            frames: guardian.frames(),
            terminal: terminal.as_deref_mut().and_then(Terminal::lend_at_start),
            mask: self.mask,
            not_after: due.ask,
        });
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                guardian.done().gone().await;
                return Err(self.not_started(&error));
            }
        };
        let ended = Run {
            guard: self.guard,
            child: &child,
            guardian: &guardian,
            signals,
            terminal,
            deadlines,
            output: self.output,
            naps,
            told: due.guardian,
            state: State::default(),
        }
        .supervise()
        .await;
        // While the command is not waited for, its group's number is its own; so the guardian is
        // let go first. If watching failed, it is left to end the group.
        let ended = ended?;
        guardian.done().gone().await;
        child.reap();
        Ok(ended)
    }

    fn environment(&self) -> [(&'static str, OsString); 3] {
        [
            ("LATCHWORK_KEY", self.guard.key().as_str().into()),
            ("LATCHWORK_TOKEN", self.guard.token().to_string().into()),
            ("LATCHWORK_STORE", self.store.into()),
        ]
    }

    fn not_started(&self, error: &io::Error) -> Failed {
        let program = self.args.command[0].to_string_lossy();
        let code = match error.kind() {
            io::ErrorKind::NotFound => exit::NOT_FOUND,
            io::ErrorKind::TimedOut => {
                let message = format!("{program} was not started: the lock was about to expire");
                return Failed { code: exit::LOST, message };
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::BROKEN,
            _ => exit::NOT_EXECUTABLE,
        };
        let reason = match code {
            exit::NOT_FOUND => "command not found".to_owned(),
            _ => error.to_string(),
        };
        Failed { code, message: format!("{program}: {reason}") }
    }
}

/// Says why the command ended, where the command itself does not, and with which code to exit.
fn report(ended: Ended, args: &RunArgs, news: &News, output: &Output) -> u8 {
    let name = &args.name;
    match ended {
        Ended::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
        Ended::Killed(number) => exit::code_of_signal(number),
        Ended::Lost(loss) => {
            let reason = match loss {
                Loss::Told(Lost { reason: LostReason::Taken, .. }) => {
                    "it was taken away (released by force, or the store lost it)".to_owned()
                }
                Loss::Told(lost) => lost.to_string(),
                Loss::Unconfirmed => match news.renewal_failure() {
                    Some(error) => format!("the store did not confirm it in time ({error})"),
                    None => "the store did not confirm it in time".to_owned(),
                },
                Loss::MaxHold => {
                    format!("--max-hold {} is over", coarse(args.max_hold.unwrap_or_default()))
                }
                Loss::Stalled => "latchwork was stopped or starved past its expiry".to_owned(),
            };
            output.fail("Lost", &format!("lost {name:?}: {reason}; the command was ended"));
            exit::LOST
        }
        Ended::Unguarded => {
            output.fail("Unguarded", "the guardian process died; the command was ended");
            exit::BROKEN
        }
    }
}

/// Who this is, for people: user, host, process and command.
fn default_holder(command: &[OsString]) -> String {
    const LONGEST: usize = 120;
    let uname = rustix::system::uname();
    let user =
        std::env::var("USER").unwrap_or_else(|_| rustix::process::getuid().as_raw().to_string());
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    let mut words = words.join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push_str("...");
    }
    let host = uname.nodename().to_string_lossy();
    format!("{user}@{host} pid {}: {words}", std::process::id())
}

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot listen to signals: {error}"))
}

//! A command that runs under a lock: from the wish to the exit code.

mod failed;
mod held;
mod over;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use latchwork::store::clock::{boot_time, wall_time};
use latchwork::{Error, ErrorKind, LockManager, Lost, LostReason};
use rustix::process::Signal;

use self::held::Held;
use self::over::Names;
use super::connect::{Connected, connect};
use super::progress::Progress;
use super::{Context, around, close, nap, within};
use crate::exit;
use crate::news::News;
use crate::output::coarse;
use crate::process::deadlines::asked_after;
use crate::process::guardian::Left;
use crate::process::hold::Hold;
use crate::process::signals::{Mask, Signals, asks_to_end, be_hit_by, block_ttou};
use crate::process::supervise::{Ended, Loss};
use crate::process::terminal::Terminal;

pub(crate) use self::failed::Failed;
pub(crate) use self::over::{Over, default_holder};

/// How long the release of a lock may keep the caller waiting; it goes on in the background until
/// latchwork ends, and then the ttl does the rest. Nothing does so for a period that is to be closed.
const RELEASING: Duration = Duration::from_secs(3);

/// How often to check whether a period is closed.
const LOOK: Duration = Duration::from_millis(100);

/// How often the line about waiting is brought up to date on a terminal.
const REFRESH: Duration = Duration::from_secs(1);

/// A command to run, and the lock to run it under.
pub(crate) struct Task<'a> {
    /// The lock, for people and for the command's environment.
    pub(crate) names: &'a [String],
    pub(crate) command: &'a [OsString],
    pub(crate) holder: Option<&'a str>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    /// How long to wait for a store that takes no more clients now; without an end if not set.
    pub(crate) wait: Option<Duration>,
    pub(crate) place: &'a Context,
}

/// The result of a request to run.
pub(crate) enum Admitted {
    /// The command may run.
    Hold(Hold),
    /// There is nothing to run; exit with this code.
    Nothing(u8),
}

/// A store, the signals and what is heard of the locks, for one term under a lock or several.
pub(crate) struct Session<'a> {
    task: &'a Task<'a>,
    store: Connected,
    holder: String,
    /// What was blocked before latchwork changed it, for each command.
    mask: Mask,
    signals: Signals,
    /// Of the last command.
    left: Option<Left>,
}

impl Task<'_> {
    /// Acquires the lock by `acquire`, which may wait for so long, runs the command, and gives the
    /// lock back.
    pub(crate) async fn run(
        &self,
        acquire: impl AsyncFnOnce(&LockManager, Option<Duration>) -> Result<Admitted, Error>,
    ) -> Result<u8, Error> {
        let mut session = self.open().await?;
        let left = session.store.left;
        let over = session.term(async |manager| acquire(manager, left).await).await;
        session.end(over).await
    }

    /// Connects, and listens to signals.
    pub(crate) async fn open(&self) -> Result<Session<'_>, Error> {
        let mask = block_ttou();
        let holder = self.holder.map_or_else(|| default_holder(self.command), str::to_owned);
        around::check_room(self.place, self.names, &holder)?;
        let store = connect(self.place, self.wait, &holder).await?;
        let signals = Signals::ending().map_err(broken)?;
        Ok(Session { task: self, store, holder, mask, signals, left: None })
    }

    /// Says why the command ended, where the command itself does not, and with which code to exit.
    fn report(&self, ended: Ended, ttl: Duration, news: &News, names: &Names<'_>) -> u8 {
        let output = &self.place.output;
        match ended {
            Ended::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Ended::Killed(number) => exit::code_of_signal(number),
            Ended::Unguarded => {
                output.fail("Unguarded", "the guardian process died; the command was ended");
                exit::BROKEN
            }
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
                        let longest = self.max_hold.unwrap_or_default();
                        format!(
                            "--max-hold {0} reached: SIGTERM was sent after {1} so that the command ends within {0}",
                            coarse(longest),
                            coarse(asked_after(longest, ttl)),
                        )
                    }
                    Loss::Stalled => {
                        "latchwork did not run until it had expired (stopped, or the machine was overloaded)"
                            .to_owned()
                    }
                    Loss::Outer => {
                        "the outer command or shell has ended, lost the lock, or did not confirm it in time"
                            .to_owned()
                    }
                };
                output.fail("Lost", &format!("lost {names}: {reason}; the command was ended"));
                exit::LOST
            }
        }
    }
}

impl Session<'_> {
    /// Acquires the lock by `acquire`, runs the command, and gives the lock back.
    pub(crate) async fn term(
        &mut self,
        acquire: impl AsyncFnOnce(&LockManager) -> Result<Admitted, Error>,
    ) -> Result<Over, Error> {
        if let Some(left) = self.left.take() {
            left.gone().await;
        }
        let Self { task, store, holder, mask, signals, left } = self;
        let Connected { manager, news, heard, .. } = store;
        let output = &task.place.output;
        news.start_anew(heard);
        let key = task.names.join("\n");
        let outcome = {
            let mut acquire = std::pin::pin!(acquire(manager));
            let mut progress = Progress::new(output);
            loop {
                tokio::select! {
                    biased;
                    acquired = &mut acquire => break Ok(acquired),
                    Some(heard) = heard.recv() => progress.heard(heard, &key),
                    signal = signals.next() => match signal {
                        // After an earlier term.
                        Signal::CHILD | Signal::CONT | Signal::WINCH => {}
                        Signal::TSTP => {
                            progress.clear();
                            be_hit_by(signal, false);
                        }
                        _ => break Err(signal),
                    },
                    () = nap(REFRESH), if progress.is_shown() => progress.refresh(),
                }
            }
        };
        let hold = match outcome {
            Ok(Ok(Admitted::Hold(hold))) => hold,
            Ok(Ok(Admitted::Nothing(code))) => return Ok(Over::by_itself(code)),
            Ok(Err(error)) => return Err(error),
            // Withdraw the claim, then let the signal do what it does.
            Err(signal) => return Ok(Over::by_signal(signal)),
        };
        // Several locks are held in an order of their own.
        let (held, key, token) = (hold.names(), hold.keys(), hold.tokens());
        let names = Names(&held);
        let fields = [("key", &*key), ("token", &token), ("holder", &**holder)];
        let tokens = token.replace('\n', ", ");
        match hold.is_borrowed() {
            true => output.detail(
                "inherited",
                &format!("runs under the outer hold of {names}, token {tokens}"),
                &fields,
            ),
            false => {
                output.detail("acquired", &format!("acquired {names}, token {tokens}"), &fields)
            }
        }
        let mut terminal = Terminal::open();
        let run = Held { task, manager, hold: &hold, holder, mask: *mask };
        let mut told_to_end = None;
        let ended = run.run(signals, heard, terminal.as_mut(), &mut told_to_end, left).await;
        let mut shared = false;
        if let Some(terminal) = &mut terminal {
            shared = terminal.is_lent() && terminal.is_shared();
            terminal.take_back();
            if !matches!(ended, Ok(Ended::Exited(_)) | Err(_)) {
                // The command could not clean up behind itself.
                terminal.restore_modes();
            }
        }
        // A command that was asked to end may exit with 0 and have done half of its work.
        let ended_well = matches!(ended, Ok(Ended::Exited(0)));
        let succeeded = ended_well && told_to_end.is_none();
        let (until, ttl, period_end) = (hold.valid_until(), hold.ttl(), hold.period_end());
        if ended_well && !succeeded && period_end.is_some() {
            let message =
                format!("{names} was asked to end by a signal: the task is open for another run");
            output.note("open", &message, &fields);
        }
        let delay = task.lock_delay.filter(|_| is_cut_short(&ended));
        let is_borrowed = hold.is_borrowed();
        let released = match delay {
            // What the command has begun may still be under way.
            Some(_) => {
                hold.leave_to_expire();
                None
            }
            None => Some(within(RELEASING, hold.give_back(succeeded)).await),
        };
        let mut code = match &ended {
            Ok(ended) => task.report(*ended, ttl, news, &names),
            Err(Failed { code, message, .. }) => {
                output.fail("Command", message);
                *code
            }
        };
        match released {
            // The client that took it away may have given it to another.
            None if matches!(ended, Ok(Ended::Lost(Loss::Told(_)))) => {}
            None => {
                let delay = delay.unwrap_or_default();
                let (least, longest) = (coarse(delay), coarse(ttl.saturating_add(delay)));
                let message = format!(
                    "{names} was not released, because the command was killed: --lock-delay keeps it closed for at \
                     least {least}, usually {longest}"
                );
                output.detail("closed", &message, &fields);
            }
            // The outer command has it still.
            Some(Some(Ok(()))) if is_borrowed => {}
            Some(Some(Ok(()))) => {
                output.detail("released", &format!("released {names}"), &fields);
            }
            Some(Some(Err(error))) if error.kind() == ErrorKind::Lost => {
                // If the loss ended the command, it was reported then.
                if matches!(ended, Ok(Ended::Exited(_) | Ended::Killed(_))) {
                    // The command was not protected up to its end.
                    let step =
                        error.next_step().map(|step| format!("; {step}")).unwrap_or_default();
                    let message = format!("lost {names} before the command had ended{step}");
                    output.fail("Lost", &message);
                    code = exit::LOST;
                }
            }
            Some(unanswered) => {
                let why = unanswered.and_then(Result::err).map(|error| error.to_string());
                let why = why.unwrap_or_else(|| "the store does not answer".to_owned());
                if let (Some(period_end), true) = (period_end, succeeded) {
                    let left = coarse(until.since(boot_time()));
                    let message = format!("the period is not closed yet: {why}; waiting {left}");
                    output.note("unreleased", &message, &fields);
                    let closed = is_closed(manager, news, &task.names[0], period_end);
                    if within(until.since(boot_time()), or_end(signals, closed)).await != Some(true)
                    {
                        let message = format!(
                            "{names}: the period was not closed, so another host may run the task again"
                        );
                        output.fail("NotClosed", &message);
                        code = exit::UNREACHABLE;
                    }
                } else {
                    let message = format!("not released yet: {why}; the lock will expire");
                    output.note("unreleased", &message, &fields);
                }
            }
        }
        // So that a script that runs latchwork ends on Ctrl-C as it would without it; what shares
        // latchwork's group has not seen one that went to the command alone.
        let interrupted = terminal.is_some()
            && matches!(ended, Ok(Ended::Killed(n)) if n == Signal::INT.as_raw());
        // What has come since, while nobody listened. The rest was for the command.
        let since = signals.come().into_iter().rfind(|&signal| asks_to_end(signal));
        Ok(Over {
            code,
            told_to_end: since.or(told_to_end),
            lost: match &ended {
                Ok(ended) => matches!(ended, Ended::Lost(_)),
                Err(failed) => failed.code == exit::LOST,
            },
            dies_of: interrupted.then_some((Signal::INT, shared)),
        })
    }

    /// Gives what runs in the background a moment to end, and says with which code to exit. Does not
    /// return if latchwork is to die of a signal.
    pub(crate) async fn end(self, over: Result<Over, Error>) -> Result<u8, Error> {
        let Self { store, left, .. } = self;
        close(&store.manager).await;
        // The guardian ends meanwhile.
        drop(store);
        if let Some(left) = left {
            left.gone().await;
        }
        let over = over?;
        if let Some((signal, whole_group)) = over.dies_of {
            be_hit_by(signal, whole_group);
        }
        Ok(over.code)
    }
}

/// Whether the command may have run and did not end by itself: it was killed, for its lock or by somebody.
fn is_cut_short(ended: &Result<Ended, Failed>) -> bool {
    match ended {
        Ok(ended) => !matches!(ended, Ended::Exited(_)),
        Err(failed) => failed.has_run,
    }
}

/// Waits for the store's answer to a release that goes on in the background, and tells whether the
/// period is closed: that answer may as well have been that nothing was held any more.
async fn is_closed(manager: &LockManager, news: &News, name: &str, period_end: Duration) -> bool {
    news.released().await;
    loop {
        match manager.inspect(name).await {
            Ok(seen) => return seen.linger.is_some() || wall_time() >= period_end,
            Err(_) => nap(LOOK).await,
        }
    }
}

/// Waits for `work`, or until a signal asks for the end: then `false`.
async fn or_end(signals: &mut Signals, work: impl Future<Output = bool>) -> bool {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            signal = signals.next() => if asks_to_end(signal) {
                return false;
            },
        }
    }
}

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot listen to signals: {error}"))
}

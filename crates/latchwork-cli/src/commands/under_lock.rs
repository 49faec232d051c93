//! A command that runs under a lock: from the wish to the exit code.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use latchwork::store::clock::{boot_time, wall_time};
use latchwork::store::random_between;
use latchwork::{Error, ErrorKind, LockManager, Lost, LostReason};
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::sync::mpsc::UnboundedReceiver;

use super::news::{News, Waiting};
use super::{close, nap, within};
use crate::exit;
use crate::output::{Output, coarse};
use crate::process::child::{Child, Start};
use crate::process::deadlines::Deadlines;
use crate::process::guardian::{Guardian, Left};
use crate::process::hold::Hold;
use crate::process::signals::{Mask, Signals, be_hit_by, block_ttou};
use crate::process::supervise::{Ended, Loss, Run, State, asks_to_end};
use crate::process::terminal::Terminal;
use crate::process::timer::Naps;

/// How long the release of a lock may keep the caller waiting; it goes on in the background until
/// latchwork ends, and then the ttl does the rest. Nothing does so for a period that is to be closed.
const RELEASING: Duration = Duration::from_secs(3);

/// How often to look whether a period is closed.
const LOOK: Duration = Duration::from_millis(100);

/// The longest pause before a store that takes no more clients is asked again.
const BUSY: Duration = Duration::from_millis(500);

/// A command to run, and the lock to run it under.
pub(crate) struct Task<'a> {
    /// The lock, for people and for the command's environment.
    pub(crate) names: &'a [String],
    pub(crate) command: &'a [OsString],
    pub(crate) holder: Option<&'a str>,
    pub(crate) max_hold: Option<Duration>,
    /// How long to wait for a store that takes no more clients now; without an end if not set.
    pub(crate) wait: Option<Duration>,
    pub(crate) store: &'a str,
    pub(crate) output: &'a Output,
}

/// What became of the wish to run.
pub(crate) enum Admitted {
    /// The command may run.
    Hold(Hold),
    /// There is nothing to run; exit with this code.
    Nothing(u8),
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Over {
    /// With which code to exit.
    pub(crate) code: u8,
    /// Whether the lock was lost, and with it the command.
    pub(crate) lost: bool,
    /// The signal that asked for the end of all of it, while the command ran or was being ended.
    told_to_end: Option<Signal>,
    /// The signal that latchwork itself is to die of, and whether its whole group is hit by it.
    dies_of: Option<(Signal, bool)>,
}

impl Over {
    fn by_itself(code: u8) -> Self {
        Self { code, lost: false, told_to_end: None, dies_of: None }
    }

    fn by_signal(signal: Signal) -> Self {
        let code = exit::code_of_signal(signal.as_raw());
        Self { dies_of: Some((signal, false)), ..Self::by_itself(code) }
    }

    /// What is over for good although another term could follow: nobody wants one, by a signal.
    pub(crate) fn told_to_end(self) -> Option<Self> {
        self.told_to_end.map(Self::by_signal)
    }
}

/// A store, the signals and what is heard of the locks, for one term under a lock or several.
pub(crate) struct Session<'a> {
    task: &'a Task<'a>,
    manager: LockManager,
    /// How much of the time to wait was spent on a connection.
    waited: Duration,
    holder: String,
    news: Arc<News>,
    lines: UnboundedReceiver<Waiting>,
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
        let left = self.wait.map(|wait| wait.saturating_sub(session.waited));
        let over = session.term(async |manager| acquire(manager, left).await).await;
        session.end(over).await
    }

    /// Connects, and listens to signals.
    pub(crate) async fn open(&self) -> Result<Session<'_>, Error> {
        let mask = block_ttou();
        let output = self.output;
        let holder = self.holder.map_or_else(|| default_holder(self.command), str::to_owned);
        let (news, lines) = News::new(output.tells_waiting(), output.is_verbose());
        let (manager, waited) = self.connect().await?;
        let manager = manager.holder(holder.clone()).observer(news.clone());
        let signals = Signals::ending().map_err(broken)?;
        Ok(Session { task: self, manager, waited, holder, news, lines, mask, signals, left: None })
    }

    /// Connects; tells how long that took beside the first try. A store that takes no more clients is
    /// asked again for as long as the command may wait for its lock.
    async fn connect(&self) -> Result<(LockManager, Duration), Error> {
        let mut busy_since = None;
        loop {
            let begun_at = boot_time();
            let error = match latchwork::connect(self.store).await {
                Err(error) if error.kind() == ErrorKind::Busy => error,
                other => {
                    let waited = busy_since.map_or(Duration::ZERO, |at| begun_at.since(at));
                    return Ok((other?, waited));
                }
            };
            if busy_since.is_none() && self.output.tells_waiting() {
                self.output.note("waiting", &format!("waiting for a connection: {error}"), &[]);
            }
            let since = *busy_since.get_or_insert(begun_at);
            if self.wait.is_some_and(|wait| boot_time().since(since) >= wait) {
                return Err(error);
            }
            nap(random_between(BUSY / 10, BUSY)).await;
        }
    }

    /// Says why the command ended, where the command itself does not, and with which code to exit.
    fn report(&self, ended: Ended, news: &News, names: &Names<'_>) -> u8 {
        let output = self.output;
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
                        format!("--max-hold {} is over", coarse(self.max_hold.unwrap_or_default()))
                    }
                    Loss::Stalled => "latchwork was stopped or starved past its expiry".to_owned(),
                };
                output.fail("Lost", &format!("lost {names}: {reason}; the command was ended"));
                exit::LOST
            }
            Ended::Unguarded => {
                output.fail("Unguarded", "the guardian process died; the command was ended");
                exit::BROKEN
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
        let Self { task, manager, holder, news, lines, mask, signals, left, .. } = self;
        let output = task.output;
        news.start_anew(lines);
        let key = task.names.join("\n");
        let outcome = {
            let mut acquire = std::pin::pin!(acquire(manager));
            loop {
                tokio::select! {
                    biased;
                    acquired = &mut acquire => break Ok(acquired),
                    Some(line) = lines.recv() => {
                        let holder = line.holder.as_deref().map(|holder| ("holder", holder));
                        let fields: Vec<_> = [("key", &*key)].into_iter().chain(holder).collect();
                        output.note("waiting", &line.message, &fields);
                    }
                    signal = signals.next() => match signal {
                        // After an earlier term.
                        Signal::CHILD | Signal::CONT | Signal::WINCH => {}
                        Signal::TSTP => be_hit_by(signal, false),
                        _ => break Err(signal),
                    },
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
        output.detail("acquired", &format!("acquired {names}, token {tokens}"), &fields);
        let mut terminal = Terminal::open();
        let run = Held { task, manager, hold: &hold, mask: *mask };
        let mut told_to_end = None;
        let ended = run.run(signals, terminal.as_mut(), &mut told_to_end, left).await;
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
        let (until, period_end) = (hold.valid_until(), hold.period_end());
        if ended_well && !succeeded && period_end.is_some() {
            let message =
                format!("{names} was asked to end by a signal: the task is open for another run");
            output.note("open", &message, &fields);
        }
        let released = within(RELEASING, hold.give_back(succeeded)).await;
        let mut code = match &ended {
            Ok(ended) => task.report(*ended, news, &names),
            Err(Failed { code, message }) => {
                output.fail("Command", message);
                *code
            }
        };
        match released {
            Some(Ok(())) => {
                output.detail("released", &format!("released {names}"), &fields);
            }
            Some(Err(error)) if error.kind() == ErrorKind::Lost => {
                // One that was ended for the loss has been told of.
                if matches!(ended, Ok(Ended::Exited(_) | Ended::Killed(_))) {
                    // The command was not protected up to its end.
                    let step = error.hint().map(|step| format!("; {step}")).unwrap_or_default();
                    let message = format!("lost {names} before the command had ended{step}");
                    output.fail("Lost", &message);
                    code = exit::LOST;
                }
            }
            unanswered => {
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
                            "{names}: the period could not be closed, the task may be done again"
                        );
                        output.fail("NotClosed", &message);
                        code = exit::UNREACHABLE;
                    }
                } else {
                    let message = format!("not released yet: {why}; it will expire");
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
        let Self { manager, left, .. } = self;
        close(&manager).await;
        // The guardian ends meanwhile.
        drop(manager);
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

/// Names of locks, for people.
struct Names<'a>(&'a [String]);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, name) in self.0.iter().enumerate() {
            write!(f, "{}{name:?}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
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

/// A run that holds its lock.
struct Held<'a> {
    task: &'a Task<'a>,
    manager: &'a LockManager,
    hold: &'a Hold,
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
        told_to_end: &mut Option<Signal>,
        left: &mut Option<Left>,
    ) -> Result<Ended, Failed> {
        signals.add_passed_on()?;
        let naps = Naps::new()?;
        let deadlines = Deadlines::new(boot_time(), self.task.max_hold);
        let lifeline = self.manager.lifeline();
        let lifeline = lifeline.as_ref().map(|lifeline| lifeline.0.as_fd());
        // Before the guardian is there: until it has a session of its own, it looks like one who shares the
        // terminal.
        let lent = terminal.as_deref_mut().and_then(Terminal::lend_at_start);
        let guardian = Guardian::start(lifeline).map_err(|error| Failed {
            code: exit::BROKEN,
            message: format!("cannot start the guardian process: {error}"),
        })?;
        let due = deadlines.due(self.hold.ttl(), self.hold.valid_until());
        guardian.kill_at(due.guardian);
        let child = Child::start(Start {
            words: self.task.command,
            environment: self.environment(),
            guardian: &guardian,
            terminal: lent,
            mask: self.mask,
            not_after: due.ask,
        });
        guardian.started()?;
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                *left = Some(guardian.done(None));
                return Err(self.not_started(&error));
            }
        };
        let mut run = Run {
            hold: self.hold,
            child: &child,
            guardian: &guardian,
            signals,
            terminal,
            deadlines,
            output: self.task.output,
            naps,
            told: due.guardian,
            state: State::default(),
        };
        let ended = run.supervise().await;
        *told_to_end = run.state.told_to_end;
        // If watching failed, the guardian is left to end the group.
        let ended = ended?;
        *left = Some(guardian.done(Some(child)));
        Ok(ended)
    }

    fn environment(&self) -> [(&'static str, OsString); 3] {
        [
            ("LATCHWORK_KEY", self.hold.keys().into()),
            ("LATCHWORK_TOKEN", self.hold.tokens().into()),
            ("LATCHWORK_STORE", self.task.store.into()),
        ]
    }

    fn not_started(&self, error: &io::Error) -> Failed {
        let program = self.task.command[0].to_string_lossy();
        if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) {
            let message = "cannot start the guardian process: it ended at its start".to_owned();
            return Failed { code: exit::BROKEN, message };
        }
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

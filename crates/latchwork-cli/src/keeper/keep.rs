//! A keeper's life once it holds the lock.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use latchwork::{Error, ErrorKind, Exchange, Guard};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::process::{Pid, Signal};
use tokio::io::unix::AsyncFd;
use tokio::select;

use super::hold_id::{Answer, Wish};
use super::launch::Launcher;
use super::lender::Loans;
use super::requests::{Request, Requests};
use super::shell::Shell;
use crate::exit;
use crate::process::deadlines::{self, Deadlines};
use crate::process::hold::Hold;
use crate::process::signals::{Signals, asks_to_end};
use crate::process::timer::{Naps, watch};

/// How long the shell may take to evaluate what it was given, from the moment when the lock was granted.
pub(crate) const ATTACH_WITHIN: Duration = Duration::from_secs(10);

/// What a keeper keeps, and for whom.
pub(crate) struct Keeper {
    pub(crate) hold: Hold,
    /// The process whose end releases the locks. Not known before the shell evaluates the lines, unless
    /// `--pid` names it.
    pub(crate) shell: Option<Shell>,
    /// The shell that has evaluated the lines, if `--pid` names another one.
    pub(crate) evaluator: Option<Shell>,
    /// Whether the lines were evaluated. From then on the keeper ends with the shell.
    pub(crate) is_attached: bool,
    pub(crate) requests: Requests,
    pub(crate) loans: Loans,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) lock_delay: Option<Duration>,
    /// What the shell gets if the lock is lost.
    pub(crate) on_loss: Option<Signal>,
    /// The releases of some of the locks, each with its answer.
    pub(crate) releasing: FuturesUnordered<Pin<Box<dyn Future<Output = ()>>>>,
    /// The upgrades and downgrades under way.
    pub(crate) changing: FuturesUnordered<Pin<Box<dyn Future<Output = Option<Prepared>>>>>,
}

/// A request to upgrade or downgrade, and what the store has granted for it.
pub(crate) struct Prepared {
    request: Request,
    granted: Result<Exchange, Error>,
}

/// What a keeper watches besides its hold.
struct Watch {
    deadlines: Deadlines,
    /// By then the lines must be evaluated.
    attach_by: Moment,
    /// Tells of the end of the shell.
    shell: Option<AsyncFd<OwnedFd>>,
    has_ended: bool,
    /// The shell has learned that the lock may be lost.
    is_told: bool,
}

/// Why a keeper stops.
enum Stop {
    /// The lines were not evaluated in time, or nobody wants them any more.
    Unwanted,
    /// The shell came when the lock was about to be lost.
    TooLate,
    /// The shell has ended, or the longest allowed hold is over.
    Ended,
    /// A command of the shell asks for the release, and waits for an answer.
    Asked(Request),
    /// The lock was lost.
    Lost,
}

impl Keeper {
    /// Reports the lock by these lines, and holds it until the shell ends, a command asks for the release, or
    /// the lock is lost. Releases it, and returns the exit code.
    pub(crate) async fn keep(
        mut self,
        launcher: Launcher,
        lines: &str,
        signals: &mut Signals,
    ) -> io::Result<u8> {
        let stop = self.wait(launcher, lines, signals).await?;
        let is_returned = self.call_in().await?;
        // From here on no client gets the answer that the locks are held: a release may take its time.
        drop(self.requests);
        drop(self.changing);
        while self.releasing.next().await.is_some() {}
        let names = self.hold.keys().replace('\n', ", ");
        // What has begun may still be under way.
        if !is_returned || (matches!(stop, Stop::Ended) && self.lock_delay.is_some()) {
            self.hold.leave_to_expire();
            return Ok(0);
        }
        let (code, message) = outcome(&names, self.hold.give_back(false).await);
        match stop {
            Stop::Asked(request) => request.answer(&Answer::Ended(code, message)).await,
            Stop::Unwanted | Stop::TooLate => return Ok(exit::BROKEN),
            Stop::Ended | Stop::Lost => {}
        }
        Ok(code)
    }

    /// Waits for a reason to stop, and answers requests meanwhile.
    async fn wait(
        &mut self,
        launcher: Launcher,
        lines: &str,
        signals: &mut Signals,
    ) -> io::Result<Stop> {
        let naps = Naps::new()?;
        let mut report = pin!(launcher.report(lines));
        let mut is_reported = false;
        let mut watch = Watch {
            deadlines: Deadlines::new(boot_time(), self.max_hold),
            attach_by: boot_time().plus(ATTACH_WITHIN),
            shell: self.end_of_shell()?,
            has_ended: false,
            is_told: false,
        };
        loop {
            let next = match self.look(&mut watch) {
                ControlFlow::Continue(next) => next,
                ControlFlow::Break(stop) => return Ok(stop),
            };
            select! {
                _ = self.hold.lost() => {
                    self.tell();
                    return Ok(Stop::Lost);
                }
                ended = ended(&watch.shell), if !watch.has_ended => {
                    ended?;
                    if !self.is_attached {
                        return Ok(Stop::Unwanted);
                    }
                    watch.has_ended = true;
                }
                printed = &mut report, if !is_reported => {
                    is_reported = true;
                    // A shell may have evaluated what it was given before that was said.
                    if !printed.unwrap_or(false) && !self.is_attached {
                        return Ok(Stop::Unwanted);
                    }
                }
                request = self.requests.next() => {
                    if let Some(stop) = self.answer(request, &mut watch)? {
                        return Ok(stop);
                    }
                }
                () = self.loans.returned() => {}
                Some(()) = self.releasing.next() => {}
                Some(prepared) = self.changing.next() => if let Some(prepared) = prepared {
                    self.exchange(prepared);
                },
                // A service manager signals the shell as well, and the shell may clean up under the lock.
                signal = signals.next() => if asks_to_end(signal) && !self.is_attached {
                    return Ok(Stop::Unwanted);
                },
                napped = naps.until(next) => napped?,
            }
        }
    }

    /// Does what is due by the clock. Returns when to do so next, or why to stop.
    fn look(&self, watch: &mut Watch) -> ControlFlow<Stop, Moment> {
        let ttl = self.hold.ttl();
        let due = watch.deadlines.due(ttl, self.hold.valid_until());
        let now = boot_time();
        // The shell learns of it early enough to stop before another holder can get the lock. The store
        // may confirm the lock after that, and then fail again.
        if now < due.ask {
            watch.is_told = false;
        } else if !watch.is_told {
            watch.is_told = true;
            self.tell();
        }
        if due.by_max_hold && now >= due.kill {
            return ControlFlow::Break(if self.is_attached { Stop::Ended } else { Stop::Unwanted });
        }
        if !self.is_attached && now >= watch.attach_by {
            return ControlFlow::Break(Stop::Unwanted);
        }
        // A command that runs under the hold keeps it for longer than the shell lives.
        if watch.has_ended && self.loans.is_empty() {
            return ControlFlow::Break(Stop::Ended);
        }
        let attach_by = if self.is_attached { Moment::NEVER } else { watch.attach_by };
        let next =
            if now < due.ask { due.ask } else { due.kill.max(now.plus(deadlines::settle(ttl))) };
        ControlFlow::Continue(next.min(attach_by).min(now.plus(deadlines::refresh(ttl))))
    }

    /// Answers a request. Returns why to stop, if it asks for the end.
    fn answer(&mut self, request: Request, watch: &mut Watch) -> io::Result<Option<Stop>> {
        let Some(request) = self.loans.answer(request, &self.hold) else { return Ok(None) };
        match request.wish.clone() {
            Wish::Attach(shell) => return self.answer_attach(request, shell, watch),
            Wish::ReleaseKey(_, key) if !self.hold.names().contains(&key) => {
                request.answer_at_once(&Answer::Unknown);
            }
            Wish::ReleaseKey(of, key) => return Ok(self.answer_release(request, of, Some(&key))),
            Wish::Release(of) => return Ok(self.answer_release(request, of, None)),
            Wish::Upgrade(of, _, key) | Wish::Downgrade(of, key) => self.change(request, of, &key),
            // Answered above.
            Wish::Held(_) | Wish::Borrow(_) => {}
        }
        Ok(None)
    }

    fn answer_attach(
        &mut self,
        request: Request,
        shell: Pid,
        watch: &mut Watch,
    ) -> io::Result<Option<Stop>> {
        // It would begin when it is to stop.
        let due = watch.deadlines.due(self.hold.ttl(), self.hold.valid_until());
        if !self.is_attached && boot_time() >= due.ask {
            request.answer_at_once(&too_late(&self.hold));
            return Ok(Some(Stop::TooLate));
        }
        let attached = self.attach(request.from, shell);
        if attached {
            watch.shell = self.end_of_shell()?;
        }
        let answer = if attached { Answer::Attached } else { self.another() };
        request.answer_at_once(&answer);
        Ok(None)
    }

    /// Releases one of the locks while the others go on, or stops for all of them.
    fn answer_release(
        &mut self,
        request: Request,
        of: Option<Pid>,
        key: Option<&str>,
    ) -> Option<Stop> {
        if !self.may_release(request.from, of) {
            request.answer_at_once(&self.another());
            return None;
        }
        if let Some(borrower) = self.loans.borrower(key) {
            request.answer_at_once(&is_lent(&self.hold, key, borrower));
            return None;
        }
        let Some(guard) = key.and_then(|key| self.hold.take(key)) else {
            return Some(Stop::Asked(request));
        };
        // The others go on, and are watched meanwhile.
        self.releasing.push(Box::pin(async move {
            let name = guard.key().to_string();
            let (code, message) = outcome(&name, guard.release().await);
            request.answer(&Answer::Ended(code, message)).await;
        }));
        None
    }

    /// Asks the store to upgrade or downgrade the hold.
    fn change(&mut self, request: Request, of: Option<Pid>, key: &str) {
        if !self.hold.names().iter().any(|name| name == key) {
            return request.answer_at_once(&Answer::Unknown);
        }
        if !self.may_release(request.from, of) {
            return request.answer_at_once(&self.another());
        }
        let Some(guard) = self.hold.one() else {
            let error = Error::new(ErrorKind::Invalid, "the hold has several locks")
                .with_next_step(format!("hold {key} alone to upgrade or downgrade it"));
            return request.answer_at_once(&refused(&error));
        };
        match &request.wish {
            Wish::Upgrade(_, wait, _) => {
                let preparing = guard.prepare_upgrade(*wait);
                self.changing.push(Box::pin(async move {
                    select! {
                        biased;
                        granted = preparing => Some(Prepared { request, granted }),
                        // Dropping the upgrade withdraws it.
                        () = request.gone() => None,
                    }
                }));
            }
            _ => {
                let preparing = Guard::prepare_downgrade(guard);
                self.changing.push(Box::pin(async move {
                    let granted = preparing.await;
                    Some(Prepared { request, granted })
                }));
            }
        }
    }

    /// Goes on with the hold that the store has granted.
    fn exchange(&mut self, Prepared { request, granted }: Prepared) {
        if let (Wish::Downgrade(..), Some(borrower)) = (&request.wish, self.loans.borrower(None)) {
            let (code, message) = lent(&self.hold, None, borrower, "not downgraded", "downgrade");
            return request.answer_at_once(&Answer::Refused("Running".to_owned(), code, message));
        }
        match granted.and_then(|exchange| self.hold.exchange(exchange)) {
            Ok((token, settled)) => self.releasing.push(Box::pin(async move {
                settled.await;
                request.answer(&Answer::Changed(token)).await;
            })),
            Err(error) => request.answer_at_once(&refused(&error)),
        }
    }

    /// Reports the end of the shell, if that is known.
    fn end_of_shell(&self) -> io::Result<Option<AsyncFd<OwnedFd>>> {
        self.shell.as_ref().map(|shell| watch(shell.end()?)).transpose()
    }

    /// Tells the borrowers that the hold is over, and waits until they have ended their commands, which they do
    /// before the validity ends. Returns whether they have.
    async fn call_in(&mut self) -> io::Result<bool> {
        self.loans.call_in();
        let limit = self.hold.valid_until();
        let naps = Naps::new()?;
        while !self.loans.is_empty() && boot_time() < limit {
            select! {
                () = self.loans.returned() => {}
                napped = naps.until(limit) => napped?,
            }
        }
        Ok(self.loans.is_empty())
    }

    /// Makes the hold that of the shell that runs `child`, unless it is that of another process.
    fn attach(&mut self, child: Option<Pid>, shell: Pid) -> bool {
        let asks = child.and_then(|child| Shell::that_runs(child, shell).ok());
        let Some(asks) = asks else { return false };
        match &self.shell {
            None => self.shell = Some(asks),
            Some(shell) if shell.is(asks.pid()) => {}
            // That of --pid need not be the one that evaluates.
            Some(_) if !self.is_attached => self.evaluator = Some(asks),
            Some(_) if self.evaluator.as_ref().is_some_and(|shell| shell.is(asks.pid())) => {}
            Some(_) => return false,
        }
        self.is_attached = true;
        true
    }

    /// Whether `child` may release the locks: the shell's own command, or one that names the shell, as one does
    /// that has replaced it (`exec`, the last command of `sh -c`). Commands further inside have the hold's id
    /// as well, but it is not theirs.
    fn may_release(&self, child: Option<Pid>, of: Option<Pid>) -> bool {
        let mut shells = self.shell.iter().chain(&self.evaluator);
        self.is_attached
            && shells.any(|shell| match of {
                Some(pid) => shell.is(pid),
                None => child.is_some_and(|child| shell.runs(child)),
            })
    }

    fn another(&self) -> Answer {
        Answer::Another(self.shell.as_ref().map(Shell::pid))
    }

    /// Nobody works under a lock whose lines were not evaluated.
    fn tell(&self) {
        if let (true, Some(shell), Some(signal)) = (self.is_attached, &self.shell, self.on_loss) {
            shell.signal(signal);
        }
    }
}

/// Returns when the shell has ended.
async fn ended(shell: &Option<AsyncFd<OwnedFd>>) -> io::Result<()> {
    match shell {
        Some(end) => end.readable().await.map(drop),
        None => std::future::pending().await,
    }
}

fn too_late(hold: &Hold) -> Answer {
    let names = hold.keys().replace('\n', ", ");
    let message = format!(
        "lost {names} before the shell evaluated what `latchwork hold` printed: the store did not confirm the \
         lock in time, or --max-hold is over; run latchwork hold again"
    );
    Answer::Ended(exit::LOST, message)
}

fn refused(error: &Error) -> Answer {
    Answer::Refused(format!("{:?}", error.kind()), exit::code_of(error), error.to_string())
}

/// The answer to a release while a command runs under the hold.
fn is_lent(hold: &Hold, key: Option<&str>, borrower: Option<Pid>) -> Answer {
    let (code, message) = lent(hold, key, borrower, "not released", "release");
    Answer::Ended(code, message)
}

/// Why `verb` is `not_done` while a command runs under the hold.
fn lent(
    hold: &Hold,
    key: Option<&str>,
    borrower: Option<Pid>,
    not_done: &str,
    verb: &str,
) -> (u8, String) {
    let names = key.map_or_else(|| hold.keys().replace('\n', ", "), str::to_owned);
    let process = borrower.map(|pid| format!(" (process {pid})")).unwrap_or_default();
    let message = format!(
        "{not_done}: `latchwork run --inherit`{process} still runs under the hold of {names}; wait for it to end, \
         or end it, and run `latchwork {verb}` again"
    );
    (exit::TIMED_OUT, message)
}

/// What is said of a release.
fn outcome(names: &str, released: Result<(), Error>) -> (u8, String) {
    match released {
        Ok(()) => (0, format!("released {names}")),
        Err(error) if error.kind() == ErrorKind::Lost => (exit::LOST, error.to_string()),
        Err(error) => {
            (exit::code_of(&error), format!("not released yet: {error}; the lock will expire"))
        }
    }
}

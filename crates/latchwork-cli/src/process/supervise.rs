//! The time between the command's start and its end: the one loop that watches everything.

use std::io;
use std::time::Duration;

use latchwork::{HoldState, Lost};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use rustix::process::Signal;
use tokio::select;
use tokio::sync::mpsc::UnboundedReceiver;

use super::child::{Change, Child};
use super::deadlines::{self, Deadlines, Due};
use super::guardian::{Guardian, Report};
use super::hold::Hold;
use super::signals::{Signals, asks_to_end, be_hit_by};
use super::strays::Strays;
use super::terminal::Terminal;
use super::timer::Naps;
use crate::keeper::lender::Lender;
use crate::keeper::requests::Request;
use crate::news::Heard;
use crate::output::{Output, coarse};

/// How long a command whose lock was taken away may go on after SIGTERM, at most.
const GRACE: Duration = Duration::from_secs(1);

/// How long the last members of a group that was killed as a whole may take to die before the
/// lock is released all the same.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// How long the rest of a group may take to clean up after a signal that was passed on has ended its
/// first process.
const CLEAN_UP: Duration = Duration::from_secs(10);

/// How often to check whether a group has become empty.
const LOOK: Duration = Duration::from_millis(20);

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The command ended with this code.
    Exited(i32),
    /// The command was ended by the signal of this number.
    Killed(i32),
    /// The lock was lost, or nearly so; nobody in the command's group runs any more.
    Lost(Loss, Fate),
    /// The guardian died; nobody in the command's group runs any more.
    Unguarded,
}

/// The result of a command whose lock was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Ended,
    /// This user may not signal a part of it.
    OutOfReach,
}

/// Why a command was ended for its lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The guard's own word.
    Told(Lost),
    /// The store confirmed nothing for so long that the command had to go.
    Unconfirmed,
    /// The longest allowed hold is over.
    MaxHold,
    /// latchwork itself did not run (stopped, starved), and the guardian did its work.
    Stalled,
    /// The outer command or shell ended, lost the lock, or did not confirm it in time.
    Outer,
}

/// A command that runs under a lock.
pub(crate) struct Run<'a> {
    pub(crate) hold: &'a Hold,
    pub(crate) child: &'a Child,
    pub(crate) guardian: &'a Guardian,
    pub(crate) signals: &'a mut Signals,
    pub(crate) terminal: Option<&'a mut Terminal>,
    pub(crate) deadlines: Deadlines,
    pub(crate) output: &'a Output,
    pub(crate) heard: &'a mut UnboundedReceiver<Heard>,
    /// Lends the hold to commands inside of the command.
    pub(crate) lender: Option<Lender>,
    pub(crate) naps: Naps,
    /// What the guardian was last told.
    pub(crate) told: Moment,
    /// The command's processes outside of its group.
    pub(crate) strays: Strays,
    pub(crate) state: State,
}

/// What the signals to latchwork ask for.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Asked {
    /// When a signal that asks the command to end was last passed on to it.
    pub(crate) command: Option<Moment>,
    /// The last signal that asks latchwork itself to end as well, if the command outlives it. A
    /// SIGHUP counts once the command is being ended: before, it may ask to read a configuration.
    pub(crate) latchwork: Option<Signal>,
}

/// What has become of the command so far.
#[derive(Debug, Default)]
pub(crate) struct State {
    is_stopped: bool,
    /// Whether the command was hung up because it wants a terminal that nobody can give it.
    hung_up: bool,
    /// Whether it was said that the command cannot be signalled.
    is_out_of_reach: bool,
    pub(crate) asked: Asked,
    /// When the command has ended, as far as that was seen.
    ended_at: Option<Moment>,
    /// Since when the hold is in doubt.
    doubt_since: Option<Moment>,
    /// How the command ended while others of its group still clean up, and until when they may; or while a
    /// command runs that has borrowed the hold, for as long as that takes.
    rest: Option<(Ended, Moment)>,
}

impl Run<'_> {
    /// Watches the command until it has ended. After a loss the whole group has.
    pub(crate) async fn supervise(&mut self) -> io::Result<Ended> {
        let mut late_since = None;
        loop {
            let due = self.tell_guardian();
            let (now, ttl) = (boot_time(), self.hold.ttl());
            let mut next = due.ask.min(now.plus(deadlines::refresh(ttl)));
            let is_in_doubt = self.state.doubt_since.is_some();
            if now >= due.ask {
                // Only a renewal can move this; one may be on its way if the machine just woke up.
                let since = *late_since.get_or_insert(now);
                let settled = since.plus(deadlines::settle(ttl)).min(due.kill);
                if due.by_max_hold || is_in_doubt || now >= settled {
                    let loss = match due.by_max_hold {
                        true => Loss::MaxHold,
                        false if self.hold.is_borrowed() => Loss::Outer,
                        false => Loss::Unconfirmed,
                    };
                    return self.end(due.kill, loss).await;
                }
                next = settled;
            } else {
                late_since = None;
            }
            if is_in_doubt {
                // The guardian is to know as soon as it is settled.
                next = next.min(now.plus(LOOK));
            }
            if self.state.rest.is_some() {
                next = next.min(now.plus(LOOK));
            }
            select! {
                signal = self.signals.next() => {
                    if let Some(ended) = self.signal(signal).await? {
                        return Ok(ended);
                    }
                }
                report = self.guardian.report() => return self.reported(report).await,
                lost = self.hold.lost() => {
                    // What was known of the end before may have been too late.
                    let due = self.tell_guardian();
                    return self.end_for(lost, &due).await;
                }
                Some(heard) = self.heard.recv() => self.tell(heard),
                request = asked(&mut self.lender) => {
                    self.lend(request);
                    if self.state.rest.is_some()
                        && let Some(ended) = self.changed().await?
                    {
                        return Ok(ended);
                    }
                }
                // In doubt, or lost: the next round says which.
                _ = self.hold.not_held(), if !is_in_doubt => {}
                napped = self.naps.until(next) => {
                    napped?;
                    // Should a SIGCHLD not have come.
                    if let Some(ended) = self.changed().await? {
                        return Ok(ended);
                    }
                }
            }
        }
    }

    /// Answers a command that wants to run under this hold; any other request is not for a command.
    fn lend(&mut self, request: Option<Request>) {
        if let (Some(lender), Some(request)) = (&mut self.lender, request) {
            let _ = lender.loans.answer(request, self.hold);
        }
    }

    fn is_lent(&self) -> bool {
        self.lender.as_ref().is_some_and(|lender| !lender.loans.is_empty())
    }

    /// Tells of renewals, if somebody wants to know.
    fn tell(&self, heard: Heard) {
        let (key, left) = (self.hold.keys(), self.hold.valid_until().since(boot_time()));
        let fields = [("key", &*key)];
        match heard {
            Heard::RenewFailed(message) => {
                let message = format!("{message}; the lock is held for {} more", coarse(left));
                self.output.detail("renew_failed", &message, &fields);
            }
            Heard::RenewedAgain => self.output.detail("renewed", "renewed again", &fields),
            Heard::Waiting(..) | Heard::TryFailed(_) => {}
        }
    }

    /// Lets the guardian know the newest moment, and says what is due when.
    fn tell_guardian(&mut self) -> Due {
        let (state, ttl) = (self.hold.state(), self.hold.ttl());
        let mut due = self.deadlines.due(ttl, self.hold.valid_until());
        match state {
            HoldState::Held => self.state.doubt_since = None,
            HoldState::Suspect => {
                let since = *self.state.doubt_since.get_or_insert_with(boot_time);
                due = due.in_doubt(since, ttl);
            }
            _ => {}
        }
        if due.guardian != self.told
            && !matches!(state, HoldState::Lost(_))
            && self.guardian.kill_at(due.guardian)
        {
            self.told = due.guardian;
        }
        due
    }

    async fn signal(&mut self, signal: Signal) -> io::Result<Option<Ended>> {
        if signal == Signal::CHILD {
            return self.changed().await;
        }
        let group = self.child.group();
        if asks_to_end(signal) {
            let now = boot_time();
            self.state.asked.command = Some(now);
            if let Some((_, until)) = &mut self.state.rest {
                *until = now.plus(CLEAN_UP);
            }
            self.strays.begin_again();
            // It may end parents of others.
            let kill_at = self.tell_guardian().kill;
            self.strays.look_before_term(group, kill_at);
            if signal != Signal::HUP {
                self.state.asked.latchwork = Some(signal);
            }
        }
        // Whether the terminal's keys come to latchwork, for the command.
        let keys = self.terminal.as_deref().is_some_and(Terminal::in_foreground);
        if let Some(stopped) = self.newly_stopped()?
            && !(keys && signal == Signal::TSTP)
        {
            self.stopped(stopped)?;
        }
        let passed = match signal {
            Signal::CONT => self.go_on(),
            // It would not change its state again, and the shell would wait for ever.
            Signal::TSTP if self.state.is_stopped && keys => {
                self.stopped(signal.as_raw())?;
                Ok(())
            }
            Signal::INT | Signal::QUIT if self.state.is_stopped && keys => {
                group.signal(signal).and_then(|()| self.go_on())
            }
            _ => group.signal(signal),
        };
        // Of what it does not miss, nothing is said.
        if is_refusal(&passed) && !matches!(signal, Signal::WINCH | Signal::CONT) {
            self.tell_out_of_reach();
        }
        Ok(None)
    }

    /// Says that a command has become another user, such as root.
    fn tell_out_of_reach(&mut self) {
        if !std::mem::replace(&mut self.state.is_out_of_reach, true) {
            let message =
                "cannot signal the command: it runs as another user; run latchwork under sudo";
            self.output.note("unsignalled", message, &[("key", &self.hold.keys())]);
        }
    }

    /// Handles a change of the command's state.
    async fn changed(&mut self) -> io::Result<Option<Ended>> {
        if let Some(stopped) = self.newly_stopped()? {
            self.stopped(stopped)?;
        }
        let Some(change) = self.child.ended()? else { return Ok(None) };
        // The guardian speaks before it kills, so its word is here when the end is.
        if let Some(report) = self.guardian.report_now() {
            return self.reported(report).await.map(Some);
        }
        if let HoldState::Lost(lost) = self.hold.state() {
            return self.end(boot_time(), Loss::Told(lost)).await.map(Some);
        }
        if let Some((ended, until)) = self.state.rest {
            let over = boot_time() >= until || !self.runs_on();
            return Ok((over && !self.is_lent()).then_some(ended));
        }
        let ended = match change {
            Change::Exited(code) => Ended::Exited(code),
            Change::Killed(number) => {
                if number == Signal::KILL.as_raw() {
                    self.last_breath().await?;
                }
                Ended::Killed(number)
            }
            Change::Stopped(_) | Change::Continued => return Ok(None),
        };
        let cleans_up = self.state.asked.command.is_some() && self.runs_on();
        if cleans_up || self.is_lent() {
            let patience = if cleans_up { CLEAN_UP } else { Duration::ZERO };
            self.state.rest = Some((ended, boot_time().plus(patience)));
            self.tell_of_borrower();
            return Ok(None);
        }
        Ok(Some(ended))
    }

    /// Whether anybody of a command runs that has ended. What has left its group counts if the end came soon after a
    /// signal, which may have caused it. It gets SIGTERM when the group is empty, so that nobody is asked twice.
    fn runs_on(&mut self) -> bool {
        let ended_at = *self.state.ended_at.get_or_insert_with(boot_time);
        let group = self.child.group();
        if !group.is_empty() {
            return true;
        }
        let is_asked = self.state.asked.command.is_some_and(|at| ended_at.since(at) < CLEAN_UP);
        if !is_asked {
            return false;
        }
        let runs_on = self.strays.look(Some(group));
        self.strays.ask();
        runs_on
    }

    /// Says why the lock is still held, although the command has ended.
    fn tell_of_borrower(&self) {
        let borrower = self.lender.as_ref().and_then(|lender| lender.loans.borrower(None));
        let Some(borrower) = borrower else { return };
        let process = borrower.map(|pid| format!(" (process {pid})")).unwrap_or_default();
        let message = format!(
            "the command has ended, but `latchwork run --inherit`{process} still runs under its lock, which is \
             released after that"
        );
        self.output.note("lent", &message, &[("key", &self.hold.keys())]);
    }

    /// The signal that has stopped the command since the last look.
    fn newly_stopped(&mut self) -> io::Result<Option<i32>> {
        let change = self.child.stopped()?;
        match change {
            Some(Change::Stopped(number)) => {
                self.state.is_stopped = true;
                return Ok(Some(number));
            }
            Some(Change::Continued) => self.state.is_stopped = false,
            _ => {}
        }
        Ok(None)
    }

    /// Handles a stop of the command. On a terminal latchwork stops too, so that the shell sees its
    /// job stopped; elsewhere the sender of the stop continues the command.
    fn stopped(&mut self, number: i32) -> io::Result<()> {
        let group = self.child.group();
        let wants = number == Signal::TTIN.as_raw() || number == Signal::TTOU.as_raw();
        let Some(terminal) = self.terminal.as_deref_mut() else { return Ok(()) };
        if wants && terminal.lend(group, true) {
            return group.signal(Signal::CONT);
        }
        let signal = match number {
            n if n == Signal::TTIN.as_raw() => Signal::TTIN,
            n if n == Signal::TTOU.as_raw() => Signal::TTOU,
            n if n == Signal::TSTP.as_raw() => Signal::TSTP,
            // `suspend` in a shell that has the terminal, or a full-screen program that stops
            // itself so on request: in the background the shell must know, because only then does
            // its `fg` continue the job. Otherwise somebody wants only this process to pause, and
            // knows how to continue it.
            _ if terminal.is_lent() || !(terminal.in_foreground() || terminal.is_orphaned()) => {
                Signal::TSTP
            }
            _ => return Ok(()),
        };
        // Of a pipeline or a script only the command has seen the Ctrl-Z: pass it on to the rest.
        let whole_group = terminal.is_lent() && terminal.is_shared();
        let orphaned = terminal.is_orphaned();
        if orphaned && wants {
            // Nobody could stop latchwork, and nobody is there to give it the terminal. What the
            // kernel does to an orphaned group with stopped members; one that goes on all the same
            // and asks again stays stopped.
            if std::mem::replace(&mut self.state.hung_up, true) {
                return Ok(());
            }
            group.signal(Signal::HUP)?;
            return group.signal(Signal::CONT);
        }
        terminal.take_back();
        if !orphaned {
            let due = self.tell_guardian();
            let (keys, token) = (self.hold.keys(), self.hold.tokens());
            let fields = [("key", &*keys), ("token", &*token)];
            self.output.stopped(due.kill.since(boot_time()), &fields);
            be_hit_by(signal, whole_group);
        }
        // Continued: in the foreground (fg), or not (bg).
        self.go_on()
    }

    /// Continues the command, with the terminal if latchwork's group has it.
    fn go_on(&mut self) -> io::Result<()> {
        let group = self.child.group();
        if let Some(terminal) = self.terminal.as_deref_mut() {
            terminal.lend(group, false);
        }
        group.signal(Signal::CONT)
    }

    async fn reported(&mut self, report: Report) -> io::Result<Ended> {
        let now = boot_time();
        match report {
            Report::Killed => {
                let due = self.deadlines.due(self.hold.ttl(), self.hold.valid_until());
                let by_max_hold = due.by_max_hold;
                let loss = if by_max_hold { Loss::MaxHold } else { Loss::Stalled };
                self.end(now, loss).await
            }
            Report::Gone => {
                self.end(now, Loss::Stalled).await?;
                Ok(Ended::Unguarded)
            }
        }
    }

    async fn end_for(&mut self, lost: Lost, due: &Due) -> io::Result<Ended> {
        // The rest of the validity no longer counts: the lock may pass on already.
        let loss = if self.hold.is_borrowed() { Loss::Outer } else { Loss::Told(lost) };
        self.end(due.kill.min(boot_time().plus(GRACE)), loss).await
    }

    /// Ends the command's group: SIGTERM now, SIGKILL at `kill_at`. Returns when nobody in it runs, nor under a
    /// loan: borrowers end their commands by the same moments.
    async fn end(&mut self, kill_at: Moment, loss: Loss) -> io::Result<Ended> {
        if let Some(lender) = &self.lender {
            lender.loans.call_in();
        }
        let ended = self.end_group(kill_at, loss).await?;
        let limit = boot_time().plus(LAST_BREATH).max(self.hold.valid_until());
        while let Some(lender) = &mut self.lender
            && !lender.loans.is_empty()
            && boot_time() < limit
        {
            select! {
                () = lender.loans.returned() => {}
                napped = self.naps.until(limit) => napped?,
            }
        }
        Ok(ended)
    }

    async fn end_group(&mut self, kill_at: Moment, loss: Loss) -> io::Result<Ended> {
        let group = self.child.group();
        // However long the end takes.
        let now = Some(boot_time());
        (self.state.asked.command, self.state.ended_at) = (now, now);
        if boot_time() < kill_at {
            // Before their parents end.
            self.strays.look_before_term(group, kill_at);
            let _ = group.signal(Signal::TERM);
            // A stopped process ends only once it is continued.
            let _ = group.signal(Signal::CONT);
        }
        let mut gone = self.child.ended()?.is_some();
        while boot_time() < kill_at {
            if gone && !self.runs_on() {
                return Ok(Ended::Lost(loss, Fate::Ended));
            }
            let next = if gone { boot_time().plus(LOOK) } else { kill_at };
            select! {
                signal = self.signals.next() => {
                    gone |= signal == Signal::CHILD && self.child.ended()?.is_some();
                    if asks_to_end(signal) {
                        self.state.asked.latchwork = Some(signal);
                    }
                }
                _ = self.guardian.report() => break,
                napped = self.naps.until(next.min(kill_at)) => napped?,
            }
        }
        let mut nap = Duration::from_millis(1);
        let (killed, mut fate) = (boot_time(), Fate::Ended);
        // Before their parents are killed. All that can take long follows the kill.
        self.strays.look_before_kill(Some(group));
        loop {
            let _ = group.signal(Signal::KILL);
            self.strays.kill();
            self.strays.look(Some(group));
            let is_done =
                !self.strays.kill() && group.is_dead(killed) && self.child.ended()?.is_some();
            if fate == Fate::Ended
                && (self.strays.is_out_of_reach() || (!is_done && group.is_out_of_reach()))
            {
                fate = Fate::OutOfReach;
                self.tell_out_of_reach();
            }
            if is_done {
                return Ok(Ended::Lost(loss, fate));
            }
            self.naps.nap(nap).await?;
            nap = (nap * 2).min(Duration::from_millis(50));
        }
    }

    /// SIGKILL went to the command, most likely to its whole group: a member that got it with the
    /// others has a moment to die, so that it is not alive when the lock passes on.
    async fn last_breath(&mut self) -> io::Result<()> {
        let limit = boot_time().plus(LAST_BREATH);
        let mut nap = Duration::from_millis(1);
        while !self.child.group().is_empty() && boot_time() < limit {
            self.naps.nap(nap).await?;
            nap *= 2;
        }
        Ok(())
    }
}

/// Whether this user may not signal somebody.
fn is_refusal(sent: &io::Result<()>) -> bool {
    sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The next request to a lender, or nothing when a loan was returned.
async fn asked(lender: &mut Option<Lender>) -> Option<Request> {
    match lender {
        Some(lender) => lender.next().await,
        None => std::future::pending().await,
    }
}

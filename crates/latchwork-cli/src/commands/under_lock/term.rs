//! A term under a lock, from the wish for it to its end. Its states, each a function of [`Session`]:
//!
//! | state | ends with |
//! | --- | --- |
//! | `wait_for_lock` | the hold, or the end of the term |
//! | `run_command` | the [`End`] of the command; the terminal is latchwork's again |
//! | `give_back` | the [`Release`]: the store's answer, none in time, or a hold that is left to expire |
//! | `report_release`, `report_unanswered`, `wait_until_closed` | the exit code, if it is not the command's |

use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager};
use latchwork_store::Moment;
use latchwork_store::clock::{boot_time, wall_time};
use rustix::process::Signal;

use super::held::RunUnderLock;
use super::over::{Names, Over};
use super::{Admitted, Failed, Session};
use crate::commands::connect::Connected;
use crate::commands::progress::Progress;
use crate::commands::{nap, within};
use crate::exit;
use crate::news::News;
use crate::output::coarse;
use crate::process::hold::Hold;
use crate::process::signals::{Signals, asks_to_end, be_hit_by};
use crate::process::supervise::{Asked, Ended, Loss};
use crate::process::terminal::Terminal;

/// How long the release of a lock may keep the caller waiting; it goes on in the background until
/// latchwork ends, and then the ttl does the rest. Nothing does so for a period that is to be closed.
const RELEASING: Duration = Duration::from_secs(3);

/// How often to check whether a period is closed.
const LOOK: Duration = Duration::from_millis(100);

/// How often the line about waiting is brought up to date on a terminal.
const REFRESH: Duration = Duration::from_secs(1);

/// The lock in messages.
struct Label {
    /// Several locks are held in an order of their own.
    names: Vec<String>,
    key: String,
    token: String,
    holder: String,
    is_borrowed: bool,
}

impl Label {
    fn of(hold: &Hold, holder: &str) -> Self {
        Self {
            names: hold.names(),
            key: hold.keys(),
            token: hold.tokens(),
            holder: holder.to_owned(),
            is_borrowed: hold.is_borrowed(),
        }
    }

    fn names(&self) -> Names<'_> {
        Names(&self.names)
    }

    fn fields(&self) -> [(&str, &str); 3] {
        [("key", &self.key), ("token", &self.token), ("holder", &self.holder)]
    }
}

/// The end of a command.
struct End {
    ended: Result<Ended, Failed>,
    /// The signals that asked for it.
    asked: Asked,
    terminal: Option<Terminal>,
    /// Whether the command had the terminal while others share latchwork's group.
    was_shared: bool,
}

impl End {
    fn is_good(&self) -> bool {
        matches!(self.ended, Ok(Ended::Exited(0)))
    }

    /// A command that was asked to end may exit with 0 and have done half of its work.
    fn has_succeeded(&self) -> bool {
        self.is_good() && self.asked.command.is_none()
    }

    /// Whether the command may have run and did not end by itself: it was killed, for its lock or by somebody.
    fn is_cut_short(&self) -> bool {
        match &self.ended {
            Ok(ended) => !matches!(ended, Ended::Exited(_)),
            Err(failed) => failed.has_run,
        }
    }

    fn has_lost(&self) -> bool {
        match &self.ended {
            Ok(ended) => matches!(ended, Ended::Lost(..)),
            Err(failed) => failed.code == exit::LOST,
        }
    }

    /// Whether Ctrl-C has ended the command.
    fn is_interrupted(&self) -> bool {
        self.terminal.is_some()
            && matches!(self.ended, Ok(Ended::Killed(n)) if n == Signal::INT.as_raw())
    }
}

/// The hold when the command had ended.
struct LastHold {
    valid_until: Moment,
    ttl: Duration,
    period_end: Option<Duration>,
}

/// How the hold was returned.
enum Release {
    /// It is left to expire, with this lock delay.
    LeftToExpire(Duration),
    Answer(Result<(), Error>),
    NoAnswer,
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
        let hold = match self.wait_for_lock(acquire).await? {
            ControlFlow::Continue(hold) => hold,
            ControlFlow::Break(over) => return Ok(over),
        };
        let label = Label::of(&hold, &self.holder);
        self.report_acquired(&label);
        let end = self.run_command(&hold).await;
        let last = LastHold {
            valid_until: hold.valid_until(),
            ttl: hold.ttl(),
            period_end: hold.period_end(),
        };
        self.report_left_open(&label, &end, &last);
        let release = self.give_back(hold, &end).await;
        let code = self.report_end(&label, &end, &last);
        let changed = self.report_release(&label, &end, &last, release).await;
        let code = changed.unwrap_or(code);
        let message = format!("ended under {} with exit code {code}", label.names());
        self.task.place.output.ended(&message, code, &label.fields());
        // What has come since, while nobody listened. The rest was for the command.
        let since = self.signals.come().into_iter().rfind(|&signal| asks_to_end(signal));
        Ok(Over {
            code,
            told_to_end: since.or(end.asked.latchwork),
            lost: end.has_lost(),
            // So that a script that runs latchwork ends on Ctrl-C as it would without it; what shares
            // latchwork's group has not seen one that went to the command alone.
            dies_of: end.is_interrupted().then_some((Signal::INT, end.was_shared)),
        })
    }

    /// Waits for the lock, and says so meanwhile. A signal that asks for the end withdraws the claim.
    async fn wait_for_lock(
        &mut self,
        acquire: impl AsyncFnOnce(&LockManager) -> Result<Admitted, Error>,
    ) -> Result<ControlFlow<Over, Hold>, Error> {
        let Self { task, store, signals, .. } = self;
        let Connected { manager, news, heard, .. } = store;
        news.start_anew(heard);
        let key = task.names.join("\n");
        let mut acquire = pin!(acquire(manager));
        let mut progress = Progress::new(&task.place.output);
        loop {
            tokio::select! {
                biased;
                acquired = &mut acquire => return Ok(match acquired? {
                    Admitted::Hold(hold) => ControlFlow::Continue(hold),
                    Admitted::Nothing(code) => ControlFlow::Break(Over::by_itself(code)),
                }),
                Some(heard) = heard.recv() => progress.heard(heard, &key),
                signal = signals.next() => match signal {
                    // A request to a command, of which there is none yet, or no more.
                    Signal::USR1 | Signal::USR2 | Signal::URG => {}
                    Signal::CHILD | Signal::CONT | Signal::WINCH => {}
                    Signal::TSTP => {
                        progress.clear();
                        be_hit_by(signal, false);
                    }
                    // Withdraw the claim, then let the signal do what it does.
                    _ => return Ok(ControlFlow::Break(Over::by_signal(signal))),
                },
                () = nap(REFRESH), if progress.is_shown() => progress.refresh(),
            }
        }
    }

    fn report_acquired(&self, label: &Label) {
        let output = &self.task.place.output;
        let (names, tokens) = (label.names(), label.token.replace('\n', ", "));
        if label.is_borrowed {
            let message = format!("runs under the outer hold of {names}, token {tokens}");
            output.detail("inherited", &message, &label.fields());
        } else {
            let message = format!("acquired {names}, token {tokens}");
            output.detail("acquired", &message, &label.fields());
        }
    }

    /// Runs the command under the hold, and takes the terminal back.
    async fn run_command(&mut self, hold: &Hold) -> End {
        let Self { task, store, holder, mask, signals, left } = self;
        let Connected { manager, heard, .. } = store;
        let mut terminal = Terminal::open(matches!(hold, Hold::Task(_)));
        let run = RunUnderLock { task, manager, hold, holder, mask: *mask };
        let mut asked = Asked::default();
        let ended = run.run(signals, heard, terminal.as_mut(), &mut asked, left).await;
        let mut was_shared = false;
        if let Some(terminal) = &mut terminal {
            was_shared = terminal.is_lent() && terminal.is_shared();
            terminal.take_back();
            if !matches!(ended, Ok(Ended::Exited(_)) | Err(_)) {
                // The command could not clean up behind itself.
                terminal.restore_modes();
            }
        }
        End { ended, asked, terminal, was_shared }
    }

    fn report_left_open(&self, label: &Label, end: &End, last: &LastHold) {
        if end.is_good() && !end.has_succeeded() && last.period_end.is_some() {
            let names = label.names();
            let message =
                format!("{names} was asked to end by a signal: the task is open for another run");
            self.task.place.output.note("open", &message, &label.fields());
        }
    }

    /// Releases the hold; with a lock delay it is left to expire after a command that was killed.
    async fn give_back(&self, hold: Hold, end: &End) -> Release {
        if let Some(delay) = self.task.lock_delay.filter(|_| end.is_cut_short()) {
            // What the command has begun may still be under way.
            hold.leave_to_expire();
            return Release::LeftToExpire(delay);
        }
        match within(RELEASING, hold.give_back(end.has_succeeded())).await {
            Some(answer) => Release::Answer(answer),
            None => Release::NoAnswer,
        }
    }

    /// Says why the command ended, and with which code to exit.
    fn report_end(&self, label: &Label, end: &End, last: &LastHold) -> u8 {
        match &end.ended {
            Ok(ended) => self.task.report(*ended, last.ttl, &self.store.news, &label.names()),
            Err(Failed { code, message, .. }) => {
                self.task.place.output.fail("Command", message);
                *code
            }
        }
    }

    /// Reports how the hold was returned. Returns the exit code, if it is not the command's.
    async fn report_release(
        &mut self,
        label: &Label,
        end: &End,
        last: &LastHold,
        release: Release,
    ) -> Option<u8> {
        let (output, names) = (&self.task.place.output, label.names());
        match release {
            // The client that took it away may have given it to another.
            Release::LeftToExpire(_) if matches!(end.ended, Ok(Ended::Lost(Loss::Told(_), _))) => {
                None
            }
            Release::LeftToExpire(delay) => {
                let (least, longest) = (coarse(delay), coarse(last.ttl.saturating_add(delay)));
                let message = format!(
                    "{names} was not released, because the command was killed: --lock-delay keeps it closed for at \
                     least {least}, usually {longest}"
                );
                output.detail("closed", &message, &label.fields());
                None
            }
            // The outer command has it still.
            Release::Answer(Ok(())) if label.is_borrowed => None,
            Release::Answer(Ok(())) => {
                output.detail("released", &format!("released {names}"), &label.fields());
                None
            }
            Release::Answer(Err(error)) if error.kind() == ErrorKind::Lost => {
                // If the loss ended the command, it was reported then.
                matches!(end.ended, Ok(Ended::Exited(_) | Ended::Killed(_))).then(|| {
                    // The command was not protected up to its end.
                    let step =
                        error.next_step().map(|step| format!("; {step}")).unwrap_or_default();
                    let message = format!("lost {names} before the command had ended{step}");
                    output.fail("Lost", &message);
                    exit::LOST
                })
            }
            Release::Answer(Err(error)) => {
                self.report_unanswered(label, end, last, &error.to_string()).await
            }
            Release::NoAnswer => {
                self.report_unanswered(label, end, last, "the store does not answer").await
            }
        }
    }

    /// Says that the release goes on in the background, and waits for it where it has to close a period.
    async fn report_unanswered(
        &mut self,
        label: &Label,
        end: &End,
        last: &LastHold,
        why: &str,
    ) -> Option<u8> {
        let output = &self.task.place.output;
        let Some(period_end) = last.period_end.filter(|_| end.has_succeeded()) else {
            let message = format!("not released yet: {why}; the lock will expire");
            output.note("unreleased", &message, &label.fields());
            return None;
        };
        let left = coarse(last.valid_until.since(boot_time()));
        let message = format!("the period is not closed yet: {why}; waiting {left}");
        output.note("unreleased", &message, &label.fields());
        if self.wait_until_closed(last.valid_until, period_end).await {
            return None;
        }
        let names = label.names();
        let message =
            format!("{names}: the period was not closed, so another host may run the task again");
        self.task.place.output.fail("NotClosed", &message);
        Some(exit::UNREACHABLE)
    }

    /// Waits for the end of a period to be in the store, until a signal asks for the end or the validity is over.
    async fn wait_until_closed(&mut self, valid_until: Moment, period_end: Duration) -> bool {
        let Self { task, store, signals, .. } = self;
        let closed = is_closed(&store.manager, &store.news, &task.names[0], period_end);
        let left = valid_until.since(boot_time());
        within(left, or_end(signals, closed)).await == Some(true)
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

//! A command that runs under a lock: from the wish to the exit code.

mod failed;
mod held;
mod over;
mod term;

use std::ffi::OsString;
use std::io;
use std::time::Duration;

use latchwork::{Error, ErrorKind, LockManager, Lost, LostReason};

use self::over::Names;
use super::connect::{Connected, connect};
use super::{Context, around, close};
use crate::exit;
use crate::news::News;
use crate::output::coarse;
use crate::process::deadlines::asked_after;
use crate::process::guardian::Left;
use crate::process::hold::Hold;
use crate::process::signals::{Mask, Signals, be_hit_by, block_ttou};
use crate::process::supervise::{Ended, Fate, Loss};

pub(crate) use self::failed::{Failed, is_executable, program_of};
pub(crate) use self::over::{Over, default_holder};

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
        let signals = Signals::of_command().map_err(broken)?;
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
            Ended::Lost(loss, fate) => {
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
                let fate = match fate {
                    Fate::Ended => "the command was ended",
                    Fate::OutOfReach => "the command could not be ended, and may still run",
                };
                output.fail("Lost", &format!("lost {names}: {reason}; {fate}"));
                exit::LOST
            }
        }
    }
}

impl Session<'_> {
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

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("cannot listen to signals: {error}"))
}

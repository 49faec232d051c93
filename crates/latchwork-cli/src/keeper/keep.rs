//! A keeper's life once it holds the lock.

use std::io;
use std::time::Duration;

use latchwork::store::Moment;
use latchwork::store::clock::boot_time;
use latchwork::{Error, ErrorKind};
use rustix::process::{Pid, Signal};
use tokio::select;

use super::hold_id::{Answer, Wish};
use super::requests::{Request, Requests};
use super::shell::Shell;
use crate::exit;
use crate::process::deadlines::{self, Deadlines};
use crate::process::hold::Hold;
use crate::process::signals::{Signals, asks_to_end};
use crate::process::timer::{Naps, watch};

/// How long the shell may take to evaluate what it was given.
pub(crate) const ATTACH_WITHIN: Duration = Duration::from_secs(10);

/// What a keeper keeps, and for whom.
pub(crate) struct Keeper {
    pub(crate) hold: Hold,
    /// The process whose end releases the locks. Not known before the shell evaluates the assignments, unless
    /// `--pid` names it.
    pub(crate) shell: Option<Shell>,
    /// Whether `--pid` named it.
    pub(crate) is_named: bool,
    pub(crate) requests: Requests,
    pub(crate) max_hold: Option<Duration>,
    /// What the shell gets if the lock is lost.
    pub(crate) on_loss: Option<Signal>,
}

/// Why a keeper stops.
enum Stop {
    /// The shell has ended or never came, or somebody ended the keeper.
    Ended,
    /// A command of the shell asks for the release, and waits for an answer.
    Asked(Request),
    /// The lock was lost.
    Lost,
}

impl Keeper {
    /// Holds the lock until the shell ends, a command asks for the release, or the lock is lost. Releases it,
    /// and returns the exit code.
    pub(crate) async fn keep(mut self, signals: &mut Signals) -> io::Result<u8> {
        let stop = self.wait(signals).await?;
        let Self { hold, shell, on_loss, .. } = self;
        let names = hold.keys().replace('\n', ", ");
        if let Stop::Lost = stop {
            tell(shell.as_ref(), on_loss);
        }
        let (code, message) = outcome(&names, hold.give_back(false).await);
        if let Stop::Asked(request) = stop {
            request.answer(&Answer::Ended(code, message)).await;
        }
        Ok(code)
    }

    async fn wait(&mut self, signals: &mut Signals) -> io::Result<Stop> {
        let naps = Naps::new()?;
        let deadlines = Deadlines::new(boot_time(), self.max_hold);
        let attach_by = boot_time().plus(ATTACH_WITHIN);
        let mut is_attached = false;
        let mut end = self.shell.as_ref().map(|shell| watch(shell.end()?)).transpose()?;
        let mut is_told = false;
        loop {
            let ttl = self.hold.ttl();
            let due = deadlines.due(ttl, self.hold.valid_until());
            let now = boot_time();
            // The shell learns of it early enough to stop before another holder can get the lock. The store
            // may confirm the lock after that, and then fail again.
            if now < due.ask {
                is_told = false;
            } else if !is_told {
                is_told = true;
                tell(self.shell.as_ref(), self.on_loss);
            }
            if due.by_max_hold && now >= due.kill {
                return Ok(Stop::Ended);
            }
            if !is_attached && now >= attach_by {
                return Ok(Stop::Ended);
            }
            let attach_by = if is_attached { Moment::NEVER } else { attach_by };
            let next =
                if is_told { due.kill.max(now.plus(deadlines::settle(ttl))) } else { due.ask };
            let next = next.min(attach_by).min(now.plus(deadlines::refresh(ttl)));
            let ended = async {
                match &end {
                    Some(end) => end.readable().await.map(drop),
                    None => std::future::pending().await,
                }
            };
            select! {
                _ = self.hold.lost() => {
                    // The shell may have been told before.
                    return Ok(if is_told { Stop::Ended } else { Stop::Lost });
                }
                ended = ended => return ended.map(|()| Stop::Ended),
                request = self.requests.next() => match &request.wish {
                    Wish::Attach => match self.shell_for(request.from) {
                        Ok(shell) => {
                            if let Some(shell) = shell {
                                end = Some(watch(shell.end()?)?);
                                self.shell = Some(shell);
                            }
                            is_attached = true;
                            request.answer_at_once(&Answer::Attached);
                        }
                        Err(_) => request.answer_at_once(&Answer::Another),
                    },
                    Wish::ReleaseKey(key) if !self.hold.names().contains(key) => {
                        request.answer_at_once(&Answer::Another);
                    }
                    Wish::Release | Wish::ReleaseKey(_) => return Ok(Stop::Asked(request)),
                },
                signal = signals.next() => if asks_to_end(signal) {
                    return Ok(Stop::Ended);
                },
                napped = naps.until(next) => napped?,
            }
        }
    }

    /// The shell that runs `child`, if the lock was kept for none so far.
    ///
    /// # Errors
    ///
    /// The lock is kept for another process, or there is no such shell.
    fn shell_for(&self, child: Pid) -> io::Result<Option<Shell>> {
        let asks = Shell::that_runs(child)?;
        match &self.shell {
            None => Ok(Some(asks)),
            // That of --pid need not be the one that evaluates.
            Some(shell) if self.is_named || shell.is(&asks) => Ok(None),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

fn tell(shell: Option<&Shell>, on_loss: Option<Signal>) {
    if let (Some(shell), Some(signal)) = (shell, on_loss) {
        shell.signal(signal);
    }
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

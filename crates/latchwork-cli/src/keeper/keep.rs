//! A keeper's life once it holds the lock.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use latchwork::store::clock::boot_time;
use latchwork::{Error, ErrorKind};
use rustix::process::Signal;
use tokio::io::unix::AsyncFd;
use tokio::select;

use super::hold_id::{Answer, request};
use super::shell::Shell;
use crate::exit;
use crate::process::deadlines::{self, Deadlines};
use crate::process::hold::Hold;
use crate::process::signals::{Signals, asks_to_end};
use crate::process::timer::{Naps, watch};

/// What a keeper keeps, and for whom.
pub(crate) struct Keeper {
    pub(crate) hold: Hold,
    pub(crate) shell: Shell,
    pub(crate) listener: UnixListener,
    pub(crate) max_hold: Option<Duration>,
    /// What the shell gets if the lock is lost.
    pub(crate) on_loss: Option<Signal>,
}

/// Why a keeper stops.
enum Stop {
    /// The shell has ended, or somebody ended the keeper.
    Ended,
    /// A command of the shell asks for the release, and waits for an answer.
    Asked(UnixStream),
    /// The lock was lost.
    Lost,
}

impl Keeper {
    /// Holds the lock until the shell ends, a command asks for the release, or the lock is lost. Releases it,
    /// and returns the exit code.
    pub(crate) async fn keep(self, signals: &mut Signals) -> io::Result<u8> {
        let stop = self.wait(signals).await?;
        let Self { hold, shell, on_loss, .. } = self;
        let names = hold.keys().replace('\n', ", ");
        if let Stop::Lost = stop
            && let Some(signal) = on_loss
        {
            shell.signal(signal);
        }
        let (code, message) = outcome(&names, hold.give_back(false).await);
        if let Stop::Asked(mut stream) = stop {
            // One that does not listen any more needs no answer.
            let _ = Answer::Ended(code, message).write(&mut stream);
        }
        Ok(code)
    }

    async fn wait(&self, signals: &mut Signals) -> io::Result<Stop> {
        let naps = Naps::new()?;
        let end = watch(self.shell.end()?)?;
        self.listener.set_nonblocking(true)?;
        let listener = watch(self.listener.as_raw_fd())?;
        let deadlines = Deadlines::new(boot_time(), self.max_hold);
        let mut is_warned = false;
        loop {
            let ttl = self.hold.ttl();
            let due = deadlines.due(ttl, self.hold.valid_until());
            let now = boot_time();
            // The shell learns of it early enough to stop before another holder can get the lock.
            if now >= due.ask && !is_warned {
                is_warned = true;
                self.on_loss.inspect(|signal| self.shell.signal(*signal));
            }
            if due.by_max_hold && now >= due.kill {
                return Ok(Stop::Ended);
            }
            let next =
                if is_warned { due.kill.max(now.plus(deadlines::settle(ttl))) } else { due.ask };
            select! {
                _ = self.hold.lost() => {
                    // The shell may have been told before.
                    return Ok(if is_warned { Stop::Ended } else { Stop::Lost });
                }
                ended = end.readable() => return ended.map(|_| Stop::Ended),
                asked = self.asked(&listener) => {
                    if let Some(stream) = asked? {
                        return Ok(Stop::Asked(stream));
                    }
                }
                signal = signals.next() => if asks_to_end(signal) {
                    return Ok(Stop::Ended);
                },
                napped = naps.until(next.min(now.plus(deadlines::refresh(ttl)))) => napped?,
            }
        }
    }

    /// Waits for a request; `None` if it is not for this keeper.
    async fn asked<F: AsRawFd>(&self, listener: &AsyncFd<F>) -> io::Result<Option<UnixStream>> {
        let mut ready = listener.readable().await?;
        let Ok((mut stream, _)) = self.listener.accept() else {
            ready.clear_ready();
            return Ok(None);
        };
        let Some(key) = request(&mut stream) else { return Ok(None) };
        if key.is_empty() || self.hold.names().contains(&key) {
            return Ok(Some(stream));
        }
        let _ = Answer::Another.write(&mut stream);
        Ok(None)
    }
}

/// What is said of a release.
fn outcome(names: &str, released: Result<(), Error>) -> (u8, String) {
    match released {
        Ok(()) => (0, format!("released {names}")),
        Err(error) if error.kind() == ErrorKind::Lost => (exit::LOST, error.to_string()),
        Err(error) => (exit::code_of(&error), format!("not released yet: {error}; it will expire")),
    }
}

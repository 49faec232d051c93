//! What tests and connections share: the wishes of the one, the counts of the other.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::{Counts, Cut, Loss, Lost, Protocol};

type Condition = Arc<dyn Fn(&[&[u8]]) -> bool + Send + Sync>;

/// Commands that the proxy answers itself.
#[derive(Clone)]
pub(super) struct Refusal {
    pub(super) name: String,
    pub(super) answer: Vec<u8>,
    pub(super) when: Condition,
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusal").field("name", &self.name).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) upstream: SocketAddr,
    pub(super) delay: [Duration; 2],
    pub(super) trickle: [Option<(usize, Duration)>; 2],
    pub(super) frozen: [bool; 2],
    /// The source addresses of clients that are on the other side of a partition.
    pub(super) parted: BTreeSet<IpAddr>,
    /// Connections on which nothing has passed for so long are closed.
    pub(super) idle: Option<Duration>,
    pub(super) lose_answers: bool,
    /// Which piece of what servers send is lost with its connection; 0 means none.
    pub(super) lose_piece: u64,
    pub(super) lose_pushes: bool,
    pub(super) hold_answers: bool,
    pub(super) refuse_connections: bool,
    /// Whether the listener is as `refuse_connections` says.
    pub(super) listening: bool,
    pub(super) refusals: Vec<Refusal>,
    pub(super) losses: Vec<Loss>,
    /// How to end all connections with a smaller number than this.
    pub(super) cut: (u64, Cut),
    /// Connections with a smaller number than this pass nothing on any more, and do not end.
    pub(super) stranded: u64,
    pub(super) next_connection: u64,
    pub(super) open: BTreeSet<u64>,
    pub(super) counts: Counts,
    /// How many connections have ended by a panic, which has been printed.
    pub(super) panics: u64,
    pub(super) ended: bool,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) protocol: Protocol,
    state: Mutex<State>,
    /// Tells connections that the wishes have changed.
    changes: watch::Sender<()>,
    /// Tells threads and tasks that counts or connections have changed.
    progress: Condvar,
    pub(super) progress_async: Notify,
}

impl Shared {
    pub(super) fn new(protocol: Protocol, upstream: SocketAddr) -> Self {
        let state = State {
            upstream,
            delay: [Duration::ZERO; 2],
            trickle: [None; 2],
            frozen: [false; 2],
            parted: BTreeSet::new(),
            idle: None,
            lose_answers: false,
            lose_piece: 0,
            lose_pushes: false,
            hold_answers: false,
            refuse_connections: false,
            listening: true,
            refusals: Vec::new(),
            losses: Vec::new(),
            cut: (0, Cut::Reset),
            stranded: 0,
            next_connection: 0,
            open: BTreeSet::new(),
            counts: Counts::default(),
            panics: 0,
            ended: false,
        };
        Self {
            protocol,
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
            progress: Condvar::new(),
            progress_async: Notify::new(),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the wishes and wakes every connection.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.changes.send_replace(());
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Wakes those who wait for counts or connections.
    pub(super) fn progressed(&self) {
        self.progress.notify_all();
        self.progress_async.notify_waiters();
    }

    /// Waits for a state; false if it has not come within `limit`.
    pub(super) fn wait(&self, limit: Duration, mut done: impl FnMut(&State) -> bool) -> bool {
        let waiting = self.progress.wait_timeout_while(self.state(), limit, |s| !done(s));
        !waiting.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// What becomes of a command.
pub(super) enum Fate {
    /// Passed on; its answer is swallowed if this says so, and then the connection perhaps cut.
    Forward(Option<Option<Cut>>),
    /// Swallowed, and then the connection perhaps cut.
    Lose(Option<Cut>),
    /// Answered with these bytes.
    Refuse(Vec<u8>),
}

impl State {
    /// Counts a piece from the server, and tells whether it is the one to be lost.
    pub(super) fn piece_is_lost(&mut self) -> bool {
        let is_lost = self.lose_piece == 1;
        self.lose_piece = self.lose_piece.saturating_sub(1);
        self.counts.lost += u64::from(is_lost);
        is_lost
    }

    /// Counts a command and decides about it.
    pub(super) fn command(&mut self, words: &[&[u8]]) -> Fate {
        let name = String::from_utf8_lossy(words[0]).to_ascii_uppercase();
        let mut fate = Fate::Forward(None);
        for loss in &mut self.losses {
            if loss.of.as_ref().is_some_and(|of| *of != name) {
                continue;
            }
            loss.nth -= 1;
            if loss.nth == 0 {
                fate = match loss.what {
                    Lost::Answer => Fate::Forward(Some(loss.cut)),
                    Lost::Command => Fate::Lose(loss.cut),
                };
            }
        }
        self.losses.retain(|loss| loss.nth > 0);
        let refusal = self.refusals.iter().find(|r| r.name == name && (r.when)(words));
        if let (Some(refusal), Fate::Forward(None)) = (refusal, &fate) {
            fate = Fate::Refuse(refusal.answer.clone());
        }
        match self.counts.commands.get_mut(&name) {
            Some(count) => *count += 1,
            None => {
                self.counts.commands.insert(name, 1);
            }
        }
        fate
    }
}

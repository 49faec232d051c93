//! The sessions of a client: a few for all its claims ([`Slots`]), and how long they may be.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::{BackendError, Io, Moment, random_between};
use tokio::sync::Notify;

use crate::config::{Logins, Scheme};
use crate::server::session::{Ended, Ensemble, Room, Session, probe};
use crate::server::slots::{Pick, Slots};

/// The ttl of a claim that asks for none, where the servers grant it.
pub(crate) const USUAL_TTL: Duration = Duration::from_secs(30);
/// Longer than any that servers grant: a hello tells the longest.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);
/// For so long a client that is turned away tries to get a connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause between two tries of it.
const PAUSE: Duration = Duration::from_millis(400);

/// How many bytes the paths of a session's claims have at most. Servers 3.6 to 3.9 write all of them into the transaction
/// that ends the session (ZOOKEEPER-4306), and read none back that is longer than twice `jute.maxbuffer`: they would
/// not start again. The lists that leaders send to followers have that limit, too.
const MOST_PATHS: usize = 1_000_000;

/// What is proven of a session at any moment: three fifths of it (see [`crate::server::session`]).
pub(crate) const fn ttl_of(timeout: Duration) -> Duration {
    Duration::from_millis((timeout.as_millis() * 3 / 5) as u64)
}

/// The session that a ttl needs.
const fn timeout_for(ttl: Duration) -> Duration {
    Duration::from_millis((ttl.as_nanos() * 5).div_ceil(3_000_000) as u64)
}

pub(crate) struct Sessions {
    ensemble: Arc<Ensemble>,
    io: Io,
    /// Told when there is one more.
    opened: Arc<Notify>,
    /// The shortest and the longest that the servers grant.
    limits: (Duration, Duration),
    open: Mutex<Open>,
}

struct Open {
    slots: Slots<Session>,
    /// What the next one waits for, so that a client needs one connection at a time.
    closing: Option<Ended>,
}

impl Sessions {
    /// Finds out which sessions the servers grant, and whether they know us, by one connection at
    /// a time.
    pub(crate) async fn find_out(
        ensemble: Arc<Ensemble>,
        io: Io,
        opened: Arc<Notify>,
    ) -> Result<Self, BackendError> {
        let until = io.now().plus(CONNECT_PATIENCE);
        let shortest = loop {
            match probe(ensemble.clone(), 1, &io).await {
                Err(_) if is_worth_repeating(&ensemble, &io, until).await => {}
                answer => break answer?,
            }
        };
        let first = Session::open(&ensemble, LONGEST, &io, None);
        let up = loop {
            match first.up().await {
                Err(_) if is_worth_repeating(&ensemble, &io, until).await => {}
                answer => break answer?,
            }
        };
        let limits = (shortest.min(up.timeout), up.timeout);
        let mut slots = Slots::new(limits);
        let mut closing = None;
        if up.timeout <= timeout_for(USUAL_TTL) {
            // Most will use this one.
            slots.add(first, up.timeout, io.now(), true);
        } else {
            closing = first.ended();
        }
        let open = Mutex::new(Open { slots, closing });
        Ok(Self { ensemble, io, opened, limits, open })
    }

    /// The ttls that a claim can get.
    pub(crate) fn ttls(&self) -> (Duration, Duration) {
        (ttl_of(self.limits.0), ttl_of(self.limits.1))
    }

    /// The session for claims with this ttl. It may be on its way yet.
    pub(crate) fn of(&self, ttl: Duration) -> Arc<Session> {
        self.room(ttl, 0).session().clone()
    }

    /// A session for a claim with this ttl whose path has so many bytes: another one of the same length if those that
    /// are open have no room.
    pub(crate) fn room(&self, ttl: Duration, bytes: usize) -> Arc<Room> {
        let now = self.io.now();
        let mut open = self.lock();
        open.slots.retain(|session| !session.is_over());
        let has_room = |session: &Session| session.has_room(bytes, MOST_PATHS);
        let session = match open.slots.pick(timeout_for(ttl), now, has_room) {
            Pick::Open(session) => session,
            Pick::New(timeout, spare) => {
                let after = spare.and_then(|spare| spare.ended()).or(open.closing.take());
                let session = Session::open(&self.ensemble, timeout, &self.io, after);
                open.slots.add(session.clone(), timeout, now, false);
                self.opened.notify_one();
                session
            }
        };
        Room::new(&session, bytes)
    }

    /// A session for what belongs to no claim of this client.
    pub(crate) fn any(&self) -> Arc<Session> {
        let last_used = {
            let mut open = self.lock();
            open.slots.retain(|session| !session.is_over());
            open.slots.last_used()
        };
        last_used.unwrap_or_else(|| self.of(USUAL_TTL.clamp(self.ttls().0, self.ttls().1)))
    }

    /// Finds a newer login for a request that was denied, and makes it known on all connections.
    ///
    /// # Errors
    ///
    /// The refusal, if there is none.
    pub(crate) async fn renew_login(&self, refusal: BackendError) -> Result<(), BackendError> {
        let (config, introduced) = (&self.ensemble.config, &self.ensemble.introduced);
        let seen = introduced.load(Ordering::SeqCst);
        match config.login.after_refusal(seen, &self.io).await {
            Ok(Some((Logins { now: Some(login), .. }, version)))
                if config.scheme == Scheme::Digest =>
            {
                self.lock().slots.retain(|session| {
                    session.introduce(&login);
                    true
                });
                introduced.fetch_max(version, Ordering::SeqCst);
                Ok(())
            }
            Ok(_) => Err(refusal),
            Err(problem) => Err(refusal.unrenewed(&problem)),
        }
    }

    /// Closes what has served nothing for long, and returns when to check again.
    pub(crate) fn close_idle(&self) -> Moment {
        let (idle, next) = self.lock().slots.take_idle(self.io.now());
        drop(idle);
        next
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the servers were full and there is time left to try again, after a pause.
async fn is_worth_repeating(ensemble: &Ensemble, io: &Io, until: Moment) -> bool {
    if !ensemble.is_full() || io.now() >= until {
        return false;
    }
    io.sleep(random_between(PAUSE / 8, PAUSE)).await;
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_long_enough_for_its_ttl() {
        for ms in [1, 2, 3, 4, 5, 999, 1_000, 1_201, 30_000] {
            let ttl = Duration::from_millis(ms);
            let timeout = timeout_for(ttl);
            assert!(ttl_of(timeout) >= ttl, "{ttl:?} in {timeout:?}");
            assert!(timeout <= ttl * 5 / 3 + Duration::from_millis(1));
        }
    }
}

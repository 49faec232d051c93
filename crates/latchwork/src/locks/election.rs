//! Elections: one of many candidates leads.

mod observing;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;

use self::observing::Observing;
use crate::hold::guard::Guard;
use crate::locks::lock::Lock;
use crate::locks::manager::LockManager;
use latchwork_store::{Backoff, Error, ErrorKind, FencingToken, Holder, Snapshot};

/// Between a campaign that the store did not answer and the next, in [`Election::lead`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An election: of all candidates on the key, one leads.
///
/// Use it if one process of a group does the work for all, for as long as it lives. Candidates
/// queue as for a [mutex](crate::LockManager::mutex). If a leader dies, the next one is elected
/// after its ttl at the latest.
///
/// # Guarantees
///
/// The guarantees are those of a mutex: while [`Leadership::ensure_held`](Guard::ensure_held)
/// succeeds, no other candidate is elected. A leader that was paused may not know yet that it was
/// superseded. So its writes must carry the [term](Leadership::term), and the system that receives
/// them must refuse a smaller term than it has seen.
///
/// # Examples
///
/// ```
/// # use latchwork::{Driver, LockManager};
/// # use latchwork::store::MemoryBackend;
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let election = locks.election("scheduler");
/// let leadership = election.clone().candidate("10.0.0.7:8080").campaign().await?;
/// let leader = election.leader().await?.unwrap();
/// assert_eq!((&*leader.candidate, leader.term), ("10.0.0.7:8080", leadership.term()));
/// leadership.resign().await?;
/// # Ok::<(), latchwork::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until somebody campaigns or looks"]
pub struct Election {
    lock: Lock,
    locks: LockManager,
    name: Arc<str>,
    look_every: Option<Duration>,
}

/// The current leader.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Leader {
    /// The candidate's description of itself, usually an address.
    pub candidate: Arc<str>,
    /// The number of its term: larger than that of every leader before it.
    pub term: FencingToken,
}

impl Election {
    pub(crate) fn new(lock: Lock, locks: LockManager, name: &str) -> Self {
        Self { lock, locks, name: name.into(), look_every: None }
    }

    /// Sets the description of this candidate for observers, for example an address. Default: host,
    /// process and program.
    pub fn candidate(self, text: impl Into<Arc<str>>) -> Self {
        Self { lock: self.lock.candidate(text), ..self }
    }

    /// Sets the ttl: how long the store keeps a leader without a renewal.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { lock: self.lock.ttl(ttl), ..self }
    }

    /// Sets the maximum length of a term; the leadership then ends even if the leader is alive.
    pub fn max_hold(self, longest: Duration) -> Self {
        Self { lock: self.lock.max_hold(longest), ..self }
    }

    /// Sets how long the key stays closed after a term that ended without a release; see
    /// [`Lock::lock_delay`].
    pub fn lock_delay(self, delay: Duration) -> Self {
        Self { lock: self.lock.lock_delay(delay), ..self }
    }

    /// Sets the longest pause between two requests of [`observe`](Election::observe), at least 10
    /// ms.
    ///
    /// If it is not set, the pause is 1 s on a store without notifications. With notifications it
    /// is 10 s, also if a longer one is set.
    pub fn look_every(self, pause: Duration) -> Self {
        Self { look_every: Some(pause.max(Duration::from_millis(10))), ..self }
    }

    /// Campaigns until elected, waiting without a limit.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the candidacy.
    pub async fn campaign(&self) -> Result<Leadership, Error> {
        self.lock.acquire().await.map(Leadership)
    }

    /// Campaigns until elected, waiting at most `limit`.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// As for [`campaign`](Election::campaign).
    pub async fn campaign_within(&self, limit: Duration) -> Result<Leadership, Error> {
        self.lock.acquire_within(limit).await.map(Leadership)
    }

    /// Becomes the leader if there is none now, without waiting.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// As [`Lock::try_acquire`].
    pub async fn try_campaign(&self) -> Result<Option<Leadership>, Error> {
        Ok(self.lock.try_acquire().await?.map(Leadership))
    }

    /// Runs `work` while leading, and campaigns again after each loss, until `work` returns.
    ///
    /// If the leadership is lost, `work` is dropped at its next await point. When `work` returns, it
    /// resigns. While the store cannot be reached, the campaign is repeated after a pause of 0.1 to 5 s.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], except `Unreachable`. If the resignation fails, only the
    /// [observer](crate::Observer) learns of it, and the term ends with its ttl.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work`, and ends the candidacy or resigns in the background.
    ///
    /// # Fencing
    ///
    /// `work` runs in another term each time: give [`term`](Leadership::term) to the systems that act on the
    /// leader's word.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), latchwork::Error> {
    /// # let locks = latchwork::connect("mem:").await?;
    /// let election = locks.election("scheduler").candidate("10.0.0.7:8080");
    /// let jobs = election.lead(async |term| schedule(term.term()).await).await?;
    /// # async fn schedule(_: latchwork::FencingToken) -> u32 { 3 }
    /// # assert_eq!(jobs, 3);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lead<T>(&self, mut work: impl AsyncFnMut(&Leadership) -> T) -> Result<T, Error> {
        let mut backoff = Backoff::new(SHORTEST_PAUSE, LONGEST_PAUSE);
        loop {
            let leadership = match self.campaign().await {
                Ok(leadership) => leadership,
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    self.lock.engine().io.sleep(backoff.pause()).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            backoff.reset();
            if let Ok(output) = leadership.run(work(&leadership)).await {
                // The observer learns of a failure.
                let _ = leadership.resign().await;
                return Ok(output);
            }
        }
    }

    /// Returns the current leader, if there is one. It may already have stopped, up to its ttl ago.
    ///
    /// # Errors
    ///
    /// As [`LockManager::inspect`].
    ///
    /// # Cancel safety
    ///
    /// May be dropped; nothing is left behind.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        Ok(leader_of(&self.locks.inspect(&*self.name).await?))
    }

    /// Streams the current leader and every change.
    ///
    /// The first item comes at once; `None` means that there is no leader. A store with
    /// notifications (`mem:`, etcd, ZooKeeper, `file:`) reports a change within milliseconds, and a
    /// quiet election costs one request in 10 s. The store is also asked when the ttl of the leader
    /// ends, because no store announces the end of every ttl. A store without notifications (Redis)
    /// is asked once a second. [`look_every`](Election::look_every) changes both.
    ///
    /// Changes within 10 ms are one item, so leaders that followed each other more quickly may not
    /// all be seen. Terms never go back on a store whose tokens do not. An error is an item, and
    /// the stream continues. It ends only in a forked child, after the error `Forked`. It sends no
    /// request while it is not polled. Dropping it ends the subscription.
    pub fn observe(&self) -> impl Stream<Item = Result<Option<Leader>, Error>> + Send + use<> {
        unfold(Observing::new(self.clone()), Observing::next)
    }
}

fn leader_of(seen: &Snapshot) -> Option<Leader> {
    let party = seen.holders.first()?;
    // A holder of another kind, that has no token, is no leader of ours.
    let term = FencingToken::of_grant(party.token?)?;
    let Holder { text, candidate, .. } = &party.holder;
    let candidate = candidate.as_ref().unwrap_or(text).clone();
    Some(Leader { candidate, term })
}

/// A term of leadership, until it is resigned, dropped or lost: a [`Guard`] with a term number.
#[must_use = "dropping the leadership resigns it"]
pub struct Leadership(Guard);

impl Leadership {
    /// Returns the number of the term. Pass it to the systems that act on the leader's orders.
    pub fn term(&self) -> FencingToken {
        self.0.token()
    }

    /// Resigns.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// As [`Guard::release`].
    pub async fn resign(self) -> Result<(), Error> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Guard;

    fn deref(&self) -> &Guard {
        &self.0
    }
}

impl From<Leadership> for Guard {
    fn from(leadership: Leadership) -> Guard {
        leadership.0
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leadership").field(&self.0).finish()
    }
}

//! Several locks, all or none.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::hold::guard::{Guard, run_until};
use crate::hold::lease::HoldState;
use crate::locks::lock::Lock;
use crate::runtime::call::Unpolled;
use crate::wait::patience::{Patience, timed_out};
use latchwork_store::{Error, ErrorKind, FencingToken, Lost, Moment, NotHeld};

/// How long a failed acquire waits for the releases of what it had.
const GIVING_BACK: Duration = Duration::from_millis(200);

/// Several locks, acquired together: all or none, with one deadline.
///
/// Use it where one piece of work touches several things that are locked one by one, a transfer
/// between two accounts. The locks may be of any kind, and of different managers.
///
/// # Guarantees
///
/// Locks are waited for in the order of their stores and keys, whatever order they are named in, and
/// so a waiter holds only locks before the one it waits for: two clients that want the same locks never
/// deadlock. This holds between multi-locks only: a client that holds a lock and then acquires an earlier
/// one by hand can still deadlock, which the deadline ends.
///
/// When the last one is had, the others are checked. If one is in doubt, because the machine was paused
/// since, the store is asked first.
///
/// All that are free are taken at once, side by side. Where one is not, the later ones are given
/// back until it is had. A `max_hold` counts from when all are had.
///
/// One order needs one name for each store: write its address the same way everywhere, hosts in the
/// same order.
///
/// # Examples
///
/// ```
/// # use latchwork::{Driver, LockManager};
/// # use latchwork::store::MemoryBackend;
/// # use std::time::Duration;
/// # let driver = Driver::start().unwrap();
/// # let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let both = locks.multi(["account/9", "account/2"]);
/// let guard = both.acquire_within(Duration::from_secs(5)).await?;
/// for (key, token) in guard.tokens() {
///     println!("{key}: {token}"); // each resource checks its own
/// }
/// guard.release().await?;
/// # Ok::<(), latchwork::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MultiLock(Result<Arc<[Lock]>, Error>);

impl MultiLock {
    /// Combines locks, to acquire all of them together. An empty list or a duplicate is an error at
    /// the first acquire.
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        Self(sort(locks.into_iter().collect()))
    }

    /// Acquires all locks if all are free now, without waiting.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`], of whichever lock it is; and `Invalid` if no lock was named, or one
    /// twice.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves nothing held: granted locks are released in the background.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.call(|locks| async move { Self::try_here(&locks).await }).await
    }

    async fn try_here(locks: &[Lock]) -> Result<Option<MultiGuard>, Error> {
        let taken = take_free(locks).await?;
        let Some(all) = taken.into_iter().collect::<Option<Vec<Guard>>>() else { return Ok(None) };
        if !are_held(&all).await {
            return Ok(None);
        }
        // From one moment on for all.
        all.iter().for_each(Guard::start_max_hold);
        Ok(Some(MultiGuard(all)))
    }

    /// Acquires all locks, waiting without a limit.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], of whichever lock it is; and `Invalid` if no lock was named, or one
    /// twice. Nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// As for [`try_acquire`](MultiLock::try_acquire).
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.acquire_until(None).await
    }

    /// Acquires all locks, waiting at most `limit`.
    ///
    /// # Errors
    ///
    /// `TimedOut` names the lock that was not had in time, and its holder. It comes when the store has answered the
    /// releases of the others, at most 0.2 s later. Else as for [`acquire`](MultiLock::acquire).
    ///
    /// # Cancel safety
    ///
    /// As for [`try_acquire`](MultiLock::try_acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<MultiGuard, Error> {
        self.acquire_until(Some(limit)).await
    }

    fn locks(&self) -> Result<&Arc<[Lock]>, Error> {
        self.0.as_ref().map_err(Clone::clone)
    }

    async fn acquire_until(&self, limit: Option<Duration>) -> Result<MultiGuard, Error> {
        let now = self.locks()?[0].engine().io.now();
        let deadline = limit.map_or(Moment::NEVER, |limit| now.plus(limit));
        let acquire = move |locks: Arc<[Lock]>| async move {
            Self::acquire_here(&locks, limit, deadline).await
        };
        self.call(acquire).await
    }

    /// Makes one call of it: while it waits for a lock it holds those before.
    async fn call<T, F>(&self, mut make: impl FnMut(Arc<[Lock]>) -> F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let locks = self.locks()?;
        let (engine, key) = (locks[0].engine(), locks[0].key()?);
        let call = engine.call(Unpolled::BeginsAnew, |_| make(locks.clone()));
        let answer = call.await;
        engine.told(answer, Some(key))
    }

    async fn acquire_here(
        locks: &[Lock],
        limit: Option<Duration>,
        deadline: Moment,
    ) -> Result<MultiGuard, Error> {
        let mut held: Vec<Guard> = Vec::with_capacity(locks.len());
        let acquired = Self::hold_all(locks, limit, deadline, &mut held).await;
        if acquired.is_err() {
            // The caller may check that they are free. What takes longer goes on in the background.
            let releases = join_all(held.drain(..).map(Guard::release));
            locks[0].engine().io.within(GIVING_BACK, releases).await;
        }
        acquired.map(|()| MultiGuard(held))
    }

    /// Acquires all; after an error it holds those that it had.
    async fn hold_all(
        locks: &[Lock],
        limit: Option<Duration>,
        deadline: Moment,
        held: &mut Vec<Guard>,
    ) -> Result<(), Error> {
        let io = &locks[0].engine().io;
        loop {
            let rest = if held.len() + 1 == locks.len() && !held.is_empty() {
                // The last one is waited for at once.
                vec![None]
            } else {
                let left = deadline.since(io.now());
                match io.within(left, take_free(&locks[held.len()..])).await {
                    Some(Ok(rest)) => rest,
                    // A store that does not answer is asked again by the waiter for the next one.
                    Some(Err(error)) if error.kind() == ErrorKind::Unreachable => vec![None],
                    Some(Err(error)) => return Err(error),
                    None => vec![None],
                }
            };
            // Only what stands before the first gap may be held while that one is waited for.
            held.extend(rest.into_iter().map_while(|guard| guard).inspect(Guard::suspend_max_hold));
            if held.iter().any(|guard| matches!(guard.state(), HoldState::Lost(_))) {
                held.clear();
            }
            let Some(next) = locks.get(held.len()) else {
                match io.within(deadline.since(io.now()), are_held(held)).await {
                    Some(true) => {
                        held.iter().for_each(Guard::start_max_hold);
                        return Ok(());
                    }
                    Some(false) => {
                        held.clear();
                        continue;
                    }
                    None => return Err(in_doubt(locks, held, limit)),
                }
            };
            let acquire = async {
                match limit {
                    None => next.acquire().await,
                    Some(limit) => next.acquire_until(deadline, limit).await,
                }
            };
            tokio::select! {
                biased;
                guard = acquire => {
                    let guard = guard?;
                    guard.suspend_max_hold();
                    held.push(guard);
                }
                // Without those before it, it would be waited for out of order.
                _ = first_lost(held), if !held.is_empty() => held.clear(),
            }
        }
    }
}

/// Puts locks into the one order in which all wait for them.
fn sort(locks: Vec<Lock>) -> Result<Arc<[Lock]>, Error> {
    let mut named = Vec::with_capacity(locks.len());
    for lock in locks {
        let key = lock.key()?.clone();
        named.push((lock.engine().capabilities.store.clone(), key, lock));
    }
    named.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    let twice = named.windows(2).find(|pair| (&pair[0].0, &pair[0].1) == (&pair[1].0, &pair[1].1));
    if let Some([(store, key, _), ..]) = twice {
        return Err(Error::new(ErrorKind::Invalid, "names: the same lock is named twice")
            .with_key(key)
            .with_store(store.clone())
            .with_next_step("name each lock once"));
    }
    if named.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "names: no lock was named")
            .with_next_step("name at least one"));
    }
    Ok(named.into_iter().map(|(_, _, lock)| lock).collect())
}

/// Tries all at once. An error releases the granted locks.
async fn take_free(locks: &[Lock]) -> Result<Vec<Option<Guard>>, Error> {
    join_all(locks.iter().map(Lock::try_acquire)).await.into_iter().collect()
}

/// Whether all are held now. One in doubt is waited for: it was acquired before others were, and the
/// machine may have been paused since. Others may have held it meanwhile, so it is handed out when
/// the store has confirmed it.
async fn are_held(guards: &[Guard]) -> bool {
    loop {
        join_all(guards.iter().map(Guard::settled)).await;
        let states = || guards.iter().map(Guard::state);
        if states().any(|state| matches!(state, HoldState::Lost(_))) {
            return false;
        }
        if states().all(|state| state == HoldState::Held) {
            return true;
        }
    }
}

/// The error of an acquire whose time was over while a hold was in doubt.
fn in_doubt(locks: &[Lock], held: &[Guard], limit: Option<Duration>) -> Error {
    let doubtful = held.iter().position(|guard| guard.state() != HoldState::Held).unwrap_or(0);
    let patience = limit.map_or(Patience::Endless, Patience::Within);
    timed_out(locks[doubtful].engine(), held[doubtful].key(), patience, None)
}

async fn first_lost(guards: &[Guard]) -> Lost {
    select_all(guards.iter().map(|guard| Box::pin(guard.lost()))).await.0
}

/// Several locks that are held together, until they are released or dropped, or one of them is
/// lost.
///
/// If one of them is lost, all count as lost: [`ensure_held`](MultiGuard::ensure_held) fails and
/// [`lost`](MultiGuard::lost) completes. The others stay locked until the guard is dropped.
#[derive(Debug)]
#[must_use = "dropping the guard releases the locks"]
pub struct MultiGuard(Vec<Guard>);

impl MultiGuard {
    /// Returns the guards, in the order of their stores and keys.
    pub fn guards(&self) -> &[Guard] {
        &self.0
    }

    /// The guards, each by itself.
    pub(crate) fn into_guards(self) -> Vec<Guard> {
        self.0
    }

    /// Takes out the guard of one key, to release it before the others.
    ///
    /// `None` if no guard has this key, or if it is the only one: [`release`](MultiGuard::release) that.
    pub fn take(&mut self, key: &str) -> Option<Guard> {
        let at = self.0.iter().position(|guard| guard.key().as_str() == key)?;
        (self.0.len() > 1).then(|| self.0.remove(at))
    }

    /// Returns each key with its token.
    pub fn tokens(&self) -> impl Iterator<Item = (&str, FencingToken)> {
        self.0.iter().map(|guard| (guard.key().as_str(), guard.token()))
    }

    /// Returns the shortest remaining validity of the locks, without another renewal.
    pub fn remaining(&self) -> Duration {
        self.0.iter().map(Guard::remaining).min().unwrap_or_default()
    }

    /// Returns the worst state of the holds, by the clock.
    pub fn state(&self) -> HoldState {
        let mut worst = HoldState::Held;
        for guard in &self.0 {
            match guard.state() {
                HoldState::Held => {}
                HoldState::Suspect => worst = HoldState::Suspect,
                lost @ HoldState::Lost(_) => return lost,
            }
        }
        worst
    }

    /// Checks that all locks are held, or returns why one is not.
    ///
    /// # Errors
    ///
    /// As [`Guard::ensure_held`], of the first that is not.
    pub fn ensure_held(&self) -> Result<(), NotHeld> {
        match self.state() {
            HoldState::Held => Ok(()),
            HoldState::Suspect => Err(NotHeld::Suspect),
            HoldState::Lost(lost) => Err(NotHeld::Lost(lost)),
        }
    }

    /// Completes with the reason when one of the locks is lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn lost(&self) -> Lost {
        first_lost(&self.0).await
    }

    /// Completes when [`ensure_held`](MultiGuard::ensure_held) would fail: a hold is in doubt or
    /// lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again; nothing is missed.
    pub async fn not_held(&self) -> NotHeld {
        select_all(self.0.iter().map(|guard| Box::pin(guard.not_held()))).await.0
    }

    /// Runs `work` for as long as all locks are held.
    ///
    /// # Errors
    ///
    /// As [`Guard::run`].
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops `work`; the locks stay with the guard.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        run_until(self.lost(), work).await
    }

    /// Releases all locks concurrently.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`], after all were asked: [`Lost`](ErrorKind::Lost) if one of them was lost
    /// before, else the first error.
    ///
    /// # Cancel safety
    ///
    /// The guard is consumed in any case. Dropped releases continue in the background.
    pub async fn release(self) -> Result<(), Error> {
        worst(join_all(self.0.into_iter().map(Guard::release)).await)
    }

    /// Releases all locks concurrently, and asks again until the store answers or the lease is over.
    ///
    /// # Errors
    ///
    /// As [`Guard::release_until_answered`], after all have ended: [`Lost`](ErrorKind::Lost) if one of them was lost
    /// before, else the first error.
    ///
    /// # Cancel safety
    ///
    /// As [`release`](MultiGuard::release).
    pub async fn release_until_answered(self, failed: impl Fn(&Error)) -> Result<(), Error> {
        worst(join_all(self.0.into_iter().map(|it| it.release_until_answered(&failed))).await)
    }
}

/// The error that matters most: an overlap is not to be hidden by a store that did not answer.
fn worst(answers: Vec<Result<(), Error>>) -> Result<(), Error> {
    let errors = answers.into_iter().filter_map(Result::err);
    errors.min_by_key(|error| error.kind() != ErrorKind::Lost).map_or(Ok(()), Err)
}

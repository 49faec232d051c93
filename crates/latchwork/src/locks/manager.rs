//! The manager: a store, the shared options, and the locks on it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::hold::engine::Engine;
use crate::hold::reaper::{Job, Withdrawal};
use crate::locks::election::Election;
use crate::locks::lock::Lock;
use crate::locks::multi::MultiLock;
use crate::locks::reentrant::ReentrantMutex;
use crate::locks::rwlock::RwLock;
use crate::locks::semaphore::Semaphore;
#[cfg(feature = "once")]
use crate::locks::{once::Once, period::Period};
use crate::rules::adaptive::AdaptiveTtl;
use crate::rules::handover::Handover;
use crate::rules::observe::Observer;
use crate::rules::options::{Plan, Settings};
use crate::rules::token_base;
use crate::runtime::driver::Driver;
use latchwork_store::{
    Attempt, Backend, BackendErrorKind, Capabilities, Claim, ClaimId, Error, ErrorKind,
    FencingToken, Io, Key, Lifeline, Linger, Mode, Order, Party, Query, Shape, Snapshot, Stamp,
};

/// A connection to one store; hands out locks and holds their shared settings.
///
/// Cheap to clone; clones share the connection, the watchdog and the queues of waiters, and each
/// has its own options. The options are checked against each other and the store at the first
/// acquire, with the field's name in the message; nothing is clamped in silence.
///
/// A child that was forked from the process (`fork` without `exec`) cannot use its parent's manager:
/// every call answers [`Forked`](ErrorKind::Forked), and dropping it does nothing. Connect in the child.
#[derive(Debug, Clone)]
pub struct LockManager {
    engine: Arc<Engine>,
    settings: Settings,
}

/// The result of a forced release.
#[derive(Debug, Clone)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ForceReleased {
    /// The holders that were evicted.
    pub evicted: Vec<Party>,
    /// A token above theirs, to set the resource's fence with.
    ///
    /// `None` if no token could be drawn at once. Either the next waiter in the queue has the key
    /// or is about to get it; its token is larger too. Or the key is closed; then the token of the
    /// next grant is larger.
    pub token: Option<FencingToken>,
}

impl fmt::Display for ForceReleased {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.evicted {
            [] => return f.write_str("nobody held it"),
            [one] => write!(f, "taken from {}", one.holder.shown())?,
            all => write!(f, "taken from {} holders", all.len())?,
        }
        match self.token {
            Some(token) => write!(f, ", with token {token} for the fence of the resource"),
            None => Ok(()),
        }
    }
}

impl LockManager {
    /// Creates a manager of locks on `backend`, whose tasks run on `driver`.
    pub fn new(backend: Arc<dyn Backend>, driver: Driver) -> Self {
        let io = driver.io();
        let engine = Engine::start(backend, io, Some(Arc::new(driver)));
        Self { engine, settings: Settings::default() }
    }

    /// Creates a manager whose tasks all run on `io`: for tests on paused time, and for programs
    /// with their own runtime and clock.
    pub fn on_io(backend: Arc<dyn Backend>, io: Io) -> Self {
        Self { engine: Engine::start(backend, io, None), settings: Settings::default() }
    }

    /// Puts all keys into a namespace: `namespace:name`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings = self.settings.with(|options| options.namespace = namespace.into());
        self
    }

    /// Sets the ttl: how long the store keeps a lock without a renewal. Default: that of the store,
    /// usually 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings = self.settings.with(|options| options.fix_ttl(ttl));
        self
    }

    /// Lets the ttl follow the hold times of each key, within bounds.
    ///
    /// The ttl is the shortest under which nearly all holds end before their first renewal. So if
    /// holds are usually short, the lock is free soon after its holder died; if they are long,
    /// renewals are rare.
    ///
    /// A process measures its own holds, and reads the value that a blocking holder publishes:
    /// `[holds under 1300 ms]`, as `latchwork show` prints it. The last call of this and of
    /// [`ttl`](LockManager::ttl) counts. Default: off.
    #[must_use]
    pub fn adaptive_ttl(mut self, bounds: AdaptiveTtl) -> Self {
        self.settings = self.settings.with(|options| options.follow_holds(bounds));
        self
    }

    /// Sets the longest ttl that a lock may have: a longer one is `Invalid`. Default: the store's
    /// limit.
    ///
    /// A store that lost its data has to wait until every lease that it may have lost has ended. If
    /// your store does that, all clients that share the locks must use the same value.
    #[must_use]
    pub fn max_ttl(mut self, longest: Duration) -> Self {
        self.settings = self.settings.with(|options| options.max_ttl = Some(longest));
        self
    }

    /// Sets the description of the holder that other clients and `latchwork show` display. Default:
    /// host, process and program.
    #[must_use]
    pub fn holder(mut self, text: impl Into<Arc<str>>) -> Self {
        self.settings = self.settings.with(|options| options.holder = Some(text.into()));
        self
    }

    /// Sets what the claims say beside the text of the holder.
    pub(crate) fn marked(mut self, origin: Arc<str>, value: Option<Arc<str>>) -> Self {
        self.settings =
            self.settings.with(|options| (options.origin, options.value) = (Some(origin), value));
        self
    }

    /// Sets the maximum hold time. When it elapses, the lock is lost even if the guard is alive.
    /// Default: no limit.
    #[must_use]
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.settings = self.settings.with(|options| options.max_hold = Some(longest));
        self
    }

    /// Sets how long the key stays closed after a hold that ended without a release: the holder
    /// died, could not reach the store, or exceeded [`max_hold`](LockManager::max_hold). Default:
    /// none.
    ///
    /// Use it for a resource that cannot check tokens: writes in flight then have this time to
    /// arrive. The store keeps the claim for the ttl and the delay; the guard relies on the ttl
    /// alone. A release, or the drop of a guard that is held, opens the key at once. On files, a
    /// dead holder's key opens when the ttl and the delay have ended, not at its death.
    #[must_use]
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.settings = self.settings.with(|options| options.lock_delay = Some(delay));
        self
    }

    /// Makes every token larger than `floor`, after a move from another store.
    ///
    /// A resource that has seen the tokens of the other store refuses smaller ones.
    ///
    /// All clients that share the locks must set the same floor. A client without it gets smaller tokens, which
    /// the resource refuses. The fences that compare with a store's own numbers (those of etcd and ZooKeeper) cannot be used
    /// with a floor. See the guide's page on [moving to another store](https://docs.rs/latchwork/latest/latchwork/).
    #[must_use]
    pub fn token_floor(mut self, floor: FencingToken) -> Self {
        self.settings = self.settings.with(|options| options.token_floor = Some(floor));
        self
    }

    /// Sets the pause between renewals, at most half of the granted ttl. Default: a third of it.
    #[must_use]
    pub fn renew_every(mut self, pause: Duration) -> Self {
        self.settings = self.settings.with(|options| options.renew_every = Some(pause));
        self
    }

    /// Sets the time limit of one request to the store. Default: a quarter of the ttl, two seconds
    /// at most. A [`list`](Self::list), which is many requests, has five times as long.
    #[must_use]
    pub fn op_timeout(mut self, limit: Duration) -> Self {
        self.settings = self.settings.with(|options| options.op_timeout = Some(limit));
        self
    }

    /// Sets how long and how often a hold may be handed over inside the process. Default: for 10 ms
    /// (half of a ttl below 20 ms), 1,000 times.
    #[must_use]
    pub fn handover(mut self, handover: Handover) -> Self {
        self.settings = self.settings.with(|options| options.handover = Some(handover));
        self
    }

    /// Sets the observer that receives all events.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.settings = self.settings.with(|options| options.observer = Some(observer));
        self
    }

    /// Returns a mutex: one holder at a time among all users of the same store and key.
    ///
    /// Does no I/O; a bad name is an error at the first acquire.
    pub fn mutex(&self, name: impl AsRef<str>) -> Lock {
        self.lock(name.as_ref(), Mode::Exclusive)
    }

    /// Returns a read-write lock: many readers at a time, or one writer.
    ///
    /// Does no I/O; a bad name is an error at the first acquire.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.lock(name.as_ref(), Mode::Write))
    }

    /// Returns a semaphore: its holders have at most `of` permits together.
    ///
    /// While the key is in use, another limit is `Mismatch` unless a
    /// [policy](Semaphore::resize_policy) is set. Does no I/O; a bad name or limit is an error at the
    /// first acquire.
    pub fn semaphore(&self, name: impl AsRef<str>, of: u32) -> Semaphore {
        Semaphore::new(self.lock(name.as_ref(), Mode::Permits { take: 1, of }), of)
    }

    /// Returns a mutex that its owner may acquire again.
    ///
    /// Does no I/O; a bad name is an error at the first acquire.
    pub fn reentrant(&self, name: impl AsRef<str>) -> ReentrantMutex {
        ReentrantMutex::new(self.mutex(name))
    }

    /// Returns several mutexes that are acquired together: all or none.
    ///
    /// For locks of other kinds, or of several managers, see [`MultiLock::of`]. Does no I/O; a bad
    /// name is an error at the first acquire.
    pub fn multi<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::of(names.into_iter().map(|name| self.mutex(name)))
    }

    /// Returns an election: one of the candidates leads.
    ///
    /// Does no I/O; a bad name is an error at the first campaign.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        // A leadership goes back to the store each time: there is its term, for all to see.
        let lock = self.clone().handover(Handover::OFF).mutex(&name);
        Election::new(lock, self.clone(), name.as_ref())
    }

    /// Returns a task that runs once in each period, on one of the callers.
    ///
    /// Does no I/O; a bad name is an error at the first try. Needs the feature `once`.
    #[cfg(feature = "once")]
    pub fn once(&self, name: impl AsRef<str>, every: Period) -> Once {
        Once::new(self.mutex(name), every)
    }

    fn lock(&self, name: &str, mode: Mode) -> Lock {
        Lock::new(self.engine.clone(), name, mode, self.settings.clone())
    }

    /// Returns what the store can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.engine.capabilities
    }

    /// Returns the descriptor that keeps this manager's session alive, if the store has one.
    pub fn lifeline(&self) -> Option<Lifeline> {
        self.engine.backend.lifeline()
    }

    /// Completes when Latchwork's own threads have run a task and fired a timer: for a watchdog of the process, which
    /// wants to know whether renewals would go out. The store is not asked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn heartbeat(&self) {
        let io = &self.engine.io;
        let (done, ran) = tokio::sync::oneshot::channel();
        io.spawn(async move {
            // Nobody waits if the future was dropped.
            let _ = done.send(());
        });
        // An error means that the threads have ended, as they do with the manager.
        let _ = ran.await;
        io.sleep(Duration::from_millis(1)).await;
    }

    /// Returns the holders and the waiters of a key. Changes nothing.
    ///
    /// # Errors
    ///
    /// `Unreachable` if the store does not answer within two seconds.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<Snapshot, Error> {
        let key = self.settings.key(name.as_ref())?;
        let query = Query::Key(key.clone());
        let found = self.ask(&query, Some(&key)).await?;
        Ok(found.into_iter().next().unwrap_or_else(|| Snapshot::free(key)))
    }

    /// Lists the keys that start with `prefix` and are held, waited for or closed, sorted. Changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// `Unreachable` if the store has not sent all of them within ten seconds, or five times the
    /// [`op_timeout`](Self::op_timeout) that was set.
    pub async fn list(&self, prefix: impl AsRef<str>) -> Result<Vec<Snapshot>, Error> {
        self.settings.plan(&self.engine.capabilities)?;
        let prefix = match self.settings.options().namespace.as_str() {
            "" => prefix.as_ref().into(),
            namespace => format!("{namespace}:{}", prefix.as_ref()).into(),
        };
        self.ask(&Query::Prefix(prefix), None).await
    }

    /// Releases a key by force. The next token is larger, so resources refuse the evicted holder.
    ///
    /// The holder learns of it at its next renewal, at most a third of its ttl later, and may keep
    /// working until then; a holder of this manager learns of it at once. Use it if the holder is known to have
    /// stopped, or with a fence. A hold that is upgraded or downgraded in that moment may go on as the hold that
    /// replaces it; then no new token comes back.
    ///
    /// # Errors
    ///
    /// `Unreachable` if the store does not answer, and `Mismatch` if a holder is not a Latchwork
    /// client but another client that uses the same key: its lock is not deleted. Other holders may
    /// have been evicted by then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future may leave some of the holders evicted.
    pub async fn force_release(&self, name: impl AsRef<str>) -> Result<ForceReleased, Error> {
        let key = self.settings.key(name.as_ref())?;
        let answer = self.engine.native(self.evict(name.as_ref(), &key)).await;
        self.engine.told(answer, Some(&key))
    }

    async fn evict(&self, name: &str, key: &Key) -> Result<ForceReleased, Error> {
        let engine = &self.engine;
        let seen = self.inspect(name).await?;
        let plan = self.settings.plan(&engine.capabilities)?;
        let limit = plan.rules.op_timeout(plan.ttl);
        // A reader whose upgrade waits goes first, and the upgrade with it. Without the other readers, it would be granted.
        let upgrades: Vec<_> = seen.waiters.iter().filter_map(|it| it.beside).collect();
        let mut holders: Vec<_> = seen.holders.iter().collect();
        holders.sort_by_key(|it| it.id.is_none_or(|id| !upgrades.contains(&id)));
        for party in holders {
            let Some(id) = party.id else { continue };
            let claim = self.claim(key, id, party.mode, &plan);
            let released = engine.reaper.release_once(&claim, Linger::None, limit).await;
            released.map_err(|e| engine.seen(e, Some(key)))?;
            engine.watchdog.taken_away(id);
        }
        // Where a queue orders the places, an upgrade without its hold would be the next writer.
        let is_evicted = |hold| seen.holders.iter().any(|it| it.id == Some(hold));
        for party in seen.waiters.iter().filter(|it| it.beside.is_some_and(is_evicted)) {
            let Some(id) = party.id else { continue };
            let claim = self.claim(key, id, party.mode, &plan);
            let released = engine.reaper.release_once(&claim, Linger::None, limit).await;
            released.map_err(|e| engine.seen(e, Some(key)))?;
        }
        // By its shape: who waits gives the key one as well, also where nobody holds it any more.
        let mode = match seen.shape {
            Some(Shape::ReadWrite) => Mode::Write,
            Some(Shape::Semaphore { of }) => Mode::Permits { take: of, of },
            Some(Shape::Mutex) | None => Mode::Exclusive,
        };
        let token = self.bump(key, mode, &plan, limit).await?;
        let (evicted, others): (Vec<_>, Vec<_>) =
            seen.holders.into_iter().partition(|party| party.id.is_some());
        if let (None, [stays, ..]) = (token, &others[..]) {
            let message =
                format!("not released: the holder is not a Latchwork client: {}", stays.holder);
            return Err(Error::new(ErrorKind::Mismatch, message)
                .with_key(key)
                .with_store(engine.capabilities.store.clone())
                .with_next_step(
                    "make sure that the holder is dead, then delete the key in the store",
                ));
        }
        Ok(ForceReleased { evicted, token })
    }

    /// Takes a key and releases it, for the sake of its token.
    async fn bump(
        &self,
        key: &Key,
        mode: Mode,
        plan: &Plan,
        limit: Duration,
    ) -> Result<Option<FencingToken>, Error> {
        let engine = &self.engine;
        let claim = self.claim(key, ClaimId::random(), mode, plan);
        let rules = plan.rules.clone();
        let job = Job::of(claim.clone(), rules);
        // Whatever happens from here on, this claim is released.
        let mut withdrawal = Withdrawal::new(&engine.reaper, job);
        let attempt = engine.io.answer(limit, engine.backend.try_acquire(&claim)).await;
        if engine.reaper.release_once(&withdrawal.job().claim, Linger::None, limit).await.is_ok() {
            withdrawal.settled();
        }
        match attempt {
            Ok(Attempt::Granted(grant)) => match plan.rules.token(grant.token) {
                Some(token) => Ok(Some(token)),
                None => Err(token_base::no_room(key, &engine.capabilities)),
            },
            Ok(Attempt::Blocked(_)) => Ok(None),
            // Somebody has it as another kind of lock since it was looked at.
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(None),
            Err(error) => Err(engine.seen(error, Some(key))),
        }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The options of this manager, checked against its store.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        self.settings.plan(&self.engine.capabilities)
    }

    fn claim(&self, key: &Key, id: ClaimId, mode: Mode, plan: &Plan) -> Claim {
        Claim::new(key.clone(), id, mode, plan.ttl, Stamp::new(self.engine.io.now())).with(|it| {
            it.order = Order::Barging;
            it.holder = plan.holder.clone();
            it.waits = false;
        })
    }

    /// Shuts down: releases every hold and waits for the answers.
    ///
    /// In a child of the process that connected it does nothing.
    ///
    /// Guards that are still alive are lost with
    /// [`SessionEnded`](latchwork_store::LostReason::SessionEnded); an acquire that waits or comes
    /// later answers `Closed`.
    ///
    /// A hold with a [`lock_delay`](Self::lock_delay) ends here without a release, so its key stays closed for the
    /// delay. `close` does not wait for that. The key opens when the delay is over, if a handle of this manager
    /// lives until then; otherwise when the ttl and the delay are over.
    ///
    /// # Cancel safety
    ///
    /// The manager is closed in any case; dropping the future only stops waiting for answers.
    pub async fn close(&self) {
        // In a child there is nothing to close: what there is is the parent's.
        let _ = self.engine.native(self.engine.close()).await;
    }

    async fn ask(&self, query: &Query, key: Option<&Key>) -> Result<Vec<Snapshot>, Error> {
        const LIMIT: Duration = Duration::from_secs(2);
        /// A list takes many requests, of which none makes a hold wait.
        const LIST: u32 = 5;
        self.engine.check_open(key)?;
        let one = self.settings.options().op_timeout.unwrap_or(LIMIT);
        let limit = if matches!(query, Query::Prefix(_)) { one * LIST } else { one };
        let mut found = self.engine.inspect(query, limit, key).await?;
        let base = self.settings.options().token_base();
        found.iter_mut().for_each(|seen| base.shift(seen));
        Ok(found)
    }
}

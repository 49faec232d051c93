//! What all requests share: the store, the holds, the events, and who may do what.

mod access;
mod ends;

pub(crate) use access::Access;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use latchwork::once::Begun;
use latchwork::store::{Clock, Key, Moment, Snapshot};
use latchwork::{Error, ErrorKind, LockManager, Source};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::domain::access::principal::Right;
use crate::domain::events::hub::{EventView, Hub};
use crate::domain::events::observer::Loss;
use crate::domain::events::store_watch::Others;
use crate::domain::holds::claims::{Claims, Outcome};
use crate::domain::holds::ended::Ending;
use crate::domain::holds::guards::Held;
use crate::domain::holds::id::HoldId;
use crate::domain::holds::queue::Queue;
use crate::domain::holds::registry::{Registry, weight};
use crate::domain::holds::release::{How, Said};
use crate::domain::holds::validity;
use crate::domain::lock_lists::{Listing, Listings};
use crate::domain::names::Names;
use crate::domain::open_answers::Listeners;
use crate::domain::wish::{What, Wish};
use crate::http::Caller;
use crate::http::error::ApiError;
use crate::http::holds::HoldView;
use crate::http::views::{LockView, millis};

/// The state of the service.
pub(crate) struct Service {
    pub(crate) locks: LockManager,
    pub(crate) names: Names,
    namespace: String,
    /// Where the address of the store comes from, with its password.
    pub(crate) store: Source,
    pub(crate) registry: Arc<Registry>,
    claims: Arc<Claims>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) others: Others,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listings: Listings,
    access: RwLock<Access>,
    /// Grows when the tokens are read again.
    accesses: watch::Sender<u64>,
    /// Grows whenever the loop that ends holds has turned.
    turns: watch::Sender<u64>,
    hosts: Vec<String>,
    host: String,
    numbers: AtomicU64,
    losses: Mutex<Option<UnboundedReceiver<Loss>>>,
    queue: Queue,
    pub(crate) listeners: Listeners,
    /// When the store has last answered for `/readyz`, asked by one request at a time.
    pub(crate) answered: tokio::sync::Mutex<Option<Moment>>,
    /// One examination of the store at a time.
    pub(crate) examination: tokio::sync::Mutex<()>,
    /// Answers with many locks that are being written.
    pub(crate) lists: Listeners,
    /// Set when the service begins to stop.
    pub(crate) stopping: watch::Sender<bool>,
    /// Set when no client has to be heard any more.
    pub(crate) stopped: watch::Sender<bool>,
}

/// What a service is made of.
pub(crate) struct Parts {
    pub(crate) locks: LockManager,
    pub(crate) names: Names,
    pub(crate) namespace: String,
    pub(crate) store: Source,
    pub(crate) registry: Arc<Registry>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) access: Access,
    pub(crate) hosts: Vec<String>,
    pub(crate) losses: UnboundedReceiver<Loss>,
}

/// What a request got.
pub(crate) enum Got {
    Hold(HoldView),
    Skipped(Box<latchwork::once::Skipped>),
}

impl Got {
    /// The hold; only a task is skipped.
    pub(crate) fn into_hold(self) -> Result<HoldView, ApiError> {
        match self {
            Self::Hold(view) => Ok(view),
            Self::Skipped(_) => Err(ApiError::no_hold()),
        }
    }
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let host = latchwork::store::system::this_host();
        Arc::new(Self {
            locks: parts.locks,
            names: parts.names,
            namespace: parts.namespace,
            store: parts.store,
            registry: parts.registry,
            claims: Arc::default(),
            hub: parts.hub,
            others: Others::default(),
            clock: parts.clock,
            listings: Listings::default(),
            access: RwLock::new(parts.access),
            accesses: watch::channel(0).0,
            turns: watch::channel(0).0,
            hosts: parts.hosts,
            host,
            numbers: AtomicU64::new(0),
            losses: Mutex::new(Some(parts.losses)),
            queue: Queue::default(),
            listeners: Listeners::new("events", "streams", 64),
            lists: Listeners::new("locks", "lists", 16),
            answered: tokio::sync::Mutex::default(),
            examination: tokio::sync::Mutex::default(),
            stopping: watch::channel(false).0,
            stopped: watch::channel(false).0,
        })
    }

    /// The ttl of a client that names none.
    pub(crate) fn default_ttl(&self) -> Duration {
        let capabilities = self.locks.capabilities();
        validity::default_ttl(capabilities.default_ttl, &capabilities.ttl)
    }

    /// The key of a name.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        Key::new(name)?.in_namespace(&self.namespace)
    }

    /// Acquires what a client wants, joined with other requests of the same `Idempotency-Key`.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wish: Wish,
        caller: &Caller,
        key: Option<crate::http::IdempotencyKey>,
    ) -> Result<Got, ApiError> {
        for name in wish.names() {
            caller.principal.check(Right::Lock, name)?;
        }
        let owner = caller.principal.name.clone();
        // Each request counts, also one that joins the claim of another.
        let _waiting = self.registry.enter(&owner, 1, 0)?;
        let Some(crate::http::IdempotencyKey(key)) = key else {
            let outcome = self.take(&wish, caller).await?;
            return self.answer(outcome, caller);
        };
        let (service, of, print) = (self.clone(), caller.clone(), wish.print());
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let acquire = || async move { service.take(&wish, &of).await };
        let service = self.clone();
        let undo = move |id| {
            if let Some(hold) = service.registry.withdraw(id) {
                service.told_end(&hold, Ending::Left(How::Release, Said::Unknown));
            }
        };
        let mut ticket = self.claims.join((owner, key), print, number, acquire, undo)?;
        let outcome = ticket.outcome().await?;
        self.answer(outcome, caller)
    }

    fn answer(&self, outcome: Outcome, caller: &Caller) -> Result<Got, ApiError> {
        match outcome {
            Outcome::Hold(id) => self.look(id, caller, false).map(Got::Hold),
            Outcome::Skipped(why) => Ok(Got::Skipped(why)),
        }
    }

    /// Acquires at the store, and notes the hold. Dropping the future leaves nothing held.
    async fn take(&self, wish: &Wish, caller: &Caller) -> Result<Outcome, ApiError> {
        let locks = wish.names().into_iter().map(weight).sum();
        let place = self.registry.enter(&caller.principal.name, 0, locks)?;
        let mut stopping = self.stopping.subscribe();
        let holder: Arc<str> = match &wish.holder {
            Some(text) => text.as_str().into(),
            None => {
                format!("{} at {} through {}", caller.principal.name, caller.peer.host(), self.host)
                    .into()
            }
        };
        let manager = wish.manager(&self.locks, &holder);
        let queued = (!wish.wait.is_zero()).then(|| {
            let locks = wish.names().into_iter().map(|name| (name, wish.mode_of(name)));
            let candidate = match &wish.what {
                What::Leadership { candidate, .. } => candidate.as_deref(),
                What::Locks(_) | What::Task { .. } => None,
            };
            self.queue.enter(locks, &holder, candidate, self.clock.now())
        });
        let acquired = tokio::select! {
            acquired = self.held(wish, &manager) => acquired,
            _ = stopping.wait_for(|it| *it) => return Err(ApiError::closed()),
            () = self.revoked(caller) => return Err(ApiError::unknown_token()),
        };
        drop(queued);
        let held = match acquired {
            Ok(Ok(held)) => held,
            Ok(Err(skipped)) => return Ok(Outcome::Skipped(Box::new(skipped))),
            Err(error) => return Err(self.refused(wish, &error).await),
        };
        let locks: Vec<_> = held.locks().map(|(key, token)| (key.clone(), token)).collect();
        let inserted = self.registry.insert(&caller.principal.name, held, wish.ttl, caller.arrival);
        let id = inserted?;
        for (key, token) in &locks {
            let name = self.names.name_of(key.as_str());
            let mut event = EventView::new("granted", name.clone());
            event.mode = Some(wish.mode_of(&name));
            event.token = Some(token.to_string());
            event.holder = Some(holder.to_string());
            event.ttl_ms = Some(millis(wish.ttl));
            self.others.ours(key, *token);
            self.hub.tell(event);
        }
        drop(place);
        // What was lost before it was noted, nobody else finds.
        if let Some((hold, ending)) = self.registry.lost_already(id) {
            self.told_end(&hold, ending);
        }
        Ok(Outcome::Hold(id))
    }

    async fn held(
        &self,
        wish: &Wish,
        manager: &LockManager,
    ) -> Result<Result<Held, latchwork::once::Skipped>, Error> {
        let tries_once = wish.wait.is_zero();
        let held = match &wish.what {
            What::Locks(wishes) => match Wish::one_or_several(wishes, manager) {
                Ok(lock) if tries_once => lock.try_acquire().await?.map(Held::One),
                Ok(lock) => Some(Held::One(lock.acquire_within(wish.wait).await?)),
                Err(several) if tries_once => several.try_acquire().await?.map(Held::Several),
                Err(several) => Some(Held::Several(several.acquire_within(wish.wait).await?)),
            },
            What::Leadership { name, candidate } => {
                let mut election = manager.election(name);
                if let Some(candidate) = candidate {
                    election = election.candidate(candidate.as_str());
                }
                match tries_once {
                    true => election.try_campaign().await?.map(|it| Held::One(it.into())),
                    false => Some(Held::One(election.campaign_within(wish.wait).await?.into())),
                }
            }
            What::Task { name, every, .. } => {
                let once = manager.once(name, every.clone());
                let begun = match tries_once {
                    true => once.try_begin().await?,
                    false => once.begin_within(wish.wait).await?,
                };
                match begun {
                    Begun::Run(run) => Some(Held::Task(run)),
                    Begun::Skipped(why) => return Ok(Err(why)),
                }
            }
        };
        held.map(Ok).ok_or_else(|| Error::new(ErrorKind::TimedOut, "the lock is not free"))
    }

    /// The error of an acquire, with the lock as it is now if it was not free.
    async fn refused(&self, wish: &Wish, error: &Error) -> ApiError {
        let named = self.key_in(error);
        let names = wish.names();
        let name = named.as_deref().or(names.first().copied());
        let mut refused = ApiError::of(error, name);
        if error.kind() != ErrorKind::TimedOut {
            return refused;
        }
        // Of several, the first that somebody has.
        let asked = names.iter().take(if named.is_some() { 0 } else { 8 });
        for name in named.as_deref().iter().chain(asked) {
            let Ok(lock) = self.show(name).await else { break };
            if lock.held || !lock.waiters.is_empty() || lock.linger_ms.is_some() {
                refused = refused.key(*name).lock(Some(lock));
                break;
            }
        }
        refused
    }

    /// The name of the lock that an error is about.
    fn key_in(&self, error: &Error) -> Option<String> {
        let form = serde_json::to_value(error).ok()?;
        Some(self.names.name_of(form.get("key")?.as_str()?))
    }

    /// Shows a hold, and renews it if asked to.
    pub(crate) fn look(
        &self,
        id: HoldId,
        caller: &Caller,
        renew: bool,
    ) -> Result<HoldView, ApiError> {
        caller.principal.check_right(Right::Lock)?;
        self.registry.look(id, &caller.principal.name, caller.arrival, renew)
    }

    /// Shows a lock.
    pub(crate) async fn show(&self, name: &str) -> Result<LockView, ApiError> {
        let seen = self.locks.inspect(name).await;
        let seen = seen.map_err(|error| ApiError::of(&error, Some(name)))?;
        Ok(self.lock_view(name, &seen))
    }

    /// Lists locks as they are after `since`, sorted by their names.
    pub(crate) async fn list(&self, prefix: &str, since: Moment) -> Result<Arc<Listing>, ApiError> {
        self.listings.fresh(self, prefix, since).await
    }

    /// Reads all locks from the store.
    pub(crate) async fn read_all(&self, prefix: &str) -> Result<Vec<LockView>, ApiError> {
        let seen = self.locks.list(prefix).await.map_err(|error| ApiError::of(&error, None))?;
        let view = |seen: &Snapshot| self.lock_view(&self.names.name_of(seen.key.as_str()), seen);
        Ok(seen.iter().map(view).collect())
    }

    fn lock_view(&self, name: &str, seen: &Snapshot) -> LockView {
        let mut view = LockView::new(name, seen);
        self.queue.complete(&mut view, self.clock.now());
        view
    }

    /// Whether the service stops.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

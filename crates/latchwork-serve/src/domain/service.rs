//! The service as all requests share it: the store, the holds, the events, and who may do what.

mod change;
mod ends;
pub(crate) mod sessions;
mod tickets;

use std::slice::from_ref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::observers::Metrics;
use latchwork::once::{Begun, Skipped};
use latchwork::{Error, ErrorKind, LockManager, Source, Unwatched};
use latchwork_store::{Clock, Moment};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use super::access::caller::Caller;
use super::access::policy::AccessPolicy;
use super::access::principal::Right;
use super::events::event::LockEvent;
use super::events::hub::Hub;
use super::events::observer::{Loss, WAITER};
use super::events::store_watch::StoreWatch;
use super::holds::claims::{Claims, GrantedHold, Outcome};
use super::holds::ended::Ending;
use super::holds::hold_status::HoldStatus;
use super::holds::kept::{Granted, Keeper};
use super::holds::origin::SESSION_NAMES;
use super::holds::queue::Queue;
use super::holds::registry::{Registry, weight};
use super::holds::release::{ReleaseKind, ReleaseOutcome};
use super::holds::seal::{Purpose, Seals};
use super::lock_lists::LockLists;
use super::lock_status::{LockStatus, Version};
use super::names::Names;
use super::open_answers::OpenAnswers;
use super::refusal::Refusal;
use super::store_claims::StoreClaims;
use super::wish::{Target, Wish};

use tickets::Asked;

/// The longest wait of a read.
const LONGEST_READ: Duration = Duration::from_secs(300);

/// How often a waiting read looks for changes by others than this instance.
const READ_EVERY: Duration = Duration::from_secs(1);

/// The state of the service.
pub(crate) struct Service {
    pub(crate) locks: LockManager,
    pub(crate) names: Names,
    /// Where the address of the store comes from, with its password.
    pub(crate) store: Source,
    pub(crate) registry: Arc<Registry>,
    /// Whether clients keep their holds: the store lets any process renew a lock.
    pub(crate) has_tickets: bool,
    pub(crate) seals: Seals,
    pub(crate) store_claims: StoreClaims,
    /// Counts the holds that clients keep; the library counts all others.
    metrics: Metrics,
    claims: Arc<Claims>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) store_watch: Arc<StoreWatch>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) lock_lists: Arc<LockLists>,
    pub(crate) access: AccessPolicy,
    /// Counts the turns of the loop that ends holds.
    turns: watch::Sender<u64>,
    host: String,
    numbers: AtomicU64,
    losses: Mutex<Option<UnboundedReceiver<Loss>>>,
    queue: Queue,
    /// The open streams of events.
    pub(crate) streams: OpenAnswers,
    /// The open answers with many locks.
    pub(crate) lists: OpenAnswers,
    /// The time of the store's last answer to a check of readiness. One check at a time asks.
    pub(crate) answered: tokio::sync::Mutex<Option<Moment>>,
    /// One examination of the store at a time.
    pub(crate) examination: tokio::sync::Mutex<()>,
    /// Set when the service begins to stop.
    pub(crate) stopping: watch::Sender<bool>,
    /// Set when the service no longer waits for its clients.
    pub(crate) stopped: watch::Sender<bool>,
}

/// The parts of a new service.
pub(crate) struct Parts {
    pub(crate) locks: LockManager,
    pub(crate) names: Names,
    pub(crate) store: Source,
    pub(crate) registry: Arc<Registry>,
    pub(crate) seals: Seals,
    pub(crate) hub: Arc<Hub>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) access: AccessPolicy,
    pub(crate) losses: UnboundedReceiver<Loss>,
}

/// The result of an acquire.
pub(crate) enum Acquisition {
    Hold(HoldStatus),
    /// A task that is done or running.
    Skipped(Box<Skipped>),
}

impl Acquisition {
    /// The hold. Only a task is skipped.
    pub(crate) fn into_hold(self) -> Result<HoldStatus, Refusal> {
        match self {
            Self::Hold(hold) => Ok(hold),
            Self::Skipped(_) => Err(Refusal::no_hold()),
        }
    }
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts { locks, names, store, registry, seals, hub, clock, access, losses } = parts;
        let has_tickets = Unwatched::is_possible(&locks);
        let (queue, stopping) = (Queue::default(), watch::channel(false).0);
        let lock_lists =
            LockLists::new(locks.clone(), names.clone(), queue.clone(), hub.clone(), clock.clone());
        let store_watch =
            StoreWatch::new(lock_lists.clone(), hub.clone(), clock.clone(), stopping.subscribe());
        let store_claims = StoreClaims::new(locks.clone(), clock.clone());
        Arc::new(Self {
            store_claims,
            locks,
            names,
            store,
            registry,
            has_tickets,
            seals,
            metrics: Metrics::new(),
            claims: Arc::default(),
            hub,
            store_watch,
            clock,
            lock_lists,
            access,
            turns: watch::channel(0).0,
            host: latchwork_wire::system::this_host(),
            numbers: AtomicU64::new(0),
            losses: Mutex::new(Some(losses)),
            queue,
            streams: OpenAnswers::new("events", "streams", 64),
            lists: OpenAnswers::new("locks", "lists", 16),
            answered: tokio::sync::Mutex::default(),
            examination: tokio::sync::Mutex::default(),
            stopping,
            stopped: watch::channel(false).0,
        })
    }

    /// Acquires what a client wants. Requests with the same name of the claim, if there is one, share the claim.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        wish: Wish,
        caller: &Caller,
        claim_name: Option<String>,
    ) -> Result<Acquisition, Refusal> {
        self.claim(wish, caller, claim_name).await.map_err(Refusal::without_hold)
    }

    async fn claim(
        self: &Arc<Self>,
        wish: Wish,
        caller: &Caller,
        claim_name: Option<String>,
    ) -> Result<Acquisition, Refusal> {
        for name in wish.names() {
            caller.principal.check(Right::Lock, name)?;
        }
        let owner = caller.principal.name.clone();
        // Each request counts, also one that joins the claim of another.
        let _reservation = self.registry.enter(&owner, 1, 0)?;
        let Some(claim_name) = claim_name else {
            let outcome = self.take(&wish, caller, false).await?;
            return self.answer(outcome, caller, "").await;
        };
        let name = wish.names().first().map_or("".to_owned(), |name| (*name).to_owned());
        let (service, of, fingerprint) = (self.clone(), caller.clone(), wish.fingerprint());
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let (wait, wish) = (wish.wait, Arc::new(wish));
        let wished = wish.clone();
        let acquire = || async move { service.take(&wished, &of, true).await };
        let service = self.clone();
        let undo = move |granted: Arc<GrantedHold>| {
            if let Some(ticket) = service.seals.open(Purpose::Hold, &granted.text) {
                service.abandon(ticket);
            }
            if let Some(hold) = service.registry.withdraw(granted.id) {
                let ending = Ending::Released(ReleaseKind::Release, ReleaseOutcome::Unknown);
                service.publish_end(&hold, ending);
            }
        };
        let mut ticket =
            self.claims.join((owner, claim_name), fingerprint, wait, number, acquire, undo)?;
        let Some(outcome) = ticket.outcome().await? else {
            return Err(self.refused(&wish, caller, &not_free()).await);
        };
        self.answer(outcome, caller, &name).await
    }

    /// The answer to a request for a claim. To a repeat, the store tells whether it still has the hold.
    async fn answer(
        &self,
        outcome: Outcome,
        caller: &Caller,
        name: &str,
    ) -> Result<Acquisition, Refusal> {
        match outcome {
            // It has ended elsewhere.
            Outcome::Repeat(id) if !self.registry.knows(id) => {
                Err(Ending::Lost("taken").refusal(name))
            }
            Outcome::Repeat(id) => {
                let ticket = self.registry.ticket(id);
                let sealed = ticket.and_then(|it| self.seals.seal(Purpose::Hold, &it));
                let text = sealed.unwrap_or_else(|| id.to_string());
                self.look(&text, caller).await.map(Acquisition::Hold)
            }
            Outcome::Hold(granted) => {
                let owner = &caller.principal.name;
                let seen = self.registry.look(granted.id, owner, caller.arrival, false, true)?;
                Ok(Acquisition::Hold(HoldStatus { id: granted.text.to_string(), ..seen }))
            }
            Outcome::Skipped(why) => Ok(Acquisition::Skipped(why)),
        }
    }

    /// Acquires at the store, and enters the hold. If the request has a name, its repeats get the same hold. Dropping the
    /// future leaves no hold.
    async fn take(&self, wish: &Wish, caller: &Caller, is_named: bool) -> Result<Outcome, Refusal> {
        let locks = wish.names().into_iter().map(weight).sum();
        let reservation = self.registry.enter(&caller.principal.name, 0, locks)?;
        let mut stopping = self.stopping.subscribe();
        let holder: Arc<str> = match &wish.holder {
            Some(text) => text.as_str().into(),
            None => {
                format!("{} at {} through {}", caller.principal.name, caller.peer.host(), self.host)
                    .into()
            }
        };
        let manager = wish.manager(&self.locks, &holder);
        // A session belongs to its token, whatever the prefixes of that are.
        let mut own_names = wish.names();
        own_names.retain(|name| !name.starts_with(SESSION_NAMES));
        let place = (!wish.wait.is_zero()).then(|| {
            let locks = wish.names().into_iter().map(|name| (name, wish.mode_of(name)));
            let candidate = match &wish.target {
                Target::Leadership { candidate, .. } => candidate.as_deref(),
                Target::Locks(_) | Target::Task { .. } => None,
            };
            self.queue.enter(locks, &holder, candidate, self.clock.now())
        });
        let acquired = tokio::select! {
            acquired = WAITER.scope(holder.clone(), self.grant(wish, &manager)) => acquired,
            _ = stopping.wait_for(|it| *it) => return Err(Refusal::closed()),
            refusal = self.access.revoked(caller, Right::Lock, &own_names) => return Err(refusal),
        };
        drop(place);
        let granted = match acquired {
            Ok(Ok(granted)) => granted,
            Ok(Err(skipped)) => return Ok(Outcome::Skipped(Box::new(skipped))),
            Err(error) => return Err(self.refused(wish, caller, &error).await),
        };
        let locks = granted.locks();
        let granted = match wish.keeper {
            Keeper::Client => self.enter_ticket(granted, wish, caller, is_named).await?,
            Keeper::Process => {
                let owner = &caller.principal.name;
                let id = self.registry.insert(owner, granted, wish.ttl, caller.arrival)?;
                GrantedHold { id, text: id.to_string().into() }
            }
        };
        for (key, token) in &locks {
            let name = self.names.name_of(key.as_str());
            self.store_watch.add_own(key, *token);
            self.hub.publish(LockEvent {
                mode: Some(wish.mode_of(&name)),
                token: Some(*token),
                holder: Some(holder.to_string()),
                ttl: Some(wish.ttl),
                ..LockEvent::new("granted", name)
            });
        }
        drop(reservation);
        // The loop that ends holds does not find one that was lost before it was entered.
        if let Some((_, hold, ending)) = self.registry.lost_already(granted.id) {
            self.publish_end(&hold, ending);
        }
        Ok(Outcome::Hold(Arc::new(granted)))
    }

    async fn grant(
        &self,
        wish: &Wish,
        manager: &LockManager,
    ) -> Result<Result<Granted, Skipped>, Error> {
        let tries_once = wish.wait.is_zero();
        let kept = match &wish.target {
            Target::Locks(wishes) => match Wish::one_or_several(wishes, manager) {
                Ok(lock) if tries_once => lock.try_acquire().await?.map(Granted::One),
                Ok(lock) => Some(Granted::One(lock.acquire_within(wish.wait).await?)),
                Err(several) if tries_once => several.try_acquire().await?.map(Granted::Several),
                Err(several) => Some(Granted::Several(several.acquire_within(wish.wait).await?)),
            },
            Target::Leadership { name, candidate } => {
                let mut election = manager.election(name);
                if let Some(candidate) = candidate {
                    election = election.candidate(candidate.as_str());
                }
                match tries_once {
                    true => election.try_campaign().await?.map(|it| Granted::One(it.into())),
                    false => Some(Granted::One(election.campaign_within(wish.wait).await?.into())),
                }
            }
            Target::Task { name, every, .. } => {
                let once = manager.once(name, every.clone());
                let begun = match tries_once {
                    true => once.try_begin().await?,
                    false => once.begin_within(wish.wait).await?,
                };
                match begun {
                    Begun::Run(run) => Some(Granted::Task(run)),
                    Begun::Skipped(why) => return Ok(Err(why)),
                }
            }
        };
        kept.map(Ok).ok_or_else(not_free)
    }

    /// The refusal of an acquire, with the lock as it is now if it was not free.
    async fn refused(&self, wish: &Wish, caller: &Caller, error: &Error) -> Refusal {
        let named = error.key().map(|key| self.names.name_of(key.as_str()));
        let names = wish.names();
        let name = named.as_deref().or(names.first().copied());
        let refusal = Refusal::of(error, name);
        if error.kind() != ErrorKind::TimedOut {
            return refusal;
        }
        if !names.iter().all(|name| caller.principal.may(Right::Read, name)) {
            return refusal.without_holders();
        }
        // Of several locks, the first that is not free.
        let candidates = names.iter().take(if named.is_some() { 0 } else { 8 });
        for name in named.as_deref().iter().chain(candidates) {
            let Ok(lock) = self.lock_lists.one(name).await else { break };
            if !lock.is_free() {
                return refusal.key(*name).lock(lock);
            }
        }
        refusal
    }

    /// Reads a lock when it has another version than `after`, or as it is when the wait is over.
    ///
    /// # Errors
    ///
    /// Those of the store; `Invalid` for a wait that is too long; `Closed` if the service stops meanwhile.
    pub(crate) async fn read_after(
        self: &Arc<Self>,
        name: &str,
        caller: &Caller,
        after: Version,
        wait: Duration,
    ) -> Result<LockStatus, Refusal> {
        if wait > LONGEST_READ {
            let message = format!(
                "wait_ms: {} is longer than a read may wait, {}",
                wait.as_millis(),
                LONGEST_READ.as_millis()
            );
            return Err(Refusal::invalid(message, "wait for less, and ask again").key(name));
        }
        let _reservation = self.registry.enter(&caller.principal.name, 1, 0)?;
        let mut stopping = self.stopping.subscribe();
        let reader = self.hub.readers.enter(name);
        let end = caller.arrival.plus(wait);
        loop {
            let changed = reader.changed.notified();
            tokio::pin!(changed);
            // Listen before the read, or a change in between would be missed.
            changed.as_mut().enable();
            let lock = self.lock_lists.one(name).await?;
            let now = self.clock.now();
            if lock.version != after || now >= end {
                return Ok(lock);
            }
            tokio::select! {
                () = changed => {}
                () = self.clock.sleep_until(end.min(now.plus(READ_EVERY))) => {}
                _ = stopping.wait_for(|it| *it) => return Err(Refusal::closed().without_hold()),
                refusal = self.access.revoked(caller, Right::Read, from_ref(&name)) => return Err(refusal),
            }
        }
    }

    /// Returns a hold as it is now.
    pub(crate) async fn look(&self, text: &str, caller: &Caller) -> Result<HoldStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        match self.open(text, caller)? {
            Asked::Kept(id) => {
                let owner = &caller.principal.name;
                self.registry.look(id, owner, caller.arrival, false, false)
            }
            Asked::Ticket(ticket) => {
                let status = self.show_ticket(&ticket, caller).await?;
                Ok(HoldStatus { id: text.to_owned(), ..status })
            }
        }
    }

    /// Renews a hold.
    pub(crate) async fn renew(&self, text: &str, caller: &Caller) -> Result<HoldStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        match self.open(text, caller)? {
            Asked::Kept(id) => {
                let owner = &caller.principal.name;
                for name in self.registry.names_of(id, owner) {
                    caller.principal.check(Right::Lock, &name)?;
                }
                self.registry.look(id, owner, caller.arrival, true, false)
            }
            Asked::Ticket(ticket) => {
                let status = self.renew_ticket(&ticket, caller).await?;
                Ok(HoldStatus { id: text.to_owned(), ..status })
            }
        }
    }

    /// Whether the service stops.
    pub(crate) fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }
}

fn not_free() -> Error {
    Error::new(ErrorKind::TimedOut, "the lock is not free")
}

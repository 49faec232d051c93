//! The five verbs: a script each. Releases are in `release.rs`, renewals in `renew.rs`, looks in
//! `inspect.rs`.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Effect, Error, Fencing, Grant,
    Io, Linger, Mode, Order, Query, Released, Renewal, Snapshot, Verb, Wake,
};
use redis::{Cmd, Value};

use crate::answers::{Held, attempt, blocked_by, goes_on, is_alone, letter, stands_at};
use crate::combine::Combiner;
use crate::config::RedisConfig;
use crate::crowds::Crowds;
use crate::durable::{Kept, Undone};
use crate::errors::strange;
use crate::facts::Facts;
use crate::free_path::{Free, Take, TakeRequest, head};
use crate::guard::Rule;
use crate::holder;
use crate::link::Link;
use crate::message::Nonce;
use crate::names::Names;
use crate::plain;
use crate::probe::{Scripts, only_plain};
use crate::push::{Expected, Mailbox, Pushes, Unclaimed};
use crate::release::Calls;
use crate::scripts::{TRY, TRY_GUARDED};
use crate::topology::Topology;

/// A pushed grant lasts at least so long until it is renewed.
pub(crate) const PROBATION: Duration = Duration::from_secs(2);

/// A [`Backend`] over Redis.
pub struct RedisBackend(pub(crate) Arc<Shared>);

pub(crate) struct Shared {
    pub(crate) config: RedisConfig,
    pub(crate) topology: Arc<Topology>,
    pub(crate) pushes: Arc<Pushes>,
    pub(crate) io: Io,
    pub(crate) guard: Option<Rule>,
    pub(crate) undone: Undone,
    pub(crate) me: Weak<Self>,
    /// What the store can do; asked once, so that what was promised stays true to the letter.
    can: OnceLock<Can>,
    pub(crate) crowds: Crowds,
    take: Arc<Combiner<Take>>,
    pub(crate) free: Arc<Combiner<Free>>,
}

#[derive(Debug, Clone, Copy)]
struct Can {
    plain: bool,
    push: bool,
}

/// What a server can do that nothing was left out of.
const EVERYTHING: Can = Can { plain: false, push: true };

impl RedisBackend {
    /// Connects, and finds out what the server can do.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Invalid`, with the server and the next step.
    pub async fn connect(config: RedisConfig, io: Io) -> Result<Arc<Self>, Error> {
        let backend = Self::unconnected(config, io);
        backend.reach().await?;
        Ok(backend)
    }

    /// A backend that connects when it is first used. Until it has [reached](Self::reach) its
    /// server it is taken for one that leaves nothing out.
    pub(crate) fn unconnected(config: RedisConfig, io: Io) -> Arc<Self> {
        let pushes = Pushes::new(io.clone());
        let topology = Arc::new(Topology::new(&config, &io, &pushes));
        let guard = Rule::of(&config);
        let take = Take { topology: topology.clone(), io: io.clone(), guard: guard.clone() };
        let free = Free { topology: topology.clone(), io: io.clone() };
        let shared = Arc::new_cyclic(|me| Shared {
            me: me.clone(),
            config,
            topology,
            pushes,
            take: Combiner::new(take, io.clone()),
            free: Combiner::new(free, io.clone()),
            io,
            guard,
            undone: Undone::default(),
            can: OnceLock::new(),
            crowds: Crowds::default(),
        });
        let taker: Arc<dyn Unclaimed> = shared.clone();
        shared.pushes.unclaimed_go_to(Arc::downgrade(&taker));
        Arc::new(Self(shared))
    }

    /// Connects now, and finds out what the server can do.
    pub(crate) async fn reach(&self) -> Result<Facts, Error> {
        let Shared { config, topology, can, .. } = &*self.0;
        let store: Arc<str> = config.shown().into();
        let facts = topology.reach().await;
        let facts = facts.map_err(|error| Error::from_backend(error, None, &store))?;
        let plain = config.plain || facts.scripts == Scripts::OneKey;
        for (option, asked) in [("guard", config.guard), ("min_replicas", config.min_replicas > 0)]
        {
            if plain && asked {
                let error = only_plain(format_args!("no {option}"));
                return Err(Error::from_backend(error, None, &store));
            }
        }
        let _ = can.set(Can { plain, push: facts.pushes && !plain });
        Ok(facts)
    }
}

impl Shared {
    /// Whether only what one key can do is done.
    pub(crate) fn is_plain(&self) -> bool {
        self.can().plain
    }

    fn can(&self) -> Can {
        *self.can.get().unwrap_or(&EVERYTHING)
    }

    /// Tries at the master; `kept` tells how many replicas have confirmed what it did.
    pub(crate) async fn try_on_master(
        &self,
        claim: &Claim,
        kept: &mut Kept,
    ) -> Result<Attempt, BackendError> {
        let names = self.topology.names(&claim.key)?;
        if let Some(guard) = &self.guard {
            guard.check(claim)?;
        }
        let link = self.topology.link(names.slot()).await?;
        let alone = is_alone(claim.mode) && link.facts.set_nx_get();
        let known = self.pushes.find(claim.id);
        if alone && known.is_none() && !self.crowds.is_crowded(&names) {
            match self.take_free(&names, claim, kept).await? {
                Value::Int(token) => {
                    let token = u64::try_from(token).unwrap_or_default();
                    self.pushes.note(token);
                    return Ok(Attempt::Granted(Grant { token, ttl: claim.ttl, store_time: None }));
                }
                // For how long a key is closed only the whole script tells.
                Value::BulkString(value)
                    if !claim.waits && !is_mine(&value, claim) && !is_closed(&value) =>
                {
                    return blocked_by(&value, claim);
                }
                // In line, in our own way, or closed.
                Value::BulkString(_) | Value::Nil => {}
                // In quarantine: who waits takes a place in line below.
                answer @ Value::Array(_) => match attempt(&answer, claim) {
                    Ok(Attempt::Blocked(_)) if claim.waits => {}
                    other => return other,
                },
                other => return Err(strange(&other)),
            }
        }
        Box::pin(self.try_whole(claim, &names, &link, known, kept)).await
    }

    /// Tries with the whole script.
    async fn try_whole(
        &self,
        claim: &Claim,
        names: &Names,
        link: &Arc<Link>,
        known: Option<Arc<Mailbox>>,
        kept: &mut Kept,
    ) -> Result<Attempt, BackendError> {
        let (start, end) = names.channel_parts();
        let channel = names.channel(&self.pushes.process);
        let ears = self.topology.hears(link, names.slot(), &channel);
        let process = if ears.is_some() { self.pushes.process.as_str() } else { "-" };
        let probation = PROBATION.min(claim.ttl);
        let nonce = Nonce::random();
        let (mut since, mut place) = (self.io.clock().wall(), -1);
        if claim.waits || known.is_some() {
            let mailbox = self.pushes.open(claim.id, names.slot());
            mailbox.tries(Expected { nonce, stamp: claim.stamp, longest: probation, ears });
            (since, place) = (mailbox.since, mailbox.place());
        }
        let holder = holder::stored(since, &claim.holder);
        let kind = match (claim.waits, claim.order) {
            (false, _) => "n",
            (true, Order::Fifo) => "f",
            (true, Order::Barging) => "b",
        };
        let (take, of) = match claim.mode {
            Mode::Permits { take, of } => (take, of),
            _ => (0, 0),
        };
        let sending = self.sending(claim.ttl);
        let script = if self.guard.is_some() { &TRY_GUARDED } else { &TRY };
        let (mut from, mut is_known) = (None, known.is_some());
        let mut calls = Calls::default();
        let attempt = loop {
            let run = self.topology.run_as(sending, names.slot(), script, |command, link| {
                self.keys(command, names);
                command.arg(head(claim)).arg(millis(claim.ttl)).arg(&holder);
                command.arg(claim.id.to_string()).arg(letter(claim.mode)).arg(take).arg(of);
                command.arg(kind).arg(claim.floor).arg(nonce.to_string()).arg(process);
                command.arg(millis(probation)).arg(start).arg(end).arg(self.publish());
                command.arg(u8::from(is_known)).arg(self.count_listeners(link));
                command.arg(from.unwrap_or(0)).arg(place);
                if let Some(guard) = &self.guard {
                    guard.fill(command, link);
                }
            });
            let answer = kept.note(run.await);
            let more = answer.as_ref().ok().and_then(|answer| goes_on(answer, 7));
            if more.is_none() || !calls.may_go_on() {
                if let (Ok(answer), Some(mailbox)) = (&answer, self.pushes.find(claim.id)) {
                    mailbox.stands_at(stands_at(answer));
                }
                break answer.and_then(|answer| attempt(&answer, claim));
            }
            // It has its place by now.
            (from, is_known) = (more, claim.waits);
            place = answer.as_ref().map_or(-1, stands_at);
        };
        if let Ok(attempt) = &attempt {
            self.note_told(attempt);
        }
        match &attempt {
            Ok(Attempt::Granted(_)) => {
                if let Some(mailbox) = self.pushes.find(claim.id) {
                    mailbox.hold();
                }
                if known.is_none() {
                    // It has never stood in line, so nothing will be told to it.
                    self.pushes.close(claim.id);
                }
            }
            Ok(Attempt::Blocked(_)) if claim.waits => self.crowds.note(names),
            Ok(Attempt::Blocked(_)) => {}
            // It left nothing behind, so nothing will release it.
            Err(error) if known.is_none() && error.effect == Effect::NotApplied => {
                self.pushes.close(claim.id);
            }
            Err(_) => {}
        }
        attempt
    }

    /// Takes a key that nobody holds, in the fewest steps at the server. The answer is that of
    /// [`Take`].
    async fn take_free(
        &self,
        names: &Arc<Names>,
        claim: &Claim,
        kept: &mut Kept,
    ) -> Result<Value, BackendError> {
        let request = TakeRequest::new(names.clone(), claim, self.io.clock().wall());
        if self.config.min_replicas > 0 {
            let sending = self.sending(claim.ttl);
            return kept.note(Box::pin(self.take.kind().one(&request, sending)).await);
        }
        // On a Cluster each slot is a place of its own.
        if self.topology.is_cluster() {
            return self.take.alone(&request).await;
        }
        self.take.send(request).await
    }

    /// The keys of a whole script, with the guard's marker while it is on.
    pub(crate) fn keys(&self, command: &mut Cmd, names: &Names) {
        match &self.guard {
            None => keys(command, names),
            Some(_) => {
                whole(command, names, 7);
                command.arg(names.guard());
            }
        }
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, BackendError> {
        if self.can().plain {
            return self.wait_plain(claim).await;
        }
        if !claim.waits {
            return std::future::pending().await; // only core's own timer can tell it to look
        }
        let names = self.topology.names(&claim.key)?;
        let Some(mailbox) = self.pushes.find(claim.id) else { return Ok(Wake::Look) };
        let link = self.topology.ears(names.slot()).await?;
        let channel = names.channel(&self.pushes.process);
        if link.hears(&channel) {
            if !mailbox.is_reachable_by(link.ears) && !mailbox.is_admitted() {
                return Ok(Wake::Look); // the next try says where to reach it
            }
        } else {
            let sharded = self.topology.is_cluster();
            let may = link.facts.pushes && !link.refuses(&channel);
            if may && link.subscribe(&channel, sharded).await.is_ok() {
                // Whatever happened before the server took it was not told: look again.
                return Ok(Wake::Look);
            }
            // Nobody can tell: look now and then.
            self.io.sleep(plain::pause()).await;
            return Ok(Wake::Look);
        }
        match mailbox.wait(&self.io).await {
            Wake::Admitted { .. } if self.config.min_replicas > 0 => {
                self.confirm_push(claim, &names).await
            }
            wake => Ok(wake),
        }
    }

    /// What the server has told is a measure for what messages tell.
    fn note_told(&self, attempt: &Attempt) {
        let (token, time) = match attempt {
            Attempt::Granted(grant) => (grant.token, grant.store_time),
            Attempt::Blocked(blocked) => (0, blocked.store_time),
        };
        let time = time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        self.pushes.note(token.max(time));
    }

    /// What PUBSUB calls the number of those who listen; nothing where it may not be asked.
    pub(crate) fn count_listeners(&self, link: &Link) -> &'static str {
        match (link.facts.counts_listeners, self.topology.is_cluster()) {
            (false, _) => "",
            (true, false) => "NUMSUB",
            (true, true) => "SHARDNUMSUB",
        }
    }

    pub(crate) fn publish(&self) -> &'static str {
        if self.topology.is_cluster() { "SPUBLISH" } else { "PUBLISH" }
    }
}

fn is_mine(value: &[u8], claim: &Claim) -> bool {
    value.get(7..39) == Some(claim.id.to_string().as_bytes())
}

/// Whether it only keeps the key closed.
fn is_closed(value: &[u8]) -> bool {
    matches!(Held::read(value), Held::Closed)
}

pub(crate) fn millis(length: Duration) -> u64 {
    // Never shorter than asked for (B4).
    u64::try_from(length.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// The keys of the whole scripts.
pub(crate) fn keys(command: &mut Cmd, names: &Names) {
    whole(command, names, 6);
}

fn whole(command: &mut Cmd, names: &Names, count: usize) {
    command.arg(count).arg(names.lock()).arg(names.token());
    for helper in ["line", "claims", "held", "marks"] {
        command.arg(names.helper(helper));
    }
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> Capabilities {
        let Can { plain, push } = self.0.can();
        let longest = Duration::from_secs(24 * 60 * 60);
        let longest = self.0.guard.as_ref().map_or(longest, |guard| guard.max_ttl);
        let store = self.0.config.shown();
        let mut can = if plain { Capabilities::least(store) } else { Capabilities::full(store) };
        can.push = push;
        can.with_fencing(Fencing::WhileDataSurvives)
            .with_ttl(Duration::from_millis(10)..=longest, longest.min(Duration::from_secs(30)))
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.0.try_acquire(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.0.wait(claim))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(self.0.renew_all(claims))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(self.0.release(claim, linger))
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.0.inspect(query))
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("store", &self.0.config.shown())
            .finish_non_exhaustive()
    }
}

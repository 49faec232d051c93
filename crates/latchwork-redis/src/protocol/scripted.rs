//! The verbs of a server that runs scripts of several keys: tries and waits. The other verbs are in
//! `renew.rs`, `release.rs` and `inspect.rs`. Several claims share the requests of `free.rs`.

use std::sync::{Arc, Weak};
use std::time::Duration;

use latchwork_store::kit::record::cannot_replace;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Claim, Effect, FencingToken, Grant, Mode, Order,
    Shape, Wake,
};
use latchwork_wire::combine::{Combiner, Limits};
use latchwork_wire::mailbox::PROBATION;
use redis::Value;

use crate::protocol::answers::{attempt, blocked_by, goes_on, is_to_warn, joined_at};
use crate::protocol::free::{Free, FreeRequest, RecentQueues, Take, TakeRequest};
use crate::protocol::granting::Scripts;
use crate::protocol::message::Nonce;
use crate::protocol::names::Names;
use crate::protocol::push::{ExpectedGrant, Mailbox, UnclaimedGrants};
use crate::protocol::store::{Store, poll_pause};
use crate::protocol::value::{KeyValue, head, letter, millis, policy, stored, tail, up_to_id};
use crate::server::errors::strange;
use crate::server::link::Link;
use crate::server::topology::Route;

/// The longest ttl of a claim that the short script queues: the end of a longer one may not have 13 digits.
const SHORT: Duration = Duration::from_secs(100_000_000);

/// Measured: without a combiner 64 tasks make 0.65 of the cycles in the same time, and the server's
/// scripts take 1.8 times as long (`--example cycle_cost`, with and without in turns). Where four go out alone in
/// place of one, 4, 16 and 64 tasks make 0.78, 0.61 and 0.78 of the cycles, and the client uses 1.18, 1.66 and 1.21
/// times the processor time; 2 tasks make 1.04 of the cycles (31 rounds in turns, `redis-free`).
const LIMITS: Limits = Limits { alone: 1, alone_outside: 4, all: 6, most: 64 };

/// Before the hold that a claim is to replace, at the end of its holder's text, see `common.lua`.
pub(super) const BESIDE: &str = "\u{1f}beside=";

/// Whether a claim holds alone, without a hold that it replaces: the short scripts decide about such claims.
pub(crate) fn may_be_alone(claim: &Claim) -> bool {
    claim.mode.is_alone() && claim.beside.is_none()
}

/// Counts the calls of a script that continues where the last call ended.
#[derive(Debug, Default)]
pub(crate) struct Calls(u32);

impl Calls {
    /// More than a queue of 100,000 needs.
    const MOST: u32 = 1_000;

    /// Whether one more may be sent.
    pub(crate) fn may_go_on(&mut self) -> bool {
        self.0 += 1;
        self.0 <= Self::MOST
    }
}

/// The verbs by one script each.
pub(crate) struct Scripted {
    pub(crate) store: Arc<Store>,
    /// The scripts, with the guard in them or not.
    pub(crate) scripts: Scripts,
    pub(crate) recent_queues: RecentQueues,
    pub(crate) take: Arc<Combiner<Take>>,
    pub(crate) free: Arc<Combiner<Free>>,
    pub(crate) me: Weak<Self>,
}

impl Scripted {
    pub(crate) fn new(store: Arc<Store>) -> Arc<Self> {
        let scripts = Scripts::by(store.guard.clone(), store.topology.is_cluster());
        let take = Combiner::new(Take { scripts: scripts.clone() }, LIMITS, store.io.clone());
        let free = Combiner::new(Free, LIMITS, store.io.clone());
        let this = Arc::new_cyclic(|me| Self {
            store,
            scripts,
            recent_queues: RecentQueues::default(),
            take,
            free,
            me: me.clone(),
        });
        let taker: Arc<dyn UnclaimedGrants> = this.clone();
        this.store.pushes.unclaimed_go_to(Arc::downgrade(&taker));
        this
    }

    /// The names of a claim's key, if the guard allows its ttl, and if its kind of lock has holds to replace.
    pub(crate) fn names(&self, claim: &Claim) -> Result<Names, BackendError> {
        let names = self.store.naming.of(&claim.key)?;
        if claim.floor > FencingToken::LAST_GRANT {
            let message = format!("floor: {} is above {}", claim.floor, FencingToken::LAST_GRANT);
            return Err(BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
                .with_next_step("use a lower floor: no greater token can be granted"));
        }
        if claim.beside.is_some() && claim.mode.shape() != Shape::ReadWrite {
            return Err(cannot_replace(claim.mode.word(), claim.mode));
        }
        if let Some(guard) = &self.store.guard {
            guard.check(claim)?;
        }
        Ok(names)
    }

    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let names = self.names(claim)?;
        let mut route = self.store.topology.route(names.slot()).await?;
        self.try_on(&mut route, &names, claim).await
    }

    /// Tries on a route: first as for a free key, unless a claim seems to wait for it.
    pub(crate) async fn try_on(
        &self,
        route: &mut Route,
        names: &Names,
        claim: &Claim,
    ) -> Result<Attempt, BackendError> {
        let known = self.store.pushes.find(claim.id);
        if known.is_none()
            && may_be_alone(claim)
            && route.link().facts.set_nx_get
            && !self.recent_queues.had_queue(names)
            && let Some(attempt) = self.take_free(route, names, claim).await?
        {
            return Ok(attempt);
        }
        // Boxed, because most tries do not come here.
        Box::pin(self.try_whole(route, names, claim, known)).await
    }

    /// Tries to take a free key; `None` if the whole script must decide.
    pub(crate) async fn take_free(
        &self,
        route: &mut Route,
        names: &Names,
        claim: &Claim,
    ) -> Result<Option<Attempt>, BackendError> {
        let request = self.take_request(route, names, claim);
        let answer = if route.is_shared() {
            self.take.send(request).await?
        } else {
            self.take.kind().one(&request, route).await?
        };
        self.taken(answer, claim)
    }

    pub(crate) fn take_request(&self, route: &Route, names: &Names, claim: &Claim) -> TakeRequest {
        TakeRequest {
            names: names.clone(),
            route: route.clone(),
            head: head(claim),
            ttl: millis(claim.ttl),
            tail: tail(self.store.io.clock().wall(), &claim.holder),
            floor: claim.floor,
        }
    }

    /// The answer of the short script to a claim; `None` if the whole script must decide.
    pub(crate) fn taken(
        &self,
        answer: Value,
        claim: &Claim,
    ) -> Result<Option<Attempt>, BackendError> {
        match answer {
            Value::Int(token @ 1..) => {
                let token = token.unsigned_abs();
                self.store.pushes.note(token);
                Ok(Some(Attempt::Granted(Grant::new(token, claim.ttl))))
            }
            // The whole script queues claims that wait, and it alone knows how long a key stays closed.
            Value::BulkString(value)
                if !claim.waits
                    && !is_of(&value, claim)
                    && !matches!(KeyValue::read(&value), KeyValue::Closed { .. }) =>
            {
                blocked_by(&value, false, claim).map(Some)
            }
            Value::BulkString(_) | Value::Nil => Ok(None),
            // In quarantine.
            answer @ Value::Array(_) => match attempt(&answer, claim)? {
                Attempt::Blocked(_) if claim.waits => Ok(None),
                attempt => Ok(Some(attempt)),
            },
            other => Err(strange(&other)),
        }
    }

    /// Frees a key that the claim holds alone and no claim waits for; false if there is more to do.
    pub(crate) async fn free(
        &self,
        route: &mut Route,
        names: &Names,
        claim: &Claim,
    ) -> Result<bool, BackendError> {
        let request = FreeRequest::of(route, names, claim);
        if route.is_shared() {
            self.free.send(request).await
        } else {
            self.free.kind().one(&request, route).await
        }
    }

    /// Tries with the whole script.
    pub(crate) async fn try_whole(
        &self,
        route: &mut Route,
        names: &Names,
        claim: &Claim,
        known: Option<Arc<Mailbox>>,
    ) -> Result<Attempt, BackendError> {
        let Store { topology, pushes, io, .. } = &*self.store;
        let (start, end) = names.channel_parts();
        let channel = names.channel(&pushes.process);
        let ears = topology.subscribed_on(route.link(), names.slot(), &channel);
        let process = if ears.is_some() { pushes.process.as_str() } else { "-" };
        let probation = PROBATION.min(claim.ttl);
        let nonce = Nonce::random();
        let (mut since, mut joined) = (io.clock().wall(), -1);
        if claim.waits || known.is_some() {
            let mailbox = pushes.open(claim.id, names.slot());
            mailbox.tries(ExpectedGrant {
                sign: (nonce, ears),
                stamp: claim.stamp,
                longest: probation,
            });
            (since, joined) = (mailbox.since, mailbox.joined());
        }
        let mut holder = stored(since, &claim.holder);
        if let Some(hold) = claim.beside {
            holder.push_str(BESIDE);
            holder.push_str(&hold.to_string());
        }
        let kind = match (claim.waits, claim.order) {
            (false, _) => "n",
            (true, Order::Barging) if claim.beside.is_none() => "b",
            (true, _) => "f",
        };
        let (take, of) = match claim.mode {
            Mode::Permits { take, of } => (take, format!("{of}{}", policy(claim.resize))),
            _ => (u32::from(claim.beside.is_some()), "0".to_owned()),
        };
        let keys = names.whole();
        let (mut from, mut is_known) = (None, known.is_some());
        let mut calls = Calls::default();
        let mut warn = false;
        let mut short = None;
        if kind == "f" && known.is_none() && may_be_alone(claim) && claim.ttl <= SHORT {
            let (mode, probation) = (letter(claim.mode), millis(probation));
            let rest = format!("{mode}{probation:04}{process:<16}{nonce}{:020}", 0);
            short = self.enqueue(route, names, claim, (&rest, &holder)).await.transpose();
        }
        let attempt = loop {
            if let Some(answer) = short.take() {
                if let (Ok(answer), Some(mailbox)) = (&answer, pushes.find(claim.id)) {
                    mailbox.has_joined(joined_at(answer));
                }
                break answer.and_then(|answer| attempt(&answer, claim));
            }
            let run = route.run(&self.scripts.granting.try_, |command, link| {
                self.scripts.keys(command, names, &keys);
                command.arg(head(claim)).arg(millis(claim.ttl)).arg(&holder);
                command.arg(claim.id.to_string()).arg(letter(claim.mode)).arg(take).arg(&of);
                command.arg(kind).arg(claim.floor).arg(nonce.to_string()).arg(process);
                command.arg(millis(probation)).arg(&start).arg(&end);
                command.arg(u8::from(is_known)).arg(self.count_listeners(link));
                command.arg(from.unwrap_or(0)).arg(joined);
                self.scripts.fill(command, link);
            });
            let answer = run.await.map_err(BackendError::from);
            warn |=
                answer.as_ref().is_ok_and(|answer| is_to_warn(answer, 5) || is_to_warn(answer, 9));
            let more = answer.as_ref().ok().and_then(|answer| goes_on(answer, 7));
            if more.is_none() || !calls.may_go_on() {
                if let (Ok(answer), Some(mailbox)) = (&answer, pushes.find(claim.id)) {
                    mailbox.has_joined(joined_at(answer));
                }
                break answer.and_then(|answer| attempt(&answer, claim));
            }
            // The claim has its place by now.
            (from, is_known) = (more, claim.waits);
            joined = answer.as_ref().map_or(-1, joined_at);
        };
        self.warn_if(warn, names).await;
        match &attempt {
            Ok(Attempt::Granted(grant)) => {
                pushes.note(grant.token.max(micros(grant.store_time)));
                if let Some(mailbox) = pushes.find(claim.id) {
                    mailbox.hold();
                }
                if known.is_none() {
                    // It has never been in the queue, so no message will come for it.
                    pushes.close(claim.id);
                }
            }
            Ok(Attempt::Blocked(blocked)) => {
                pushes.note(micros(blocked.store_time));
                if claim.waits {
                    self.recent_queues.note(names);
                }
            }
            // It left nothing behind, so there is nothing to release.
            Err(error) if known.is_none() && error.effect == Effect::NotApplied => {
                pushes.close(claim.id);
            }
            Err(_) => {}
        }
        attempt
    }

    /// Takes a place behind a claim that holds alone; `None` if the whole script must decide. The last
    /// argument is the entry of the queue from the mode up to the limit (see `common.lua`), and the holder.
    async fn enqueue(
        &self,
        route: &mut Route,
        names: &Names,
        claim: &Claim,
        (rest, holder): (&str, &str),
    ) -> Result<Option<Value>, BackendError> {
        let keys = [names.lock(), &names.helper("line")];
        let run = route.run(&self.scripts.granting.enqueue, |command, link| {
            self.scripts.keys(command, names, &keys);
            command.arg(&up_to_id(claim)[..5]).arg(claim.id.to_string());
            command.arg(millis(claim.ttl)).arg(rest).arg(holder);
            self.scripts.fill(command, link);
        });
        Ok(Some(run.await?).filter(|answer| *answer != Value::Nil))
    }

    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, BackendError> {
        if !claim.waits {
            return std::future::pending().await; // only the engine's timer wakes it
        }
        let Store { topology, pushes, io, .. } = &*self.store;
        let names = self.store.naming.of(&claim.key)?;
        let Some(mailbox) = pushes.find(claim.id) else { return Ok(Wake::Look) };
        let link = topology.subscriber(names.slot()).await?;
        let channel = names.channel(&pushes.process);
        if !link.is_subscribed(&channel) {
            let may = link.facts.pushes && !link.refuses(&channel);
            if may && link.subscribe(&channel, topology.is_cluster()).await.is_ok() {
                // A message before the subscription would have been lost: check again.
                return Ok(Wake::Look);
            }
            // No message can come: poll.
            io.sleep(poll_pause()).await;
            return Ok(Wake::Look);
        }
        if !mailbox.is_reachable_by(link.id) && !mailbox.is_admitted() {
            return Ok(Wake::Look); // the next try tells the store where messages arrive
        }
        Ok(link.listen(mailbox.wait(io)).await)
    }

    /// The subcommand of PUBSUB that counts listeners; empty where the server does not allow it.
    pub(crate) fn count_listeners(&self, link: &Link) -> &'static str {
        match (link.facts.counts_listeners, self.store.topology.is_cluster()) {
            (false, _) => "",
            (true, false) => "NUMSUB",
            (true, true) => "SHARDNUMSUB",
        }
    }
}

fn is_of(value: &[u8], claim: &Claim) -> bool {
    value.get(7..39) == Some(claim.id.to_string().as_bytes())
}

fn micros(time: Option<Duration>) -> u64 {
    time.map_or(0, |time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}

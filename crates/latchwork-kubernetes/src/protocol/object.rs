//! A Lease object as a record of claims, and back.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use latchwork_store::kit::record::{Member, Now, Record, Waiter};
use latchwork_store::random_u128;
use latchwork_store::{Claim, ClaimId, Holder, Mode, Moment, Order};

use crate::protocol::names::{KEY, LABEL, RECORD, is_hashed};
use crate::protocol::stored::{Beside, Closed, FORM, Part, Stored, millis};
use crate::server::server_time::ServerTime;

/// The id and the mark of a holder that is no client of Latchwork.
pub(crate) const FOREIGN: ClaimId = ClaimId::from_u128(0);
const FOREIGN_TAG: u128 = 1;

/// How much of a holder's text becomes its identity: people read it in one line.
const LONGEST_IDENTITY: usize = 200;

/// One version of an object.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    lease: Lease,
    pub(crate) version: u64,
    pub(crate) stored: Stored,
    pub(crate) foreign: Option<Foreign>,
    /// Changes with each write of a client of another kind, if one was the last to write.
    touched: Option<u64>,
}

/// A holder that is no client of Latchwork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Foreign {
    pub(crate) identity: String,
    /// None if the object does not say how long the lease lasts: then it never ends.
    pub(crate) duration: Option<Duration>,
}

/// Since when, by the boot clock of this process, an object has shown what it shows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sight(HashMap<Slot, (u64, Moment)>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    Claim(ClaimId),
    Opened,
    Closed,
    Touched,
}

impl Sight {
    /// What is seen at this moment; what has not changed keeps its own.
    pub(crate) fn at(&self, object: &Object, now: Moment) -> Self {
        let Stored { held, queue, opened, calls, closed, .. } = &object.stored;
        let claims = held.iter().chain(queue);
        let claims = claims.map(|part| (Slot::Claim(part.id), part.print(*calls)));
        let touched = object.touched.iter().map(|print| (Slot::Touched, *print));
        let closed = closed.iter().map(|closed| (Slot::Closed, closed.number));
        let all = claims.chain(touched).chain(closed).chain([(Slot::Opened, *opened)]);
        let since = |slot: &Slot, beat: u64| match self.0.get(slot) {
            Some((known, since)) if *known == beat => *since,
            _ => now,
        };
        Self(all.map(|(slot, beat)| (slot, (beat, since(&slot, beat)))).collect())
    }

    fn since(&self, slot: Slot, now: Moment) -> Duration {
        let since = self.0.get(&slot).map_or(now, |(_, since)| *since);
        since.since(Moment::from_nanos(0))
    }
}

impl Object {
    /// Reads an object.
    ///
    /// # Errors
    ///
    /// Why it cannot be read.
    pub(crate) fn read(mut lease: Lease) -> Result<Self, String> {
        let version = lease.metadata.resource_version.as_deref().unwrap_or_default();
        let version = version.parse().map_err(|_| {
            format!("its resourceVersion {version:?} is not a number, so it gives no tokens")
        })?;
        // The server keeps them; they are large.
        lease.metadata.managed_fields = None;
        let annotations = lease.metadata.annotations.as_ref();
        let mut stored = match annotations.and_then(|all| all.get(RECORD)) {
            Some(text) => serde_json::from_str::<Stored>(text)
                .map_err(|error| format!("the annotation {RECORD}: {error}"))?,
            None => Stored::empty(),
        };
        if stored.form != FORM {
            let form = stored.form;
            return Err(format!(
                "the annotation {RECORD} has form {form}; this version knows {FORM}"
            ));
        }
        let spec = lease.spec.get_or_insert_default();
        let (mut foreign, mut touched) = (None, None);
        if stored.beside != Beside::of(spec) {
            // Another client has written since: earlier holders do not hold the key now.
            stored.held.clear();
            stored.closed = None;
            foreign = Foreign::of(spec);
            touched = Some(print(spec));
        }
        stored.settle(version);
        Ok(Self { lease, version, stored, foreign, touched })
    }

    /// The field by which something else decides who gets the Lease: the controller of coordinated leader election.
    pub(crate) fn managed_by(&self) -> Option<String> {
        let spec = self.lease.spec.as_ref()?;
        let field = |name: &str, value: &Option<String>| {
            value.as_deref().filter(|v| !v.is_empty()).map(|v| format!("spec.{name} is {v:?}"))
        };
        field("strategy", &spec.strategy)
            .or_else(|| field("preferredHolder", &spec.preferred_holder))
    }

    pub(crate) fn name(&self) -> &str {
        self.lease.metadata.name.as_deref().unwrap_or_default()
    }

    /// As [`key_of`] says.
    pub(crate) fn key(&self) -> Option<&str> {
        key_of(&self.lease)
    }

    /// A holder, and the longest time for which the holders may rely on the object as it is.
    pub(crate) fn holder(&self) -> Option<(Holder, Duration)> {
        let ours =
            self.stored.held.iter().map(|part| (Holder::from_stored(&part.holder), part.ttl()));
        let theirs = self
            .foreign
            .iter()
            .filter_map(|foreign| Some((Holder::new(&*foreign.identity), foreign.duration?)));
        ours.chain(theirs).max_by_key(|(_, ttl)| *ttl)
    }

    pub(crate) fn token_of(&self, id: ClaimId) -> Option<u64> {
        self.stored.held.iter().find(|part| part.id == id).map(|part| part.token)
    }

    /// The record, with all times on the boot clock of this process.
    pub(crate) fn record(
        &self,
        sight: &Sight,
        now: Moment,
        wall: Duration,
        time: ServerTime,
    ) -> Record {
        let lease = now.since(Moment::from_nanos(0));
        let since = |id| sight.since(Slot::Claim(id), now);
        // When another kind of client took the key, renewed its hold, or released it.
        let touched = self.touched.map_or(Duration::ZERO, |_| sight.since(Slot::Touched, now));
        let asked = |part: &Part| {
            let age = wall.saturating_sub(Duration::from_millis(part.asked_ms));
            (part.asked_ms > 0).then(|| lease.saturating_sub(age))
        };
        let mut held: Vec<Member> = Vec::new();
        held.extend(self.foreign.iter().map(|foreign| Member {
            id: FOREIGN,
            mode: Mode::Exclusive,
            token: 0,
            expires: touched.saturating_add(foreign.duration.unwrap_or(Duration::MAX)),
            asked: None,
            holder: Holder::new(&*foreign.identity),
            tag: FOREIGN_TAG,
        }));
        held.extend(self.stored.held.iter().map(|part| Member {
            id: part.id,
            mode: part.mode,
            token: part.token,
            expires: since(part.id).saturating_add(part.ttl()),
            asked: asked(part),
            holder: Holder::from_stored(&part.holder),
            tag: 0,
        }));
        let closed = self.stored.closed.as_ref();
        let closed_until = closed.map_or(Duration::ZERO, |closed| {
            let seen = sight.since(Slot::Closed, now) + Duration::from_millis(closed.for_ms);
            let told = time.until(Duration::from_millis(closed.until_ms), now);
            told.map_or(seen, |left| seen.min(lease.saturating_add(left)))
        });
        let by = closed.and_then(|closed| closed.by.as_deref());
        // A key whose holders have ended calls as one that they have released.
        let ends = held.iter().map(|member| member.expires).chain([closed_until]);
        let busy_until = ends.fold(touched, Duration::max);
        let place_ends = |part: &Part| {
            let since = since(part.id);
            match part.rests(self.stored.calls) {
                true => since
                    .max(busy_until)
                    .saturating_add(part.ttl())
                    .min(since.saturating_add(longest_rest(part.ttl()))),
                false => since.saturating_add(part.ttl()),
            }
        };
        let queue = self.stored.queue.iter().map(|part| Waiter {
            id: part.id,
            mode: part.mode,
            order: if part.barges { Order::Barging } else { Order::Fifo },
            expires: place_ends(part),
            asked: asked(part),
            holder: Holder::from_stored(&part.holder),
            tag: 0,
            told: false,
            beside: part.beside,
        });
        Record {
            held,
            queue: queue.collect(),
            token: self.stored.token,
            closed_until,
            closed_by: by.map(Holder::from_stored),
            open_since: sight.since(Slot::Opened, now).max(touched),
        }
    }
}

/// The key of an object, as it says it. None for one of another kind of client with a name by hash.
pub(crate) fn key_of(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref();
    let noted = annotations.and_then(|all| all.get(KEY)).map(String::as_str);
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    if is_hashed(name) { noted } else { Some(name) }
}

/// For how long a place lasts that is not called: with one request for it in three fifths of that.
pub(crate) fn longest_rest(ttl: Duration) -> Duration {
    ttl.max(Duration::from_secs(10 * 60))
}

/// Whether a holder that is no client of Latchwork has the key.
pub(crate) fn is_foreign(record: &Record) -> bool {
    record.held.iter().any(|member| member.tag == FOREIGN_TAG)
}

/// The two times of a record: both the boot clock of this process.
pub(crate) fn times(now: Moment) -> Now {
    let lease = now.since(Moment::from_nanos(0));
    Now { lease, wall: lease }
}

impl Foreign {
    fn of(spec: &LeaseSpec) -> Option<Self> {
        let identity = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
        let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok());
        Some(Self { identity, duration: seconds.map(Duration::from_secs) })
    }
}

fn print(spec: &LeaseSpec) -> u64 {
    let mut print = DefaultHasher::new();
    let Beside { holder, renewed_us, transitions } = Beside::of(spec);
    (holder, renewed_us, transitions, spec.lease_duration_seconds).hash(&mut print);
    print.finish()
}

/// A change of an object: its record before and after, and what is needed to write it.
pub(crate) struct Change<'a> {
    pub(crate) base: Option<&'a Object>,
    pub(crate) name: &'a str,
    pub(crate) key: &'a str,
    pub(crate) before: &'a Record,
    pub(crate) after: &'a Record,
    /// The claims of this verb: what the record has of others is written as it was.
    pub(crate) claims: &'a [Claim],
    pub(crate) now: Moment,
    pub(crate) wall: Duration,
    pub(crate) time: ServerTime,
}

impl Change<'_> {
    /// Whether a claim comes in.
    pub(crate) fn adds(&self) -> bool {
        let (before, after) = (self.before, self.after);
        let was = |id| {
            before.held.iter().any(|was| was.id == id)
                || before.queue.iter().any(|was| was.id == id)
        };
        after.held.iter().any(|now| !was(now.id)) || after.queue.iter().any(|now| !was(now.id))
    }

    /// The object to write, and its record.
    pub(crate) fn lease(&self) -> (Lease, Stored) {
        let old = self.base.map_or_else(Stored::empty, |object| object.stored.clone());
        let mut new = old.clone();
        if self.after.open_since != self.before.open_since {
            new.opened = new.opened.wrapping_add(1);
        }
        let (before, after) = (self.before, self.after);
        let comes = |waiter: &Waiter| before.queue.iter().all(|was| was.id != waiter.id);
        let leaves = |member: &Member| after.held.iter().all(|stays| stays.id != member.id);
        let opens = before.held.iter().any(leaves)
            || before.closed_until > after.closed_until
            || self.base.is_some_and(|object| object.touched.is_some());
        if opens || after.queue.iter().any(comes) {
            new.calls = new.calls.wrapping_add(1);
        }
        (new.held, new.queue) = (self.held(&old), self.queue(&old, new.calls));
        new.token = new.held.iter().map(|part| part.token).fold(old.token, u64::max);
        new.closed = self.closed(&old);
        let mut lease = self.base.map(|object| object.lease.clone()).unwrap_or_default();
        let spec = lease.spec.get_or_insert_default();
        let beats = |parts: &[Part]| parts.iter().map(|p| (p.id, p.beat)).collect::<Vec<_>>();
        let foreign = self.base.is_some_and(|object| object.foreign.is_some());
        let is_new = spec.lease_duration_seconds.is_none();
        if foreign || is_new || beats(&new.held) != beats(&old.held) || new.closed != old.closed {
            self.show(spec, &new);
        }
        new.beside = Beside::of(spec);
        let meta = &mut lease.metadata;
        meta.name.get_or_insert_with(|| self.name.into());
        meta.labels.get_or_insert_default().insert(LABEL.into(), "true".into());
        let annotations = meta.annotations.get_or_insert_default();
        annotations.insert(KEY.into(), self.key.into());
        // A record that was read can be written.
        annotations.insert(RECORD.into(), serde_json::to_string(&new).unwrap_or_default());
        (lease, new)
    }

    fn held(&self, old: &Stored) -> Vec<Part> {
        let parts = self.after.held.iter().map(|member| {
            let was = self.before.held.iter().find(|before| before.id == member.id);
            let part = old.held.iter().chain(&old.queue).find(|part| part.id == member.id);
            let is_touched = was.is_none_or(|was| was.expires != member.expires);
            let mut part = self.part(member.id, part, is_touched, &member.holder);
            part.mode = member.mode;
            (part.heard, part.beside) = (None, None);
            match was {
                Some(_) => part.token = member.token,
                // The version of this very write.
                None => part.at_least = member.token,
            }
            part
        });
        parts.collect()
    }

    fn queue(&self, old: &Stored, calls: u64) -> Vec<Part> {
        let parts = self.after.queue.iter().map(|waiter| {
            let was = self.before.queue.iter().find(|before| before.id == waiter.id);
            let part = old.queue.iter().find(|part| part.id == waiter.id);
            let is_touched = was.is_none_or(|was| was.expires != waiter.expires);
            let mut part = self.part(waiter.id, part, is_touched, &waiter.holder);
            part.mode = waiter.mode;
            // A waiter that was there before and repeats its try is there for longer.
            if is_touched && was.is_some() {
                part.heard = Some(calls);
            }
            part.barges = waiter.order == Order::Barging;
            part.beside = waiter.beside;
            part
        });
        parts.collect()
    }

    /// A claim as it is written: with another beat if this verb has touched it.
    fn part(&self, id: ClaimId, old: Option<&Part>, is_touched: bool, holder: &Holder) -> Part {
        let claim = self.claims.iter().find(|claim| claim.id == id && is_touched);
        match (claim, old) {
            (Some(claim), old) => {
                let mut part = old.cloned().unwrap_or_else(|| Part::of(claim, self.wall));
                part.ttl_ms = millis(claim.ttl);
                // An id that comes again after its end must not look as if it had not changed.
                let first = || random_u128() as u64 >> 12;
                part.beat = old.map_or_else(first, |old| old.beat.wrapping_add(1));
                part.holder = holder.stored().into_owned();
                part
            }
            (None, Some(old)) => old.clone(),
            // A record has only claims that were in it, and those of the verb.
            (None, None) => unreachable!("a claim of nobody"),
        }
    }

    fn closed(&self, old: &Stored) -> Option<Closed> {
        let after = self.after.closed_until;
        let now = times(self.now).wall;
        if after <= now {
            return None;
        }
        if after == self.before.closed_until {
            return old.closed.clone();
        }
        let length = after - now;
        let server = self.time.latest(self.now).unwrap_or(self.wall);
        Some(Closed {
            for_ms: millis(length),
            until_ms: millis(server.saturating_add(length)),
            number: random_u128() as u64 >> 12,
            by: self.after.closed_by.as_ref().map(|holder| holder.stored().into_owned()),
        })
    }

    /// Writes the fields that all clients read, as client-go does.
    fn show(&self, spec: &mut LeaseSpec, new: &Stored) {
        let now = timestamp(self.wall);
        let was = spec.holder_identity.clone().unwrap_or_default();
        let (identity, seconds) = match (self.after.held.first(), &new.closed) {
            (Some(first), _) => {
                let longest = new.held.iter().map(Part::ttl).max().unwrap_or_default();
                (identity(first, new.held.len()), seconds(longest))
            }
            (None, Some(closed)) => {
                let by = closed.by.as_deref().map(Holder::from_stored);
                let by = by.map_or(String::new(), |by| format!(" by {}", by.shown()));
                (
                    shortened(&format!("latchwork: closed{by}")),
                    seconds(Duration::from_millis(closed.for_ms)),
                )
            }
            (None, None) => (String::new(), 1),
        };
        if !identity.is_empty() && identity != was {
            spec.acquire_time = Some(MicroTime(now));
            let past = spec.lease_transitions.unwrap_or_default();
            let next =
                if spec.lease_duration_seconds.is_some() { past.wrapping_add(1) } else { past };
            spec.lease_transitions = Some(next.max(0));
        }
        let last = spec.renew_time.as_ref().map(|time| time.0);
        let is_same = last.is_some_and(|last| last.as_microsecond() == now.as_microsecond());
        let now = if is_same { timestamp(self.wall + Duration::from_micros(1)) } else { now };
        spec.renew_time = Some(MicroTime(now));
        spec.holder_identity = Some(identity);
        spec.lease_duration_seconds = Some(seconds);
    }
}

/// The text that `kubectl get lease` shows. The start of the id tells a client from one of another kind that is
/// called the same: that one would take itself for the holder.
fn identity(member: &Member, holders: usize) -> String {
    let id = member.id.to_string();
    let text = shortened(&member.holder.shown());
    match holders {
        0 | 1 => format!("{text} [{}]", &id[..8]),
        more => format!("{text} [{}] and {} more", &id[..8], more - 1),
    }
}

fn shortened(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_IDENTITY).collect()
}

/// Whole seconds, and not less than the duration: at least one, as Kubernetes asks.
fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i32::MAX).max(1)
}

fn timestamp(wall: Duration) -> Timestamp {
    let micros = i64::try_from(wall.as_micros()).unwrap_or_default();
    Timestamp::from_microsecond(micros).unwrap_or_default()
}

#[cfg(test)]
mod tests;

//! The watches of a member, and the claims that each one notifies.
//!
//! A watch is kept for a while when nobody listens any more: a client that waits for a lock repeatedly
//! stands behind the same place each time, and under the same name itself. A watch that was open
//! before a place was taken has missed nothing of it, so it saves a look as well.
//!
//! A process may hold many thousands of keys, and has to learn nothing of them but their end. So
//! a holder has an entry here, and neither a task nor a channel.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroI64;
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender as Teller;
use latchwork_store::{ClaimId, Moment};
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::shrink;

/// How long a watch to which nobody listens is kept.
const REST: Duration = Duration::from_millis(250);
/// How many of them are kept.
const MOST: usize = 64;

/// What a watch tells. When it ends without a word, the member has ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Nothing is missed that came after this revision.
    Open { since: i64 },
    /// These keys are gone.
    Gone(Vec<Gone>),
}

/// Who listens to a watch.
pub(crate) enum Ear {
    /// Receives every notice.
    Notices(Teller<Notice>),
    /// Receives a hint at any change, puts as well.
    Hints(Hints),
}

/// Sends one hint at a time: those that nobody has taken yet are one.
pub(crate) type Hints = tokio::sync::mpsc::Sender<Hint>;

/// What an observer of a queue receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hint;

impl Ear {
    fn tell(&self, notice: &Notice) {
        // Nobody hears it if the listener has left meanwhile; one hint that waits is enough.
        match self {
            Ear::Notices(teller) => drop(teller.unbounded_send(notice.clone())),
            Ear::Hints(hints) => drop(hints.try_send(Hint)),
        }
    }
}

/// Which part of the store a watch is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    Key,
    Range,
    /// A range, with the keys that are put into it.
    Puts,
}

/// A key that was deleted, by hand or with its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) key: Vec<u8>,
    pub(crate) at: i64,
}

impl Gone {
    /// Whether this ended the key that was created at `revision`: a lease that is used again gives
    /// its next claim the same name, and a member may be behind.
    pub(crate) fn ended(&self, key: &[u8], revision: i64) -> bool {
        self.key == key && self.at > revision
    }
}

/// A claim that holds the key that is watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Holder {
    pub(crate) listener: NonZeroI64,
    pub(crate) claim: ClaimId,
    /// The create revision of its key.
    pub(crate) revision: NonZeroI64,
}

/// A report on the watches of holders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Word {
    /// The key of this claim is gone.
    Gone(ClaimId),
    /// The watch of this claim was opened after its key was created; nothing came of what went
    /// before.
    Late(ClaimId),
    /// These claims are watched no more: the member has ended their watches.
    Ended(Vec<ClaimId>),
}

/// The first key and the end of a range; without an end it is one key.
type Range = (Vec<u8>, Vec<u8>);

/// One watch. There is one for each key that is held, so it is kept small.
struct Served {
    /// Its key, or the first one of its range.
    key: Box<[u8]>,
    scope: Scope,
    /// The revision that its confirmation told.
    since: Option<NonZeroI64>,
    /// When its one key ended for the last time, or any key of its range.
    last: Option<NonZeroI64>,
    /// The holder of its one key.
    holder: Option<Holder>,
    listeners: Vec<(i64, Ear)>,
}

impl Served {
    fn is_idle(&self) -> bool {
        self.listeners.is_empty() && self.holder.is_none()
    }
}

/// The watches of one stream.
pub(crate) struct Watchers {
    out: UnboundedSender<WatchRequest>,
    to_holders: Box<dyn Fn(Word) + Send>,
    /// Boxed, for a map has room for up to twice as many as are in it.
    watches: HashMap<i64, Box<Served>>,
    /// The watch of each listener that has come to one of another.
    of_guest: HashMap<i64, i64>,
    /// The watch of each key, and of each queue, by its hash: the name itself is kept once. Where two
    /// had the same hash, the one that came first would not be found, and be watched twice.
    of_key: HashMap<u64, i64>,
    hashes: RandomState,
    /// Which watches the member has been asked for and has not confirmed, in the order of the
    /// requests, in which it answers.
    opening: VecDeque<i64>,
    /// To which watches nobody listens, and since when; the oldest first.
    idle: VecDeque<(Moment, i64)>,
}

impl Watchers {
    /// Sends its requests to `out`.
    pub(crate) fn new(
        out: UnboundedSender<WatchRequest>,
        to_holders: impl Fn(Word) + Send + 'static,
    ) -> Self {
        Self {
            out,
            to_holders: Box::new(to_holders),
            watches: HashMap::new(),
            of_guest: HashMap::new(),
            of_key: HashMap::new(),
            hashes: RandomState::new(),
            opening: VecDeque::new(),
            idle: VecDeque::new(),
        }
    }

    /// Lets somebody listen; the watch begins at the member's present revision, for what begins in
    /// the past is served late. Its number is that of the listener, which is not 0: then the member
    /// would choose one.
    pub(crate) fn open(&mut self, listener: i64, range: Range, notices: Teller<Notice>) {
        let scope = if range.1.is_empty() { Scope::Key } else { Scope::Range };
        let served = self.watch(listener, range, scope);
        let ear = Ear::Notices(notices);
        let last = served.last.filter(|_| scope == Scope::Range);
        if let Some(since) = served.since {
            // Of a queue it is not known what ended, but when.
            ear.tell(&Notice::Open { since: since.max(last.unwrap_or(since)).get() });
        }
        if let Some(at) = served.last.filter(|_| scope == Scope::Key) {
            let gone = Gone { key: served.key.to_vec(), at: at.get() };
            ear.tell(&Notice::Gone(vec![gone]));
        }
        served.listeners.push((listener, ear));
    }

    /// As [`Self::open`], for an observer: the first hint says that the watch is open.
    pub(crate) fn observe(&mut self, listener: i64, range: Range, hints: Hints) {
        let served = self.watch(listener, range, Scope::Puts);
        let ear = Ear::Hints(hints);
        if let Some(since) = served.since {
            ear.tell(&Notice::Open { since: since.get() });
        }
        served.listeners.push((listener, ear));
    }

    /// As [`Self::open`], for the holder of a key, which was seen since the watch was opened, or was
    /// not.
    pub(crate) fn hold(&mut self, key: Vec<u8>, holder: Holder, was_seen: bool) {
        let served = self.watch(holder.listener.get(), (key, Vec::new()), Scope::Key);
        // A key has one holder at a time, and the next one comes when the last one has left.
        served.holder = Some(holder);
        let is_late = served.since.is_some_and(|since| since > holder.revision);
        if served.last.is_some_and(|at| at > holder.revision) {
            (self.to_holders)(Word::Gone(holder.claim));
        } else if is_late && !was_seen {
            (self.to_holders)(Word::Late(holder.claim));
        }
    }

    /// The watch of this range, for this listener. The end of a range follows from its first key.
    fn watch(&mut self, listener: i64, (key, range_end): Range, scope: Scope) -> &mut Served {
        let hash = self.hashes.hash_one((&*key, scope));
        let known = self.of_key.get(&hash).copied().filter(|id| {
            let served = self.watches.get(id);
            served.is_some_and(|served| *served.key == *key && served.scope == scope)
        });
        if let Some(id) = known {
            self.idle.retain(|(_, idle)| *idle != id);
            self.of_guest.insert(listener, id);
        } else {
            self.of_key.insert(hash, listener);
            self.opening.push_back(listener);
            self.send(RequestUnion::CreateRequest(WatchCreateRequest {
                key: key.clone(),
                range_end,
                start_revision: 0,
                progress_notify: false,
                filters: match scope {
                    Scope::Puts => Vec::new(),
                    Scope::Key | Scope::Range => vec![FilterType::Noput as i32],
                },
                watch_id: listener,
            }));
        }
        self.watches.entry(known.unwrap_or(listener)).or_insert_with(|| {
            let (key, listeners) = (key.into(), Vec::new());
            Box::new(Served { key, scope, since: None, last: None, holder: None, listeners })
        })
    }

    /// Whether nothing is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.watches.is_empty()
    }

    /// Somebody listens no more.
    pub(crate) fn close(&mut self, listener: i64, now: Moment) {
        let id = self.of_guest.remove(&listener).unwrap_or(listener);
        let Some(served) = self.watches.get_mut(&id) else { return };
        served.listeners.retain(|(other, _)| *other != listener);
        served.holder = served.holder.filter(|other| other.listener.get() != listener);
        if !served.is_idle() {
            return;
        }
        if served.scope != Scope::Key {
            return self.end(id);
        }
        self.idle.push_back((now, id));
        if self.idle.len() > MOST
            && let Some((_, oldest)) = self.idle.pop_front()
        {
            self.end(oldest);
        }
    }

    /// Ends what nobody has listened to for long.
    pub(crate) fn sweep(&mut self, now: Moment) {
        while self.next_sweep() <= now
            && let Some((_, id)) = self.idle.pop_front()
        {
            self.end(id);
        }
    }

    /// When there is something to sweep.
    pub(crate) fn next_sweep(&self) -> Moment {
        self.idle.front().map_or(Moment::NEVER, |(since, _)| since.plus(REST))
    }

    fn end(&mut self, id: i64) {
        self.forget(id);
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id }));
    }

    /// Drops a watch, which notifies its listeners, and notifies its holder.
    fn forget(&mut self, id: i64) {
        let Some(served) = self.watches.remove(&id) else { return };
        shrink::give_back(&mut self.watches);
        let hash = self.hashes.hash_one((&*served.key, served.scope));
        if self.of_key.get(&hash) == Some(&id) {
            self.of_key.remove(&hash);
            shrink::give_back(&mut self.of_key);
        }
        self.idle.retain(|(_, idle)| *idle != id);
        if let Some(holder) = served.holder {
            self.of_guest.remove(&holder.listener.get());
            (self.to_holders)(Word::Ended(vec![holder.claim]));
        }
        for (listener, _) in served.listeners {
            self.of_guest.remove(&listener);
        }
    }

    /// Notifies the holders that the stream is broken; being dropped notifies all others.
    pub(crate) fn broken(&self) {
        let holders = self.watches.values().filter_map(|served| served.holder);
        let claims: Vec<_> = holders.map(|holder| holder.claim).collect();
        if !claims.is_empty() {
            (self.to_holders)(Word::Ended(claims));
        }
    }

    fn send(&self, request: RequestUnion) {
        // It fails only if the stream is broken; then all watches end.
        let _ = self.out.send(WatchRequest { request_union: Some(request) });
    }

    /// Whether this confirms a watch by a number that nobody has asked for: `etcd grpc-proxy` counts
    /// the watches of a stream by itself.
    pub(crate) fn is_of_a_front(&self, answer: &WatchResponse) -> bool {
        answer.created && answer.watch_id >= 0 && !self.opening.contains(&answer.watch_id)
    }

    /// The watch that an answer to a request for one is about: from 3.5 on a member does not say
    /// which one it refuses, and it answers in the order of the requests.
    fn confirmed(&mut self, id: i64) -> i64 {
        let at = self.opening.iter().position(|opening| id < 0 || *opening == id);
        at.and_then(|at| self.opening.remove(at)).unwrap_or(id)
    }

    /// Passes on what the member says.
    pub(crate) fn tell(&mut self, answer: WatchResponse) {
        let id = match answer.created {
            true => self.confirmed(answer.watch_id),
            false => answer.watch_id,
        };
        if answer.canceled {
            return self.forget(id);
        }
        let Some(served) = self.watches.get_mut(&id) else { return };
        let tell = |served: &Served, notice: Notice| {
            served.listeners.iter().for_each(|(_, ear)| ear.tell(&notice));
        };
        if answer.created {
            let since = answer.header.as_ref().map_or(i64::MAX, |header| header.revision);
            served.since = NonZeroI64::new(since);
            tell(served, Notice::Open { since });
            if let Some(holder) = served.holder.filter(|holder| since > holder.revision.get()) {
                (self.to_holders)(Word::Late(holder.claim));
            }
        }
        if served.scope == Scope::Puts {
            if !answer.events.is_empty() {
                tell(served, Notice::Gone(Vec::new()));
            }
            return;
        }
        let deleted =
            answer.events.into_iter().filter(|event| event.r#type == EventType::Delete as i32);
        let gone: Vec<_> = deleted
            .filter_map(|event| event.kv.map(|kv| Gone { key: kv.key, at: kv.mod_revision }))
            .collect();
        let Some(last) = gone.last() else { return };
        served.last = NonZeroI64::new(last.at);
        if let Some(holder) = served.holder
            && gone.iter().any(|gone| gone.ended(&served.key, holder.revision.get()))
        {
            (self.to_holders)(Word::Gone(holder.claim));
        }
        if !served.listeners.is_empty() {
            tell(served, Notice::Gone(gone));
        }
    }
}

#[cfg(test)]
mod tests;

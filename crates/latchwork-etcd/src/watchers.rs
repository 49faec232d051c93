//! Which watches a member has, and who is told of what.
//!
//! A watch is kept for a while when nobody listens any more: whoever waits for a lock again and again
//! stands behind the same place each time, and under the same name itself. A watch that was open
//! before a place was taken has missed nothing of it, so it saves a look as well.
//!
//! A process may hold many thousands of keys, and nothing but an end of one has to be told of it. So
//! a holder has an entry here, and neither a task nor a channel.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroI64;
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender as Teller;
use latchwork_core::{ClaimId, Moment};
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};
use crate::room;

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

/// What is told of the watches of holders.
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
    /// Its one key; empty if it is of a range.
    key: Box<[u8]>,
    /// The revision that its confirmation told.
    since: Option<NonZeroI64>,
    /// When its one key ended for the last time.
    last: Option<NonZeroI64>,
    /// Who holds its one key.
    holder: Option<Holder>,
    listeners: Vec<(i64, Teller<Notice>)>,
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
    /// The watch of each key, by its hash: the name itself is kept once. Where two keys had the same
    /// hash, the one that came first would not be found, and be watched twice.
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
        let served = self.watch(listener, range);
        // Nobody hears it if the listener has left meanwhile.
        if let Some(since) = served.since {
            let _ = notices.unbounded_send(Notice::Open { since: since.get() });
        }
        if let Some(at) = &served.last {
            let gone = Gone { key: served.key.to_vec(), at: at.get() };
            let _ = notices.unbounded_send(Notice::Gone(vec![gone]));
        }
        served.listeners.push((listener, notices));
    }

    /// As [`Self::open`], for the holder of a key.
    pub(crate) fn hold(&mut self, key: Vec<u8>, holder: Holder) {
        let served = self.watch(holder.listener.get(), (key, Vec::new()));
        // A key has one holder at a time, and the next one comes when the last one has left.
        served.holder = Some(holder);
        let is_late = served.since.is_some_and(|since| since > holder.revision);
        if served.last.is_some_and(|at| at > holder.revision) {
            (self.to_holders)(Word::Gone(holder.claim));
        } else if is_late {
            (self.to_holders)(Word::Late(holder.claim));
        }
    }

    /// The watch of this range, for this listener.
    fn watch(&mut self, listener: i64, (key, range_end): Range) -> &mut Served {
        let hash = range_end.is_empty().then(|| self.hashes.hash_one(&key));
        let known = hash.and_then(|hash| self.of_key.get(&hash)).copied();
        let known =
            known.filter(|id| self.watches.get(id).is_some_and(|served| *served.key == *key));
        if let Some(id) = known {
            self.idle.retain(|(_, idle)| *idle != id);
            self.of_guest.insert(listener, id);
        } else {
            if let Some(hash) = hash {
                self.of_key.insert(hash, listener);
            }
            self.opening.push_back(listener);
            self.send(RequestUnion::CreateRequest(WatchCreateRequest {
                key: key.clone(),
                range_end,
                start_revision: 0,
                progress_notify: false,
                filters: vec![FilterType::Noput as i32],
                watch_id: listener,
            }));
        }
        self.watches.entry(known.unwrap_or(listener)).or_insert_with(|| {
            let key = if hash.is_some() { key.into() } else { Box::default() };
            Box::new(Served { key, since: None, last: None, holder: None, listeners: Vec::new() })
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
        if served.key.is_empty() {
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

    /// Its listeners are told by that, and its holder is told.
    fn forget(&mut self, id: i64) {
        let Some(served) = self.watches.remove(&id) else { return };
        room::give_back(&mut self.watches);
        let hash = self.hashes.hash_one(&served.key);
        if self.of_key.get(&hash) == Some(&id) {
            self.of_key.remove(&hash);
            room::give_back(&mut self.of_key);
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

    /// The stream is broken: tells the holders, as all others are told by being dropped.
    pub(crate) fn broken(self) {
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
        // Nobody listens if the listener has left.
        let tell = |served: &Served, notice: Notice| {
            for (_, listener) in &served.listeners {
                let _ = listener.unbounded_send(notice.clone());
            }
        };
        if answer.created {
            let since = answer.header.as_ref().map_or(i64::MAX, |header| header.revision);
            served.since = NonZeroI64::new(since);
            tell(served, Notice::Open { since });
            if let Some(holder) = served.holder.filter(|holder| since > holder.revision.get()) {
                (self.to_holders)(Word::Late(holder.claim));
            }
        }
        let deleted =
            answer.events.into_iter().filter(|event| event.r#type == EventType::Delete as i32);
        let gone: Vec<_> = deleted
            .filter_map(|event| event.kv.map(|kv| Gone { key: kv.key, at: kv.mod_revision }))
            .collect();
        let Some(last) = gone.last() else { return };
        if !served.key.is_empty() {
            served.last = NonZeroI64::new(last.at);
        }
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
mod tests {
    use futures_channel::mpsc::TryRecvError;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::proto::{Event, KeyValue, ResponseHeader};

    struct Member {
        watchers: Watchers,
        requests: UnboundedReceiver<WatchRequest>,
        words: UnboundedReceiver<Word>,
    }

    impl Member {
        fn new() -> Self {
            let ((out, requests), (told, words)) = (unbounded_channel(), unbounded_channel());
            let watchers = Watchers::new(out, move |word| told.send(word).unwrap());
            Self { watchers, requests, words }
        }

        fn open(
            &mut self,
            listener: i64,
            key: &str,
            end: &str,
        ) -> futures_channel::mpsc::UnboundedReceiver<Notice> {
            let (notices, told) = futures_channel::mpsc::unbounded();
            self.watchers.open(listener, (key.into(), end.into()), notices);
            told
        }

        fn hold(&mut self, listener: i64, key: &str, claim: u128, revision: i64) {
            let of = |number| NonZeroI64::new(number).unwrap();
            let (claim, revision) = (ClaimId::from_u128(claim), of(revision));
            self.watchers.hold(key.into(), Holder { listener: of(listener), claim, revision });
        }

        /// What was told of the watches of holders.
        fn words(&mut self) -> Vec<Word> {
            std::iter::from_fn(|| self.words.try_recv().ok()).collect()
        }

        fn created(&mut self, watch_id: i64, canceled: bool, revision: i64) {
            let header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
            let created = true;
            let answer =
                WatchResponse { watch_id, canceled, created, header, ..WatchResponse::default() };
            self.watchers.tell(answer);
        }

        fn deleted(&mut self, watch_id: i64, key: &str, at: i64) {
            let kv = KeyValue { key: key.into(), mod_revision: at, ..KeyValue::default() };
            let r#type = EventType::Delete as i32;
            let events = vec![Event { r#type, kv: Some(kv) }];
            self.watchers.tell(WatchResponse { watch_id, events, ..WatchResponse::default() });
        }

        /// One letter for each request: o open, c cancel.
        fn asked(&mut self) -> String {
            let mut asked = String::new();
            while let Ok(request) = self.requests.try_recv() {
                asked.push(match request.request_union {
                    Some(RequestUnion::CreateRequest(_)) => 'o',
                    _ => 'c',
                });
            }
            asked
        }
    }

    fn gone(key: &str, at: i64) -> Gone {
        Gone { key: key.into(), at }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_refused_watch_ends_alone() {
        let mut member = Member::new();
        let (mut first, mut second, mut third) =
            (member.open(1, "a", ""), member.open(2, "b", ""), member.open(3, "c", ""));
        member.created(1, false, 7);
        member.created(-1, true, 7);
        member.created(3, false, 8);
        assert_eq!(first.try_recv(), Ok(Notice::Open { since: 7 }));
        assert_eq!(second.try_recv(), Err(TryRecvError::Closed));
        assert_eq!(third.try_recv(), Ok(Notice::Open { since: 8 }));
        assert!(member.watchers.opening.is_empty());
        drop(member.open(4, "b", ""));
        assert_eq!(member.asked(), "oooo", "it is asked for anew");
    }

    #[test]
    fn who_comes_back_finds_the_watch_and_what_it_has_seen() {
        let mut member = Member::new();
        let mut first = member.open(1, "a", "");
        member.created(1, false, 7);
        member.deleted(1, "a", 9);
        assert_eq!(first.try_recv(), Ok(Notice::Open { since: 7 }));
        assert_eq!(first.try_recv(), Ok(Notice::Gone(vec![gone("a", 9)])));
        member.watchers.close(1, at(0));
        member.deleted(1, "a", 12);
        let mut second = member.open(2, "a", "");
        assert_eq!(second.try_recv(), Ok(Notice::Open { since: 7 }));
        assert_eq!(second.try_recv(), Ok(Notice::Gone(vec![gone("a", 12)])));
        member.deleted(1, "a", 15);
        assert_eq!(second.try_recv(), Ok(Notice::Gone(vec![gone("a", 15)])));
        member.watchers.sweep(at(10_000));
        assert_eq!(member.asked(), "o", "somebody listens");
    }

    #[test]
    fn who_comes_before_the_confirmation_is_told_with_the_others() {
        let mut member = Member::new();
        let (mut first, mut second) = (member.open(1, "a", ""), member.open(2, "a", ""));
        assert_eq!(second.try_recv(), Err(TryRecvError::Empty));
        member.created(1, false, 7);
        assert_eq!(first.try_recv(), Ok(Notice::Open { since: 7 }));
        assert_eq!(second.try_recv(), Ok(Notice::Open { since: 7 }));
    }

    #[test]
    fn a_watch_is_kept_for_a_while_and_a_range_is_not() {
        let mut member = Member::new();
        drop((member.open(1, "a", ""), member.open(2, "a", ""), member.open(3, "a", "b")));
        member.watchers.close(3, at(0));
        assert_eq!(member.asked(), "ooc");
        member.watchers.close(1, at(0));
        assert_eq!(member.watchers.next_sweep(), Moment::NEVER, "one listens still");
        member.watchers.close(2, at(5));
        assert_eq!(member.watchers.next_sweep(), at(255));
        member.watchers.sweep(at(254));
        assert_eq!(member.asked(), "");
        member.watchers.sweep(at(255));
        assert_eq!((member.asked().as_str(), member.watchers.watches.len()), ("c", 0));
        assert!(member.watchers.of_key.is_empty() && member.watchers.of_guest.is_empty());
        for n in 0..=MOST as i64 {
            drop(member.open(10 + n, &format!("k{n}"), ""));
            member.watchers.close(10 + n, at(n as u64));
        }
        assert_eq!(member.watchers.watches.len(), MOST);
        assert!(!member.watchers.watches.contains_key(&10), "the oldest went");
        assert_eq!(member.watchers.of_key.len(), MOST);
    }

    const FIRST: ClaimId = ClaimId::from_u128(1);
    const SECOND: ClaimId = ClaimId::from_u128(2);

    #[test]
    fn a_holder_is_told_of_the_end_of_its_key_and_of_nothing_else() {
        let mut member = Member::new();
        member.hold(1, "a", 1, 7);
        member.hold(2, "b", 2, 8);
        member.created(1, false, 7);
        member.created(2, false, 8);
        member.deleted(1, "a", 5);
        assert_eq!(member.words(), [], "what ended was an older key of this name");
        member.deleted(1, "a", 9);
        assert_eq!(member.words(), [Word::Gone(FIRST)]);
        member.deleted(2, "b", 9);
        assert_eq!(member.words(), [Word::Gone(SECOND)]);
        assert_eq!(member.asked(), "oo");
    }

    #[test]
    fn a_holder_whose_watch_comes_late_is_told_so() {
        let mut member = Member::new();
        member.hold(1, "a", 1, 7);
        member.created(1, false, 8);
        assert_eq!(member.words(), [Word::Late(FIRST)]);
        // And so is who comes to a watch that others have had opened.
        drop(member.open(2, "b", ""));
        member.created(2, false, 8);
        member.hold(3, "b", 2, 7);
        assert_eq!(member.words(), [Word::Late(SECOND)]);
        member.watchers.close(3, at(0));
        member.hold(4, "b", 2, 8);
        assert_eq!(member.words(), [], "that was there before its key");
        member.watchers.close(4, at(0));
        member.deleted(2, "b", 12);
        member.hold(5, "b", 2, 9);
        assert_eq!(member.words(), [Word::Gone(SECOND)]);
        member.watchers.close(5, at(0));
        member.hold(6, "b", 1, 13);
        assert_eq!(member.words(), [], "what ended was an older one");
    }

    #[test]
    fn whoever_holds_no_more_is_told_of_nothing_and_leaves_nothing() {
        let mut member = Member::new();
        for n in 1..=1_000 {
            member.hold(n, &format!("k{n}"), 1, 7);
            member.created(n, false, 7);
        }
        // The second is kept by a waiter of the same process, whose place the first one was.
        let mut waiter = member.open(2_000, "k2", "");
        for n in 1..=1_000 {
            member.watchers.close(n, at(0));
            member.deleted(n, &format!("k{n}"), 9);
        }
        assert_eq!(waiter.try_recv(), Ok(Notice::Open { since: 7 }));
        assert_eq!(waiter.try_recv(), Ok(Notice::Gone(vec![gone("k2", 9)])));
        assert_eq!(member.watchers.idle.len(), MOST);
        member.watchers.close(2_000, at(5));
        member.watchers.sweep(at(1_000));
        assert_eq!(member.words(), []);
        let left = &member.watchers;
        assert_eq!((left.watches.len(), left.of_key.len(), left.of_guest.len()), (0, 0, 0));
        assert!(left.watches.capacity() < 1_000, "{}", left.watches.capacity());
        assert_eq!(member.asked(), "o".repeat(1_000) + &"c".repeat(1_000));
    }

    #[test]
    fn the_holders_of_watches_that_ended_are_told() {
        let mut member = Member::new();
        member.hold(1, "a", 1, 7);
        member.hold(2, "b", 2, 8);
        member.hold(3, "c", 3, 9);
        member.created(-1, true, 7);
        assert_eq!(member.words(), [Word::Ended(vec![FIRST])], "this one was refused");
        member.created(2, false, 8);
        member.watchers.close(3, at(0));
        let Member { watchers, mut words, .. } = member;
        watchers.broken();
        assert_eq!(words.try_recv(), Ok(Word::Ended(vec![SECOND])));
        assert!(words.try_recv().is_err());
    }

    #[test]
    fn an_older_key_of_the_same_name_ended_nothing() {
        assert!(gone("k/5", 9).ended(b"k/5", 8));
        assert!(!gone("k/5", 9).ended(b"k/5", 9), "created since");
        assert!(!gone("k/5", 9).ended(b"k/5", 12), "created since");
        assert!(!gone("k/5", 9).ended(b"k/6", 8));
    }
}

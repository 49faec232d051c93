//! Which watches a member has, and who is told of what.
//!
//! A watch is kept for a while when nobody listens any more: whoever waits for a lock again and again
//! stands behind the same place each time, and under the same name itself. A watch that was open
//! before a place was taken has missed nothing of it, so it saves a look as well.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_channel::mpsc::UnboundedSender as Teller;
use latchwork_core::Moment;
use tokio::sync::mpsc::UnboundedSender;

use crate::proto::event::EventType;
use crate::proto::watch_create_request::FilterType;
use crate::proto::watch_request::RequestUnion;
use crate::proto::{WatchCancelRequest, WatchCreateRequest, WatchRequest, WatchResponse};

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

/// The first key and the end of a range; without an end it is one key.
type Range = (Vec<u8>, Vec<u8>);

struct Served {
    range: Range,
    /// The revision that its confirmation told.
    since: Option<i64>,
    /// The last end of its one key.
    last: Option<Gone>,
    listeners: Vec<(i64, Teller<Notice>)>,
    idle_since: Moment,
}

/// The watches of one stream.
pub(crate) struct Watchers {
    out: UnboundedSender<WatchRequest>,
    watches: HashMap<i64, Served>,
    of_listener: HashMap<i64, i64>,
    of_key: HashMap<Vec<u8>, i64>,
    /// Which watches the member has been asked for and has not confirmed, in the order of the
    /// requests, in which it answers.
    opening: VecDeque<i64>,
}

impl Watchers {
    /// Sends its requests to `out`.
    pub(crate) fn new(out: UnboundedSender<WatchRequest>) -> Self {
        Self {
            out,
            watches: HashMap::new(),
            of_listener: HashMap::new(),
            of_key: HashMap::new(),
            opening: VecDeque::new(),
        }
    }

    /// Lets somebody listen; the watch begins at the member's present revision, for what begins in
    /// the past is served late. Its number is that of the listener, which is not 0: then the member
    /// would choose one.
    pub(crate) fn open(&mut self, listener: i64, range: Range, notices: Teller<Notice>) {
        let known = self.of_key.get(&range.0).filter(|_| range.1.is_empty()).copied();
        if let Some((id, served)) = known.and_then(|id| Some((id, self.watches.get_mut(&id)?))) {
            // Nobody hears it if the listener has left meanwhile.
            if let Some(since) = served.since {
                let _ = notices.unbounded_send(Notice::Open { since });
            }
            if let Some(gone) = &served.last {
                let _ = notices.unbounded_send(Notice::Gone(vec![gone.clone()]));
            }
            served.listeners.push((listener, notices));
            self.of_listener.insert(listener, id);
            return;
        }
        let (key, range_end) = range.clone();
        if range_end.is_empty() {
            self.of_key.insert(key.clone(), listener);
        }
        let listeners = vec![(listener, notices)];
        let served =
            Served { range, since: None, last: None, listeners, idle_since: Moment::NEVER };
        self.watches.insert(listener, served);
        self.of_listener.insert(listener, listener);
        self.opening.push_back(listener);
        self.send(RequestUnion::CreateRequest(WatchCreateRequest {
            key,
            range_end,
            start_revision: 0,
            progress_notify: false,
            filters: vec![FilterType::Noput as i32],
            watch_id: listener,
        }));
    }

    /// Somebody listens no more.
    pub(crate) fn close(&mut self, listener: i64, now: Moment) {
        let Some(id) = self.of_listener.remove(&listener) else { return };
        let Some(served) = self.watches.get_mut(&id) else { return };
        served.listeners.retain(|(other, _)| *other != listener);
        if !served.listeners.is_empty() {
            return;
        }
        served.idle_since = now;
        let of_range = !served.range.1.is_empty();
        if of_range {
            self.end(id);
        } else if self.idle().count() > MOST
            && let Some((_, oldest)) = self.idle().min()
        {
            self.end(oldest);
        }
    }

    /// Ends what nobody has listened to for long.
    pub(crate) fn sweep(&mut self, now: Moment) {
        let over: Vec<i64> =
            self.idle().filter(|(since, _)| since.plus(REST) <= now).map(|(_, id)| id).collect();
        over.into_iter().for_each(|id| self.end(id));
    }

    /// When there is something to sweep.
    pub(crate) fn next_sweep(&self) -> Moment {
        self.idle().map(|(since, _)| since.plus(REST)).min().unwrap_or(Moment::NEVER)
    }

    fn idle(&self) -> impl Iterator<Item = (Moment, i64)> {
        let idle = self.watches.iter().filter(|(_, served)| served.listeners.is_empty());
        idle.map(|(id, served)| (served.idle_since, *id))
    }

    fn end(&mut self, id: i64) {
        self.forget(id);
        self.send(RequestUnion::CancelRequest(WatchCancelRequest { watch_id: id }));
    }

    /// Its listeners are told by that.
    fn forget(&mut self, id: i64) {
        let Some(served) = self.watches.remove(&id) else { return };
        if self.of_key.get(&served.range.0) == Some(&id) {
            self.of_key.remove(&served.range.0);
        }
        for (listener, _) in served.listeners {
            self.of_listener.remove(&listener);
        }
    }

    fn send(&self, request: RequestUnion) {
        // It fails only if the stream is broken; then all watches end.
        let _ = self.out.send(WatchRequest { request_union: Some(request) });
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
            served.since = Some(since);
            tell(served, Notice::Open { since });
        }
        let deleted =
            answer.events.into_iter().filter(|event| event.r#type == EventType::Delete as i32);
        let gone: Vec<_> = deleted
            .filter_map(|event| event.kv.map(|kv| Gone { key: kv.key, at: kv.mod_revision }))
            .collect();
        let Some(last) = gone.last() else { return };
        if served.range.1.is_empty() {
            served.last = Some(last.clone());
        }
        tell(served, Notice::Gone(gone));
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
    }

    impl Member {
        fn new() -> Self {
            let (out, requests) = unbounded_channel();
            Self { watchers: Watchers::new(out), requests }
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
        assert!(member.watchers.of_key.is_empty() && member.watchers.of_listener.is_empty());
        for n in 0..=MOST as i64 {
            drop(member.open(10 + n, &format!("k{n}"), ""));
            member.watchers.close(10 + n, at(n as u64));
        }
        assert_eq!(member.watchers.watches.len(), MOST);
        assert!(!member.watchers.of_key.contains_key(&b"k0"[..]), "the oldest went");
    }

    #[test]
    fn an_older_key_of_the_same_name_ended_nothing() {
        assert!(gone("k/5", 9).ended(b"k/5", 8));
        assert!(!gone("k/5", 9).ended(b"k/5", 9), "created since");
        assert!(!gone("k/5", 9).ended(b"k/5", 12), "created since");
        assert!(!gone("k/5", 9).ended(b"k/6", 8));
    }
}

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
        self.watchers.hold(key.into(), Holder { listener: of(listener), claim, revision }, false);
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
fn a_returning_waiter_reuses_its_watch() {
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
fn early_watchers_are_confirmed_with_the_others() {
    let mut member = Member::new();
    let (mut first, mut second) = (member.open(1, "a", ""), member.open(2, "a", ""));
    assert_eq!(second.try_recv(), Err(TryRecvError::Empty));
    member.created(1, false, 7);
    assert_eq!(first.try_recv(), Ok(Notice::Open { since: 7 }));
    assert_eq!(second.try_recv(), Ok(Notice::Open { since: 7 }));
}

/// H107: thousands wait in one line, and the server tells each client of an end once.
#[test]
fn a_late_watcher_knows_the_revision_it_starts_from() {
    let mut member = Member::new();
    let mut first = member.open(1, "k/", "k0");
    member.created(1, false, 7);
    assert_eq!(first.try_recv(), Ok(Notice::Open { since: 7 }));
    let mut second = member.open(2, "k/", "k0");
    assert_eq!(second.try_recv(), Ok(Notice::Open { since: 7 }), "nothing has ended since");
    member.deleted(1, "k/a", 9);
    for listener in [&mut first, &mut second] {
        assert_eq!(listener.try_recv(), Ok(Notice::Gone(vec![gone("k/a", 9)])));
    }
    let mut third = member.open(3, "k/", "k0");
    assert_eq!(third.try_recv(), Ok(Notice::Open { since: 9 }));
    assert_eq!(member.asked(), "o");
    drop(member.open(4, "k/", ""));
    assert_eq!(member.asked(), "o", "that is one key");
    for listener in [1, 3, 2] {
        member.watchers.close(listener, at(0));
    }
    assert_eq!(member.asked(), "c");
}

#[test]
fn only_key_watches_are_cached() {
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
fn a_watch_reports_only_the_end_of_its_key() {
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
fn a_late_watch_reports_an_earlier_loss() {
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
fn an_ended_hold_gets_no_events_and_leaves_nothing() {
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
fn an_ended_watch_notifies_its_holders() {
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
fn deleting_an_older_key_ends_no_later_hold() {
    assert!(gone("k/5", 9).ended(b"k/5", 8));
    assert!(!gone("k/5", 9).ended(b"k/5", 9), "created since");
    assert!(!gone("k/5", 9).ended(b"k/5", 12), "created since");
    assert!(!gone("k/5", 9).ended(b"k/6", 8));
}

#[test]
fn observers_of_a_key_share_one_watch() {
    let mut member = Member::new();
    let range = || (b"a/".to_vec(), b"a0".to_vec());
    let (first, mut first_hints) = tokio::sync::mpsc::channel(1);
    let (second, mut second_hints) = tokio::sync::mpsc::channel(1);
    member.watchers.observe(1, range(), first);
    let created = member.requests.try_recv().unwrap().request_union;
    let Some(RequestUnion::CreateRequest(created)) = created else { panic!("{created:?}") };
    assert_eq!(created.filters, [0; 0], "a new leader is put");
    assert_eq!(first_hints.try_recv().ok(), None, "the watch is not open yet");
    member.created(1, false, 5);
    assert_eq!(first_hints.try_recv(), Ok(Hint));
    // A queue that is waited in is watched for deletions alone.
    let mut waiter = member.open(3, "a/", "a0");
    member.watchers.observe(2, range(), second);
    assert_eq!(second_hints.try_recv(), Ok(Hint), "it is open");
    assert_eq!(member.asked(), "o", "the waiter's own");
    let kv = KeyValue { key: b"a/1".to_vec(), mod_revision: 6, ..KeyValue::default() };
    let events = vec![Event { r#type: EventType::Put as i32, kv: Some(kv) }];
    member.watchers.tell(WatchResponse { watch_id: 1, events, ..WatchResponse::default() });
    for n in 7..10 {
        member.deleted(1, "a/1", n);
    }
    for hints in [&mut first_hints, &mut second_hints] {
        assert_eq!(hints.try_recv(), Ok(Hint));
        assert!(hints.try_recv().is_err(), "four changes are one hint");
    }
    assert!(waiter.try_recv().is_err());
    member.watchers.close(1, at(0));
    assert_eq!(member.asked(), "");
    member.watchers.close(2, at(0));
    assert_eq!(member.asked(), "c", "nobody observes any more");
    member.watchers.close(3, at(0));
    assert!(member.watchers.is_empty());
}

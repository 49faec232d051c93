//! Messages from the scripts of other processes, and the claims that wait for them.
//!
//! A message is a hint that a broken connection may lose, so waiters check by their own timers as well.
//! Two kinds come, both with the id of the claim they are for:
//!
//! - `g <id> <token> <ttl ms> <nonce> <us since the try> <lock>`: a release has granted the claim. The
//!   ttl is short, and the nonce is that of the try from which it counts.
//! - `l <id> <ms>`: check again after this long.
//!
//! An empty message comes to a process that hands a key on (`hand_on.lua` says why), and means nothing.
//!
//! Every client that may publish can send both. A grant counts only if it has the nonce of the claim's
//! last try: the process drew it, the store keeps it in the queue, and no message has it before the grant
//! itself. [`mailbox`] says how other messages are handled.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use latchwork_store::{ClaimId, Grant, Io, random_u128};
use latchwork_wire::mailbox;
use redis::{PushInfo, PushKind, Value};

use crate::lock;
use crate::protocol::message::{Message, Nonce};
use crate::server::inbox::Inbox;
use crate::server::link::LinkId;

/// A token is plausible if it is no further than this (in us) above the store's clock and all tokens in
/// the store's answers.
const AHEAD: u64 = 3_600_000_000;
/// The most claims that are remembered after their end.
const ENDED: usize = 4_096;

/// The claims of this process that wait, or that have waited and hold.
pub(crate) struct Pushes {
    /// The name of this process in its channels.
    pub(crate) process: String,
    boxes: Mutex<HashMap<ClaimId, Arc<Mailbox>>>,
    /// The last nonces of claims that ended while a grant could still come.
    ended: Mutex<VecDeque<(ClaimId, Nonce)>>,
    /// The largest time (us) or token in an answer of the store.
    told: AtomicU64,
    io: Io,
    unclaimed: OnceLock<Weak<dyn UnclaimedGrants>>,
}

/// Releases a grant to a claim that this process no longer knows.
pub(crate) trait UnclaimedGrants: Send + Sync {
    /// `lock` is the name of the key in the store.
    fn give_back(self: Arc<Self>, id: ClaimId, lock: String);
}

/// The marks of a try's grant: its nonce, and the connection on which messages for it come. A message on another
/// connection may follow messages that were lost.
pub(crate) type Sign = (Nonce, Option<LinkId>);
pub(crate) type ExpectedGrant = mailbox::ExpectedGrant<Sign>;

/// Where the messages for one claim wait for it.
pub(crate) struct Mailbox {
    /// The slot of the claim's key on Cluster.
    slot: Option<u16>,
    /// Since when the claim has asked, on the wall clock.
    pub(crate) since: Duration,
    /// When the claim joined the queue, by the server's clock (us), as the last answer said; -1 if none did.
    joined: AtomicI64,
    messages: mailbox::Mailbox<Sign>,
}

impl Deref for Mailbox {
    type Target = mailbox::Mailbox<Sign>;

    fn deref(&self) -> &Self::Target {
        &self.messages
    }
}

impl std::fmt::Debug for Pushes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pushes").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Pushes {
    pub(crate) fn new(io: Io) -> Arc<Self> {
        Arc::new(Self {
            process: format!("{:016x}", random_u128() as u64),
            boxes: Mutex::default(),
            ended: Mutex::default(),
            told: AtomicU64::new(0),
            io,
            unclaimed: OnceLock::new(),
        })
    }

    /// Sets the receiver of grants to claims that have ended.
    pub(crate) fn unclaimed_go_to(&self, taker: Weak<dyn UnclaimedGrants>) {
        let _ = self.unclaimed.set(taker);
    }

    /// Notes a token, or the store's time in microseconds, from an answer of the store.
    pub(crate) fn note(&self, told: u64) {
        self.told.fetch_max(told, Ordering::Relaxed);
    }

    /// The mailbox of a claim that is about to ask for a place; the same one each time.
    pub(crate) fn open(&self, id: ClaimId, slot: Option<u16>) -> Arc<Mailbox> {
        let since = self.io.clock().wall();
        let make = || Arc::new(Mailbox::new(slot, since));
        lock(&self.boxes).entry(id).or_insert_with(make).clone()
    }

    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<Mailbox>> {
        lock(&self.boxes).get(&id).cloned()
    }

    /// Closes the mailbox of a claim that has ended; returns whether there was one.
    pub(crate) fn close(&self, id: ClaimId) -> bool {
        let Some(mailbox) = lock(&self.boxes).remove(&id) else { return false };
        if let Some(ExpectedGrant { sign: (nonce, _), .. }) = mailbox.expected() {
            let mut ended = lock(&self.ended);
            if ended.len() == ENDED {
                ended.pop_front();
            }
            ended.push_back((id, nonce));
        }
        true
    }

    /// Whether this was to be the grant of a claim that has ended; true once.
    fn had_ended(&self, id: ClaimId, nonce: Nonce) -> bool {
        let mut ended = lock(&self.ended);
        let Some(at) = ended.iter().position(|one| *one == (id, nonce)) else { return false };
        ended.remove(at).is_some()
    }
}

impl Inbox for Pushes {
    fn deliver(&self, push: &PushInfo, from: LinkId) {
        if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            return;
        }
        let [_, Value::BulkString(text)] = &push.data[..] else { return };
        let Some(message) = std::str::from_utf8(text).ok().and_then(Message::parse) else { return };
        let now = self.io.now();
        let mailbox = self.find(message.id());
        match (message, mailbox) {
            (Message::Granted(granted), Some(mailbox)) => {
                let most = self.told.load(Ordering::Relaxed).saturating_add(AHEAD);
                // No store would give such a token, so the message is only a hint.
                if !(1..=most).contains(&granted.token) {
                    return mailbox.look_at(now);
                }
                let grant = Grant::new(granted.token, granted.ttl);
                mailbox.take((granted.nonce, Some(from)), grant, granted.since_try, now);
            }
            (Message::Granted(granted), None) => {
                let Some(taker) = self.unclaimed.get().and_then(Weak::upgrade) else { return };
                if self.had_ended(granted.id, granted.nonce) {
                    taker.give_back(granted.id, granted.lock.to_owned());
                }
            }
            (Message::Look { after, .. }, Some(mailbox)) => mailbox.look_at(now.plus(after)),
            (Message::Look { .. }, None) => {}
        }
    }

    /// Messages that come for the last tries of these claims may be copies by another client, so they do not count.
    fn check_again(&self, concerns: &dyn Fn(Option<u16>) -> bool) {
        let now = self.io.now();
        let boxes: Vec<_> = lock(&self.boxes).values().cloned().collect();
        for mailbox in boxes.iter().filter(|mailbox| concerns(mailbox.slot)) {
            mailbox.distrust(now);
        }
    }

    fn is_awaited(&self) -> bool {
        lock(&self.boxes).values().any(|mailbox| !mailbox.is_held())
    }
}

impl Mailbox {
    fn new(slot: Option<u16>, since: Duration) -> Self {
        let joined = AtomicI64::new(-1);
        Self { slot, since, joined, messages: mailbox::Mailbox::new() }
    }

    pub(crate) fn joined(&self) -> i64 {
        self.joined.load(Ordering::Relaxed)
    }

    pub(crate) fn has_joined(&self, at: i64) {
        self.joined.store(at, Ordering::Relaxed);
    }

    /// Whether messages for its last try can come on this connection.
    pub(crate) fn is_reachable_by(&self, link: LinkId) -> bool {
        self.expected().is_some_and(|expected| expected.sign.1 == Some(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use latchwork_store::{Moment, Stamp, Wake};

    #[test]
    fn hostile_messages_are_read_without_harm() {
        let (id, nonce) = (ClaimId::from_u128(7), Nonce::random());
        let samples = [
            format!("g {id} 1790000000000001 2000 {nonce} 42 shop:a lock"),
            format!("g {id} {0} {0} {nonce} {0} k", u64::MAX),
            format!("l {id} 1500"),
            format!("l {id} {}", u64::MAX),
        ];
        let samples: Vec<&[u8]> = samples.iter().map(String::as_bytes).collect();
        let driver = latchwork::Driver::start().unwrap();
        let pushes = Pushes::new(driver.io());
        let mailbox = pushes.open(id, None);
        latchwork_services::hostile::survives("messages", &samples, |bytes| {
            let stamp = Stamp::new(Moment::from_nanos(1));
            let longest = Duration::from_secs(2);
            let nonce = Nonce::random();
            mailbox.tries(ExpectedGrant { sign: (nonce, Some(1)), stamp, longest });
            let data = vec![Value::BulkString(b"c".to_vec()), Value::BulkString(bytes.to_vec())];
            pushes.deliver(&PushInfo { kind: PushKind::Message, data }, 1);
            assert!(!mailbox.is_admitted());
        });
    }

    /// H83: the first message with the nonce counts, on the connection where the process listened.
    #[test]
    fn h83_a_pushed_grant_counts_once_for_its_claim() {
        let driver = latchwork::Driver::start().unwrap();
        let pushes = Pushes::new(driver.io());
        let (id, nonce) = (ClaimId::from_u128(7), Nonce::random());
        let mailbox = pushes.open(id, None);
        let stamp = Stamp::new(Moment::from_nanos(5));
        let longest = Duration::from_secs(2);
        pushes.note(1_000);
        let says = |token: u64, from| {
            let text = format!("g {id} {token} 2000 {nonce} 42 k");
            let data = vec![Value::BulkString(b"c".to_vec()), Value::BulkString(text.into())];
            pushes.deliver(&PushInfo { kind: PushKind::Message, data }, from);
        };
        mailbox.tries(ExpectedGrant { sign: (nonce, Some(2)), stamp, longest });
        says(1_001, 1);
        assert!(!mailbox.is_admitted(), "from another connection");
        says(1_002, 2);
        says(1_003, 2);
        let wake = latchwork::block_on(mailbox.wait(&driver.io()));
        assert!(
            matches!(wake, Wake::Admitted { grant, stamp: of, .. } if (grant.token, of) == (1_002, stamp))
        );
        // After a message may have been lost, none with the same nonce is believed.
        mailbox.tries(ExpectedGrant { sign: (nonce, Some(2)), stamp, longest });
        pushes.check_again(&|_| true);
        says(1_004, 2);
        assert!(!mailbox.is_admitted());
    }
}

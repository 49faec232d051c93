//! Messages from the scripts of other processes, and the claims that wait for them.
//!
//! A message is a hint that a lost connection may swallow: whoever waits looks by itself as well.
//! Two kinds come, both with the id of the claim they are for:
//!
//! - `g <id> <token> <ttl ms> <stamp> <us since the try> <lock>`: the store has granted the claim
//!   by itself. The ttl is short, and the stamp is that of the try from which it counts.
//! - `l <id> <ms>`: looking pays, after this long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use latchwork_core::{ClaimId, Grant, Io, Moment, Stamp, Wake, random_u128};
use redis::{PushInfo, PushKind, Value};
use tokio::sync::Notify;

use crate::locked::lock;

/// The claims of this process that wait, or that have waited and hold.
pub(crate) struct Pushes {
    /// The name of this process in its channels.
    pub(crate) process: String,
    boxes: Mutex<HashMap<ClaimId, Arc<Mailbox>>>,
    io: Io,
    unclaimed: OnceLock<Weak<dyn Unclaimed>>,
}

/// Gives back what was granted to a claim that nobody here knows any more.
pub(crate) trait Unclaimed: Send + Sync {
    /// `lock` is what the key is called in the store.
    fn give_back(self: Arc<Self>, id: ClaimId, lock: String);
}

/// Where the messages for one claim wait for it.
#[derive(Default)]
pub(crate) struct Mailbox {
    /// The slot of the claim's key on Cluster.
    slot: Option<u16>,
    /// Since when the claim has asked, on the wall clock.
    pub(crate) since: Duration,
    mail: Mutex<Mail>,
    news: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Mail {
    /// It has been granted to the process otherwise, and only keeps its name known.
    held: bool,
    /// Its last try told the store where to reach it.
    reachable: bool,
    admitted: Option<Wake>,
    look_at: Option<Moment>,
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
            io,
            unclaimed: OnceLock::new(),
        })
    }

    /// Says who gives back what nobody claims.
    pub(crate) fn unclaimed_go_to(&self, taker: Weak<dyn Unclaimed>) {
        let _ = self.unclaimed.set(taker);
    }

    /// The mailbox of a claim that is about to ask for a place; the same one each time.
    pub(crate) fn open(&self, id: ClaimId, slot: Option<u16>) -> Arc<Mailbox> {
        let since = self.io.clock().wall();
        let make = || Arc::new(Mailbox { slot, since, ..Mailbox::default() });
        lock(&self.boxes).entry(id).or_insert_with(make).clone()
    }

    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<Mailbox>> {
        lock(&self.boxes).get(&id).cloned()
    }

    /// Closes the mailbox of a claim that has ended; tells whether there was one.
    pub(crate) fn close(&self, id: ClaimId) -> bool {
        lock(&self.boxes).remove(&id).is_some()
    }

    /// Whether any claim waits.
    pub(crate) fn is_awaited(&self) -> bool {
        lock(&self.boxes).values().any(|mailbox| !lock(&mailbox.mail).held)
    }

    /// Lets all who wait look: messages may have been lost.
    pub(crate) fn look_all(&self) {
        self.look(|_| true);
    }

    /// Lets those look who wait for a key of such a slot.
    pub(crate) fn look(&self, concerns: impl Fn(Option<u16>) -> bool) {
        let now = self.io.now();
        let boxes: Vec<_> = lock(&self.boxes).values().cloned().collect();
        for mailbox in boxes.iter().filter(|mailbox| concerns(mailbox.slot)) {
            mailbox.look_at(now);
        }
    }

    /// Takes a message from a connection. Called on the thread that reads it.
    pub(crate) fn deliver(&self, push: &PushInfo) {
        if !matches!(push.kind, PushKind::Message | PushKind::SMessage) {
            return;
        }
        let [_, Value::BulkString(text)] = &push.data[..] else { return };
        let Some(message) = std::str::from_utf8(text).ok().and_then(Message::parse) else { return };
        let mailbox = self.find(message.id());
        match (message, mailbox) {
            (Message::Granted { wake, .. }, Some(mailbox)) => mailbox.admit(wake),
            (Message::Granted { id, lock, .. }, None) => {
                if let Some(taker) = self.unclaimed.get().and_then(Weak::upgrade) {
                    taker.give_back(id, lock);
                }
            }
            (Message::Look { after, .. }, Some(mailbox)) => {
                mailbox.look_at(self.io.now().plus(after));
            }
            (Message::Look { .. }, None) => {}
        }
    }
}

impl Mailbox {
    /// Waits for a message that ends the wait.
    pub(crate) async fn wait(&self, io: &Io) -> Wake {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Enlist before looking, or a message in between would go unnoticed.
            news.as_mut().enable();
            let mail = *lock(&self.mail);
            if let Some(wake) = mail.admitted {
                let mut mail = lock(&self.mail);
                mail.admitted = None;
                mail.held = true;
                return wake;
            }
            match mail.look_at {
                None => news.await,
                Some(at) if at <= io.now() => {
                    lock(&self.mail).look_at = None;
                    return Wake::Look;
                }
                Some(at) => {
                    tokio::select! {
                        () = news => {}
                        () = io.clock().sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// The claim tries again: what came before tells it nothing any more.
    pub(crate) fn tries(&self, reachable: bool) {
        *lock(&self.mail) = Mail { reachable, ..Mail::default() };
    }

    /// Whether messages for its last try can come.
    pub(crate) fn is_reachable(&self) -> bool {
        lock(&self.mail).reachable
    }

    /// The claim is held by a try of its own.
    pub(crate) fn hold(&self) {
        *lock(&self.mail) = Mail { held: true, ..Mail::default() };
    }

    fn admit(&self, wake: Wake) {
        let mut mail = lock(&self.mail);
        if !mail.held {
            mail.admitted = Some(wake);
        }
        drop(mail);
        self.news.notify_waiters();
    }

    fn look_at(&self, at: Moment) {
        let mut mail = lock(&self.mail);
        mail.look_at = Some(mail.look_at.map_or(at, |earlier| earlier.min(at)));
        drop(mail);
        self.news.notify_waiters();
    }
}

enum Message {
    Granted { id: ClaimId, wake: Wake, lock: String },
    Look { id: ClaimId, after: Duration },
}

impl Message {
    fn id(&self) -> ClaimId {
        match self {
            Message::Granted { id, .. } | Message::Look { id, .. } => *id,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.splitn(7, ' ');
        let kind = words.next()?;
        let id = ClaimId::parse(words.next()?)?;
        match kind {
            "g" => {
                let token = words.next()?.parse().ok()?;
                let ttl = Duration::from_millis(words.next()?.parse().ok()?);
                let stamp = Stamp::parse(words.next()?)?;
                let since_try = Duration::from_micros(words.next()?.parse().ok()?);
                let grant = Grant { token, ttl, store_time: None };
                let lock = words.next()?.to_owned();
                Some(Self::Granted { id, wake: Wake::Admitted { grant, stamp, since_try }, lock })
            }
            "l" => {
                let after = Duration::from_millis(words.next()?.parse().ok()?);
                Some(Self::Look { id, after })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_scripts_publish_and_nothing_else() {
        let id = ClaimId::from_u128(7);
        let granted = format!("g {id} 1790000000000001 2000 123456789 42 shop:a lock");
        match Message::parse(&granted).unwrap() {
            Message::Granted { id: of, wake: Wake::Admitted { grant, stamp, since_try }, lock } => {
                assert_eq!(of, id);
                assert_eq!(grant.token, 1_790_000_000_000_001);
                assert_eq!(grant.ttl, Duration::from_secs(2));
                assert_eq!(stamp.to_string(), "123456789");
                assert_eq!(since_try, Duration::from_micros(42));
                assert_eq!(lock, "shop:a lock");
            }
            _ => panic!("not a grant"),
        }
        assert!(matches!(
            Message::parse(&format!("l {id} 1500")),
            Some(Message::Look { after, .. }) if after == Duration::from_millis(1_500)
        ));
        for bad in ["", "g", "x 1", "l zz 1", &format!("g {id} x 1 1 1 k"), &format!("l {id} -1")] {
            assert!(Message::parse(bad).is_none(), "{bad}");
        }
    }
}

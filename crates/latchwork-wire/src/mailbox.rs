//! Where the messages of a store wait for one claim: grants that it has made by itself, and hints.
//!
//! Anybody who may publish can forge a message. So a grant counts only with the sign of the claim's last try: the
//! process has drawn it, and the store publishes it with the grant alone. The first message with the sign uses it
//! up, so a copy is no grant. Any other message lets the claim look: the store's answer to a try is what counts.
//! Forged messages cost a bounded number of looks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use latchwork_store::{Grant, Io, Moment, Stamp, Wake};

/// How long a grant that the store makes by itself lasts at least, until its first renewal.
pub const PROBATION: Duration = Duration::from_secs(2);

/// The looks that messages may cause at once, and the pause after which there is one more.
const LOOKS: u32 = 32;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What the message of a grant must have to be believed.
#[derive(Debug, Clone, Copy)]
pub struct ExpectedGrant<S> {
    /// What only this process and the store know, and perhaps where the message must come.
    pub sign: S,
    /// When the try was sent.
    pub stamp: Stamp,
    /// The ttl that the store was asked to grant at most.
    pub longest: Duration,
}

/// The messages for one claim that waits.
#[derive(Debug)]
pub struct Mailbox<S> {
    mail: Mutex<Mail<S>>,
    news: Notify,
}

#[derive(Debug)]
struct Mail<S> {
    /// The claim is held by a try of its own, or by a grant that was taken.
    held: bool,
    expected: Option<ExpectedGrant<S>>,
    admitted: Option<Wake>,
    look_at: Option<Moment>,
    pace: Pace,
}

impl<S: Copy + PartialEq> Default for Mailbox<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Copy + PartialEq> Mailbox<S> {
    /// An empty one, of a claim that has not tried yet.
    pub fn new() -> Self {
        let (expected, admitted, look_at) = (None, None, None);
        let mail = Mail { held: false, expected, admitted, look_at, pace: Pace::NEW };
        Self { mail: Mutex::new(mail), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Mail<S>> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The claim tries again: earlier messages concern it no longer.
    pub fn tries(&self, expected: ExpectedGrant<S>) {
        self.settle(false, Some(expected));
    }

    /// The claim is held: no message concerns it.
    pub fn hold(&self) {
        self.settle(true, None);
    }

    fn settle(&self, held: bool, expected: Option<ExpectedGrant<S>>) {
        let mut mail = self.lock();
        let pace = mail.pace;
        *mail = Mail { held, expected, admitted: None, look_at: None, pace };
    }

    /// The grant of its last try that may still come.
    pub fn expected(&self) -> Option<ExpectedGrant<S>> {
        self.lock().expected
    }

    /// Believes no grant of its last try, because messages may have been lost: the next one may be a copy. The claim
    /// looks.
    pub fn distrust(&self, now: Moment) {
        self.lock().expected = None;
        self.look_at(now);
    }

    /// Returns whether a grant has come for its last try and was not taken yet.
    pub fn is_admitted(&self) -> bool {
        self.lock().admitted.is_some()
    }

    /// Returns whether the claim holds, as far as is known here: a grant has come, or a try was granted.
    pub fn has_grant(&self) -> bool {
        let mail = self.lock();
        mail.held || mail.admitted.is_some()
    }

    /// Returns whether the claim is held by a try of its own, or by a grant that was taken.
    pub fn is_held(&self) -> bool {
        self.lock().held
    }

    /// Waits for a message that ends the wait: a grant, or a look.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message.
    pub async fn wait(&self, io: &Io) -> Wake {
        loop {
            let news = self.news.notified();
            tokio::pin!(news);
            // Enlist before looking, or a message in between would go unnoticed.
            news.as_mut().enable();
            let at = {
                let mut mail = self.lock();
                if let Some(wake) = mail.admitted.take() {
                    mail.held = true;
                    return wake;
                }
                let now = io.now();
                if mail.look_at.is_some_and(|at| at <= now) {
                    mail.look_at = None;
                    mail.pace.looks(now);
                    return Wake::Look;
                }
                mail.look_at
            };
            match at {
                None => news.await,
                Some(at) => {
                    tokio::select! {
                        () = news => {}
                        () = io.clock().sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Takes the message of a grant, with its sign. One that is not as expected is a hint.
    pub fn take(&self, sign: S, grant: Grant, since_try: Duration, now: Moment) {
        let mut mail = self.lock();
        if mail.held {
            return;
        }
        let genuine = mail.expected.take_if(|it| it.sign == sign && grant.ttl <= it.longest);
        let Some(ExpectedGrant { stamp, .. }) = genuine else {
            drop(mail);
            return self.look_at(now);
        };
        mail.admitted = Some(Wake::Admitted { grant, stamp, since_try });
        drop(mail);
        self.news.notify_waiters();
    }

    /// Lets the claim look at `at`, or later if messages have caused many looks.
    pub fn look_at(&self, at: Moment) {
        let mut mail = self.lock();
        let at = at.max(mail.pace.next);
        mail.look_at = Some(mail.look_at.map_or(at, |earlier| earlier.min(at)));
        drop(mail);
        self.news.notify_waiters();
    }
}

/// Bounds the looks that messages cause: [`LOOKS`] at once, and then one each [`LOOK_EVERY`].
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// When as many as ever may come at once again.
    full: Moment,
    /// The earliest moment of the next one.
    next: Moment,
}

impl Pace {
    const NEW: Self = Self { full: Moment::from_nanos(0), next: Moment::from_nanos(0) };

    fn looks(&mut self, now: Moment) {
        self.full = self.full.max(now).plus(LOOK_EVERY);
        self.next = self.full.minus(LOOKS * LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_caused_by_messages_are_bounded() {
        let (mut pace, mut now, mut looks) = (Pace::NEW, Moment::from_nanos(1_000_000_000_000), 0);
        let end = now.plus(Duration::from_secs(10));
        while now < end {
            if pace.next <= now {
                pace.looks(now);
                looks += 1;
            }
            now = now.plus(Duration::from_millis(1));
        }
        let most = LOOKS + (10_000 / LOOK_EVERY.as_millis()) as u32 + 1;
        assert!((LOOKS..=most).contains(&looks), "{looks}");
        // After a rest as many as at first.
        now = now.plus(LOOKS * LOOK_EVERY);
        let burst = (0..1_000)
            .filter(|_| {
                pace.next <= now && {
                    pace.looks(now);
                    true
                }
            })
            .count();
        assert!(burst >= LOOKS as usize, "{burst}");
    }

    #[test]
    fn a_pushed_grant_counts_once_and_with_its_sign_alone() {
        let mailbox = Mailbox::new();
        let (now, second) = (Moment::from_nanos(9_000_000_000), Duration::from_secs(1));
        let expected = ExpectedGrant { sign: 7_u8, stamp: Stamp::new(now), longest: second };
        mailbox.tries(expected);
        mailbox.take(8, Grant::new(1, second), second, now);
        mailbox.take(7, Grant::new(2, 2 * second), second, now);
        assert!(!mailbox.is_admitted(), "another sign, or a longer lease than was asked for");
        mailbox.take(7, Grant::new(3, second), second, now);
        mailbox.take(7, Grant::new(4, second), second, now);
        let first = mailbox.lock().admitted.take();
        assert!(matches!(first, Some(Wake::Admitted { grant, .. }) if grant.token == 3));
        // After a message may have been lost, none with the same sign is believed.
        mailbox.tries(expected);
        mailbox.distrust(now);
        mailbox.take(7, Grant::new(5, second), second, now);
        assert!(!mailbox.is_admitted() && mailbox.lock().look_at.is_some());
        mailbox.hold();
        mailbox.take(7, Grant::new(6, second), second, now);
        assert!(mailbox.has_grant() && mailbox.lock().look_at.is_none(), "it holds by itself");
    }
}

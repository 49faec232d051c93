//! Watches the claims that hold their keys for a revoked lease or a deleted key.
//!
//! A watch on the key of each makes that known at once; the renewal that the engine sends then settles
//! it. Nothing rests on these watches: without them a holder learns of it at its next renewal. A
//! lock that is held for a moment has none, for it would cost as much as the lock.
//!
//! One task sees to the watches of all: it has them opened, reopens those that have ended, and
//! checks the keys whose watches came late. The end of a key goes from the stream straight to the engine.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use latchwork_store::{ClaimId, Io, Moment};
use tokio::sync::Notify;

use crate::protocol::requests::{self, Freshness};
use crate::protocol::shared::{Reports, Shared};
use crate::server::errors::{Failure, Reaction};
use crate::server::link::Link;
use crate::server::watchers::Word;

/// How long a claim is held before it is watched; the pause between two attempts to watch, too.
const PAUSE: Duration = Duration::from_millis(250);
/// How many keys are looked at at a time. After a broken stream all claims want a look, and the
/// buffers of each take 25 kB.
const LOOKS: usize = 16;
/// How long a look waits for its answer: others wait for it.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Wakes the task that looks for claims to be watched.
#[derive(Debug, Default)]
pub(crate) struct HolderWatch {
    news: Notify,
    closed: Notify,
}

impl HolderWatch {
    /// A claim holds its key.
    pub(crate) fn tell(&self) {
        self.news.notify_one();
    }

    pub(crate) fn close(&self) {
        self.closed.notify_one();
    }

    /// Has each claim watched that is held for more than a moment.
    pub(crate) async fn run(self: Arc<Self>, shared: Weak<Shared>, words: Reports, io: Io) {
        tokio::select! {
            () = self.see_to_all(&shared, words, &io) => {}
            () = self.closed.notified() => {}
        }
    }

    async fn see_to_all(&self, shared: &Weak<Shared>, mut words: Reports, io: &Io) {
        let Some(others) = shared.upgrade().map(|shared| shared.members.count().saturating_sub(1))
        else {
            return;
        };
        let mut pace = Pace { next: Moment::NEVER, last: io.now(), others, left: others };
        // Whose watches came late, and at which member.
        let mut late = VecDeque::new();
        let mut looks = FuturesUnordered::new();
        loop {
            while looks.len() < LOOKS
                && let Some((member, claim)) = late.pop_front()
            {
                let Some(shared) = shared.upgrade() else { return };
                looks.push(look(shared, member, claim));
            }
            tokio::select! {
                // All that has ended is known before any of it is watched again.
                biased;
                told = words.recv() => {
                    let (Some((member, word)), Some(shared)) = (told, shared.upgrade()) else {
                        return;
                    };
                    match word {
                        // The stream tells the engine itself.
                        Word::Gone(_) => {}
                        Word::Late(claim) => late.push_back((member, claim)),
                        Word::Ended(claims) => {
                            // Their next watches have looks of their own.
                            let ended: HashSet<_> = claims.iter().collect();
                            late.retain(|(at, claim)| *at != member || !ended.contains(claim));
                            shared.claims.unwatched(&claims);
                            shared.members.turn_from(member);
                            pace.elsewhere(io.now());
                        }
                    }
                }
                Some(looked) = looks.next() => {
                    let (Some(failed), Some(shared)) = (looked, shared.upgrade()) else {
                        continue;
                    };
                    // Its watch reports nothing of what went before, so it is opened again.
                    shared.claims.unwatched_by(failed.listener, failed.claim);
                    if failed.leads_elsewhere {
                        shared.members.turn_from(failed.member);
                        pace.elsewhere(io.now());
                    } else {
                        pace.soon(io.now());
                    }
                }
                () = self.news.notified() => pace.soon(io.now()),
                () = io.clock().sleep_until(pace.next) => {
                    let Some(shared) = shared.upgrade() else { return };
                    pace.begin(io.now());
                    // A claim that is not watched because no member answers waits for another attempt.
                    if watch(&shared).await.unwrap_or(true) {
                        pace.soon(io.now());
                    }
                }
            }
        }
    }
}

/// When to look through the claims for those that are to be watched.
#[derive(Debug)]
struct Pace {
    next: Moment,
    last: Moment,
    /// How many members there are beside the one that is asked.
    others: usize,
    /// How many of them are still to be tried without a pause.
    left: usize,
}

impl Pace {
    /// After a pause, if not before.
    fn soon(&mut self, now: Moment) {
        self.next = self.next.min(now.plus(PAUSE));
    }

    /// A member has failed. The next one is tried at once, until all have been.
    fn elsewhere(&mut self, now: Moment) {
        match self.left.checked_sub(1) {
            Some(left) => (self.left, self.next) = (left, now),
            None => self.soon(now),
        }
    }

    /// They are being looked through.
    fn begin(&mut self, now: Moment) {
        if now.since(self.last) >= PAUSE {
            self.left = self.others;
        }
        (self.last, self.next) = (now, Moment::NEVER);
    }
}

/// Has the claims watched that have held their keys for more than a moment; says whether there are
/// younger ones.
async fn watch(shared: &Arc<Shared>) -> Result<bool, Failure> {
    let since = shared.io.now().minus(PAUSE);
    let watch = |link: Arc<Link>| async move {
        let hold = |key, claim, revision| link.watches().hold(key, claim, revision, false);
        Ok(shared.claims.watch(since, hold))
    };
    shared.members.follow(watch).await
}

/// A look without an answer.
struct FailedLook {
    member: usize,
    claim: ClaimId,
    listener: i64,
    leads_elsewhere: bool,
}

/// Looks at the key of a claim whose watch came late, where it is watched: the member may be behind,
/// so the watch goes on whatever it says.
async fn look(shared: Arc<Shared>, member: usize, claim: ClaimId) -> Option<FailedLook> {
    let (key, revision, listener) = shared.claims.watched_place(claim)?;
    let look = requests::glance([&*key].into_iter(), Freshness::OfOneMember);
    let asked = shared
        .members
        .ask_one(member, |link| async move { link.txn(look).await.map_err(Failure::of_a_read) });
    let leads_elsewhere = match shared.io.within(LOOK_LIMIT, asked).await {
        Some(Ok(answer)) => {
            let (found, revision) = (requests::found(answer).next().flatten(), revision.get());
            if found.is_none_or(|found| found.create_revision != revision) {
                shared.doubts.raise(claim);
            }
            return None;
        }
        Some(Err(failure)) => failure.reaction == Reaction::Elsewhere,
        None => true,
    };
    Some(FailedLook { member, claim, listener, leads_elsewhere })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_are_tried_at_once_and_then_there_is_a_pause() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let mut pace = Pace { next: Moment::NEVER, last: at(0), others: 2, left: 2 };
        pace.soon(at(1_000));
        pace.soon(at(1_100));
        assert_eq!(pace.next, at(1_250), "the first who asks says when");
        pace.begin(at(1_250));
        assert_eq!(pace.next, Moment::NEVER);
        for millis in [5_000, 5_001] {
            pace.elsewhere(at(millis));
            assert_eq!(pace.next, at(millis));
            pace.last = at(millis); // as if looked through before
            pace.begin(at(millis));
        }
        pace.elsewhere(at(5_002));
        assert_eq!(pace.next, at(5_252), "none of them answers");
        pace.elsewhere(at(5_003));
        assert_eq!(pace.next, at(5_252));
        pace.begin(at(5_252));
        pace.elsewhere(at(5_253));
        assert_eq!(pace.next, at(5_253), "all over again");
        let mut alone = Pace { next: Moment::NEVER, last: at(0), others: 0, left: 0 };
        alone.elsewhere(at(1_000));
        assert_eq!(alone.next, at(1_250), "there is no other one");
    }
}

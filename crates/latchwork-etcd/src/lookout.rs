//! Looks out for the end of claims that hold their keys: a lease that was revoked, a key that was
//! deleted.
//!
//! A watch on the key of each makes that known at once; the renewal that core sends then settles
//! it. Nothing rests on these watches: without them a holder learns of it at its next renewal. A
//! lock that is held for a moment has none, for it would cost as much as the lock.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use latchwork_core::{ClaimId, Io};
use tokio::sync::Notify;

use crate::backend::Shared;
use crate::claims::Unwatched;
use crate::errors::Failure;
use crate::link::Link;
use crate::requests::{self, Freshness};
use crate::watchers::Notice;

/// How long a claim is held before it is watched; the pause between two attempts to watch, too.
const PAUSE: Duration = Duration::from_millis(250);

/// Wakes the task that looks for claims to be watched.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    news: Notify,
    closed: AtomicBool,
}

impl Lookout {
    /// A claim holds its key.
    pub(crate) fn tell(&self) {
        self.news.notify_one();
    }

    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.news.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Has each claim watched that is held for more than a moment.
    pub(crate) async fn run(self: Arc<Self>, shared: Weak<Shared>, io: Io) {
        loop {
            self.news.notified().await;
            let mut younger = true;
            while younger {
                if self.is_closed() {
                    return;
                }
                io.sleep(PAUSE).await;
                let Some(shared) = shared.upgrade() else { return };
                let (due, more) = shared.claims.unwatched(io.now().minus(PAUSE));
                younger = more;
                for claim in due {
                    io.spawn(watch(shared.clone(), claim));
                }
            }
        }
    }
}

/// Watches the key of one claim until the claim is over for this client.
async fn watch(shared: Arc<Shared>, mut claim: Unwatched) {
    loop {
        let (id, io) = (claim.id, &shared.io);
        let (key, revision) = (&claim.key, claim.revision);
        let watching = shared.members.follow(|link| watch_at(link, io, id, key, revision));
        let ended = tokio::select! {
            ended = watching => ended,
            _ = &mut claim.over => return,
        };
        if ended.is_ok() {
            return;
        }
        // What went meanwhile is seen when there is a watch again.
        tokio::select! {
            () = io.sleep(PAUSE) => {}
            _ = &mut claim.over => return,
        }
    }
}

/// Ends when the key is gone.
async fn watch_at(
    link: Arc<Link>,
    io: &Io,
    id: ClaimId,
    key: &[u8],
    revision: i64,
) -> Result<(), Failure> {
    let mut watch = link.watches().open(key.to_vec(), Vec::new());
    loop {
        match watch.notice(&link.endpoint).await? {
            Notice::Open { since } if since <= revision => {}
            Notice::Open { .. } => {
                // What went before the watch was open. The member may be behind, so go on.
                let look = requests::glance([key].into_iter(), Freshness::OfOneMember);
                // It is large, and happens once.
                let look = Box::pin(link.txn(look)).await.map_err(Failure::of_a_read)?;
                let found = requests::found(look).next().flatten();
                if found.is_none_or(|found| found.create_revision != revision) {
                    io.doubt(id);
                }
            }
            Notice::Gone(gone) if gone.iter().any(|gone| gone.ended(key, revision)) => {
                io.doubt(id);
                return Ok(());
            }
            Notice::Gone(_) => {}
        }
    }
}

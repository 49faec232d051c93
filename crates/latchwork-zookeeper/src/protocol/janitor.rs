//! Releases abandoned claims, ends lingers, and closes idle sessions.
//!
//! A session lives as long as its process, and with it all its nodes. So that a claim ends with its
//! ttl when nobody renews or repeats it, it has to be released here.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{join, join_all};
use latchwork_store::Moment;
use tokio::sync::{Notify, mpsc};

use crate::protocol::shared::Shared;

/// The pause before what could not be released is tried again.
const AGAIN: Duration = Duration::from_millis(100);

/// Runs until the backend is dropped.
pub(crate) async fn run(shared: Weak<Shared>, sooner: Arc<Notify>, mut ended: mpsc::Receiver<()>) {
    loop {
        // Not held while it sleeps: what belongs to the backend ends with it.
        let Some(strong) = shared.upgrade() else { return };
        let now = strong.io.now();
        let (silent, next) = strong.claims.silent(now);
        let (all, linger) = {
            let releases = silent.iter().map(|claim| Box::pin(strong.release_claim(claim)));
            let released = async { join_all(releases).await.iter().all(Result::is_ok) };
            let both = join(released, Box::pin(strong.end_lingers()));
            tokio::select! {
                _ = ended.recv() => return,
                both = both => both,
            }
        };
        let next = if all { next } else { next.min(now.plus(AGAIN)) }.min(linger);
        let next = next.min(strong.sessions.close_idle());
        let clock = strong.io.clock().clone();
        drop(strong);
        let sleep = async {
            match next {
                Moment::NEVER => std::future::pending().await,
                next => clock.sleep_until(next).await,
            }
        };
        tokio::select! {
            _ = ended.recv() => return,
            () = sleep => {}
            () = sooner.notified() => {}
        }
    }
}

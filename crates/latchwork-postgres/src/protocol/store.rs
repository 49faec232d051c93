//! What all verbs share, the wait, and the removal of rows that nobody uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_store::{BackendError, Blocked, Claim, ClaimId, Wake};

use crate::protocol::batch::Keys;
use crate::protocol::busy::Busy;
use crate::protocol::guard::Guard;
use crate::protocol::listener::{Listener, pause};
use crate::protocol::statements::Ask;
use crate::protocol::values::Uuid;
use crate::server::connect::Access;
use crate::server::pool::Pool;
use crate::server::reply::{column, strange};

/// How often rows that nobody uses are removed.
const SWEEP: Duration = Duration::from_secs(600);
/// One of so many processes does it after its first release as well: most may live for a moment only.
const SWEEPERS: u128 = 16;
/// How long that goes on if there are many.
const SHORT_SWEEP: Duration = Duration::from_secs(2);
/// So few removed rows are less than one for each page that was looked at: there are few more, or they are far apart.
const FEW: i64 = 32;
/// What the verbs use.
pub(crate) struct Store {
    pub(crate) access: Arc<Access>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) keys: Keys,
    pub(crate) listener: Arc<Listener>,
    pub(crate) busy: Busy,
    /// A pooler stands before the server: nothing can be heard.
    pub(crate) pooled: bool,
    /// The revision of the table's functions when this client connected.
    pub(crate) functions: u32,
    /// How long a grant that the store makes by itself lasts at first, unless its ttl is shorter.
    pub(crate) probation: Duration,
    /// See [`Store::sweep_after`].
    pub(crate) has_swept: AtomicBool,
}

impl Store {
    /// What a try tells the guard.
    pub(crate) fn nonce(&self) -> Option<Uuid> {
        self.guard.as_ref().and_then(|guard| guard.nonce())
    }

    pub(crate) async fn wait(
        &self,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        if !claim.waits {
            return std::future::pending().await; // only the engine's own timer can tell it to look
        }
        let ahead = blocked.ahead.unwrap_or(0);
        if self.pooled {
            self.access.io.sleep(pause(ahead)).await;
            return Ok(Wake::Look);
        }
        Ok(match self.listener.find(claim.id) {
            Some(mailbox) => self.listener.wait(&mailbox, ahead).await,
            // The place is gone: it has to be asked for again.
            None => Wake::Look,
        })
    }

    /// Removes rows that nobody has used for long, as long as the backend lives.
    pub(crate) fn sweep_now_and_then(self: &Arc<Self>) {
        let (io, store) = (self.access.io.clone(), Arc::downgrade(self));
        let mut shut = self.listener.is_shut();
        self.access.io.spawn(async move {
            loop {
                tokio::select! {
                    () = io.sleep(SWEEP) => {}
                    _ = shut.wait_for(|is_shut| *is_shut) => return,
                }
                let Some(store) = store.upgrade() else { return };
                // Another client may do it, or the next time.
                let _ = io.within(SWEEP, store.sweep()).await;
            }
        });
    }

    /// Now and then, the first claim that a process ends has it remove such rows. Its id is random.
    pub(crate) fn sweep_after(self: &Arc<Self>, id: ClaimId) {
        if self.has_swept.swap(true, Ordering::Relaxed) || !id.as_u128().is_multiple_of(SWEEPERS) {
            return;
        }
        let store = self.clone();
        latchwork_wire::finish(&self.access.io, async move {
            let _ = store.access.io.within(SHORT_SWEEP, store.sweep()).await;
        });
    }

    /// Removes such rows until there are few.
    async fn sweep(&self) -> Result<(), BackendError> {
        loop {
            let checkout = self.pool.checkout().await?;
            let rows = checkout.ask(Ask::Sweep, &[], None).await?;
            let [row] = &rows[..] else { return Err(strange(0)) };
            let (removed, has_prepared): (i64, bool) = (column(row, 0)?, column(row, 1)?);
            if removed < FEW && !has_prepared {
                return Ok(());
            }
        }
    }
}

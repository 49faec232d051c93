//! Lingers that are not on the disk yet: the releases to answer again, and the sync itself.

use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

use latchwork_store::{BackendError, ClaimId};

use crate::disk::sync;
use crate::protocol::shared::Shared;
use crate::records::record_file::Unsynced;

/// How many releases are remembered whose linger may not be on the disk.
const UNSYNCED: usize = 1024;

impl Shared {
    fn unsynced(&self) -> MutexGuard<'_, VecDeque<ClaimId>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn remember_unsynced(&self, id: ClaimId) {
        let mut unsynced = self.unsynced();
        if unsynced.len() == UNSYNCED {
            unsynced.pop_front();
        }
        unsynced.push_back(id);
    }

    pub(crate) fn is_unsynced(&self, id: ClaimId) -> bool {
        self.unsynced().contains(&id)
    }

    pub(crate) fn forget_unsynced(&self, id: ClaimId) {
        self.unsynced().retain(|other| *other != id);
    }

    pub(crate) async fn put_linger_on_disk(&self, unsynced: Unsynced) -> Result<(), BackendError> {
        // It is never closed.
        let permit = self.syncs.clone().acquire_owned().await.ok();
        let sync = move || {
            let synced = unsynced.sync();
            drop(permit);
            synced
        };
        sync::run(&self.io, sync).await?
    }
}

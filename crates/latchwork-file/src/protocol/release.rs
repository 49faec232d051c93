//! The release: a linger, or its end, is on the disk before the caller is answered.

use std::sync::Arc;

use latchwork_store::kit::record::Wakeup;
use latchwork_store::{BackendError, Claim, Linger, Released, Resized};

use crate::protocol::shared::Shared;
use crate::records::layout::{self, ASIDE, Place};
use crate::records::record_file::{RecordFile, Unsynced};
use crate::records::stripe::Locked;

impl Shared {
    /// Releases a claim; a linger, or its end, is on the disk when this answers.
    pub(crate) async fn give_back(
        self: &Arc<Self>,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let place = Place::of(&claim.key);
        let (released, wakeups, unsynced) = {
            // Where everything was removed, the claim was too.
            let Some(mut locked) = self.lock(place.stripe).await? else {
                return Ok(Released::NotHeld);
            };
            let outcome = self.release(claim, linger, &place);
            if locked.is_crowded() {
                self.remove_idle(&mut locked, place.stripe);
            }
            outcome?
        };
        self.deliver(&claim.key, &wakeups);
        if let Some(unsynced) = unsynced {
            self.put_linger_on_disk(unsynced).await?;
            self.forget_unsynced(claim.id);
        }
        Ok(released)
    }

    /// Sets the limit of permits for all claims of a key.
    pub(crate) async fn resize(self: &Arc<Self>, claim: &Claim) -> Result<Resized, BackendError> {
        let place = Place::of(&claim.key);
        let (resized, wakeups) = {
            // Held until the record is written. Where everything was removed, the claims were too.
            let Some(_locked) = self.lock(place.stripe).await? else {
                return Ok(Resized::Unused);
            };
            let opened = self.kept.open(&self.layout, &place, &claim.key, self.era());
            let (mut file, mut record) = opened?;
            if !file.exists() {
                return Ok(Resized::Unused);
            }
            let (resized, wakeups) = record.resize(claim, self.now(), &|tag| self.alive(tag));
            file.write(&claim.key, &record, self.layout.file_mode())?;
            self.kept.keep(&place, file, &record, self.session.id);
            (resized, wakeups)
        };
        self.deliver(&claim.key, &wakeups);
        resized
    }

    /// Releases, and answers what must be put on the disk before the caller is answered.
    fn release(
        &self,
        claim: &Claim,
        linger: Linger,
        place: &Place,
    ) -> Result<(Released, Vec<Wakeup>, Option<Unsynced>), BackendError> {
        let (mut file, mut record) = self.kept.open(&self.layout, place, &claim.key, self.era())?;
        if !file.exists() {
            self.forget_waiter(claim, linger);
            return Ok((Released::NotHeld, Vec::new(), None));
        }
        let now = self.now();
        let (mut released, wakeups) = record.release(claim, linger, now, &|tag| self.alive(tag));
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.forget_waiter(claim, linger);
        if linger == Linger::None {
            // Another claim of this process may hold it, too.
            self.kept.keep(place, file, &record, self.session.id);
            return Ok((released, wakeups, None));
        }
        // The claim is over whatever the disk says, but the linger, or its end, may not outlive a
        // power cut. Told as an error, or not in time, the release is tried again, and the claim is gone.
        if released == Released::Yes {
            self.remember_unsynced(claim.id);
        } else if self.is_unsynced(claim.id) {
            released = Released::Yes;
        } else {
            return Ok((released, wakeups, None));
        }
        Ok((released, wakeups, file.into_unsynced()))
    }

    /// A claim that is released waits no more; to open a key releases none.
    fn forget_waiter(&self, claim: &Claim, linger: Linger) {
        if linger != Linger::End {
            self.wakeups.forget(claim.id);
        }
    }

    /// Removes the records of a stripe that say nothing but their last token, which the stripe's
    /// counter covers. What cannot be read or removed stays.
    fn remove_idle(&self, locked: &mut Locked<'_>, stripe: usize) {
        let now = self.now();
        let records = self.layout.records(stripe);
        let Ok(names) = records.list() else { return };
        let mut left = 0;
        for name in names {
            // Whatever else lies here was not put here by Latchwork.
            if !layout::is_record(&name) {
                left += 1;
                continue;
            }
            let entry = records.child(&name);
            let idle = name == ASIDE
                || RecordFile::look(entry.clone(), self.era()).is_ok_and(|found| match found.key {
                    Some(key) => found.record.snapshot(key, now, &|tag| self.alive(tag)).is_free(),
                    None => true,
                });
            if !idle || entry.remove().is_err() {
                left += 1;
            }
        }
        // Not noted, it is done again by a later release.
        let _ = locked.swept(left, self.era(), now.wall.as_micros() as u64);
    }
}

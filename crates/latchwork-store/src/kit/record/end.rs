//! Ends a claim, which may close the key.

use std::time::Duration;

use super::{Alive, Now, Record, Wakeup};
use crate::claim::{Claim, ClaimId};
use crate::holder::Holder;
use crate::words::{Linger, Released};

impl Record {
    /// Ends a claim, held or waiting; with [`Linger::End`] it opens the key instead.
    ///
    /// With [`Linger::For`] the record keeps the holder that closed the key; of several, the one that closed it
    /// for longest.
    pub fn release(
        &mut self,
        claim: &Claim,
        linger: Linger,
        now: Now,
        alive: Alive<'_>,
    ) -> (Released, Vec<Wakeup>) {
        match linger {
            Linger::None => self.leave(claim.id, now, alive),
            Linger::For(length) => self.end(claim.id, Some((length, &claim.holder)), now, alive),
            Linger::End => self.open(now, alive),
        }
    }

    /// Ends the claim with this id, held or waiting, without closing the key.
    pub fn leave(&mut self, id: ClaimId, now: Now, alive: Alive<'_>) -> (Released, Vec<Wakeup>) {
        self.end(id, None, now, alive)
    }

    fn end(
        &mut self,
        id: ClaimId,
        closes: Option<(Duration, &Holder)>,
        now: Now,
        alive: Alive<'_>,
    ) -> (Released, Vec<Wakeup>) {
        let mut moved = self.sweep(now, alive);
        let released = if let Some(index) = self.held.iter().position(|m| m.id == id) {
            self.held.remove(index);
            self.open_since = self.open_since.max(now.lease);
            if let Some((length, holder)) = closes {
                let until = now.wall.saturating_add(length);
                if until > self.closed_until {
                    self.closed_until = until;
                    self.closed_by = Some(holder.clone());
                }
            }
            // Drops the waiter that was to replace it.
            moved.extend(self.sweep(now, alive));
            Released::Yes
        } else if let Some(place) = self.queue.iter().position(|w| w.id == id) {
            self.leave_queue(place, now);
            moved.extend(self.queue.get(place).map(|w| w.id));
            Released::Yes
        } else {
            Released::NotHeld
        };
        (released, self.wakeups(&moved, None, now))
    }
}

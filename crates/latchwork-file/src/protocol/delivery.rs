//! Wakes the waiters that a change of a record affects, in this process or in another.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use latchwork_store::kit::record::Wakeup;
use latchwork_store::{BackendError, Backoff, ClaimId, Key};

use crate::protocol::shared::Shared;
use crate::records::layout::Place;
use crate::records::record_file::RecordFile;
use crate::records::session::{self, Life, Poke};
use crate::records::stripe::Try;

/// How long to wait before a poke that found no descriptor is tried again.
const POKE_AGAIN: Duration = Duration::from_millis(50);

impl Shared {
    /// Wakes whom the record named.
    pub(crate) fn deliver(self: &Arc<Self>, key: &Key, wakeups: &[Wakeup]) {
        for wakeup in wakeups {
            if wakeup.tag == self.session.id {
                self.wakeups.wake(wakeup.id);
                continue;
            }
            match session::poke(&self.layout, wakeup.tag, wakeup.id.as_u128()) {
                Poke::Left => {}
                Poke::Gone => self.pass_over(key.clone(), wakeup.id),
                Poke::Denied => {
                    self.denied.store(true, Ordering::Relaxed);
                    self.pass_over(key.clone(), wakeup.id);
                }
                Poke::Failed => self.poke_again(key.clone(), *wakeup),
            }
        }
    }

    /// Sees to the queue behind a waiter that nobody can tell that it is first: a dead one leaves it,
    /// one that lives keeps its place, and in both cases the next one is woken.
    fn pass_over(self: &Arc<Self>, key: Key, id: ClaimId) {
        let weak = Arc::downgrade(self);
        self.io.spawn(async move {
            let place = Place::of(&key);
            let mut backoff = Backoff::new(Duration::from_micros(200), POKE_AGAIN);
            loop {
                // A busy stripe may stay so, and the backend may end meanwhile.
                let sleep = {
                    let Some(shared) = weak.upgrade() else { return };
                    let woken = match shared.try_lock(place.stripe) {
                        Ok(Try::Busy) => None,
                        Ok(Try::Locked(_locked)) => Some(shared.wake_next(&key, &place, id)),
                        Ok(Try::Removed) | Err(_) => return,
                    };
                    if let Some(woken) = woken {
                        return shared.deliver(&key, &woken.unwrap_or_default());
                    }
                    shared.io.sleep(backoff.pause())
                };
                sleep.await;
            }
        });
    }

    fn wake_next(
        &self,
        key: &Key,
        place: &Place,
        id: ClaimId,
    ) -> Result<Vec<Wakeup>, BackendError> {
        let (mut file, mut record) = RecordFile::open(self.layout.record(place), key, self.era())?;
        let Some(at) = record.queue.iter().position(|w| w.id == id) else { return Ok(Vec::new()) };
        // By its lock: that its wake file is gone says nothing.
        if session::probe(&self.layout, record.queue[at].tag) != Life::Dead {
            let next = record.queue.get(at + 1);
            return Ok(next
                .map(|w| Wakeup { id: w.id, tag: w.tag, admissible: false })
                .into_iter()
                .collect());
        }
        let (_, wakeups) = record.leave(id, self.now(), &|tag| self.alive(tag));
        file.write(key, &record, self.layout.file_mode())?;
        Ok(wakeups)
    }

    /// Pokes again until there is a descriptor for it: the one to be woken cannot know.
    fn poke_again(self: &Arc<Self>, key: Key, wakeup: Wakeup) {
        self.note_polling();
        let weak = Arc::downgrade(self);
        self.io.spawn(async move {
            loop {
                let Some(pause) = weak.upgrade().map(|s| s.io.sleep(POKE_AGAIN)) else { return };
                pause.await;
                let Some(shared) = weak.upgrade() else { return };
                match session::poke(&shared.layout, wakeup.tag, wakeup.id.as_u128()) {
                    Poke::Left => return,
                    Poke::Failed => {}
                    // The rest is as at the first time.
                    Poke::Gone | Poke::Denied => return shared.deliver(&key, &[wakeup]),
                }
            }
        });
    }
}

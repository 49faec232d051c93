//! Higher ceilings for tokens, synced to the disk beside the verbs that need them.
//!
//! As a rule nobody waits: the next ceiling is put on the disk when half of the tokens below the last
//! one are given. A verb waits only for the first ceiling of a stripe after a restart of the
//! machine, where a disk is slower than ten thousand grants, and where a floor asks for a jump.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use latchwork_store::{BackendError, BackendErrorKind, Backoff, Effect};
use tokio::sync::oneshot;

use crate::disk::sync;
use crate::protocol::shared::{PAUSES, Shared};
use crate::records::stripe::{Locked, Reserved, Try};

type Answer = Result<(), BackendError>;

/// What is on its way to the disk for one stripe.
#[derive(Debug, Default)]
pub(crate) struct Reserve(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    under_way: bool,
    waiting: Vec<oneshot::Sender<Answer>>,
}

/// Tells a verb when to try again.
pub(crate) type Waiting = oneshot::Receiver<Answer>;

impl Reserve {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a verb that waits; true if nothing is under way, and something must be now.
    ///
    /// The lock is kept for no write: the driver's thread takes it, too.
    fn begin(&self, waiting: Option<oneshot::Sender<Answer>>) -> bool {
        let mut state = self.lock();
        state.waiting.extend(waiting);
        !std::mem::replace(&mut state.under_way, true)
    }

    fn end(&self, answer: &Answer) {
        let waiting = {
            let mut state = self.lock();
            state.under_way = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(|waiting| drop(waiting.send(answer.clone())));
    }
}

/// Ends what is under way, whatever becomes of its task.
struct UnderWay {
    shared: Weak<Shared>,
    stripe: usize,
    answer: Answer,
}

impl UnderWay {
    fn end_with(mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.reserves[self.stripe].end(&self.answer);
        }
    }
}

impl Shared {
    /// Has a ceiling above `token` put on the disk, and tells when that is done. The caller unlocks
    /// the stripe before it waits.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        stripe: usize,
        token: u64,
        wall_micros: u64,
    ) -> Waiting {
        let (tell, waiting) = oneshot::channel();
        if self.reserves[stripe].begin(Some(tell)) {
            match locked.reserve(token, self.era(), wall_micros) {
                Ok(reserved) => self.put_on_disk(stripe, reserved),
                Err(error) => self.reserves[stripe].end(&Err(error)),
            }
        }
        // If a ceiling under way is too low, the next try begins again.
        waiting
    }

    /// Has the next ceiling put on the disk before it is needed.
    pub(crate) fn reserve_ahead(self: &Arc<Self>, locked: &mut Locked<'_>, stripe: usize) {
        if !self.reserves[stripe].begin(None) {
            return;
        }
        match locked.reserve(0, self.era(), self.wall_micros()) {
            Ok(reserved) => self.put_on_disk(stripe, reserved),
            // A grant above the ceiling will say why.
            Err(error) => self.reserves[stripe].end(&Err(error)),
        }
    }

    fn put_on_disk(self: &Arc<Self>, stripe: usize, reserved: Reserved) {
        let weak = Arc::downgrade(self);
        let under_way = UnderWay { shared: weak.clone(), stripe, answer: Err(ended()) };
        let io = self.io.clone();
        self.io.spawn(async move {
            let kept = reserved.clone();
            let answer = match sync::run(&io, move || reserved.sync()).await {
                Ok(Ok(())) => raise_ceiling(&weak, stripe, &kept).await,
                Ok(Err(errno)) => match weak.upgrade() {
                    Some(shared) => Err(shared.stripe(stripe).failed("put on the disk", errno)),
                    None => return,
                },
                Err(error) => Err(error),
            };
            under_way.end_with(answer);
        });
    }
}

async fn raise_ceiling(weak: &Weak<Shared>, stripe: usize, reserved: &Reserved) -> Answer {
    let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
    loop {
        let sleep = {
            // Nobody is left to notify.
            let Some(shared) = weak.upgrade() else { return Ok(()) };
            match shared.try_lock(stripe)? {
                Try::Locked(mut locked) => {
                    return locked.raise_ceiling(reserved, shared.era(), shared.wall_micros());
                }
                // The next try finds out by itself.
                Try::Removed => return Ok(()),
                Try::Busy => shared.io.sleep(backoff.pause()),
            }
        };
        sleep.await;
    }
}

/// Waits for a ceiling; returns the answer for the verb.
pub(crate) async fn wait(waiting: Waiting) -> Answer {
    waiting.await.unwrap_or_else(|_| Err(ended()))
}

fn ended() -> BackendError {
    BackendError::new(
        BackendErrorKind::Unreachable,
        Effect::NotApplied,
        "the lock manager was dropped before the disk answered",
    )
    .with_next_step("keep the lock manager until all its locks are released")
}

#[cfg(test)]
mod tests {
    use latchwork::Driver;
    use latchwork_store::Backend;

    use crate::backend::FileBackend;
    use crate::records::codec::tests::claim;

    /// Without a thread to wait on, a try that needs a sync ends with an error and does not spin.
    #[test]
    fn a_try_without_a_driver_fails() {
        let home = tempfile::tempdir().unwrap();
        let driver = Driver::start().unwrap();
        let backend = FileBackend::connect(home.path().join("locks"), driver.io()).unwrap();
        drop(driver);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        // The thread may live a moment longer, and then serves the first tries.
        let mut tries = (0..).map(|n| claim(&format!("key {n}")));
        let failed = tries.find_map(|claim| runtime.block_on(backend.try_acquire(&claim)).err());
        assert!(failed.unwrap().message.contains("lock manager"));
    }
}

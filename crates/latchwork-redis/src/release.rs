//! Releases, and the calls that serve a long line after one.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Claim, ClaimId, Linger, Released};
use redis::Value;

use crate::answers::{goes_on, is_alone, released};
use crate::backend::{PROBATION, Shared, millis};
use crate::free_path::up_to_id;
use crate::names::Names;
use crate::push::Unclaimed;
use crate::scripts::{RELEASE, RELEASE_GUARDED};

/// How long a release waits for calls that serve the rest of the line.
const REST_LIMIT: Duration = Duration::from_millis(200);

/// Counts the calls of a script that goes on where the last one ended.
#[derive(Debug, Default)]
pub(crate) struct Calls(u32);

impl Calls {
    /// More than a line of 100,000 needs.
    const MOST: u32 = 1_000;

    /// Whether one more may be sent.
    pub(crate) fn may_go_on(&mut self) -> bool {
        self.0 += 1;
        self.0 <= Self::MOST
    }
}

impl Shared {
    pub(crate) async fn release_on_master(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let names = self.topology.names(&claim.key)?;
        if linger == Linger::End {
            // It ends no claim, not even one of this id.
            return Box::pin(self.release_in_line(&names, claim.id, -1, linger)).await;
        }
        let place = self.pushes.find(claim.id).map_or(-1, |mailbox| mailbox.place());
        let waited = self.pushes.close(claim.id);
        let simple = is_alone(claim.mode) && linger == Linger::None;
        if simple && !waited && !self.crowds.is_crowded(&names) {
            let request = (names.clone(), up_to_id(claim));
            let freed = if self.topology.is_cluster() {
                self.free.alone(&request).await?
            } else {
                self.free.send(request).await?
            };
            if freed {
                return Ok(Released::Yes);
            }
        }
        Box::pin(self.release_in_line(&names, claim.id, place, linger)).await
    }

    async fn release_in_line(
        &self,
        names: &Names,
        id: ClaimId,
        place: i64,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let answer = self.run_release(names, &id.to_string(), linger, (0, place)).await;
        let answer = match answer {
            Err(error) if error.kind == BackendErrorKind::Mismatch => return Ok(Released::NotHeld),
            answer => answer?,
        };
        if let Some(from) = goes_on(&answer, 3) {
            self.serve_the_rest(names, from).await;
        }
        released(&answer)
    }

    /// Calls again for those in line that one call has left: it serves a limited number. The
    /// release itself is done, so it is not held up by that for long.
    async fn serve_the_rest(&self, names: &Names, from: u64) {
        let (Some(this), names) = (self.me.upgrade(), names.clone()) else { return };
        let (done, is_done) = tokio::sync::oneshot::channel::<()>();
        self.io.spawn(async move {
            let (mut from, mut calls) = (from, Calls::default());
            while calls.may_go_on() {
                let answer = this.run_release(&names, "", Linger::None, (from, -1)).await;
                // Whoever is left in line looks by itself.
                let Some(more) = answer.ok().and_then(|answer| goes_on(&answer, 3)) else { break };
                from = more;
            }
            drop(done);
        });
        let _ = self.io.within(REST_LIMIT, is_done).await;
    }

    async fn run_release(
        &self,
        names: &Names,
        id: &str,
        linger: Linger,
        (from, place): (u64, i64),
    ) -> Result<Value, BackendError> {
        let linger = match linger {
            Linger::None => "0".to_owned(),
            Linger::For(length) => millis(length).to_string(),
            Linger::End => "end".to_owned(),
        };
        let (start, end) = names.channel_parts();
        let script = if self.guard.is_some() { &RELEASE_GUARDED } else { &RELEASE };
        let run = self.topology.run_at(names.slot(), script, |command, link| {
            self.keys(command, names);
            command.arg("").arg(id).arg(&linger);
            for _ in 4..=12 {
                command.arg("");
            }
            command.arg(start).arg(end).arg(self.publish());
            command.arg("").arg(self.count_listeners(link)).arg(from).arg(place);
            if let Some(guard) = &self.guard {
                guard.fill(command, link);
            }
        });
        run.await
    }
}

impl Unclaimed for Shared {
    fn give_back(self: Arc<Self>, id: ClaimId, lock: String) {
        let this = self.clone();
        self.io.spawn(async move {
            let names = this.topology.names_of_stored(&lock);
            // It is on probation: if this fails, it ends by itself soon.
            let release = this.release_in_line(&names, id, -1, Linger::None);
            let _ = this.io.within(PROBATION, release).await;
        });
    }
}

//! Checks of claims that are far behind in a long queue.
//!
//! A claim checks every few seconds to keep its place. Among thousands, each check would read
//! thousands of places to learn that the claim still waits. While its own place, those that it
//! waits for and the limit of permits are the same as at the last check, it gets the same answer; if
//! one of them is not, it reads the queue.

use latchwork_store::{BackendError, Blocked, Cause, Claim};

use crate::proto::response_op::Response;
use crate::protocol::claims::{LastAnswer, OwnClaim};
use crate::protocol::queue::Place;
use crate::protocol::shared::{Shared, went_back};
use crate::protocol::{names, requests};
use crate::server::errors::{Failure, error, strange};
use crate::server::keep_alive::Purpose;

impl Shared {
    /// Keeps the place of a claim; `None` if that is gone, or what stands before it has changed.
    pub(crate) async fn look_far_behind(
        &self,
        claim: &Claim,
        prefix: &[u8],
        own: OwnClaim,
        far: LastAnswer,
    ) -> Result<Option<Blocked>, BackendError> {
        let Some(revision) = own.revision else { return Ok(None) };
        let lease = own.lease;
        let sent_at = self.clocks();
        let newest = self.newest();
        let own_key = names::claim(prefix, lease.id);
        let limit = names::limit(prefix);
        let behind: Vec<_> =
            far.behind.iter().map(|t| ([prefix, &t.suffix].concat(), t.revision)).collect();
        let ask = self.members.ask(|link| {
            let behind = behind.iter().map(|(key, revision)| (&**key, *revision));
            let places = behind.chain([(&*own_key, revision.get())]);
            let limit = far.limit_changed.map(|changed| (&*limit, changed));
            let request = requests::unchanged(places, &far.first, limit);
            async move {
                let (answer, alive) =
                    tokio::join!(link.txn(request), link.keep_alive(Purpose::Try, lease.id));
                Ok((answer.map_err(Failure::of_a_read)?, alive.map_err(Failure::of_a_read)?))
            }
        });
        let (answer, alive) = ask.await.map_err(error)?;
        let told = answer.header.as_ref().map_or(0, |header| header.revision);
        if told < newest {
            return Err(went_back(newest, told));
        }
        // A leader that is behind may say that there is no such lease; who reads the queue asks again.
        let (true, Some(granted)) = (answer.succeeded, alive) else {
            self.claims.set_far(claim.id, lease.id, None);
            return Ok(None);
        };
        self.claims.alive(claim.id, lease.id, lease.usable(granted), sent_at);
        let first = match answer.responses.into_iter().next().and_then(|op| op.response) {
            Some(Response::ResponseRange(found)) => found.kvs.into_iter().next().map(Place::read),
            _ => return Err(strange("a transaction")),
        };
        let is_foreign = first.as_ref().is_some_and(|first| first.id.is_none());
        Ok(Some(far.blocked.with(|it| {
            it.cause = if is_foreign { Cause::Foreign } else { Cause::Held };
            it.holder = first.map(|first| first.holder);
        })))
    }
}

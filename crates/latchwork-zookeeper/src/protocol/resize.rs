//! A change of the limit of permits while the key is in use (B12).
//!
//! The limit is the data of the lock's node, which the server removes with the node, some time after the
//! last claim has gone. It is changed in the two steps of [`kit::limit`](latchwork_store::kit::limit). The server
//! counts the children that come and go: if the count is the same at the first step and when the queue is
//! read right after it, that is the queue as it was at the first step.

use std::time::Duration;

use latchwork_store::kit::limit::Limit;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Resized, Shape};

use crate::protocol::queue::{Place, Queue};
use crate::protocol::release::read;
use crate::protocol::shared::Shared;
use crate::server::errors::{refused, strange};
use crate::server::session::Session;
use crate::server::session::messages::{self, Refusal, Request, Stat};

/// How often a change begins again because another one, or a claim, came between.
const ROUNDS: u32 = 12;
/// How often, and how long each time, a change waits for the second step of another one.
const STEP_PATIENCE: u32 = 4;
const PAUSE: Duration = Duration::from_millis(25);

/// The result of a first step.
enum Begun {
    /// The queue then.
    Exactly(Queue),
    /// The queue soon after it.
    About(Queue),
    /// Somebody else has changed the limit.
    Raced,
    /// The node of the lock is gone.
    Gone,
}

impl Shared {
    pub(crate) async fn resize(&self, claim: &Claim) -> Result<Resized, BackendError> {
        let lock = self.names.lock(&claim.key);
        let Some(to) = claim.mode.limit() else { return Err(BackendError::cannot_resize()) };
        let session = self.sessions.any();
        let up = session.up().await?;
        // What a first step of ours has found, and the version that it has made.
        let mut ours: Option<(Option<Limit>, i32)> = None;
        let mut answer = None;
        for round in 0..ROUNDS {
            let (mut queue, _) = read(&session, &up, &lock).await?;
            if let Some(stranger) = queue.clash(claim, 0, false) {
                return Err(stranger);
            }
            match queue.used_as(queue.places.len()) {
                None => return Ok(answer.unwrap_or(Resized::Unused)),
                Some(Shape::Semaphore { .. }) => {}
                Some(shape) => return Err(claim.mismatch(shape)),
            }
            if queue.has_foreign_data {
                return Err(foreign_data(&lock));
            }
            let version = queue.limit_version.unwrap_or(0);
            match ours.take() {
                Some((before, made)) if made == version => queue.limit = before,
                _ if round < STEP_PATIENCE && !is_settled(&queue) => {
                    // Another client makes its second step, or has died.
                    self.io.clock().sleep_until(self.io.now().plus(PAUSE)).await;
                    continue;
                }
                _ => {
                    let has_it = |place: &Place| queue.mode_of(place).limit() == Some(to);
                    if is_settled(&queue) && queue.places.iter().all(has_it) {
                        return Ok(answer.unwrap_or_else(|| changed(&queue, to)));
                    }
                }
            }
            match begin(&session, &lock, &queue, to, version).await? {
                Begun::Exactly(seen) => {
                    settle(&session, &lock, &seen, to, version + 1).await;
                    return Ok(answer.unwrap_or_else(|| changed(&seen, to)));
                }
                Begun::About(seen) => {
                    answer.get_or_insert_with(|| changed(&seen, to));
                    ours = Some((queue.limit, version + 1));
                }
                Begun::Raced => {}
                Begun::Gone => return Ok(answer.unwrap_or(Resized::Unused)),
            }
        }
        answer.ok_or_else(|| {
            let message = "the limit could not be changed: others have changed it all the time";
            BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        })
    }
}

/// The first step, and the queue right after it.
async fn begin(
    session: &Session,
    lock: &str,
    queue: &Queue,
    to: u32,
    version: i32,
) -> Result<Begun, BackendError> {
    let last = queue.places.last().map_or(0, Place::order);
    let begun = Limit::begin(queue.limit.as_ref(), to, last).to_text();
    let set = Request::set_data(lock, begun.as_bytes(), version);
    let mut landed = session.fly(vec![set, Request::children_and_stat(lock)]).await;
    let set = match landed.next()? {
        Ok(body) => Stat::read(&body).ok_or_else(|| strange("a write"))?,
        Err(Refusal::BAD_VERSION) => return Ok(Begun::Raced),
        Err(Refusal::NO_NODE) => return Ok(Begun::Gone),
        Err(refusal) => return Err(refused(refusal, lock)),
    };
    let unsure = |error: BackendError| error.with_effect(Effect::Unknown);
    let body = match landed.next().map_err(unsure)? {
        Ok(body) => body,
        Err(Refusal::NO_NODE) => return Ok(Begun::Gone),
        Err(refusal) => return Err(unsure(refused(refusal, lock))),
    };
    let listed = messages::children_and_stat(&body).ok_or_else(|| strange("a list"))?;
    let (children, stat) = listed;
    let mut seen = Queue::read_up_to(&children, None);
    seen.limit = queue.limit.clone();
    Ok(match stat.children_version == set.children_version {
        true => Begun::Exactly(seen),
        false => Begun::About(seen),
    })
}

/// The second step, with the queue as it was at the first one. Without it the limit counts all the same.
async fn settle(session: &Session, lock: &str, seen: &Queue, to: u32, version: i32) {
    let places = seen.places.iter().zip(seen.holding());
    let places = places.map(|(place, holds)| (place.order(), place.mode, holds));
    if let Some(settled) = Limit::settle(seen.limit.as_ref(), to, places) {
        let set = Request::set_data(lock, settled.to_text().as_bytes(), version);
        let _ = session.fly(vec![set]).await.next();
    }
}

fn is_settled(queue: &Queue) -> bool {
    queue.limit.as_ref().is_none_or(Limit::is_settled)
}

/// The answer to a change of the limit that this queue had.
fn changed(queue: &Queue, to: u32) -> Resized {
    let shape = queue.used_as(queue.places.len());
    let Some(from) = shape.and_then(Shape::limit) else { return Resized::Unused };
    let held = queue.places.iter().zip(queue.holding()).filter(|(_, holds)| *holds);
    Resized::of(from, to, held.map(|(place, _)| place.mode))
}

fn foreign_data(lock: &str) -> BackendError {
    let message = format!("{lock} has data that is not of Latchwork, in the place of the limit");
    BackendError::new(BackendErrorKind::Mismatch, Effect::NotApplied, message)
        .with_next_step("use another key, or remove the data of that node")
}

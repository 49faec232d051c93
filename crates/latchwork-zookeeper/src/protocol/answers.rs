//! What the servers' answers mean for a lock: its queue, the time, the length of a grant.

use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Mode};

use crate::protocol::claims::Node;
use crate::protocol::queue::Queue;
use crate::server::errors::{refused, strange};
use crate::server::session::messages::{self, Refusal, Request};
use crate::server::session::{Landed, Reading, Session};

/// The queue that the next reply has, up to a place in it if one is named; a lock without a node has
/// nobody in queue.
pub(crate) fn queue_in(
    landed: &mut Landed,
    lock: &str,
    up_to: Option<&str>,
) -> Result<Queue, BackendError> {
    match landed.next()? {
        Ok(body) => {
            let children = messages::children(&body).ok_or_else(|| strange("a list"))?;
            Ok(Queue::read_up_to(&children, up_to))
        }
        Err(Refusal::NO_NODE) => Ok(Queue::default()),
        Err(refusal) => Err(refused(refusal, lock)),
    }
}

/// The reads of a queue: of permits also that of the limit, which must not be the older one. By a limit from
/// before a change a newer queue could admit a claim that did not hold the key at the change.
pub(crate) fn reads(lock: &str, mode: Mode) -> Vec<Request> {
    let limit = mode.limit().map(|_| Request::get(lock));
    [Request::children(lock)].into_iter().chain(limit).collect()
}

/// What the replies to [`reads`] say, as [`queue_in`].
pub(crate) fn queue_of(
    landed: &mut Landed,
    lock: &str,
    mode: Mode,
    up_to: Option<&str>,
) -> Result<Queue, BackendError> {
    let queue = queue_in(landed, lock, up_to)?;
    if mode.limit().is_none() {
        return Ok(queue);
    }
    match landed.next()? {
        Ok(body) => {
            let (data, stat) = messages::data(&body).ok_or_else(|| strange("a read"))?;
            Ok(queue.with_limit(&data, stat.version))
        }
        Err(Refusal::NO_NODE) => Ok(Queue::default()),
        Err(refusal) => Err(refused(refusal, lock)),
    }
}

/// Stands for a semaphore where the kind of lock is not known, so that the limit is read as well.
pub(crate) const ANY: Mode = Mode::Permits { take: 1, of: 1 };

/// When a pulse was written, by the leader's clock, in ms.
pub(crate) fn pulse_in(landed: &mut Landed, pulse: &str) -> Result<i64, BackendError> {
    match landed.next()? {
        Ok(body) => {
            let stat = messages::Stat::read(&body).ok_or_else(|| strange("a write"))?;
            Ok(stat.changed_ms)
        }
        Err(refusal) => Err(refused(refusal, pulse)),
    }
}

/// How long the session surely lives, as much of it as the claim asks for.
pub(crate) fn lives_for(
    session: &Session,
    claim: &Claim,
    sent: Reading,
) -> Result<Duration, BackendError> {
    let ttl = session.lives_for(sent).min(claim.ttl);
    if ttl >= claim.ttl / 2 {
        return Ok(ttl);
    }
    let message = "the servers have not confirmed the session for so long that it may end soon";
    Err(BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message).with_next_step(
        "check the load of the servers, and whether this process or its machine was paused",
    ))
}

pub(crate) fn token_of(node: &Node) -> Result<u64, BackendError> {
    let token = u64::try_from(node.created).ok().filter(|token| *token < 1 << 53);
    token.ok_or_else(|| {
        let message = format!("the transaction {:#x} exceeds the largest token", node.created);
        BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
    })
}

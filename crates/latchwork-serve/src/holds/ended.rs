//! Holds that have ended, kept for a while: a client that asks again learns how its hold ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use latchwork::store::Moment;

use super::id::HoldId;
use crate::api::error::ApiError;

/// How long it is known what became of a hold.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// Of how many holds it is known at the most.
const MOST: usize = 20_000;

/// How a hold has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// By its client.
    Released,
    /// Its client did not renew it within its ttl.
    NotRenewed,
    /// Somebody took it away, by a forced release.
    Forced,
    /// The library says why.
    Lost(&'static str),
}

impl Ending {
    /// The word for it, if it was a loss.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Released => None,
            Self::NotRenewed => Some("not_renewed"),
            Self::Forced => Some("forced"),
            Self::Lost(reason) => Some(reason),
        }
    }

    /// The answer to a client that comes too late.
    pub(crate) fn error(self, name: &str) -> ApiError {
        let gone = |kind, message: String| ApiError::new(StatusCode::GONE, kind, message).key(name);
        match self {
            Self::Released => gone("Released", "hold: it was released before".to_owned())
                .next_step("nothing to do; to lock again, acquire with another Idempotency-Key"),
            Self::NotRenewed => gone(
                "Lost",
                "hold: it was not renewed within its ttl, so the service released it".to_owned(),
            )
            .reason("not_renewed")
            .next_step("stop the work, and check what was written under its token; renew earlier"),
            Self::Forced => gone("Lost", "hold: it was released by force".to_owned())
                .reason("forced")
                .next_step("stop the work, and check what was written under its token"),
            Self::Lost(reason) => gone("Lost", format!("hold: the lock was lost ({reason})"))
                .reason(reason)
                .next_step("stop the work, and check what was written under its token"),
        }
    }
}

/// What is known of a hold that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Epitaph {
    pub(crate) owner: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) ending: Ending,
}

/// The holds that have ended lately.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    by_id: HashMap<HoldId, Epitaph>,
    in_order: VecDeque<(Moment, HoldId)>,
}

impl Ended {
    pub(crate) fn add(&mut self, now: Moment, id: HoldId, epitaph: Epitaph) {
        self.by_id.insert(id, epitaph);
        self.in_order.push_back((now, id));
        while let Some((at, oldest)) = self.in_order.front() {
            if self.in_order.len() <= MOST && now.since(*at) < KEPT {
                break;
            }
            self.by_id.remove(oldest);
            self.in_order.pop_front();
        }
    }

    pub(crate) fn find(&self, id: HoldId) -> Option<&Epitaph> {
        self.by_id.get(&id)
    }
}

//! Holds that have ended, kept for a while: a client that asks again learns how its hold ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use latchwork::store::Moment;

use super::id::HoldId;
use super::release::{How, Said};
use crate::http::error::ApiError;

/// How long it is known what became of a hold.
const KEPT: Duration = Duration::from_secs(10 * 60);

/// Of how many holds of one token it is known at the most, so that no client makes the service forget those of
/// another.
const MOST: usize = 20_000;

/// And how many bytes their names have at the most.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// How a hold has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its client gave it up.
    Left(How, Said),
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
            Self::Left(..) => None,
            Self::NotRenewed => Some("not_renewed"),
            Self::Forced => Some("forced"),
            Self::Lost(reason) => Some(reason),
        }
    }

    /// The answer to a client that comes too late.
    pub(crate) fn error(self, name: &str) -> ApiError {
        let gone = |kind, message: String| ApiError::new(StatusCode::GONE, kind, message).key(name);
        match self {
            Self::Left(_, Said::Held) => gone("Released", "hold: it was released before".to_owned())
                .next_step("nothing to do; to lock again, acquire with another Idempotency-Key"),
            Self::Left(_, Said::Lost(reason)) => Self::Lost(reason).error(name),
            Self::Left(_, Said::Nothing) => gone(
                "Unconfirmed",
                "hold: it was given up, and the store has not answered its release yet".to_owned(),
            )
            .next_step("repeat the release to learn what the store says"),
            Self::Left(How::Release, Said::Unknown) => gone(
                "Unconfirmed",
                "hold: it was released, but the store has not confirmed that it was held until then"
                    .to_owned(),
            )
            .next_step("check what was written under its token, if an overlap would do harm"),
            Self::Left(How::Succeed, Said::Unknown) => gone(
                "Unconfirmed",
                "hold: the store has not confirmed that the task is closed for its period".to_owned(),
            )
            .next_step("expect that the task runs again; begin it to see whether it is done"),
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
    /// By owner, the oldest first.
    in_order: HashMap<Arc<str>, InOrder>,
}

/// The holds of one token that have ended, the oldest first.
#[derive(Debug, Default)]
struct InOrder {
    ends: VecDeque<(Moment, HoldId)>,
    /// How long their names are.
    bytes: usize,
}

impl InOrder {
    /// Takes the oldest out.
    fn drop_first(&mut self, by_id: &mut HashMap<HoldId, Epitaph>) {
        let first = self.ends.pop_front().and_then(|(_, id)| by_id.remove(&id));
        self.bytes -= first.map_or(0, |epitaph| epitaph.name.len());
    }
}

impl Ended {
    pub(crate) fn add(&mut self, now: Moment, id: HoldId, epitaph: Epitaph) {
        let in_order = self.in_order.entry(epitaph.owner.clone()).or_default();
        in_order.ends.push_back((now, id));
        in_order.bytes += epitaph.name.len();
        self.by_id.insert(id, epitaph);
        while in_order.ends.len() > MOST || in_order.bytes > MOST_BYTES {
            in_order.drop_first(&mut self.by_id);
        }
    }

    /// Forgets what ended long ago.
    pub(crate) fn forget(&mut self, now: Moment) {
        self.in_order.retain(|_, in_order| {
            while in_order.ends.front().is_some_and(|(at, _)| now.since(*at) >= KEPT) {
                in_order.drop_first(&mut self.by_id);
            }
            !in_order.ends.is_empty()
        });
    }

    /// Changes how a hold has ended, if it is known.
    pub(crate) fn correct(&mut self, id: HoldId, ending: Ending) {
        if let Some(epitaph) = self.by_id.get_mut(&id) {
            epitaph.ending = ending;
        }
    }

    pub(crate) fn find(&self, id: HoldId) -> Option<&Epitaph> {
        self.by_id.get(&id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_does_not_make_others_forgotten() {
        let mut ended = Ended::default();
        let now = Moment::from_nanos(0);
        let long: Arc<str> = "x".repeat(64 * 1024).into();
        let mut add = |owner: &str, name: &Arc<str>| {
            let id = HoldId::random();
            let (name, ending) = (name.clone(), Ending::Left(How::Release, Said::Held));
            ended.add(now, id, Epitaph { owner: owner.into(), name, ending });
            id
        };
        let (quiet, first) = (add("quiet", &"x".into()), add("loud", &"x".into()));
        for _ in 0..MOST {
            add("loud", &"x".into());
        }
        let longest = add("long", &long);
        for _ in 0..100 {
            add("long", &long);
        }
        assert!(ended.find(quiet).is_some());
        assert!(ended.find(first).is_none() && ended.find(longest).is_none());
        ended.forget(now.plus(KEPT));
        assert!(ended.by_id.is_empty() && ended.in_order.is_empty());
    }
}

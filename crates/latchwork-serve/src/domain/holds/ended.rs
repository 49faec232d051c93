//! The ends of holds, kept for some time: a client that asks again learns how its hold ended.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::Moment;

use super::id::HoldId;
use super::release::{Confirmation, ReleaseKind, ReleaseOutcome};
use crate::domain::refusal::{Kind, Refusal};

/// How long the end of a hold is kept.
pub(super) const KEPT: Duration = Duration::from_secs(10 * 60);

/// The most ends that are kept for one token, so that no client displaces those of another.
const MOST: usize = 20_000;

/// The most bytes of their names, and of the ids of the holds that have replaced them.
const MOST_BYTES: usize = 4 * 1024 * 1024;

/// How a hold has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Its client released it.
    Released(ReleaseKind, ReleaseOutcome),
    /// Its client did not renew it within its ttl.
    NotRenewed,
    /// An administrator released it by force.
    Forced,
    /// The library says why.
    Lost(&'static str),
}

impl Ending {
    /// The cause as one word, if it was a loss.
    pub(crate) fn reason(self) -> Option<&'static str> {
        match self {
            Self::Released(..) => None,
            Self::NotRenewed => Some("not_renewed"),
            Self::Forced => Some("forced"),
            Self::Lost(reason) => Some(reason),
        }
    }

    /// The refusal of a request for the hold after its end.
    pub(crate) fn refusal(self, name: &str) -> Refusal {
        let gone = |kind, message: String| Refusal::new(kind, message).key(name);
        match self {
            Self::Released(_, ReleaseOutcome::Held) => gone(Kind::Released, "hold: it was released before".to_owned())
                .with_next_step("nothing to do; to lock again, acquire with another Idempotency-Key"),
            Self::Released(_, ReleaseOutcome::Lost(reason)) => Self::Lost(reason).refusal(name),
            Self::Released(_, ReleaseOutcome::Pending) => gone(
                Kind::Unconfirmed,
                "hold: it was given up, and the store has not answered its release yet".to_owned(),
            )
            .with_next_step("repeat the release to learn what the store says"),
            Self::Released(ReleaseKind::Release, ReleaseOutcome::Unknown) => gone(
                Kind::Unconfirmed,
                "hold: it was released, but the store has not confirmed that it was held until then"
                    .to_owned(),
            )
            .with_next_step("if an overlap with another holder would do harm, check what was written under its token"),
            Self::Released(ReleaseKind::Succeed, ReleaseOutcome::Unknown) => gone(
                Kind::Unconfirmed,
                "hold: the store has not confirmed that the task is closed for its period".to_owned(),
            )
            .with_next_step("the task may run again: begin it to see whether it is done"),
            Self::NotRenewed => gone(
                Kind::Lost,
                "hold: it was not renewed within its ttl, so the service released it".to_owned(),
            )
            .reason("not_renewed")
            .with_next_step("stop the work, and check what was written under its token; renew earlier"),
            Self::Forced => gone(Kind::Lost, "hold: it was released by force".to_owned())
                .reason("forced")
                .with_next_step("stop the work, and check what was written under its token"),
            Self::Lost(reason) => gone(Kind::Lost, format!("hold: the lock was lost ({reason})"))
                .reason(reason)
                .with_next_step("stop the work, and check what was written under its token"),
        }
    }
}

/// A hold that has ended.
#[derive(Debug, Clone)]
pub(crate) struct EndedHold {
    pub(crate) owner: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) ending: Ending,
    /// The id of the hold that has replaced it.
    pub(crate) successor: Option<Box<str>>,
}

/// The holds that have ended recently.
#[derive(Debug, Default)]
pub(crate) struct EndedHolds {
    holds: Ends,
    /// The same for each of several locks but the first, for renewals that find them one by one. They displace no hold.
    parts: Ends,
}

/// Some that have ended.
#[derive(Debug, Default)]
struct Ends {
    by_id: HashMap<HoldId, EndedHold>,
    /// By owner, the oldest first.
    in_order: HashMap<Arc<str>, OwnerEnds>,
}

/// The holds of one token that have ended, the oldest first.
#[derive(Debug, Default)]
struct OwnerEnds {
    ends: VecDeque<(Moment, HoldId)>,
    /// The length of their texts.
    bytes: usize,
}

impl OwnerEnds {
    /// Removes the oldest.
    fn drop_first(&mut self, by_id: &mut HashMap<HoldId, EndedHold>) {
        let first = self.ends.pop_front().and_then(|(_, id)| by_id.remove(&id));
        self.bytes = self.bytes.saturating_sub(first.map_or(0, |hold| hold.bytes()));
    }

    /// Removes the oldest while they are too many.
    fn shrink(&mut self, by_id: &mut HashMap<HoldId, EndedHold>) {
        while self.ends.len() > MOST || (self.bytes > MOST_BYTES && !self.ends.is_empty()) {
            self.drop_first(by_id);
        }
    }
}

impl EndedHold {
    /// The refusal of a request for it.
    pub(crate) fn refusal(&self) -> Refusal {
        if self.successor.is_none() {
            return self.ending.refusal(&self.name);
        }
        let message = "hold: it was upgraded or downgraded, and went on under another id";
        Refusal::new(Kind::Released, message).key(&*self.name).with_next_step(
            "use the id in the answer to that change; to learn it again, repeat the change",
        )
    }

    fn bytes(&self) -> usize {
        self.name.len() + self.successor.as_ref().map_or(0, |id| id.len())
    }
}

impl EndedHolds {
    pub(crate) fn add(&mut self, now: Moment, id: HoldId, hold: EndedHold) {
        self.holds.add(now, id, hold);
    }

    /// Adds one of several locks of a hold.
    pub(crate) fn add_part(&mut self, now: Moment, id: HoldId, hold: EndedHold) {
        self.parts.add(now, id, hold);
    }

    /// Removes those that ended long ago.
    pub(crate) fn sweep(&mut self, now: Moment) {
        self.holds.sweep(now);
        self.parts.sweep(now);
    }

    /// Changes how a hold has ended whose release the store had not answered.
    pub(crate) fn correct(&mut self, id: HoldId, ending: Ending) {
        for ends in [&mut self.holds, &mut self.parts] {
            if let Some(hold) = ends.by_id.get_mut(&id)
                && let Ending::Released(_, ReleaseOutcome::Pending) = hold.ending
            {
                hold.ending = ending;
            }
        }
    }

    /// Keeps the id of the hold that has replaced another.
    pub(crate) fn succeed(&mut self, id: HoldId, by: &str) {
        self.holds.succeed(id, by);
    }

    pub(crate) fn find(&self, id: HoldId) -> Option<&EndedHold> {
        self.holds.by_id.get(&id).or_else(|| self.parts.by_id.get(&id))
    }
}

impl Ends {
    fn add(&mut self, now: Moment, id: HoldId, hold: EndedHold) {
        let in_order = self.in_order.entry(hold.owner.clone()).or_default();
        in_order.bytes += hold.bytes();
        match self.by_id.insert(id, hold) {
            // It keeps its place.
            Some(before) => in_order.bytes = in_order.bytes.saturating_sub(before.bytes()),
            None => in_order.ends.push_back((now, id)),
        }
        in_order.shrink(&mut self.by_id);
    }

    fn sweep(&mut self, now: Moment) {
        self.in_order.retain(|_, in_order| {
            while in_order.ends.front().is_some_and(|(at, _)| now.since(*at) >= KEPT) {
                in_order.drop_first(&mut self.by_id);
            }
            !in_order.ends.is_empty()
        });
    }

    fn succeed(&mut self, id: HoldId, by: &str) {
        let Some(hold) = self.by_id.get_mut(&id) else { return };
        let before = hold.bytes();
        hold.successor = Some(by.into());
        let (owner, after) = (hold.owner.clone(), hold.bytes());
        if let Some(in_order) = self.in_order.get_mut(&owner) {
            in_order.bytes = in_order.bytes - before + after;
            in_order.shrink(&mut self.by_id);
        }
    }
}

/// The answer to a request for `asked`, about a hold that was released by `kind` with this outcome.
///
/// # Errors
///
/// `Lost`, `Unconfirmed`; and `Released` for a success after a release.
pub(crate) fn answer(
    asked: ReleaseKind,
    kind: ReleaseKind,
    outcome: ReleaseOutcome,
    name: &str,
) -> Result<Confirmation, Refusal> {
    match (asked, kind, outcome) {
        (
            ReleaseKind::Succeed,
            ReleaseKind::Release,
            ReleaseOutcome::Pending | ReleaseOutcome::Held | ReleaseOutcome::Unknown,
        ) => {
            let message = "hold: it was released before, so the task is not closed for its period";
            Err(Refusal::new(Kind::Released, message).key(name).with_next_step(
                "to run the task again, begin it; at its end, succeed instead of DELETE",
            ))
        }
        (_, _, ReleaseOutcome::Held) => {
            Ok(Confirmation { is_closed: kind == ReleaseKind::Succeed })
        }
        (_, _, ReleaseOutcome::Pending | ReleaseOutcome::Lost(_) | ReleaseOutcome::Unknown) => {
            Err(Ending::Released(kind, outcome).refusal(name))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_does_not_make_others_forgotten() {
        let mut ended = EndedHolds::default();
        let now = Moment::from_nanos(0);
        let long: Arc<str> = "x".repeat(64 * 1024).into();
        let add = |ended: &mut EndedHolds, owner: &str, name: &Arc<str>| {
            let id = HoldId::random();
            let (name, ending) =
                (name.clone(), Ending::Released(ReleaseKind::Release, ReleaseOutcome::Held));
            ended.add(now, id, EndedHold { owner: owner.into(), name, ending, successor: None });
            id
        };
        let (quiet, first) =
            (add(&mut ended, "quiet", &"x".into()), add(&mut ended, "loud", &"x".into()));
        for _ in 0..MOST {
            add(&mut ended, "loud", &"x".into());
        }
        let longest = add(&mut ended, "long", &long);
        for _ in 0..100 {
            add(&mut ended, "long", &long);
        }
        assert!(ended.find(quiet).is_some());
        assert!(ended.find(first).is_none() && ended.find(longest).is_none());
        let id = long.replace('x', "i");
        let changed = add(&mut ended, "changed", &"x".into());
        ended.succeed(changed, &id);
        assert_eq!(ended.find(changed).and_then(|it| it.successor.as_deref()), Some(&*id));
        for _ in 0..100 {
            let next = add(&mut ended, "changed", &"x".into());
            ended.succeed(next, &id);
        }
        assert!(ended.find(changed).is_none(), "ids take memory, too");
        let ending = Ending::NotRenewed;
        let twice = EndedHold { owner: "twice".into(), name: long, ending, successor: None };
        let id = HoldId::random();
        for _ in 0..100 {
            ended.add(now, id, twice.clone());
        }
        let of_owner = &ended.holds.in_order["twice"];
        assert_eq!((of_owner.ends.len(), of_owner.bytes), (1, 64 * 1024), "one id counts once");
        ended.sweep(now.plus(KEPT));
        assert!(ended.holds.by_id.is_empty() && ended.holds.in_order.is_empty());
    }

    #[test]
    fn h532_the_locks_of_a_hold_displace_no_end_of_another_one() {
        let mut ended = EndedHolds::default();
        let now = Moment::from_nanos(0);
        let hold = || EndedHold {
            owner: "me".into(),
            name: "x".into(),
            ending: Ending::NotRenewed,
            successor: None,
        };
        let (first, first_part) = (HoldId::random(), HoldId::random());
        ended.add(now, first, hold());
        ended.add_part(now, first_part, hold());
        for _ in 0..MOST / 63 + 1 {
            ended.add(now, HoldId::random(), hold());
            (0..63).for_each(|_| ended.add_part(now, HoldId::random(), hold()));
        }
        assert!(ended.find(first).is_some() && ended.find(first_part).is_none());
        assert_eq!(ended.parts.by_id.len(), MOST);
        ended.sweep(now.plus(KEPT));
        assert!(ended.parts.by_id.is_empty() && ended.parts.in_order.is_empty());
    }
}

//! The queue of a key in etcd, and what it means for a claim.
//!
//! The value of a claim's key is `lw1 <claim id> <mode> <since, ms> <holder>`; other clients leave
//! it empty, or write what they like, and are mutex claims. The place of a claim that was released
//! with a linger stays, under a lease of its own, with `lwc` in front: it lets nobody pass who was
//! not there before, and keeps its create revision, so that clients of all kinds respect it.
//!
//! The holder of a claim that replaces a hold ends with U+001F, `beside=` and the id of that hold. Before that, or at
//! the end, is U+001F, `rank=` and a create revision: where the claim first stood, if an upgrade has removed that
//! place, or the rank of the hold that it replaces.

use std::num::NonZeroI64;
use std::time::Duration;

use latchwork_store::kit::limit::Limit;
use latchwork_store::kit::lineup::{self, Admission, Node};
use latchwork_store::kit::replace::{self, QueuedClaim, Verdict};
use latchwork_store::{BackendError, Blocked, Cause, Claim, ClaimId, Holder, Mode, Shape};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::proto::KeyValue;
use crate::protocol::claims::LastAnswer;
use crate::protocol::requests::MOST_OPS;

/// How far clocks of hosts may differ, and how late a lease may end, before a key that is closed
/// counts as open although its lease goes on.
const CLOCKS_DIFFER: Duration = Duration::from_secs(5);

/// A claim with more places than this ahead does not read the whole queue when it checks again.
const FAR: usize = 64;

/// A claim in queue.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Its key in etcd.
    pub(crate) key: Vec<u8>,
    /// Its create revision: its order, and its token.
    pub(crate) revision: i64,
    /// Since which revision it only keeps the key closed.
    pub(crate) closed: Option<i64>,
    /// In which term of the leader the lease of a closed place was granted, if its client wrote that.
    pub(crate) term: Option<u64>,
    pub(crate) lease: i64,
    pub(crate) mode: Mode,
    /// `None` for a client of another kind.
    pub(crate) id: Option<ClaimId>,
    pub(crate) holder: Holder,
    /// Since when it has asked, or until when it keeps the key closed, on the wall clock of its
    /// process.
    pub(crate) since: Option<Duration>,
    /// The hold that it is to replace.
    pub(crate) beside: Option<ClaimId>,
    /// The create revision of its first place, or of that of the hold that it replaces or has replaced.
    pub(crate) rank: i64,
}

/// What is stored in the key of a claim. Its rank is that of the new place unless it has another one.
pub(crate) fn value(claim: &Claim, now: Duration, rank: Option<NonZeroI64>) -> Vec<u8> {
    let mut value = written("lw1", claim, now);
    if let Some(rank) = rank {
        value.extend(format!("{RANK}{rank}").bytes());
    }
    if let Some(hold) = claim.beside {
        value.extend(format!("{BESIDE}{hold}").bytes());
    }
    value
}

/// What is stored in the key of a claim that has left the key closed: until when by its own clock, and
/// in which term its lease was granted. The lease decides while that term lasts.
pub(crate) fn closed_value(claim: &Claim, until: Duration, term: u64) -> Vec<u8> {
    let mut value = written("lwc", claim, until);
    value.extend(format!("{TERM}{term}").bytes());
    value
}

/// Stands before the term, as a field of the holder that older versions skip.
const TERM: &str = "\u{1f}term=";
/// Stands before the id of the hold that a claim is to replace, likewise.
const BESIDE: &str = "\u{1f}beside=";
/// Stands before the rank of a claim, likewise.
const RANK: &str = "\u{1f}rank=";

fn read_term(holder: &str) -> Option<u64> {
    holder.rsplit_once(TERM)?.1.parse().ok()
}

fn read_beside(holder: &str) -> Option<ClaimId> {
    ClaimId::parse(holder.rsplit_once(BESIDE)?.1.get(..32)?)
}

fn read_rank(holder: &str) -> Option<i64> {
    holder.rsplit_once(RANK)?.1.split('\u{1f}').next()?.parse().ok()
}

fn written(kind: &str, claim: &Claim, at: Duration) -> Vec<u8> {
    let mode = match claim.mode {
        Mode::Exclusive => "x".into(),
        Mode::Read => "r".into(),
        Mode::Write => "w".into(),
        Mode::Permits { take, of } => format!("p{take}/{of}"),
    };
    format!("{kind} {} {mode} {} {}", claim.id, at.as_millis(), claim.holder.stored()).into_bytes()
}

fn read_mode(text: &str) -> Option<Mode> {
    match text {
        "x" => Some(Mode::Exclusive),
        "r" => Some(Mode::Read),
        "w" => Some(Mode::Write),
        _ => {
            let (take, of) = text.strip_prefix('p')?.split_once('/')?;
            Some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
        }
    }
}

impl Place {
    /// Whether it keeps the key closed under a lease that a new leader may have restarted.
    fn may_last_too_long(&self, term: u64) -> bool {
        self.closed.is_some() && self.term != Some(term)
    }

    /// At which revision its key was put last.
    pub(crate) fn put_at(&self) -> i64 {
        self.closed.unwrap_or(self.revision)
    }

    /// Reads a key of a queue.
    pub(crate) fn read(entry: KeyValue) -> Self {
        let ours = std::str::from_utf8(&entry.value).ok().and_then(|text| {
            let mut words = text.splitn(5, ' ');
            let closes = match words.next()? {
                "lw1" => false,
                "lwc" => true,
                _ => return None,
            };
            let id = ClaimId::parse(words.next()?)?;
            let mode = read_mode(words.next()?)?;
            let since = words.next()?.parse().ok().map(Duration::from_millis);
            let holder = words.next()?;
            let term = read_term(holder).filter(|_| closes);
            let beside = read_beside(holder).filter(|_| !closes);
            let rank = read_rank(holder);
            Some((Some(id), mode, Holder::from_stored(holder), since, closes, term, beside, rank))
        });
        let foreign = || {
            let holder = Holder::new("a client of another kind");
            (None, Mode::Exclusive, holder, None, false, None, None, None)
        };
        let (id, mode, holder, since, closes, term, beside, rank) = ours.unwrap_or_else(foreign);
        let closed = closes.then_some(entry.mod_revision);
        let KeyValue { key, create_revision: revision, lease, .. } = entry;
        let rank = rank.unwrap_or(revision).min(revision);
        Self { key, revision, closed, term, lease, mode, id, holder, since, beside, rank }
    }
}

/// A queue, in order, at a revision of the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    pub(crate) places: Vec<Place>,
    pub(crate) revision: i64,
    /// The term of the leader then; 0 if it was not told.
    pub(crate) term: u64,
    /// The changed limit of permits.
    pub(crate) limit: Option<Limit>,
    /// When that was changed, 0 if there is none; `None` if it was not read.
    pub(crate) limit_changed: Option<i64>,
}

/// Whose view of a place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// Of its own claim, which has not been granted.
    Waiter,
    /// Of others, or of its claim once that was granted.
    Holder,
}

impl Queue {
    /// Takes out what has kept the key closed for long enough although its lease goes on.
    ///
    /// While the leader is the one that granted the lease, the lease alone decides, whatever the clocks
    /// of hosts say. A new leader restarts leases, and one of a day could close the next day too: then
    /// the clocks decide, which may differ by a little.
    pub(crate) fn without_what_is_over(mut self, wall: Duration) -> Self {
        let term = self.term;
        let is_over = |place: &Place| {
            place.may_last_too_long(term)
                && place.since.is_some_and(|until| until + CLOCKS_DIFFER < wall)
        };
        self.places.retain(|place| !is_over(place));
        self
    }

    /// As of this term of the leader.
    pub(crate) fn in_term(self, term: u64) -> Self {
        Self { term, ..self }
    }

    pub(crate) fn new(entries: Vec<KeyValue>, revision: i64) -> Self {
        Self::of(entries.into_iter().map(Place::read).collect(), revision)
    }

    pub(crate) fn of(mut places: Vec<Place>, revision: i64) -> Self {
        places.sort_unstable_by_key(|place| place.revision);
        Self { places, revision, ..Self::default() }
    }

    /// With what was read of the limit.
    pub(crate) fn with_limit(self, found: Option<KeyValue>) -> Self {
        let changed = found.as_ref().map_or(0, |found| found.mod_revision);
        let limit = found.and_then(|found| Limit::parse(&found.value, changed));
        Self { limit, limit_changed: Some(changed), ..self }
    }

    /// When the limit was changed that applies to no place any more, if there is such a one.
    pub(crate) fn idle_limit(&self) -> Option<i64> {
        let applies = |limit: &Limit| self.places.iter().any(|it| limit.applies_to(it.revision));
        // One that cannot be read is of another version, or another program's.
        let is_idle = self.limit.as_ref().is_some_and(|limit| !applies(limit));
        self.limit_changed.filter(|changed| *changed > 0 && is_idle)
    }

    /// The places that do not only keep the key closed.
    pub(crate) fn open_places(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|place| place.closed.is_none())
    }

    /// The mode of a place with the limit that the key has for it.
    pub(crate) fn mode_of(&self, place: &Place) -> Mode {
        self.limit.as_ref().map_or(place.mode, |it| it.of_place(place.revision, place.mode))
    }

    fn mode_in(&self, view: View, place: &Place) -> Mode {
        let Some(limit) = &self.limit else { return place.mode };
        match view {
            View::Waiter => limit.of_waiter(place.revision, place.mode),
            View::Holder => limit.of_holder(place.revision, place.mode),
        }
    }

    /// Where the key stands.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.places.iter().position(|place| place.key == key)
    }

    pub(crate) fn find_claim(&self, id: ClaimId) -> Option<&Place> {
        self.places.iter().find(|place| place.id == Some(id) && place.closed.is_none())
    }

    /// Why a claim cannot share the key with the places ahead, if it cannot. A place that `matches` keeps its
    /// limit.
    pub(crate) fn clash(
        &self,
        claim: &Claim,
        ahead_of: usize,
        matches: bool,
    ) -> Option<BackendError> {
        // A place whose limit was changed keeps the new one.
        let applies = |place: &&Place| {
            matches || self.limit.as_ref().is_some_and(|limit| limit.applies_to(place.revision))
        };
        let kept = self.places.get(ahead_of).filter(applies).map(|place| self.mode_of(place));
        claim.judged_mode(self.used_as(ahead_of), kept).err()
    }

    /// What the first of these places uses the key as.
    pub(crate) fn used_as(&self, ahead_of: usize) -> Option<Shape> {
        let mut ahead = self.places[..ahead_of].iter().filter(|place| place.closed.is_none());
        Some(self.mode_of(ahead.next()?).shape())
    }

    /// The queue as seen by a claim that came at this revision. A claim that was there when a place
    /// was closed is behind the claim that it was; other claims pass no closed place.
    fn seen_at(&self, revision: i64, view: View) -> Vec<Node<()>> {
        let mode = |place: &Place| match place.closed {
            Some(closed) if revision > closed => Mode::Exclusive,
            _ => self.mode_in(view, place),
        };
        self.places.iter().map(|place| Node { id: (), mode: mode(place) }).collect()
    }

    /// The queue as it is judged for claims that replace holds.
    fn queued_at(&self, revision: i64) -> Vec<QueuedClaim> {
        let queued = |(place, node): (&Place, Node<()>)| QueuedClaim {
            mode: node.mode,
            beside: place.beside.and_then(|hold| self.place_of(hold)),
            yields: place.id.is_some() && place.closed.is_none(),
            rank: place.rank,
            replaces: place.beside.is_some(),
        };
        self.places.iter().zip(self.seen_at(revision, View::Holder)).map(queued).collect()
    }

    fn place_of(&self, id: ClaimId) -> Option<usize> {
        self.places.iter().position(|place| place.id == Some(id) && place.closed.is_none())
    }

    /// The place of the hold that the claim at this place replaces, if that is there.
    pub(crate) fn hold_of(&self, me: usize) -> Option<usize> {
        self.place_of(self.places.get(me)?.beside?)
    }

    /// Judges the claim at `me`, which is to replace a hold. The key must not be closed.
    pub(crate) fn replacing(&self, me: usize) -> Verdict {
        replace::verdict(&self.queued_at(self.places[me].revision), me, self.hold_of(me))
    }

    /// Judges a claim that is to replace a hold as if it came last; the queue must not be closed.
    pub(crate) fn replacing_as_newcomer(&self, mode: Mode, hold: ClaimId) -> Verdict {
        let mut queued_claims = self.queued_at(i64::MAX);
        let hold = self.place_of(hold);
        let newcomer =
            QueuedClaim { mode, beside: hold, yields: true, rank: i64::MAX, replaces: true };
        queued_claims.push(newcomer);
        replace::verdict(&queued_claims, self.places.len(), hold)
    }

    /// The first holder other than the hold that an upgrade replaces, if all places from `first` on wait.
    pub(crate) fn in_the_way(&self, first: usize, hold: Option<ClaimId>) -> Option<usize> {
        (0..first).find(|place| self.places[*place].id != hold)
    }

    /// The queue without these places.
    pub(crate) fn without(mut self, places: std::ops::Range<usize>) -> Self {
        self.places.drain(places);
        self
    }

    /// The queue without the places that keep the key closed.
    pub(crate) fn without_closed(mut self) -> Self {
        self.places.retain(|place| place.closed.is_none());
        self
    }

    /// Judges a place in the queue, as others do or its claim once it was granted.
    pub(crate) fn admission(&self, me: usize) -> Admission {
        self.admission_in(View::Holder, me)
    }

    fn admission_in(&self, view: View, me: usize) -> Admission {
        if self.hold_of(me).is_some() && self.closed().is_none() {
            return match self.replacing(me) {
                Verdict::Granted => Admission::Granted,
                Verdict::Behind(place) => Admission::Behind(place),
                _ => Admission::Behind(me - 1),
            };
        }
        lineup::admission(&self.seen_at(self.places[me].revision, view), me)
    }

    /// How many places ahead of this one hold the key. One pass over the queue.
    fn holders_ahead_of(&self, me: usize) -> usize {
        let seen_by = self.places.get(me).map_or(i64::MAX, |me| me.revision);
        let holding = replace::holding(&self.queued_at(seen_by));
        holding[..me].iter().filter(|holds| **holds).count()
    }

    /// Which places hold the key.
    pub(crate) fn holding(&self) -> Vec<bool> {
        if self.closed().is_none() {
            return replace::holding(&self.queued_at(i64::MAX));
        }
        // Each sees a closed place in another way.
        (0..self.places.len()).map(|place| self.admission(place) == Admission::Granted).collect()
    }

    /// Whether anybody holds the key. A place that keeps it closed does not.
    pub(crate) fn is_held(&self) -> bool {
        let mut places = self.places.iter().zip(self.holding());
        places.any(|(place, holds)| holds && place.closed.is_none())
    }

    /// Judges a place whose claim has not learned yet that it holds the key.
    pub(crate) fn admission_of_waiter(&self, me: usize) -> Admission {
        let alone = self.places[me].mode.is_alone();
        if !alone && let Some(closed) = self.closed() {
            return closed;
        }
        self.admission_in(View::Waiter, me)
    }

    /// Judges a claim as if it came last.
    pub(crate) fn admission_of_newcomer(&self, mode: Mode) -> Admission {
        if let Some(closed) = self.closed() {
            return closed;
        }
        let mut nodes = self.seen_at(i64::MAX, View::Waiter);
        nodes.push(Node { id: (), mode });
        lineup::admission(&nodes, self.places.len())
    }

    /// Of the places that keep the key closed, the one that did so last.
    fn last_closed(&self) -> Option<&Place> {
        self.places.iter().max_by_key(|place| place.closed).filter(|place| place.closed.is_some())
    }

    /// The places that keep the key closed.
    pub(crate) fn closed_by(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|place| place.closed.is_some())
    }

    /// For how long a place keeps the key closed whose lease lasts for so long, if that is known.
    pub(crate) fn closed_for(
        &self,
        place: &Place,
        lease: Option<Duration>,
        wall: Duration,
    ) -> Option<Duration> {
        let by_clock = || place.since.map(|until| until.saturating_sub(wall));
        match lease {
            Some(left) if place.may_last_too_long(self.term) => {
                Some(by_clock().map_or(left, |by_clock| by_clock.min(left)))
            }
            lease => lease.or_else(by_clock),
        }
    }

    /// What keeps the key closed, if anything does.
    pub(crate) fn closed(&self) -> Option<Admission> {
        let is_closed = |place: &usize| self.places[*place].closed.is_some();
        let closed: Vec<_> = (0..self.places.len()).filter(is_closed).collect();
        (!closed.is_empty()).then_some(Admission::BehindAny(closed))
    }

    /// The places whose end is waited for.
    fn targets(&self, admission: &Admission, prefix: usize) -> Vec<Target> {
        let behind = match admission {
            Admission::Granted => &[][..],
            Admission::Behind(place) => std::slice::from_ref(place),
            Admission::BehindAny(places) => places,
        };
        behind.iter().map(|place| Target::of(&self.places[*place], prefix)).collect()
    }

    /// Returns the answer to a claim at `me` that is to replace a hold, and waits until the holder at
    /// `other` leaves.
    pub(crate) fn blocked_beside(&self, me: usize, other: usize, prefix: usize) -> Blocked {
        let behind = Admission::BehindAny([other].into_iter().chain(self.hold_of(me)).collect());
        let resume = self.targets(&behind, prefix).into_iter().map(|target| target.to_string());
        Blocked::by(Cause::Held).with(|it| {
            it.ahead = Some(0);
            it.holder = Some(self.places[other].holder.clone());
            it.resume = Some(resume.collect::<Vec<_>>().join(" ").into());
        })
    }

    /// Returns what a claim at `me` keeps of its answer, if it is so far behind that it does not
    /// read the whole queue each time.
    pub(crate) fn far(
        &self,
        me: usize,
        admission: &Admission,
        prefix: usize,
        blocked: &Blocked,
    ) -> Option<LastAnswer> {
        // A key that is closed opens by the clock, and no place need leave for that.
        if me <= FAR || self.closed().is_some() {
            return None;
        }
        let behind = self.targets(admission, prefix);
        // With the own one and the limit they are compared by one transaction.
        (behind.len() + 2 <= MOST_OPS).then(|| LastAnswer {
            behind,
            first: self.places[0].key.clone(),
            limit_changed: self.limit_changed,
            blocked: blocked.clone(),
        })
    }

    /// Returns the answer to a claim at `me` that is behind others.
    pub(crate) fn blocked(&self, me: usize, admission: &Admission, prefix: usize) -> Blocked {
        let resume = self.targets(admission, prefix).into_iter().map(|target| target.to_string());
        // A place in the queue of a read-write lock may be removed while its claim waits, and a watch may
        // tell that later than the end of the place ahead. The same is true of a limit that falls below
        // what a claim takes.
        let stays = |place: &Place| match place.mode {
            Mode::Exclusive => true,
            Mode::Permits { take, .. } => take == 1,
            Mode::Read | Mode::Write => false,
        };
        let is_next = me == 1 && self.places.get(me).is_some_and(stays);
        let limit = self.limit_changed.map(|changed| format!("{LIMIT}{changed}"));
        let resume = resume.chain(is_next.then(|| NEXT.to_owned())).chain(limit);
        // The first one waits if the limit is smaller than what it takes.
        let first = self.places.first().filter(|_| me > 0);
        let cause = match first {
            _ if self.closed().is_some() => Cause::Linger,
            Some(Place { id: None, .. }) => Cause::Foreign,
            _ => Cause::Held,
        };
        Blocked::by(cause).with(|it| {
            let closed = self.last_closed();
            it.ahead = Some((me - self.holders_ahead_of(me)) as u32);
            it.holder = closed.or(first).map(|place| place.holder.clone());
            it.resume = Some(resume.collect::<Vec<_>>().join(" ").into());
        })
    }
}

/// Stands among the targets of a claim that has one place ahead, and no more, and whose own place
/// is removed by nobody.
pub(crate) const NEXT: &str = "next";

/// Stands before the revision at which the limit beside the queue was changed; 0 if there was none.
const LIMIT: &str = "limit=";

/// The revision at which the limit was changed, as `Blocked::resume` says it.
pub(crate) fn limit_changed_in(resume: &str) -> Option<i64> {
    resume.split(' ').find_map(|word| word.strip_prefix(LIMIT)?.parse().ok())
}

/// A place whose end is waited for: what follows the lock's name in its key, and its revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) suffix: Vec<u8>,
    pub(crate) revision: i64,
}

impl Target {
    fn of(place: &Place, prefix: usize) -> Self {
        Self { suffix: place.key[prefix..].to_vec(), revision: place.revision }
    }

    /// Reads what `Blocked::resume` says.
    pub(crate) fn read_all(resume: &str) -> Vec<Self> {
        let read = |word: &str| {
            let (revision, suffix) = word.split_once('@')?;
            let suffix = percent_decode_str(suffix).collect();
            Some(Self { suffix, revision: revision.parse().ok()? })
        };
        resume.split(' ').filter_map(read).collect()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.revision, percent_encode(&self.suffix, NON_ALPHANUMERIC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, revision: i64, value: &[u8]) -> KeyValue {
        let key = key.as_bytes().to_vec();
        KeyValue { key, create_revision: revision, value: value.to_vec(), ..KeyValue::default() }
    }

    #[test]
    fn claims_are_read_as_they_were_written() {
        let claim = Claim::new(
            latchwork_store::Key::new("k").unwrap(),
            ClaimId::from_u128(7),
            Mode::Permits { take: 2, of: 5 },
            Duration::from_secs(9),
            latchwork_store::Stamp::parse("0").unwrap(),
        )
        .with(|it| {
            it.order = latchwork_store::Order::Fifo;
            it.holder = "host a, pid 7".into();
            it.beside = Some(ClaimId::from_u128(9));
        });
        let rank = |rank| {
            let value = value(&claim, Duration::from_millis(1_234), NonZeroI64::new(rank));
            Place::read(entry("k/1", 3, &value))
        };
        assert_eq!((rank(0).rank, rank(2).rank), (3, 2));
        let place = rank(2);
        assert_eq!((place.id, place.mode), (Some(claim.id), claim.mode));
        assert_eq!(place.beside, claim.beside);
        assert_eq!(
            (&*place.holder.text, place.since),
            (&*claim.holder.text, Some(Duration::from_millis(1_234)))
        );
    }

    #[test]
    fn a_foreign_value_is_shown_as_a_foreign_mutex() {
        for value in [&b""[..], b"proposal", b"lw1 x", b"\xff", b"lw2 0 x 0 y"] {
            let place = Place::read(entry("k/1", 3, value));
            assert_eq!((place.id, place.mode), (None, Mode::Exclusive), "{value:?}");
        }
    }

    /// The queue behind a claim that was closed until the second 60, in this term if that is known.
    fn closed_queue(term: Option<u64>) -> Queue {
        let holder = Holder::new("host").with(|it| it.closed_at = Some(Duration::from_secs(50)));
        let key = latchwork_store::Key::new("k").unwrap();
        let stamp = latchwork_store::Stamp::parse("0").unwrap();
        let (id, ttl) = (ClaimId::from_u128(7), Duration::from_secs(9));
        let claim = Claim::new(key, id, Mode::Exclusive, ttl, stamp).with(|it| it.holder = holder);
        let mut value = closed_value(&claim, Duration::from_secs(60), term.unwrap_or(0));
        if term.is_none() {
            value.truncate(value.len() - "\u{1f}term=0".len());
        }
        let queue = Queue::new(vec![entry("k/1", 3, &value), entry("k/2", 9, b"")], 12);
        assert_eq!(queue.places[0].holder.closed_at, Some(Duration::from_secs(50)));
        queue
    }

    /// A wall clock that is days ahead opens nothing while the leader is the one that granted the lease.
    #[test]
    fn h209_the_lease_decides_while_its_leader_does() {
        let week = Duration::from_secs(7 * 86_400);
        let queue = closed_queue(Some(4)).in_term(4);
        assert_eq!(queue.clone().without_what_is_over(week).places.len(), 2);
        let (place, left) = (&queue.places[0], Some(Duration::from_secs(9)));
        assert_eq!(queue.closed_for(place, left, week), left);
        assert_eq!(queue.closed_for(place, left, Duration::ZERO), left);
        assert_eq!(queue.closed_for(place, None, Duration::ZERO).unwrap().as_secs(), 60);
    }

    #[test]
    fn a_key_opens_soon_after_its_linger_ends() {
        for term in [Some(4), None] {
            let queue = || closed_queue(term).in_term(5);
            let at = |secs| queue().without_what_is_over(Duration::from_secs(secs)).places.len();
            assert_eq!((at(0), at(60), at(65), at(66)), (2, 2, 2, 1));
            // Its lease was restarted, and says too much.
            let left = |secs| {
                let (queue, lease) = (queue(), Some(Duration::from_secs(55)));
                queue
                    .closed_for(&queue.places[0], lease, Duration::from_secs(secs))
                    .unwrap()
                    .as_secs()
            };
            assert_eq!((left(0), left(20), left(60), left(66)), (55, 40, 0, 0));
        }
    }

    #[test]
    fn a_closed_key_names_the_closing_holder_and_time() {
        let at = Some(Duration::from_secs(50));
        for (tail, closed_at) in [("\u{1f}closed_at_ms=50000", at), ("", None)] {
            let closed = format!("lwc 00000000000000000000000000000007 x 60000 web-2{tail}");
            let queue =
                Queue::new(vec![entry("k/1", 3, closed.as_bytes()), entry("k/2", 9, b"")], 12);
            let blocked = queue.blocked(1, &Admission::BehindAny(vec![0]), 2);
            let by = Holder::new("web-2").with(|it| it.closed_at = closed_at);
            assert_eq!((blocked.cause, blocked.holder), (Cause::Linger, Some(by)));
        }
    }

    #[test]
    fn a_target_round_trips() {
        let queue = Queue::new(vec![entry("k/b c@\u{e9}", 9, b""), entry("k/1", 3, b"")], 12);
        assert_eq!(queue.places[0].revision, 3);
        let blocked = queue.blocked(2, &Admission::BehindAny(vec![0, 1]), 2);
        let targets = Target::read_all(&blocked.resume.unwrap());
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[1], Target { suffix: "b c@\u{e9}".into(), revision: 9 });
        assert_eq!((blocked.cause, blocked.ahead), (Cause::Foreign, Some(1)));
        assert_eq!(Target::read_all(""), []);
    }
}

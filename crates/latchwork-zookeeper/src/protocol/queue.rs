//! The queue of a key in ZooKeeper, and what it means for a claim.
//!
//! A claim is an ephemeral sequential node, named as Curator names them: `_c_<uuid>-lock-<number>`
//! for a mutex, `_c_<uuid>-__READ__<number>` and `_c_<uuid>-__WRIT__<number>` for a read-write lock,
//! where the uuid is the claim's id. Permits are ours: `_c_<uuid>-permits-<take>-<of>-<number>`. A claim
//! that replaces a hold names it: `_c_<uuid>-beside-<uuid>-__WRIT__<number>`. One whose node an upgrade has removed
//! names the number of its first node, `_c_<uuid>-rank-<number>-__WRIT__<number>`, and so does a claim that replaces
//! its hold, behind the id of that. A key that was released with a linger has a child `closed-<until>-<uuid>`, which outlives every session.
//!
//! The data of the lock's node is its changed limit of permits, if it has one ([`Limit`]).
//!
//! The data of a claim's node is `lw1 <ttl, ms> <since, ms> <holder>`; other clients write what they like. That of a child
//! that keeps the key closed is the holder that closed it.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::limit::Limit;
use latchwork_store::kit::lineup::{self, Admission, Node};
use latchwork_store::kit::replace::{self, QueuedClaim, Verdict};
use latchwork_store::{
    BackendError, BackendErrorKind, Claim, ClaimId, Effect, Holder, Mode, Shape,
};

/// What the name of a claim's node starts with; the server appends a number. The rank is that of the new node
/// unless it has another one.
pub(crate) fn name_of(claim: &Claim, rank: Option<i64>) -> String {
    let kind = match claim.mode {
        Mode::Exclusive => "lock-".to_owned(),
        Mode::Read => "__READ__".to_owned(),
        Mode::Write => "__WRIT__".to_owned(),
        Mode::Permits { take, of } => format!("permits-{take}-{of}-"),
    };
    let beside = claim.beside.map(|hold| format!("{BESIDE}{}-", uuid(hold))).unwrap_or_default();
    let rank = rank.map(|rank| format!("{RANK}{rank}-")).unwrap_or_default();
    format!("{}{beside}{rank}{kind}", id_part(claim.id))
}

/// Stands before the id of the hold that a claim is to replace.
const BESIDE: &str = "beside-";
/// Stands before the number of the first node of a claim, behind that.
const RANK: &str = "rank-";

/// The hold that the claim of this node is to replace, if it is to replace one.
fn beside_in(name: &str) -> Option<ClaimId> {
    // Most names are not read any further.
    if !name.get(40..)?.starts_with(BESIDE) {
        return None;
    }
    let (_, rest) = id_in(name)?;
    parse_uuid(rest.strip_prefix('-')?.strip_prefix(BESIDE)?.get(..36)?)
}

/// The rank in the name of a node.
fn rank_in(name: &str) -> Option<i64> {
    let rest = name.get(40..)?;
    let rest = match rest.strip_prefix(BESIDE) {
        Some(rest) => rest.get(37..)?,
        None => rest,
    };
    rest.strip_prefix(RANK)?.split_once('-')?.0.parse().ok()
}

/// What the names of all nodes of a claim start with.
pub(crate) fn id_part(id: ClaimId) -> String {
    format!("_c_{}-", uuid(id))
}

fn uuid(id: ClaimId) -> String {
    let hex = id.to_string();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    parts.join("-")
}

/// The id in a name that starts as those of claims do, and what follows it.
fn id_in(name: &str) -> Option<(ClaimId, &str)> {
    let rest = name.strip_prefix("_c_")?;
    let (uuid, rest) = rest.split_at_checked(36)?;
    Some((parse_uuid(uuid)?, rest))
}

/// Reads 36 characters.
fn parse_uuid(uuid: &str) -> Option<ClaimId> {
    let has_hyphens = [8, 13, 18, 23].iter().all(|at| uuid.as_bytes()[*at] == b'-');
    if has_hyphens { ClaimId::parse(&uuid.replace('-', "")) } else { None }
}

/// The name of the node that keeps a key closed until then, in ms on the leader's clock.
pub(crate) fn closed_name(until_ms: i64, id: ClaimId) -> String {
    format!("closed-{until_ms}-{}", uuid(id))
}

/// A claim in queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) name: Arc<str>,
    pub(crate) mode: Mode,
    /// The number that the server appended.
    pub(crate) number: i32,
    /// The hold that it is to replace.
    pub(crate) beside: Option<ClaimId>,
    /// The order of its first node, or of that of the hold that it replaces or has replaced.
    pub(crate) rank: i64,
}

impl Place {
    /// Reads the name of a child; `None` if it is none of a claim.
    ///
    /// A try reads all of a queue, so this reads no more than the end of each name.
    fn read(name: &str) -> Option<Self> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let head = &name[..name.len() - digits];
        let mode_of = |head: &str| Some((mode_at_the_end_of(head)?, head.len()));
        // What is no sign is part of the kind.
        let (mode, end) = mode_of(head).or_else(|| mode_of(head.strip_suffix('-')?))?;
        let number = read_number(&name[end..])?;
        let order = i64::from(number as u32);
        let rank = rank_in(name).unwrap_or(order).min(order);
        Some(Self { name: name.into(), mode, number, beside: beside_in(name), rank })
    }

    /// The rank of the claim with this node.
    pub(crate) fn rank_of(name: &str) -> Option<i64> {
        Self::read(name).map(|place| place.rank)
    }

    /// Its id; `None` for clients that name their nodes in another way.
    pub(crate) fn id(&self) -> Option<ClaimId> {
        id_in(&self.name).map(|(id, _)| id)
    }

    /// Its order: past the largest number come the negative ones, from the smallest on.
    pub(crate) fn order(&self) -> i64 {
        i64::from(self.number as u32)
    }
}

/// The mode of a claim whose name goes on with its number.
fn mode_at_the_end_of(head: &str) -> Option<Mode> {
    // Some clients of other kinds put other words before it, which is all the same.
    for (marker, mode) in
        [("__READ__", Mode::Read), ("__WRIT__", Mode::Write), ("lock-", Mode::Exclusive)]
    {
        if head.ends_with(marker) {
            return Some(mode);
        }
    }
    let (head, of) = head.strip_suffix('-')?.rsplit_once('-')?;
    let (head, take) = head.rsplit_once('-')?;
    let is_known = head.ends_with("-permits");
    is_known.then_some(Mode::Permits { take: take.parse().ok()?, of: of.parse().ok()? })
}

/// Whether a place of the same kind as the own one has a larger number. What is named in any other way
/// has to be read as a whole.
fn stands_behind(name: &str, own: &str) -> bool {
    /// Of the id, and of the number.
    const PARTS: (usize, usize) = (40, 10);
    let (name, own) = (name.as_bytes(), own.as_bytes());
    if name.len() != own.len() || own.len() < PARTS.0 + PARTS.1 {
        return false;
    }
    let number = own.len() - PARTS.1;
    name[PARTS.0..number] == own[PARTS.0..number]
        && name[number..] > own[number..]
        && name[number..].iter().all(u8::is_ascii_digit)
}

/// At least ten digits, of which a sign is one.
fn read_number(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = text.len() >= 10 && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

/// A key that is kept closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) name: Arc<str>,
    pub(crate) until_ms: i64,
}

/// A queue, in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queue {
    pub(crate) places: Vec<Place>,
    pub(crate) closed: Vec<Closed>,
    /// Children that are not claims of any kind that is known here.
    pub(crate) strangers: Vec<Arc<str>>,
    /// The queue holds both signs of numbers: the counter of the lock has gone past its largest.
    has_both_signs: bool,
    /// The changed limit of permits.
    pub(crate) limit: Option<Limit>,
    /// The version of the data of the lock's node, which that is; `None` if it was not read.
    pub(crate) limit_version: Option<i32>,
    /// The data of the lock's node is of somebody else.
    pub(crate) has_foreign_data: bool,
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
    /// Reads the names of a node's children. A claim that knows the name of its own place needs none
    /// of those behind it, and in a long queue most of them are.
    pub(crate) fn read_up_to(children: &[&str], own: Option<&str>) -> Self {
        // Past the largest number the order is another one.
        let own = own.filter(|own| Place::read(own).is_some_and(|place| place.number >= 0));
        let mut queue = Self::default();
        for &name in children {
            if own.is_some_and(|own| stands_behind(name, own)) {
                continue;
            }
            if let Some(place) = Place::read(name) {
                queue.places.push(place);
            } else if let Some(closed) = read_closed(name) {
                queue.closed.push(closed);
            } else {
                queue.strangers.push(name.into());
            }
        }
        queue.has_both_signs = queue.places.iter().any(|place| place.number < 0)
            && queue.places.iter().any(|place| place.number >= 0);
        // The holder of a write lock may make a node to read with the same number.
        queue.places.sort_by_key(|place| (place.order(), place.mode == Mode::Read));
        queue
    }

    /// With the data of the lock's node, and its version.
    pub(crate) fn with_limit(self, data: &[u8], version: i32) -> Self {
        let limit = Limit::parse(data, Limit::HERE);
        let has_foreign_data = limit.is_none() && !data.is_empty();
        Self { limit, limit_version: Some(version), has_foreign_data, ..self }
    }

    /// The mode of a place with the limit that the key has for it.
    pub(crate) fn mode_of(&self, place: &Place) -> Mode {
        self.limit.as_ref().map_or(place.mode, |it| it.of_place(place.order(), place.mode))
    }

    fn nodes<'a>(&self, view: View, places: impl Iterator<Item = &'a Place>) -> Vec<Node<()>> {
        let mode = |place: &Place| match (&self.limit, view) {
            (None, _) => place.mode,
            (Some(limit), View::Waiter) => limit.of_waiter(place.order(), place.mode),
            (Some(limit), View::Holder) => limit.of_holder(place.order(), place.mode),
        };
        places.map(|place| Node { id: (), mode: mode(place) }).collect()
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.places.iter().position(|place| &*place.name == name)
    }

    /// Judges a place, as others do or its claim once it was granted.
    pub(crate) fn admission(&self, me: usize) -> Admission {
        self.admission_in(View::Holder, me)
    }

    /// Judges a place whose claim has not learned yet that it holds the key.
    pub(crate) fn admission_of_waiter(&self, me: usize) -> Admission {
        self.admission_in(View::Waiter, me)
    }

    /// With both signs of numbers in the queue nobody knows the order that others go by, so a place must be
    /// admitted by each.
    fn admission_in(&self, view: View, me: usize) -> Admission {
        let judged = match self.hold_of(me).map(|_| self.replacing(me)) {
            None => lineup::admission(&self.nodes(view, self.places.iter()), me),
            Some(Verdict::Granted) => Admission::Granted,
            Some(_) => Admission::Behind(me - 1),
        };
        if !self.has_both_signs {
            return judged;
        }
        let by_text = self.by_text();
        let there = by_text.iter().position(|place| *place == me).unwrap_or(me);
        let nodes = self.nodes(view, by_text.iter().map(|place| &self.places[*place]));
        let mut behind = behind(&judged);
        let others = lineup::admission(&nodes, there);
        behind.extend(self::behind(&others).into_iter().map(|place| by_text[place]));
        behind.sort_unstable();
        behind.dedup();
        let is_granted = judged == Admission::Granted && others == Admission::Granted;
        if is_granted { Admission::Granted } else { Admission::BehindAny(behind) }
    }

    /// The place of the hold that the claim at this place replaces, if that is there.
    pub(crate) fn hold_of(&self, me: usize) -> Option<usize> {
        let hold = self.places.get(me)?.beside?;
        self.places.iter().position(|place| place.id() == Some(hold))
    }

    /// Judges the claim at `me`, which is to replace a hold, as if all waiters were ours.
    ///
    /// If numbers of both signs are in the queue, the order of the places is unknown.
    pub(crate) fn replacing(&self, me: usize) -> Verdict {
        match replace::verdict(&self.queued_claims(), me, self.hold_of(me)) {
            Verdict::Behind(place) | Verdict::Overtakes(place) if self.has_both_signs => {
                Verdict::Stuck(place)
            }
            Verdict::Granted if self.has_both_signs => Verdict::Stuck(0),
            verdict => verdict,
        }
    }

    fn queued_claims(&self) -> Vec<QueuedClaim> {
        let nodes = self.nodes(View::Holder, self.places.iter()).into_iter().enumerate();
        let queued = |(me, node): (usize, Node<()>)| QueuedClaim {
            mode: node.mode,
            beside: self.hold_of(me),
            yields: true,
            rank: self.places[me].rank,
            replaces: self.places[me].beside.is_some(),
        };
        nodes.map(queued).collect()
    }

    /// Why a claim cannot stand in this queue behind so many. A place that `matches` keeps its limit.
    pub(crate) fn clash(&self, claim: &Claim, ahead: usize, matches: bool) -> Option<BackendError> {
        let mismatch =
            |what: String| BackendError::new(BackendErrorKind::Mismatch, Effect::NotApplied, what);
        if let Some(stranger) = self.strangers.first() {
            let what = format!("{stranger:?} among the claims is not a node of Latchwork");
            let step = "use another key, or find out which client created it";
            return Some(mismatch(what).with_next_step(step));
        }
        // A place whose limit was changed keeps the new one.
        let applies = |place: &&Place| {
            matches || self.limit.as_ref().is_some_and(|it| it.applies_to(place.order()))
        };
        let kept = self.places.get(ahead).filter(applies).map(|place| self.mode_of(place));
        claim.judged_mode(self.used_as(ahead), kept).err()
    }

    /// What the first of so many places uses the key as.
    pub(crate) fn used_as(&self, ahead: usize) -> Option<Shape> {
        Some(self.mode_of(self.places[..ahead].first()?).shape())
    }

    /// The places in the order of clients that sort the numbers as text.
    fn by_text(&self) -> Vec<usize> {
        let mut by_text: Vec<_> = (0..self.places.len()).collect();
        by_text.sort_by_cached_key(|place| format!("{:010}", self.places[*place].number));
        by_text
    }

    /// Whether each place holds the key, as [`Self::admission`] judges it, in one pass for all.
    pub(crate) fn holding(&self) -> Vec<bool> {
        let mut holding = replace::holding(&self.queued_claims());
        if self.has_both_signs {
            let by_text = self.by_text();
            let nodes = self.nodes(View::Holder, by_text.iter().map(|place| &self.places[*place]));
            for (place, holds) in by_text.into_iter().zip(lineup::holding(&nodes)) {
                holding[place] &= holds;
            }
        }
        holding
    }

    /// Whether each place holds the key at this time, by the leader's clock in ms.
    ///
    /// Of a key that is closed, no claim that wants it alone can be a holder: the one that closed it
    /// held it until then. Of readers and permits the names do not tell, so those that are admitted by the queue
    /// count as holders, also if they came after the closing.
    pub(crate) fn holding_at(&self, now_ms: i64) -> Vec<bool> {
        let is_closed = self.closed_until(now_ms).is_some();
        let places = self.places.iter().zip(self.holding());
        places.map(|(place, holds)| holds && !(is_closed && place.mode.is_alone())).collect()
    }

    /// How many claims in front do not hold the key.
    pub(crate) fn waiting_before(&self, me: usize) -> u32 {
        self.holding()[..me].iter().filter(|holds| !**holds).count() as u32
    }
}

/// The places whose departure a judgement waits for.
pub(crate) fn behind(admission: &Admission) -> Vec<usize> {
    match admission {
        Admission::Granted => Vec::new(),
        Admission::Behind(place) => vec![*place],
        Admission::BehindAny(places) => places.clone(),
    }
}

fn read_closed(name: &str) -> Option<Closed> {
    let (until, _) = name.strip_prefix("closed-")?.split_once('-')?;
    Some(Closed { name: name.into(), until_ms: until.parse().ok()? })
}

/// The description of a claim for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    /// `None` for clients of another kind.
    pub(crate) ttl: Option<Duration>,
    /// Since when it has asked, on the wall clock of its process.
    pub(crate) since: Option<Duration>,
    pub(crate) holder: Holder,
}

/// What is stored in the node of a claim.
pub(crate) fn data_of(claim: &Claim, now: Duration) -> Vec<u8> {
    let (ttl, since) = (claim.ttl.as_millis(), now.as_millis());
    format!("lw1 {ttl} {since} {}", claim.holder.stored()).into_bytes()
}

impl Told {
    pub(crate) fn read(data: &[u8]) -> Self {
        let ours = std::str::from_utf8(data).ok().and_then(|text| {
            let mut words = text.splitn(4, ' ');
            words.next().filter(|kind| *kind == "lw1")?;
            let mut ms = || words.next()?.parse().ok().map(Duration::from_millis);
            let (ttl, since) = (ms()?, ms()?);
            let holder = Holder::from_stored(words.next()?);
            Some(Self { ttl: Some(ttl), since: Some(since), holder })
        });
        ours.unwrap_or_else(|| {
            // Others store the address of their host, or who they are.
            let said: String = String::from_utf8_lossy(data).chars().take(100).collect();
            let said = said.escape_debug();
            Self { ttl: None, since: None, holder: format!("another client ({said})").into() }
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.ttl.is_some()
    }
}

#[cfg(test)]
mod tests {
    use latchwork_store::{Key, Stamp};

    use super::*;

    fn claim(mode: Mode) -> Claim {
        Claim::new(
            Key::new("k").unwrap(),
            ClaimId::from_u128(0x1234_5678_9abc_def0_1122_3344_5566_7788),
            mode,
            Duration::from_secs(9),
            Stamp::parse("0").unwrap(),
        )
        .with(|it| it.holder = "host a, pid 7".into())
    }

    fn queue(names: &[&str]) -> Queue {
        Queue::read_up_to(names, None)
    }

    #[test]
    fn names_are_those_of_curator() {
        let start = "_c_12345678-9abc-def0-1122-334455667788-";
        for (mode, kind) in [
            (Mode::Exclusive, "lock-"),
            (Mode::Read, "__READ__"),
            (Mode::Write, "__WRIT__"),
            (Mode::Permits { take: 2, of: 5 }, "permits-2-5-"),
        ] {
            let claim = claim(mode);
            let name = name_of(&claim, None);
            assert_eq!(name, format!("{start}{kind}"));
            let place = Place::read(&format!("{name}0000000042")).unwrap();
            assert_eq!((place.mode, place.id(), place.number), (mode, Some(claim.id), 42));
        }
    }

    #[test]
    fn a_claim_that_replaces_a_hold_names_it() {
        let claim = claim(Mode::Write).with(|it| it.beside = Some(ClaimId::from_u128(7)));
        let named = |rank| format!("{}0000000042", name_of(&claim, rank));
        let ranks = [None, Some(7), Some(99)].map(|rank| Place::rank_of(&named(rank)));
        assert_eq!(ranks, [Some(42), Some(7), Some(42)]);
        let name = named(Some(7));
        let place = Place::read(&name).unwrap();
        assert_eq!(
            (place.mode, place.id(), place.beside),
            (Mode::Write, Some(claim.id), claim.beside)
        );
        let hold = "_c_00000000-0000-0000-0000-000000000007-rank-7-__READ__0000000041";
        assert_eq!(Place::rank_of(hold), Some(7));
        let both = queue(&[hold, &name]);
        assert_eq!((both.hold_of(1), both.holding()), (Some(0), vec![true, true]));
        assert_eq!(queue(&[&name]).hold_of(0), None);
        for name in
            ["_c_12345678-9abc-def0-1122-334455667788-beside-x__WRIT__0000000001", "beside-"]
        {
            assert_eq!(beside_in(name), None, "{name}");
        }
    }

    #[test]
    fn foreign_waiters_with_a_known_order_are_queued() {
        for name in [
            "_c_0123456789abcdef0123456789abcdef-lock-0000000001",
            "lock-0000000001",
            "0123456789abcdef0123456789abcdeflock-0000000001",
        ] {
            let place = Place::read(name).unwrap();
            assert_eq!(
                (place.mode, place.id(), place.number),
                (Mode::Exclusive, None, 1),
                "{name}"
            );
        }
        let default_of_kazoo = "0123456789abcdef0123456789abcdef__lock__0000000001";
        for name in [default_of_kazoo, "leases", "a-b", "lock-1", "x-permits-1-0000000001"] {
            assert_eq!(Place::read(name), None, "{name}");
            let clash = queue(&[name]).clash(&claim(Mode::Exclusive), 0, false).unwrap();
            assert!(clash.message.contains(name), "{clash:?}");
        }
    }

    #[test]
    fn the_queue_follows_the_sequence_numbers() {
        let queue = queue(&[
            "_c_a-__WRIT__0000000009",
            "_c_b-__READ__0000000009",
            "_c_c-__READ__0000000010",
            "_c_d-__READ__0000000002",
        ]);
        let names: Vec<_> = queue.places.iter().map(|place| &place.name[3..4]).collect();
        // The holder of a write lock may read with the number of its own node: not before it writes.
        assert_eq!(names, ["d", "a", "b", "c"]);
        assert_eq!(queue.admission(0), Admission::Granted);
        assert_eq!(queue.admission(1), Admission::Behind(0));
        assert_eq!(queue.admission(3), Admission::Behind(1));
    }

    /// H107: what a try asks of the queue of a semaphore costs the same for each place in it, so four
    /// times the queue is four times the cost, and not sixteen or more.
    #[test]
    fn h107_a_try_costs_one_pass_over_the_queue() {
        let names = |count: usize| -> Vec<String> {
            (0..count).map(|n| format!("_c_a-permits-1-4-{n:010}")).collect()
        };
        let cost = |count: usize| {
            let names = names(count);
            let queue =
                Queue::read_up_to(&names.iter().map(String::as_str).collect::<Vec<_>>(), None);
            let once = || {
                let start = latchwork_store::clock::boot_time();
                assert_eq!(queue.waiting_before(count - 1), count as u32 - 5);
                latchwork_store::clock::boot_time().since(start)
            };
            // The least of some: other threads only add to it.
            (0..5).map(|_| once()).min().unwrap()
        };
        let (short, long) = (cost(500), cost(2_000));
        assert!(long < short * 10, "{short:?} for 500 places, {long:?} for 2000");
    }

    /// H107: who reads the queue up to its own place judges it as if it had read all of it.
    #[test]
    fn h107_later_waiters_do_not_change_the_decision() {
        let id = "_c_12345678-9abc-def0-1122-334455667788-";
        let named = |kind: &str, number: i32| format!("{id}{kind}{number:010}");
        let kinds = ["lock-", "__READ__", "__WRIT__", "permits-2-5-", "permits-1-5-"];
        let last = [i32::MAX, i32::MIN, i32::MIN + 1, i32::MIN + 2, i32::MIN + 3, i32::MIN + 4];
        for numbers in [[3, 8, 9, 10, 99, 100], last] {
            for own_kind in kinds {
                for other in kinds {
                    let kind = |n: usize| if n.is_multiple_of(3) { other } else { own_kind };
                    let mut names: Vec<_> =
                        numbers.iter().enumerate().map(|(n, at)| named(kind(n), *at)).collect();
                    names.push("closed-1700000000000-12345678-9abc-def0-1122-334455667788".into());
                    let names: Vec<_> = names.iter().map(String::as_str).collect();
                    let whole = Queue::read_up_to(&names, None);
                    for (me, place) in whole.places.iter().enumerate() {
                        let queue = Queue::read_up_to(&names, Some(&place.name));
                        assert_eq!(queue.find(&place.name), Some(me), "{names:?}");
                        assert_eq!(queue.admission(me), whole.admission(me), "{names:?} {me}");
                        assert_eq!(queue.waiting_before(me), whole.waiting_before(me), "{me}");
                        let clash = |queue: &Queue| {
                            queue.clash(&claim(place.mode), me, false).map(|e| e.message)
                        };
                        assert_eq!(clash(&queue), clash(&whole), "{names:?} {me}");
                        assert_eq!(queue.closed, whole.closed);
                    }
                }
            }
        }
        let names = [&*named("lock-", 3), &named("lock-", 4), "strange", &named("lock-", 5)];
        let queue = Queue::read_up_to(&names, Some(names[0]));
        assert_eq!((queue.places.len(), &*queue.strangers), (1, &["strange".into()][..]));
    }

    #[test]
    fn holding_and_admission_agree() {
        for kinds in ["lock-", "x__READ__", "x__WRIT__", "x-permits-2-5-"] {
            for numbers in [[0, 1, 2, 3], [i32::MAX - 1, i32::MAX, i32::MIN, i32::MIN + 1]] {
                let names = numbers.map(|number| format!("{kinds}{number:010}"));
                let queue = Queue::read_up_to(&names.each_ref().map(String::as_str), None);
                let holding = queue.holding();
                for (me, holds) in holding.iter().enumerate() {
                    assert_eq!(*holds, queue.admission(me) == Admission::Granted, "{names:?} {me}");
                }
            }
        }
    }

    /// H72: the numbers of a lock go from the largest to the smallest. Others compare them as text.
    #[test]
    fn h72_after_overflow_a_waiter_must_lead_both_orders() {
        let both = queue(&["lock-2147483647", "lock--2147483648", "lock--2147483647"]);
        let numbers: Vec<_> = both.places.iter().map(|place| place.number).collect();
        assert_eq!(numbers, [i32::MAX, i32::MIN, i32::MIN + 1]);
        for me in 0..3 {
            assert_ne!(both.admission(me), Admission::Granted, "{me}");
        }
        assert_eq!(both.admission(0), Admission::BehindAny(vec![1]));
        let one = queue(&["lock--2147483648", "lock--2147483647"]);
        assert_eq!(one.admission(0), Admission::Granted);
        assert_eq!(one.admission(1), Admission::Behind(0));
        // Readers do not mind their order.
        let readers = queue(&["x__READ__2147483647", "x__READ__-2147483648"]);
        assert_eq!(
            (readers.admission(0), readers.admission(1)),
            (Admission::Granted, Admission::Granted)
        );
    }

    #[test]
    fn a_closed_key_opens_by_the_leaders_clock() {
        let name = closed_name(1_000, claim(Mode::Exclusive).id);
        let queue = queue(&[&name, "lock-0000000000"]);
        assert_eq!((queue.places.len(), queue.closed.len(), queue.strangers.len()), (1, 1, 0));
        assert_eq!((queue.closed_until(999), queue.closed_until(1_000)), (Some(1_000), None));
        assert_eq!((queue.holding_at(999), queue.holding_at(1_000)), (vec![false], vec![true]));
    }

    #[test]
    fn a_reader_holds_beside_a_closing_reader() {
        let name = closed_name(1_000, claim(Mode::Read).id);
        let queue = queue(&[&name, "_c_a-__READ__0000000001", "_c_b-__WRIT__0000000002"]);
        assert_eq!(queue.holding_at(999), [true, false]);
    }

    #[test]
    fn data_comes_back() {
        let told = Told::read(&data_of(&claim(Mode::Exclusive), Duration::from_millis(1_234)));
        assert_eq!(told.ttl, Some(Duration::from_secs(9)));
        assert_eq!(told.since, Some(Duration::from_millis(1_234)));
        assert_eq!((&*told.holder.text, told.is_ours()), ("host a, pid 7", true));
        for data in [&b""[..], b"10.0.0.1", b"lw1 x", b"\xff", b"lw2 1 1 x"] {
            assert!(!Told::read(data).is_ours());
        }
    }
}

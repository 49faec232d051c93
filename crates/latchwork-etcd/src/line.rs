//! The line of a key as etcd tells it, and what follows from it for a claim.
//!
//! The value of a claim's key is `lw1 <claim id> <mode> <since, ms> <holder>`; other clients leave
//! it empty, or write what they like, and are mutex claims.

use std::sync::Arc;
use std::time::Duration;

use latchwork_core::kit::lineup::{self, Admission, Node};
use latchwork_core::{Blocked, Cause, Claim, ClaimId, Mode, Shape};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::proto::KeyValue;

/// A claim in line.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Its key in etcd.
    pub(crate) key: Vec<u8>,
    /// Its create revision: its order, and its token.
    pub(crate) revision: i64,
    pub(crate) lease: i64,
    pub(crate) mode: Mode,
    /// `None` for a client of another kind.
    pub(crate) id: Option<ClaimId>,
    pub(crate) holder: Arc<str>,
    /// Since when it has asked, on the wall clock of its process.
    pub(crate) since: Option<Duration>,
}

/// What is stored in the key of a claim.
pub(crate) fn value(claim: &Claim, now: Duration) -> Vec<u8> {
    let mode = match claim.mode {
        Mode::Exclusive => "x".into(),
        Mode::Read => "r".into(),
        Mode::Write => "w".into(),
        Mode::Permits { take, of } => format!("p{take}/{of}"),
    };
    format!("lw1 {} {mode} {} {}", claim.id, now.as_millis(), claim.holder).into_bytes()
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
    /// Reads a key of a line.
    pub(crate) fn read(entry: KeyValue) -> Self {
        let ours = std::str::from_utf8(&entry.value).ok().and_then(|text| {
            let mut words = text.splitn(5, ' ');
            (words.next() == Some("lw1")).then_some(())?;
            let id = ClaimId::parse(words.next()?)?;
            let mode = read_mode(words.next()?)?;
            let since = words.next()?.parse().ok().map(Duration::from_millis);
            Some((Some(id), mode, Arc::from(words.next()?), since))
        });
        let foreign = || (None, Mode::Exclusive, Arc::from("a client of another kind"), None);
        let (id, mode, holder, since) = ours.unwrap_or_else(foreign);
        let KeyValue { key, create_revision: revision, lease, .. } = entry;
        Self { key, revision, lease, mode, id, holder, since }
    }
}

/// A line, in order, at a revision of the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub(crate) places: Vec<Place>,
    pub(crate) revision: i64,
}

impl Line {
    pub(crate) fn new(entries: Vec<KeyValue>, revision: i64) -> Self {
        let mut places: Vec<_> = entries.into_iter().map(Place::read).collect();
        places.sort_unstable_by_key(|place| place.revision);
        Self { places, revision }
    }

    /// Where the key stands.
    pub(crate) fn find(&self, key: &[u8]) -> Option<usize> {
        self.places.iter().position(|place| place.key == key)
    }

    pub(crate) fn find_claim(&self, id: ClaimId) -> Option<&Place> {
        self.places.iter().find(|place| place.id == Some(id))
    }

    /// What the first of another kind than `mode` uses the key as.
    pub(crate) fn clash(&self, mode: Mode, ahead_of: usize) -> Option<Shape> {
        let first = self.places[..ahead_of].first()?.mode.shape();
        (first != mode.shape()).then_some(first)
    }

    fn nodes(&self) -> Vec<Node<()>> {
        self.places.iter().map(|place| Node { id: (), mode: place.mode }).collect()
    }

    /// Judges a place in the line.
    pub(crate) fn admission(&self, me: usize) -> Admission {
        lineup::admission(&self.nodes(), me)
    }

    /// Judges a claim as if it came last.
    pub(crate) fn admission_of_newcomer(&self, mode: Mode) -> Admission {
        let mut nodes = self.nodes();
        nodes.push(Node { id: (), mode });
        lineup::admission(&nodes, self.places.len())
    }

    /// What a claim at `me` is told that stands behind others.
    pub(crate) fn blocked(&self, me: usize, admission: Admission, prefix: usize) -> Blocked {
        let behind = match admission {
            Admission::Granted => Vec::new(),
            Admission::Behind(place) => vec![place],
            Admission::BehindAny(places) => places,
        };
        let nodes = self.nodes();
        let waits = |place: &usize| lineup::admission(&nodes, *place) != Admission::Granted;
        let resume =
            behind.iter().map(|place| Target::of(&self.places[*place], prefix).to_string());
        let first = &self.places[0];
        Blocked {
            retry_after: None,
            ahead: Some((0..me).filter(waits).count() as u32),
            cause: if first.id.is_some() { Cause::Held } else { Cause::Foreign },
            holder: Some(first.holder.clone()),
            resume: Some(resume.collect::<Vec<_>>().join(" ").into()),
            store_time: None,
        }
    }
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
        let claim = Claim {
            key: latchwork_core::Key::new("k").unwrap(),
            id: ClaimId::from_u128(7),
            mode: Mode::Permits { take: 2, of: 5 },
            order: latchwork_core::Order::Fifo,
            ttl: Duration::from_secs(9),
            holder: "host a, pid 7".into(),
            waits: true,
            floor: 0,
            stamp: latchwork_core::Stamp::parse("0").unwrap(),
        };
        let value = value(&claim, Duration::from_millis(1_234));
        let place = Place::read(entry("k/1", 3, &value));
        assert_eq!((place.id, place.mode), (Some(claim.id), claim.mode));
        assert_eq!(
            (&*place.holder, place.since),
            (&*claim.holder, Some(Duration::from_millis(1_234)))
        );
    }

    #[test]
    fn what_others_write_is_a_mutex_of_theirs() {
        for value in [&b""[..], b"proposal", b"lw1 x", b"\xff", b"lw2 0 x 0 y"] {
            let place = Place::read(entry("k/1", 3, value));
            assert_eq!((place.id, place.mode), (None, Mode::Exclusive), "{value:?}");
        }
    }

    #[test]
    fn targets_come_back() {
        let line = Line::new(vec![entry("k/b c@\u{e9}", 9, b""), entry("k/1", 3, b"")], 12);
        assert_eq!(line.places[0].revision, 3);
        let blocked = line.blocked(2, Admission::BehindAny(vec![0, 1]), 2);
        let targets = Target::read_all(&blocked.resume.unwrap());
        assert_eq!(targets.len(), 2);
        assert_eq!(targets[1], Target { suffix: "b c@\u{e9}".into(), revision: 9 });
        assert_eq!((blocked.cause, blocked.ahead), (Cause::Foreign, Some(1)));
        assert_eq!(Target::read_all(""), []);
    }
}

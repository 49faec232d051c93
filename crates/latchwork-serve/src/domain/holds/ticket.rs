//! The ticket of a hold: all that an instance must know to renew and release it. Its sealed text is the hold's id.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork::{Error, ErrorKind, FencingToken, LockManager, Unwatched};
use latchwork_store::{ClaimId, Holder, Key, Mode, Moment};

use super::id::HoldId;
use super::kept::Granted;
use super::origin::{Origin, SessionNumber};
use super::release::ReleaseKind;

/// A hold that no process keeps: its client renews it, through any instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    /// The name of the token that made it.
    pub(crate) owner: Arc<str>,
    /// One at least, all with the same lease and holder.
    pub(crate) locks: Vec<Unwatched>,
    /// The client's ttl.
    pub(crate) ttl: Duration,
    /// When it was granted, in wall-clock time since 1970.
    pub(crate) since: Duration,
    /// When its longest hold is over, in wall-clock time since 1970.
    pub(crate) max_end: Option<Duration>,
    /// The period of a task, in wall-clock time since 1970.
    pub(crate) period: Option<Range<Duration>>,
}

/// The store's answer to a release.
#[derive(Debug)]
pub(crate) enum Released {
    /// The hold lasted until then.
    Held,
    /// The store did not have it.
    NotHeld,
    /// The store had some of its locks only.
    PartlyHeld,
    /// There was no answer, or it was lost.
    Unknown(Error),
}

impl Ticket {
    /// Takes the locks out of their guards, which end. Returns the end of their validity as well.
    ///
    /// # Errors
    ///
    /// As [`Unwatched::of`].
    pub(crate) async fn take(granted: Granted) -> Result<(Vec<Unwatched>, Moment), Error> {
        let one = |(lock, until)| (vec![lock], until);
        match granted {
            Granted::One(guard) => Unwatched::of(guard).await.map(one),
            Granted::Several(guards) => Unwatched::of_several(guards).await,
            Granted::Task(run) => Unwatched::of_run(run).await.map(one),
        }
    }

    /// The hold by which this instance remembers it.
    pub(crate) fn id(&self) -> HoldId {
        self.locks.first().map_or(HoldId::of(ClaimId::from_u128(0)), |lock| HoldId::of(lock.id()))
    }

    /// The holds of its locks, if each were one by itself; the first is its own.
    pub(crate) fn ids(&self) -> impl Iterator<Item = HoldId> {
        self.locks.iter().map(|lock| HoldId::of(lock.id()))
    }

    /// The session that keeps it, or that it is itself.
    pub(crate) fn session(&self) -> Option<SessionNumber> {
        Origin::read(self.locks.first()?.holder())?.session
    }

    /// The ttl of the leases at the store.
    pub(crate) fn lease(&self) -> Duration {
        self.locks.first().map_or(self.ttl, Unwatched::ttl)
    }

    /// Its keys, each with its token.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (&Key, FencingToken)> {
        self.locks.iter().map(|lock| (lock.key(), lock.token()))
    }

    /// What remains of its longest hold, if it has one.
    pub(crate) fn max_left(&self, wall: Duration) -> Option<Duration> {
        self.max_end.map(|end| end.saturating_sub(wall))
    }

    /// The same by a wall clock that shows `wall` when so much of its longest hold is left.
    pub(crate) fn with_left(&self, left: Duration, wall: Duration) -> Self {
        let end = wall.saturating_add(left);
        let longest = self.max_end.unwrap_or(end).saturating_sub(self.since);
        Self { since: end.saturating_sub(longest), max_end: Some(end), ..self.clone() }
    }

    /// Renews all locks at the store for `lease`, in one request where the store can. Returns the end of the validity.
    ///
    /// # Errors
    ///
    /// `Lost` if one of them is lost; else the first error.
    pub(crate) async fn renew(
        &self,
        locks: &LockManager,
        lease: Duration,
    ) -> Result<Moment, Error> {
        let answers = join_all(self.locks.iter().map(|lock| lock.renew(locks, lease))).await;
        let (mut until, mut worst) = (Moment::NEVER, None::<Error>);
        for answer in answers {
            match answer {
                Ok(valid_until) => until = until.min(valid_until),
                Err(error) if error.kind() == ErrorKind::Lost => return Err(error),
                Err(error) => worst = worst.or(Some(error)),
            }
        }
        worst.map_or(Ok(until), Err)
    }

    /// Asks the store for all locks, and renews none. Returns the end of the validity, or `None` if one is lost.
    ///
    /// # Errors
    ///
    /// The first one.
    pub(crate) async fn look(&self, locks: &LockManager) -> Result<Option<Moment>, Error> {
        let answers = join_all(self.locks.iter().map(|lock| lock.look(locks))).await;
        let answers: Option<Vec<_>> = answers.into_iter().collect::<Result<_, _>>()?;
        Ok(answers.and_then(|ends| ends.into_iter().min()))
    }

    /// Ends the hold as its client asks, until the store answers or the lease is over.
    pub(crate) async fn end(
        self,
        locks: &LockManager,
        kind: ReleaseKind,
        wall: Duration,
        failed: impl Fn(&Error),
    ) -> Released {
        let held = wall.saturating_sub(self.since);
        let (period, failed) = (self.period, &failed);
        let ends = self.locks.into_iter().map(|lock| {
            let period = period.clone().filter(|_| kind == ReleaseKind::Succeed);
            async move {
                match period {
                    Some(period) => lock.succeed(locks, held, period, failed).await,
                    None => lock.release(locks, held, failed).await,
                }
            }
        });
        let (mut was_held, mut lost) = (false, false);
        let mut unknown = None;
        for answer in join_all(ends).await {
            match answer {
                Ok(()) => was_held = true,
                Err(error) if error.kind() == ErrorKind::Lost => lost = true,
                Err(error) => unknown = Some(error),
            }
        }
        match (was_held, lost, unknown) {
            (true, true, _) => Released::PartlyHeld,
            (_, _, Some(error)) => Released::Unknown(error),
            (false, true, None) => Released::NotHeld,
            (_, false, None) => Released::Held,
        }
    }

    /// Writes it as bytes, to be sealed.
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(160);
        text(&mut out, &self.owner);
        self.write_times(&mut out);
        let holder = self.locks.first().map(|lock| lock.holder().stored());
        text(&mut out, holder.as_deref().unwrap_or_default());
        self.write_locks(&mut out, 0);
        out
    }

    fn write_times(&self, out: &mut Vec<u8>) {
        let millis = |at: Duration| u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let period = self.period.clone().unwrap_or_default();
        let max_end = self.max_end.unwrap_or_default();
        for at in [self.ttl, self.since, max_end, period.start, period.end, self.lease()] {
            number(out, millis(at));
        }
    }

    /// Writes the locks, the first ones without their ids.
    fn write_locks(&self, out: &mut Vec<u8>, without_id: usize) {
        number(out, self.locks.len() as u64);
        for (at, lock) in self.locks.iter().enumerate() {
            if at >= without_id {
                out.extend(lock.id().as_u128().to_be_bytes());
            }
            let (tag, take, of) = match lock.mode() {
                Mode::Exclusive => (0, 0, 0),
                Mode::Read => (1, 0, 0),
                Mode::Write => (2, 0, 0),
                Mode::Permits { take, of } => (3, take, of),
            };
            out.push(tag);
            if tag == 3 {
                number(out, take.into());
                number(out, of.into());
            }
            number(out, lock.token().get());
            text(out, lock.key().as_str());
        }
    }

    /// Whether a newer version of the service wrote these bytes: then they begin with a zero, which no name's length is.
    pub(crate) fn is_newer(bytes: &[u8]) -> bool {
        bytes.first() == Some(&0)
    }

    /// Reads what [`write`](Self::write) wrote. A newer version that writes other fields writes a zero before them.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let owner = from.text()?.into();
        let times = from.times()?;
        let holder = Holder::from_stored(from.text()?);
        Self::of(owner, times, &holder, from, None)
    }

    /// The ticket of these fields, and of the locks that are left to be read.
    fn of(
        owner: Arc<str>,
        times: [Duration; 6],
        holder: &Holder,
        mut from: Reader<'_>,
        first: Option<ClaimId>,
    ) -> Option<Self> {
        let [ttl, since, max_end, start, end, lease] = times;
        let mut locks = Vec::new();
        for at in 0..from.number()? {
            let PackedLock { id, mode, token, key } = from.lock(first.filter(|_| at == 0))?;
            let key = Key::new(key).ok()?;
            locks.push(Unwatched::new(key, id, mode, token, lease, holder.clone()));
        }
        let is_whole = from.0.is_empty() && !locks.is_empty() && !lease.is_zero();
        is_whole.then(|| Self {
            owner,
            locks,
            ttl,
            since,
            max_end: Some(max_end).filter(|end| !end.is_zero()),
            period: (!end.is_zero()).then_some(start..end),
        })
    }
}

/// A ticket in as few bytes as an instance can keep it: without what its table has anyway, which are the first id, the
/// owner, and the holder.
#[derive(Debug, Clone)]
pub(crate) struct Packed(Box<[u8]>);

/// One lock of a ticket.
pub(super) struct PackedLock<'a> {
    /// Zero if it was left out.
    pub(super) id: ClaimId,
    mode: Mode,
    pub(super) token: FencingToken,
    pub(super) key: &'a str,
}

impl Packed {
    pub(super) fn new(ticket: &Ticket) -> Self {
        let mut out = Vec::with_capacity(96);
        ticket.write_times(&mut out);
        ticket.write_locks(&mut out, 1);
        Self(out.into())
    }

    /// The ticket.
    pub(super) fn ticket(&self, id: HoldId, owner: &Arc<str>, holder: &Holder) -> Option<Ticket> {
        let mut from = Reader(&self.0);
        let times = from.times()?;
        Ticket::of(owner.clone(), times, holder, from, Some(id.claim()))
    }

    /// Its locks, the first one without its id.
    pub(super) fn locks(&self) -> impl Iterator<Item = PackedLock<'_>> {
        let mut from = Reader(&self.0);
        let count = from.times().and_then(|_| from.number()).unwrap_or(0);
        let none = ClaimId::from_u128(0);
        (0..count).map_while(move |at| from.lock(Some(none).filter(|_| at == 0)))
    }

    fn times(&self) -> [Duration; 6] {
        Reader(&self.0).times().unwrap_or_default()
    }

    /// The period of a task.
    pub(super) fn period(&self) -> Option<Range<Duration>> {
        let [.., start, end, _] = self.times();
        (!end.is_zero()).then_some(start..end)
    }

    /// What remains of the longest hold, if it has one.
    pub(super) fn max_left(&self, wall: Duration) -> Option<Duration> {
        let [_, _, max_end, ..] = self.times();
        (!max_end.is_zero()).then(|| max_end.saturating_sub(wall))
    }
}

/// Writes a number in groups of seven bits, the lowest first.
fn number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    number(out, text.len() as u64);
    out.extend(text.as_bytes());
}

/// Bytes that are not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn times(&mut self) -> Option<[Duration; 6]> {
        let mut times = [Duration::ZERO; 6];
        for time in &mut times {
            *time = Duration::from_millis(self.number()?);
        }
        Some(times)
    }

    /// A lock; without an id in the bytes, it gets this one.
    fn lock(&mut self, id: Option<ClaimId>) -> Option<PackedLock<'a>> {
        let id = match id {
            Some(id) => id,
            None => ClaimId::from_u128(u128::from_be_bytes(self.take(16)?.try_into().ok()?)),
        };
        let mode = match self.take(1)?[0] {
            0 => Mode::Exclusive,
            1 => Mode::Read,
            2 => Mode::Write,
            3 => Mode::Permits { take: self.small()?, of: self.small()? },
            _ => return None,
        };
        let token = FencingToken::from_raw(self.number()?);
        Some(PackedLock { id, mode, token, key: self.text()? })
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.number()?.try_into().ok()?;
        str::from_utf8(self.take(length)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields as the first version has written them: instances of two versions work side by side.
    #[test]
    fn a_ticket_of_the_first_version_is_read_and_written() {
        let bytes =
            b"\x03web\x98\x75\xe8\x07\0\0\0\x98\x75\x02me\x01\0\x01\x02\x03\x04\x05\x06\x07\
            \x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\0\x07\x05stock";
        let ticket = Ticket::read(bytes).unwrap();
        assert_eq!((&*ticket.owner, ticket.ttl), ("web", Duration::from_secs(15)));
        assert_eq!((ticket.locks[0].key().as_str(), ticket.locks[0].token().get()), ("stock", 7));
        assert_eq!(ticket.locks[0].id().as_u128(), 0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f);
        assert_eq!(ticket.write(), bytes);
        assert!(!Ticket::is_newer(bytes) && Ticket::is_newer(&[0, 2]));
    }

    #[test]
    fn a_ticket_is_read_as_it_was_written() {
        let holder = Holder::new("web ä").with(|it| it.candidate = Some("10.0.0.7".into()));
        let modes =
            [Mode::Exclusive, Mode::Read, Mode::Write, Mode::Permits { take: 2, of: u32::MAX }];
        let lock = |mode| {
            let (key, token) =
                (Key::new("shop:stock/42").unwrap(), FencingToken::from_raw(1 << 60));
            let lease = Duration::from_millis(15_000);
            Unwatched::new(key, ClaimId::random(), mode, token, lease, holder.clone())
        };
        let ticket = Ticket {
            owner: "web".into(),
            locks: modes.into_iter().map(lock).collect(),
            ttl: Duration::from_secs(15),
            since: Duration::from_millis(1_800_000_000_123),
            max_end: None,
            period: None,
        };
        let hour = Duration::from_secs(3_600);
        let task = Ticket {
            max_end: Some(hour),
            period: Some(hour..2 * hour),
            locks: vec![lock(Mode::Exclusive)],
            ..ticket.clone()
        };
        for ticket in [ticket, task] {
            let bytes = ticket.write();
            assert_eq!(Ticket::read(&bytes).as_ref(), Some(&ticket));
            for length in 0..bytes.len() {
                assert_eq!(Ticket::read(&bytes[..length]), None, "{length}");
            }
            assert_eq!(Ticket::read(&[&bytes[..], &[0]].concat()), None);
            let packed = Packed::new(&ticket).ticket(ticket.id(), &ticket.owner, &holder).unwrap();
            assert_eq!((&packed, packed.write()), (&ticket, bytes), "as an instance keeps it");
        }
    }
}

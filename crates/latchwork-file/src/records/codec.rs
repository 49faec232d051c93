//! A record as bytes.

use std::fmt::Write;
use std::time::Duration;

use latchwork_store::kit::record::{Member, Record, Waiter};
use latchwork_store::{ClaimId, Holder, Mode, Order};

use crate::records::closing::{Anchor, Times};

/// Before the time of the first try, behind the stored text of a holder. Versions that do not know it pass over
/// it, as over all fields of that text.
const ASKED: &str = "\u{1f}asked_ns=";

/// Before the hold that a waiter is to replace, in the same place.
const BESIDE: &str = "\u{1f}beside=";

/// Before the end of a closing by the boot clock, with the boot, behind the stored text of its holder.
const CLOSED_UNTIL: &str = "\u{1f}closed_until_boot_ns=";

/// Before a tail of the record: the holder that closed the key. A record without a name ends before it.
const CLOSED_BY: u8 = 1;

/// The longest text of a holder that a record keeps of one claim, in bytes.
const MAX_HOLDER: usize = 1024;

/// No record has a larger token: above it nothing could be counted.
const LARGEST_TOKEN: u64 = 1 << 53;

/// Appends the key and its record, with its times as they are to be stored.
pub(crate) fn encode(out: &mut Vec<u8>, key: &str, record: &Record, times: Times) {
    text(out, key);
    number(out, record.token);
    time(out, times.closed_until);
    time(out, times.open_since);
    count(out, record.held.len());
    for member in &record.held {
        let Member { id, mode, expires, tag, asked, holder, .. } = member;
        claim(out, (*id, *mode, *expires, *tag, *asked, None, holder));
        number(out, member.token);
    }
    count(out, record.queue.len());
    for waiter in &record.queue {
        let Waiter { id, mode, expires, tag, asked, beside, holder, .. } = waiter;
        claim(out, (*id, *mode, *expires, *tag, *asked, *beside, holder));
        out.push(u8::from(waiter.order == Order::Barging));
        out.push(u8::from(waiter.told));
    }
    if let Some(holder) = &record.closed_by {
        out.push(CLOSED_BY);
        let mut stored = stored(holder);
        if let Some(Anchor { boot, until }) = times.anchor {
            // Writing to a String does not fail.
            let _ = write!(stored, "{CLOSED_UNTIL}{boot:032x}:{}", until.as_nanos());
        }
        text(out, &stored);
    }
}

/// What members and waiters have in common: id, mode, end, tag, first try, the hold to replace, holder.
type Common<H> = (ClaimId, Mode, Duration, u128, Option<Duration>, Option<ClaimId>, H);

fn claim(out: &mut Vec<u8>, (id, mode, expires, tag, asked, beside, holder): Common<&Holder>) {
    out.extend_from_slice(&id.as_u128().to_le_bytes());
    let (kind, take, of) = match mode {
        Mode::Exclusive => (0u8, 0, 0),
        Mode::Read => (1, 0, 0),
        Mode::Write => (2, 0, 0),
        Mode::Permits { take, of } => (3, take, of),
    };
    out.push(kind);
    out.extend_from_slice(&take.to_le_bytes());
    out.extend_from_slice(&of.to_le_bytes());
    time(out, expires);
    out.extend_from_slice(&tag.to_le_bytes());
    let mut stored = stored(holder);
    if let Some(beside) = beside {
        stored.push_str(BESIDE);
        stored.push_str(&beside.to_string());
    }
    if let Some(asked) = asked {
        // Writing to a String does not fail.
        let _ = write!(stored, "{ASKED}{}", asked.as_nanos());
    }
    text(out, &stored);
}

/// All that a holder says, its text cut to what a record keeps.
fn stored(holder: &Holder) -> String {
    let mut end = holder.text.len().min(MAX_HOLDER);
    while !holder.text.is_char_boundary(end) {
        end -= 1;
    }
    if end < holder.text.len() {
        holder.clone().with(|it| it.text = it.text[..end].into()).stored().into_owned()
    } else {
        holder.stored().into_owned()
    }
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// In nanoseconds; what cannot be counted in 64 bits (584 years) is as good as for ever.
fn time(out: &mut Vec<u8>, value: Duration) {
    number(out, u64::try_from(value.as_nanos()).unwrap_or(u64::MAX));
}

fn count(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u32).to_le_bytes());
}

fn text(out: &mut Vec<u8>, value: &str) {
    count(out, value.len());
    out.extend_from_slice(value.as_bytes());
}

/// Reads what [`encode`] wrote: the key, its record, and when it opens by the boot clock; `None` if it is something else.
pub(crate) fn decode(bytes: &[u8]) -> Option<(&str, Record, Option<Anchor>)> {
    let mut reader = Reader(bytes);
    let key = reader.text()?;
    let mut record = Record {
        token: reader.token()?,
        closed_until: reader.time()?,
        open_since: reader.time()?,
        ..Record::default()
    };
    for _ in 0..reader.count()? {
        let (id, mode, expires, tag, asked, _, holder) = reader.claim()?;
        let token = reader.token()?;
        record.held.push(Member { id, mode, token, expires, asked, holder, tag });
    }
    for _ in 0..reader.count()? {
        let (id, mode, expires, tag, asked, beside, holder) = reader.claim()?;
        let order = if reader.byte()? == 0 { Order::Fifo } else { Order::Barging };
        let told = reader.byte()? != 0;
        record.queue.push(Waiter { id, mode, order, expires, asked, holder, tag, told, beside });
    }
    let mut anchor = None;
    if !reader.0.is_empty() {
        let (CLOSED_BY, stored) = (reader.byte()?, reader.text()?) else { return None };
        record.closed_by = Some(Holder::from_stored(stored));
        anchor = stored.rsplit_once(CLOSED_UNTIL).and_then(|(_, end)| self::anchor(end));
    }
    reader.0.is_empty().then_some((key, record, anchor))
}

fn anchor(text: &str) -> Option<Anchor> {
    let (boot, nanos) = text.split_once(':')?;
    let boot = u128::from_str_radix(boot, 16).ok()?;
    Some(Anchor { boot, until: Duration::from_nanos(nanos.parse().ok()?) })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn token(&mut self) -> Option<u64> {
        self.number().filter(|token| *token <= LARGEST_TOKEN)
    }

    fn time(&mut self) -> Option<Duration> {
        self.number().map(Duration::from_nanos)
    }

    fn count(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.count()? as usize;
        std::str::from_utf8(self.bytes(length)?).ok()
    }

    fn claim(&mut self) -> Option<Common<Holder>> {
        let id = ClaimId::from_u128(self.array().map(u128::from_le_bytes)?);
        let (kind, take, of) = (self.byte()?, self.count()?, self.count()?);
        let mode = match kind {
            0 => Mode::Exclusive,
            1 => Mode::Read,
            2 => Mode::Write,
            3 => Mode::Permits { take, of },
            _ => return None,
        };
        let expires = self.time()?;
        let tag = self.array().map(u128::from_le_bytes)?;
        let stored = self.text()?;
        let asked = stored.rsplit_once(ASKED).and_then(|(_, nanos)| nanos.parse().ok());
        let asked = asked.map(Duration::from_nanos);
        let beside = stored.rsplit_once(BESIDE).and_then(|(_, id)| ClaimId::parse(id.get(..32)?));
        Some((id, mode, expires, tag, asked, beside, Holder::from_stored(stored)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use latchwork_store::kit::record::{Alive, Now};
    use latchwork_store::{Claim, Key, Linger, Moment, Stamp};

    use super::*;
    use crate::records::boot::Era;
    use crate::records::closing::Closing;
    use crate::records::session::Life;

    fn closed_by() -> Holder {
        Holder::new("web-2").with(|it| it.closed_at = Some(Duration::from_secs(1_790_000_000)))
    }

    pub(crate) fn sample() -> Record {
        let holder = Holder::new("host:42 nightly");
        let id = ClaimId::from_u128;
        let of = 7;
        Record {
            held: vec![Member {
                id: id(1),
                mode: Mode::Permits { take: 3, of },
                token: 1 << 51,
                expires: Duration::from_nanos(123_456_789_012),
                asked: Some(Duration::from_nanos(120_456_789_012)),
                holder: holder.clone(),
                tag: u128::MAX - 5,
            }],
            queue: [(Order::Fifo, true, Some(id(1))), (Order::Barging, false, None)]
                .map(|(order, told, beside)| Waiter {
                    id: id(2),
                    mode: Mode::Permits { take: 7, of },
                    order,
                    expires: Duration::from_secs(99),
                    asked: None,
                    holder: holder.clone(),
                    tag: 3,
                    told,
                    beside,
                })
                .to_vec(),
            token: 1 << 51,
            closed_until: Duration::from_secs(1_800_000_000),
            closed_by: Some(closed_by()),
            open_since: Duration::from_millis(5),
        }
    }

    fn times(record: &Record, anchor: Option<Anchor>) -> Times {
        let Record { closed_until, open_since, .. } = *record;
        Times { closed_until, open_since, anchor }
    }

    #[test]
    fn written_records_round_trip() {
        for anchor in [None, Some(Anchor { boot: u128::MAX - 3, until: Duration::from_secs(9) })] {
            let mut bytes = Vec::new();
            encode(&mut bytes, "k", &sample(), times(&sample(), anchor));
            assert_eq!(decode(&bytes), Some(("k", sample(), anchor)));
        }
        let mut bytes = Vec::new();
        encode(&mut bytes, "k\0ey", &sample(), times(&sample(), None));
        let mut old = Vec::new();
        let unnamed = Record { closed_by: None, ..sample() };
        encode(&mut old, "k\0ey", &unnamed, times(&unnamed, None));
        assert!(bytes.starts_with(&old), "a name is a tail");
        for cut in 0..bytes.len() {
            let read = (cut == old.len()).then(|| ("k\0ey", unnamed.clone(), None));
            assert_eq!(decode(&bytes[..cut]), read, "cut at {cut}");
        }
        for tail in [&b"\0"[..], b"\x01\0\0\0\0\0", b"\x02\0\0\0\0", b"\x01\xff\xff\xff\xff"] {
            assert_eq!(decode(&[&old, tail].concat()), None, "{tail:?}");
        }
    }

    #[test]
    fn a_long_holder_is_cut_at_a_character() {
        let mut record = sample();
        record.held[0].holder = "ä".repeat(1_000).as_str().into();
        let at = closed_by().closed_at;
        let long = |text: String| Some(Holder::new(text).with(|it| it.closed_at = at));
        record.closed_by = long("ä".repeat(1_000));
        record.closed_until = Duration::MAX;
        let mut bytes = Vec::new();
        encode(&mut bytes, "k", &record, times(&record, None));
        let (_, read, _) = decode(&bytes).unwrap();
        assert_eq!(read.held[0].holder, "ä".repeat(512).into());
        assert_eq!(read.closed_by, long("ä".repeat(512)));
        assert_eq!(read.closed_until, Duration::from_nanos(u64::MAX));
    }

    /// H90: records that another user wrote: read, judged as every verb does, and written again.
    #[test]
    fn hostile_records_are_survived() {
        let now = Now { lease: Duration::from_secs(100), wall: Duration::from_secs(1 << 31) };
        let mut samples = Vec::new();
        for closed_until in [Duration::ZERO, Duration::MAX] {
            for closed_by in [None, Some(closed_by())] {
                for anchor in [None, Some(Anchor { boot: 7, until: closed_until })] {
                    let closed_by = closed_by.clone();
                    let record = Record { closed_until, closed_by, ..sample() };
                    let mut bytes = Vec::new();
                    encode(&mut bytes, "key", &record, times(&record, anchor));
                    samples.push(bytes);
                }
            }
        }
        let samples: Vec<&[u8]> = samples.iter().map(Vec::as_slice).collect();
        latchwork_services::hostile::survives("a record", &samples, |bytes| {
            let Some((key, record, anchor)) = decode(bytes) else { return };
            for alive in [true, false] {
                let mut record = record.clone();
                let lives = &crate::records::record_file::tests::All(Life::Dead);
                Closing::read(&mut record, anchor, Era { boot: 7, lives, now });
                use_it(key, record, now, &|_| alive);
            }
        });
    }

    pub(crate) fn claim(key: &str) -> Claim {
        Claim::new(
            Key::new(key).unwrap(),
            ClaimId::random(),
            Mode::Exclusive,
            Duration::from_secs(30),
            Stamp::new(Moment::from_nanos(0)),
        )
        .with(|it| it.holder = "x".into())
    }

    fn use_it(key: &str, mut record: Record, now: Now, alive: Alive<'_>) {
        let Ok(key) = Key::new(key) else { return };
        let named = |id, mode| {
            claim(key.as_str()).with(|it| {
                it.id = ClaimId::from_u128(id);
                it.mode = mode;
            })
        };
        record.snapshot(key.clone(), now, alive);
        for (id, mode) in [(1, Mode::Permits { take: 3, of: 7 }), (9, Mode::Exclusive)] {
            let claim = named(id, mode);
            let _ = record.try_acquire(&claim, 5, 1 << 53, now, alive);
            record.behind(claim.id, alive);
            record.renew(&claim, now, alive);
            record.release(&claim, Linger::For(Duration::from_secs(1)), now, alive);
        }
        let times = Closing::default().write(&record, 7, now);
        encode(&mut Vec::new(), key.as_str(), &record, times);
    }
}

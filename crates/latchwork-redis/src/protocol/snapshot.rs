//! Reads the holders and the waiters of a key from what the store answers.

use std::collections::HashMap;
use std::time::Duration;

use latchwork_store::{ClaimId, Key, Mode, Party, Shape, Snapshot};
use redis::Value;

use crate::protocol::answers::foreign;
use crate::protocol::names::Names;
use crate::protocol::scripted::BESIDE;
use crate::protocol::value::{KeyValue, read_holder, shown};
use crate::server::reply::{number, pairs, text, time};

/// The holders and waiters in the answer of the script.
pub(crate) fn read(answer: &Value, key: &Key, names: &Names) -> Option<Snapshot> {
    let Value::Array(parts) = answer else { return None };
    let [kind, value, left, line, members, marks, details, clock, holding, waiting_all] =
        &parts[..]
    else {
        return None;
    };
    let Value::Array(clock) = clock else { return None };
    let now = time(clock.first()?, clock.get(1)?)?.as_millis() as u64;
    let left = match left {
        Value::Int(left) => u64::try_from(*left).ok().map(Duration::from_millis),
        _ => return None,
    };
    let details = pairs(details)?.into_iter().map(|(id, entry)| Some((text(id)?, text(entry)?)));
    let details: HashMap<String, String> = details.collect::<Option<_>>()?;
    let mut snapshot = Snapshot::free(key.clone());
    if names.lock() != key.as_str() {
        snapshot.notes.push(format!("its name in Redis is {:?}", names.lock()));
    }
    match text(kind)?.as_str() {
        "none" => {}
        "string" => {
            let Value::BulkString(value) = value else { return None };
            hold(&mut snapshot, value, left, now, members, &details);
        }
        other => {
            let whose = if other == "hash" { " (Redisson's locks are hashes)" } else { "" };
            let name = names.lock();
            snapshot
                .notes
                .push(format!("{name:?} is a {other}, which is not a lock of this kind{whose}"));
            let said = format!("a {other} that is not a lock of this kind");
            let party = Party::new(Mode::Exclusive, said);
            snapshot.holders.push(party.with(|it| it.remaining = left));
        }
    }
    let (Value::Array(line), Value::Array(marks)) = (line, marks) else { return None };
    for entry in line {
        snapshot.waiters.extend(waiting(&text(entry)?, now));
    }
    for id in marks {
        let entry = details.get(&text(id)?);
        snapshot.waiters.extend(entry.and_then(|entry| waiting(entry, now)));
    }
    let shown = line.len() + marks.len();
    for (more, what) in [
        (number(holding)?, "hold it"),
        (number(waiting_all)?.saturating_sub(shown as u64), "wait for it"),
    ] {
        if more > 0 {
            snapshot.notes.push(format!("{more} more {what} and are not shown"));
        }
    }
    if snapshot.shape.is_none() {
        snapshot.shape = snapshot.waiters.first().map(|waiter| waiter.mode.shape());
    }
    snapshot.token = snapshot.holders.iter().filter_map(|holder| holder.token).max().unwrap_or(0);
    Some(snapshot)
}

/// The snapshot from one key alone: type, value and remaining time. `why` is the reason for asking no more.
pub(crate) fn read_plain(answer: &Value, key: &Key, names: &Names, why: &str) -> Option<Snapshot> {
    let Value::Array(parts) = answer else { return None };
    let [kind, value, left] = &parts[..] else { return None };
    let clock = Value::Array(vec![Value::Int(0), Value::Int(0)]);
    let none = || Value::Array(Vec::new());
    let whole =
        vec![kind.clone(), value.clone(), left.clone(), none(), none(), none(), none(), clock];
    let whole = [whole, vec![Value::Int(0), Value::Int(0)]].concat();
    let mut snapshot = read(&Value::Array(whole), key, names)?;
    let Value::BulkString(value) = &parts[1] else { return Some(snapshot) };
    if let held @ (KeyValue::Readers { .. } | KeyValue::Permits { .. }) = KeyValue::read(value) {
        let mode = match held {
            KeyValue::Permits { of, .. } => Mode::Permits { take: 1, of },
            _ => Mode::Read,
        };
        snapshot.shape = held.shape();
        let party = Party::new(mode, format!("one or more clients, not named: {why}"));
        snapshot.holders.push(party.with(|it| it.remaining = snapshot.linger.take()));
    }
    if snapshot.shape.is_some() {
        snapshot.notes.push(format!("{why}: waiters are not shown"));
    }
    Some(snapshot)
}

fn hold(
    snapshot: &mut Snapshot,
    value: &[u8],
    left: Option<Duration>,
    now: u64,
    members: &Value,
    details: &HashMap<String, String>,
) {
    let held = KeyValue::read(value);
    snapshot.shape = held.shape();
    match &held {
        KeyValue::Alone { mode, id, token, holder, since } => {
            let members = scores(members);
            // A writer beside which another hold stays is a member too (common.lua).
            let own = members.iter().find(|(member, _)| member == id).map(|(_, ends)| *ends);
            let left =
                own.map_or(left, |ends| Some(Duration::from_millis(ends.saturating_sub(now))));
            if own.is_none_or(|ends| ends >= now) {
                snapshot.holders.push(Party::new(*mode, holder.clone()).with(|it| {
                    it.id = ClaimId::parse(id);
                    it.token = Some(*token);
                    it.remaining = left;
                    it.age = age(*since, now);
                }));
            }
            for (id, ends) in members.iter().filter(|(_, ends)| own.is_some() && *ends >= now) {
                let detail = details.get(id);
                snapshot.holders.extend(detail.and_then(|it| member(id, it, 0, now, *ends)));
            }
        }
        KeyValue::Closed { by } => {
            snapshot.linger = left;
            snapshot.closed_by.clone_from(by);
        }
        KeyValue::Foreign => {
            if left.is_none() {
                snapshot.notes.push(
                    "a client of another kind holds it without a ttl: if that client has died, \
                     only deleting the key frees it"
                        .into(),
                );
            }
            snapshot.shape = Some(Shape::Mutex);
            let party = Party::new(Mode::Exclusive, foreign(false));
            snapshot.holders.push(party.with(|it| it.remaining = left));
        }
        KeyValue::NoLock => {
            snapshot.notes.push(
                "the value of the key begins like a lock (lw:) and is none: nobody acquires it \
                 until the key is deleted"
                    .into(),
            );
            let party = Party::new(Mode::Exclusive, format!("no lock, but {}", shown(value)));
            snapshot.holders.push(party.with(|it| it.remaining = left));
        }
        KeyValue::Readers { closed } | KeyValue::Permits { closed, .. } => {
            let of = match &held {
                KeyValue::Permits { of, .. } => *of,
                _ => 0,
            };
            let closed = closed.checked_sub(now).filter(|left| *left > 0);
            snapshot.linger = closed.map(Duration::from_millis);
            for (id, ends) in scores(members) {
                let Some(detail) = details.get(&id) else { continue };
                if ends >= now {
                    snapshot.holders.extend(member(&id, detail, of, now, ends));
                }
            }
            if snapshot.holders.is_empty() {
                snapshot.shape = None;
                snapshot.linger = left;
            }
        }
    }
}

/// `m <mode> <take> <token> <holder>`
fn member(id: &str, detail: &str, of: u32, now: u64, ends: u64) -> Option<Party> {
    let mut words = detail.splitn(5, ' ');
    let (_, mode, take) = (words.next()?, words.next()?, words.next()?);
    let token = words.next()?.parse().ok()?;
    let (holder, since) = read_holder(words.next()?);
    Some(Party::new(mode_of(mode, take, of)?, holder).with(|it| {
        it.id = ClaimId::parse(id);
        it.token = Some(token);
        it.remaining = Some(Duration::from_millis(ends - now));
        it.age = age(since, now);
    }))
}

/// An entry of the queue: fields of fixed widths, which `scripts/common.lua` lists.
fn waiting(entry: &str, now: u64) -> Option<Party> {
    let [ends, take, of] = [45..58, 127..137, 137..147].map(|field| entry.get(field));
    let left = ends?.parse::<u64>().ok()?.checked_sub(now).filter(|left| *left > 0)?;
    let (holder, since) = read_holder(entry.get(163..)?);
    Some(Party::new(mode_of(entry.get(74..75)?, take?, of?.parse().ok()?)?, holder).with(|it| {
        it.id = entry.get(..32).and_then(ClaimId::parse);
        it.remaining = Some(Duration::from_millis(left));
        it.age = age(since, now);
        it.beside = entry.rsplit_once(BESIDE).and_then(|(_, id)| ClaimId::parse(id));
    }))
}

/// How long ago that was, by the server's clock; unknown in plain mode, whose answers have no time.
fn age(since: Option<Duration>, now: u64) -> Option<Duration> {
    since.filter(|_| now > 0).map(|since| Duration::from_millis(now).saturating_sub(since))
}

fn mode_of(letter: &str, take: &str, of: u32) -> Option<Mode> {
    match letter {
        "x" => Some(Mode::Exclusive),
        "w" => Some(Mode::Write),
        "r" => Some(Mode::Read),
        "p" => Some(Mode::Permits { take: take.parse().ok()?, of }),
        _ => None,
    }
}

/// Until when each member holds; members with an unreadable end are left out.
fn scores(value: &Value) -> Vec<(String, u64)> {
    let Value::Array(flat) = value else { return Vec::new() };
    let member = |c: &[Value]| Some((text(&c[0])?, text(&c[1])?.parse().ok()?));
    flat.chunks_exact(2).filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_entries_of_a_line_are_read_without_harm() {
        let id = "0".repeat(31) + "7";
        let samples = [
            format!(
                "{id}00000000000019000000000000{:016}x200000000000000000aa{id}{:020}1790000000007|h",
                1, 0
            ),
            format!("{id}{:013}9999999999999{:016}p0001{:<16}{id}42949672954294967296h", 1, 1, "-"),
            format!("m r 0 18446744073709551615 1790000000007|host {id}"),
        ];
        let samples: Vec<&[u8]> = samples.iter().map(String::as_bytes).collect();
        let (key, names) = (Key::new("k").unwrap(), Names::within("", None));
        latchwork_services::hostile::survives("entries of a line", &samples, |bytes| {
            let entry = Value::BulkString(bytes.to_vec());
            let id = Value::BulkString(bytes[..bytes.len().min(32)].to_vec());
            let array = |parts: &[&Value]| Value::Array(parts.iter().copied().cloned().collect());
            for end in [Value::Int(0), Value::Int(i64::MAX), entry.clone()] {
                let answer = Value::Array(vec![
                    Value::SimpleString("string".into()),
                    entry.clone(),
                    Value::Int(1),
                    array(&[&entry]),
                    array(&[&id, &end]),
                    array(&[&id]),
                    array(&[&id, &entry]),
                    array(&[&Value::Int(1), &end]),
                    end.clone(),
                    end,
                ]);
                let _ = read(&answer, &key, &names);
            }
        });
    }
}

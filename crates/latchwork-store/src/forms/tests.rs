//! Each form as exact text, and read again.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, to_string};

use crate::doctor::{Finding, Prepared, Report};
use crate::{
    Cause, ClaimId, Error, ErrorKind, Fenced, FencingToken, Holder, Key, Lost, LostReason, Mode,
    Moment, NotHeld, Party, Shape, Snapshot,
};

const MS: Duration = Duration::from_millis(1);

/// Checks the JSON of a value, that it is read again, and that a binary format keeps it too.
fn is_written<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, json: &str) {
    assert_eq!(to_string(&value).unwrap(), json);
    assert_eq!(from_str::<T>(json).unwrap(), value, "{json}");
    let bytes = postcard::to_stdvec(&value).unwrap();
    assert_eq!(postcard::from_bytes::<T>(&bytes).unwrap(), value, "{json}, in bytes");
}

fn full_party() -> Party {
    let holder = Holder::new("app@web-2 \"x\"").with(|it| {
        it.usual_hold = Some(1_300 * MS);
        it.lock_delay = Some(15_000 * MS);
        it.candidate = Some("10.0.0.7:8080".into());
    });
    Party::new(Mode::Permits { take: 2, of: 5 }, "").with(|it| {
        it.id = Some(ClaimId::from_u128(0xabc));
        it.holder = holder;
        it.token = Some((1 << 53) - 1);
        it.age = Some(20 * MS);
        it.remaining = Some(9_000 * MS);
    })
}

const FULL_PARTY: &str = r#"{"id":"00000000000000000000000000000abc","holder":"app@web-2 \"x\"","candidate":"10.0.0.7:8080","usual_hold_ms":1300,"lock_delay_ms":15000,"mode":"permits","permits":2,"of":5,"token":"9223372036854774784","age_ms":20,"remaining_ms":9000}"#;
const BARE_PARTY: &str = r#"{"id":null,"holder":"me","candidate":null,"usual_hold_ms":null,"lock_delay_ms":null,"mode":"write","permits":null,"of":null,"token":null,"age_ms":null,"remaining_ms":null}"#;

#[test]
fn a_token_is_text_in_json_and_eight_bytes_in_binary() {
    is_written(FencingToken::from_grant(7), r#""7168""#);
    is_written(FencingToken::from_raw(u64::MAX), r#""18446744073709551615""#);
    is_written(FencingToken::from_raw(0), r#""0""#);
    // A key of a map is text in any case.
    is_written(BTreeMap::from([(FencingToken::from_raw(9), true)]), r#"{"9":true}"#);
    let bytes = postcard::to_stdvec(&FencingToken::from_raw(300)).unwrap();
    assert_eq!(bytes, postcard::to_stdvec(&300_u64).unwrap());
}

#[test]
fn a_token_is_read_from_a_number_too_and_from_nothing_else() {
    for json in ["7168", r#""7168""#, r#""0007168""#] {
        assert_eq!(from_str::<FencingToken>(json).unwrap(), FencingToken::from_grant(7), "{json}");
    }
    for json in [
        "-1",
        "1.5",
        "null",
        "true",
        "[7]",
        "{}",
        r#""""#,
        r#""+7""#,
        r#"" 7""#,
        r#""7168.0""#,
        r#""0x10""#,
        r#""18446744073709551616""#,
        "18446744073709551616",
    ] {
        let error = from_str::<FencingToken>(json).unwrap_err().to_string();
        assert!(error.contains("a fencing token: a decimal number"), "{json}: {error}");
    }
}

proptest! {
    #[test]
    fn every_token_is_read_as_it_was_written(raw: u64) {
        let token = FencingToken::from_raw(raw);
        prop_assert_eq!(from_str::<FencingToken>(&to_string(&token).unwrap()).unwrap(), token);
        let bytes = postcard::to_stdvec(&token).unwrap();
        prop_assert_eq!(postcard::from_bytes::<FencingToken>(&bytes).unwrap(), token);
    }

    #[test]
    fn hostile_json_is_an_error_and_no_panic(text in ".{0,200}") {
        let _ = from_str::<Snapshot>(&text);
        let _ = from_str::<FencingToken>(&text);
        let _ = postcard::from_bytes::<Snapshot>(text.as_bytes());
    }
}

#[test]
fn words_and_small_types_have_their_forms() {
    is_written(Mode::Exclusive, r#""exclusive""#);
    is_written(Mode::Read, r#""read""#);
    is_written(Mode::Write, r#""write""#);
    is_written(Mode::Permits { take: 2, of: 5 }, r#"{"permits":{"take":2,"of":5}}"#);
    is_written(Shape::Mutex, r#""mutex""#);
    is_written(Shape::ReadWrite, r#""read-write""#);
    is_written(Shape::Semaphore { of: 5 }, r#"{"semaphore":{"of":5}}"#);
    for (cause, word) in [
        (Cause::Held, "held"),
        (Cause::Queued, "queued"),
        (Cause::Linger, "linger"),
        (Cause::Quarantine, "quarantine"),
        (Cause::Foreign, "foreign"),
        (Cause::Earlier, "earlier"),
    ] {
        is_written(cause, &format!("{word:?}"));
    }
    is_written(Key::new("a \"b\"\n锁").unwrap(), r#""a \"b\"\n锁""#);
    is_written(ClaimId::from_u128(u128::MAX), r#""ffffffffffffffffffffffffffffffff""#);
    is_written(Moment::NEVER, r#""18446744073709551615""#);
    let fenced =
        Fenced { refused: FencingToken::from_grant(7), newest: FencingToken::from_grant(8) };
    is_written(fenced, r#"{"refused":"7168","newest":"8192"}"#);
}

#[test]
fn the_end_of_a_hold_has_its_form() {
    let at = Moment::from_nanos((1 << 53) + 1);
    for (reason, word) in [
        (LostReason::Expired, "expired"),
        (LostReason::Taken, "taken"),
        (LostReason::SessionEnded, "session_ended"),
        (LostReason::MaxHold, "max_hold"),
        (LostReason::Forked, "forked"),
    ] {
        is_written(reason, &format!("{word:?}"));
        assert_eq!(reason.word(), word);
        let lost = format!(r#"{{"reason":"{word}","at_ns":"9007199254740993"}}"#);
        is_written(Lost::new(reason, at), &lost);
        is_written(NotHeld::Lost(Lost::new(reason, at)), &format!(r#"{{"lost":{lost}}}"#));
    }
    is_written(NotHeld::Suspect, r#""suspect""#);
}

#[test]
fn a_snapshot_has_the_form_of_the_command() {
    is_written(full_party(), FULL_PARTY);
    is_written(Party::new(Mode::Write, "me"), BARE_PARTY);
    is_written(
        Holder::new("me").with(|it| it.usual_hold = Some(5 * MS)),
        r#"{"text":"me","usual_hold_ms":5,"lock_delay_ms":null,"candidate":null,"closed_at_ms":null}"#,
    );
    let closer =
        Holder::new("me").with(|it| it.closed_at = Some(Duration::from_millis(1_790_000_000_123)));
    let closed_by = r#"{"text":"me","usual_hold_ms":null,"lock_delay_ms":null,"candidate":null,"closed_at_ms":1790000000123}"#;
    is_written(closer.clone(), closed_by);
    let key = Key::new("stock/42").unwrap();
    is_written(
        Snapshot::free(key.clone()),
        r#"{"key":"stock/42","held":false,"kind":null,"permits":null,"token":null,"holders":[],"waiters":[],"linger_ms":null,"closed_by":null,"notes":[]}"#,
    );
    let full = Snapshot::free(key.clone()).with(|it| {
        it.shape = Some(Shape::Semaphore { of: 5 });
        it.holders = vec![full_party()];
        it.waiters = vec![Party::new(Mode::Write, "me")];
        it.token = 7;
        it.linger = Some(1_500 * MS);
        it.closed_by = Some(closer);
        it.notes = vec!["a note".into()];
    });
    is_written(
        full,
        &format!(
            r#"{{"key":"stock/42","held":true,"kind":"semaphore","permits":5,"token":"7168","holders":[{FULL_PARTY}],"waiters":[{BARE_PARTY}],"linger_ms":1500,"closed_by":{closed_by},"notes":["a note"]}}"#
        ),
    );
    for shape in [Shape::Mutex, Shape::ReadWrite] {
        let one = Snapshot::free(key.clone()).with(|it| it.shape = Some(shape));
        assert_eq!(from_str::<Snapshot>(&to_string(&one).unwrap()).unwrap(), one);
    }
}

/// What a later version may add, and what an earlier one may lack.
#[test]
fn fields_that_are_new_or_absent_do_no_harm() {
    let json = r#"{"key":"k","kind":"mutex","later":[1],"holders":[
        {"holder":"me","mode":"exclusive","later":{}}],"waiters":[]}"#;
    let read = from_str::<Snapshot>(json).unwrap();
    let expected = Snapshot::free(Key::new("k").unwrap()).with(|it| {
        it.shape = Some(Shape::Mutex);
        it.holders = vec![Party::new(Mode::Exclusive, "me")];
    });
    assert_eq!(read, expected);
    let lost = r#"{"reason":"taken","at_ns":5,"later":1}"#;
    let expected = Lost::new(LostReason::Taken, Moment::from_nanos(5));
    assert_eq!(from_str::<Lost>(lost).unwrap(), expected);
}

#[test]
fn an_unreadable_value_is_named() {
    fn says<T: DeserializeOwned + Debug>(json: &str, part: &str) {
        let error = from_str::<T>(json).unwrap_err().to_string();
        assert!(error.contains(part), "{json}: {error}");
    }
    says::<LostReason>(r#""bored""#, "unknown variant `bored`");
    says::<Key>(r#""""#, "the name is empty");
    says::<ClaimId>(r#""xyz""#, "32 hexadecimal digits");
    says::<Moment>(r#""soon""#, "a moment: nanoseconds");
    let party = |mode| format!(r#"{{"holder":"me","mode":{mode}}}"#);
    says::<Party>(&party(r#""permits""#), "missing field `permits`");
    says::<Party>(&party(r#""permits","permits":2"#), "missing field `of`");
    says::<Party>(&party(r#""shared""#), "unknown variant `shared`");
    let snapshot = r#"{"key":"k","kind":"semaphore","holders":[],"waiters":[]}"#;
    says::<Snapshot>(snapshot, "missing field `permits`");
}

#[test]
fn an_error_is_written_with_all_that_it_says() {
    let error = Error::new(ErrorKind::TimedOut, "timed out after 2s");
    assert_eq!(
        to_string(&error).unwrap(),
        r#"{"kind":"TimedOut","message":"timed out after 2s","key":null,"store":null,"next_step":null,"lost":null,"may_have_applied":false}"#
    );
    let lost = Lost::new(LostReason::Expired, Moment::from_nanos(5));
    let error = Error::new(ErrorKind::Lost, "lost")
        .with_key(&Key::new("k").unwrap())
        .with_store("mem:".into())
        .with_next_step("check")
        .with_lost(lost);
    assert_eq!(
        to_string(&error).unwrap(),
        r#"{"kind":"Lost","message":"lost","key":"k","store":"mem:","next_step":"check","lost":{"reason":"expired","at_ns":"5"},"may_have_applied":false}"#
    );
    is_written(ErrorKind::Unreachable, r#""Unreachable""#);
}

#[test]
fn a_report_is_serialized() {
    let mut report = Report::new("mem:");
    report.add(Finding::warning("persistence", "none").part("a:1").remedy("turn it on"));
    assert_eq!(
        to_string(&report).unwrap(),
        r#"{"store":"mem:","fit":true,"worst":"warning","findings":[{"severity":"warning","code":"persistence","part":"a:1","found":"none","consequence":"","remedy":"turn it on"}]}"#
    );
    let prepared = Prepared { store: "mem:".into(), steps: vec!["none".into()] };
    assert_eq!(to_string(&prepared).unwrap(), r#"{"store":"mem:","steps":["none"]}"#);
}

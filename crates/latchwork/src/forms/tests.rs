//! Each form as exact text, and read again.

use std::fmt::Debug;
use std::time::Duration;

use latchwork_store::{
    BackendError, BackendErrorKind, Blocked, Cause, Effect, FencingToken, Key, Lost, LostReason,
    Mode, Moment, Party,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, to_string};

#[cfg(feature = "once")]
use crate::once::Skipped;
use crate::{Event, ForceReleased, HoldState, Leader};

const MS: Duration = Duration::from_millis(1);

fn is_written<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T, json: &str) {
    assert_eq!(to_string(&value).unwrap(), json);
    assert_eq!(from_str::<T>(json).unwrap(), value, "{json}");
}

#[test]
fn states_and_answers_have_their_forms() {
    let token = FencingToken::from_grant(7);
    let lost = Lost::new(LostReason::SessionEnded, Moment::from_nanos(5));
    is_written(HoldState::Held, r#""held""#);
    is_written(HoldState::Suspect, r#""suspect""#);
    let json = r#"{"lost":{"reason":"session_ended","at_ns":"5"}}"#;
    is_written(HoldState::Lost(lost), json);
    let leader = Leader { candidate: "10.0.0.7:8080".into(), term: token };
    is_written(leader, r#"{"candidate":"10.0.0.7:8080","term":"7168"}"#);
    for (skipped, json) in [
        (
            Skipped::Done { closed_for: Some(60_000 * MS), by: None, at: None },
            r#"{"done":{"closed_for_ms":60000,"by":null,"at_ms":null}}"#,
        ),
        (
            Skipped::Done {
                closed_for: None,
                by: Some("me".into()),
                at: Some(Duration::from_millis(1_790_000_000_123)),
            },
            r#"{"done":{"closed_for_ms":null,"by":"me","at_ms":1790000000123}}"#,
        ),
        (Skipped::Running { holder: Some("me".into()) }, r#"{"running":{"holder":"me"}}"#),
        (Skipped::Quarantine { left: None }, r#"{"quarantine":{"left_ms":null}}"#),
    ] {
        is_written(skipped, json);
    }
    // As an earlier version wrote it.
    let done = Skipped::Done { closed_for: Some(60_000 * MS), by: None, at: None };
    assert_eq!(from_str::<Skipped>(r#"{"done":{"closed_for_ms":60000}}"#).unwrap(), done);
    let evicted = vec![Party::new(Mode::Read, "me")];
    let released = ForceReleased { evicted: evicted.clone(), token: Some(token) };
    let json = to_string(&released).unwrap();
    assert!(json.starts_with(r#"{"evicted":[{"id":null,"holder":"me","#), "{json}");
    assert!(json.ends_with(r#"],"token":"7168"}"#), "{json}");
    let read = from_str::<ForceReleased>(&json).unwrap();
    assert_eq!((read.evicted, read.token), (evicted, Some(token)));
}

#[test]
fn events_are_lines_of_json() {
    let key = &Key::new("stock/42").unwrap();
    let (token, from) = (FencingToken::from_grant(8), FencingToken::from_grant(7));
    let error =
        &BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, "no answer \"x\"");
    let blocked = &Blocked::by(Cause::Held).with(|it| {
        it.holder = Some("me".into());
        it.ahead = Some(2);
    });
    let (waited, held) = (Duration::from_micros(310), 20 * MS);
    let lost = Lost::new(LostReason::Expired, Moment::from_nanos(5));
    for (event, json) in [
        (Event::WaitBegan { key }, r#""wait_began","key":"stock/42""#),
        (
            Event::WaitEnded { key, waited, admitted: true },
            r#""wait_ended","key":"stock/42","waited_us":310,"admitted":true"#,
        ),
        (
            Event::Waiting { key, blocked },
            r#""waiting","key":"stock/42","cause":"held","holder":"me","ahead":2,"retry_after_us":null"#,
        ),
        (
            Event::TryFailed { key, error },
            r#""try_failed","key":"stock/42","error":"no answer \"x\"""#,
        ),
        (
            Event::Acquired { key, token, waited, contended: true },
            r#""acquired","key":"stock/42","token":"8192","waited_us":310,"contended":true"#,
        ),
        (
            Event::HandedOver { key, from, token, held },
            r#""handed_over","key":"stock/42","from":"7168","token":"8192","held_us":20000"#,
        ),
        (
            Event::Received { key, token, waited },
            r#""received","key":"stock/42","token":"8192","waited_us":310"#,
        ),
        (
            Event::Renewed { key, token, took: waited, late: MS, remaining: held },
            r#""renewed","key":"stock/42","token":"8192","took_us":310,"late_us":1000,"remaining_us":20000"#,
        ),
        (
            Event::RenewFailed { key, token, error, remaining: held },
            r#""renew_failed","key":"stock/42","token":"8192","error":"no answer \"x\"","remaining_us":20000"#,
        ),
        (Event::Suspect { key, token }, r#""suspect","key":"stock/42","token":"8192""#),
        (Event::ClockStepped { key, by: -3 }, r#""clock_stepped","key":"stock/42","by_ns":-3"#),
        (
            Event::ClockUnsteady { key, ratio: 1.5 },
            r#""clock_unsteady","key":"stock/42","ratio":1.5"#,
        ),
        (
            Event::Lost { key, token, lost, held },
            r#""lost","key":"stock/42","token":"8192","reason":"expired","at_ns":"5","held_us":20000"#,
        ),
        (
            Event::Released { key, token, held },
            r#""released","key":"stock/42","token":"8192","held_us":20000"#,
        ),
        (
            Event::Detached { key, token, held },
            r#""detached","key":"stock/42","token":"8192","held_us":20000"#,
        ),
        (Event::Adopted { key, token }, r#""adopted","key":"stock/42","token":"8192""#),
        (Event::Settled { key }, r#""settled","key":"stock/42""#),
        (
            Event::ReleaseFailed { key, held: None, error },
            r#""release_failed","key":"stock/42","token":null,"held_us":null,"error":"no answer \"x\"""#,
        ),
    ] {
        assert_eq!(to_string(&event).unwrap(), format!(r#"{{"event":{json}}}"#));
    }
}

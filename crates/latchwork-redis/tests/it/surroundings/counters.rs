//! The counter of tokens, its expiry, and clocks that were wrong once.

use std::time::SystemTime;

use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::*;

use crate::common::*;

const TTL: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(86_400);

fn micros(length: Duration) -> u64 {
    length.as_micros() as u64
}

/// What a client proposes whose clock is right, or ahead by this.
fn floor(ahead: Duration) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    micros(now + ahead)
}

/// H93: a client whose clock is 30 days ahead proposes a token; then nobody locks anything for
/// eight days, which the server's clock is moved on by. A counter that ended a week after its
/// last use would give smaller tokens from then on.
#[test]
fn h93_a_counter_that_is_ahead_outlives_its_lead() {
    run(async {
        // As it is given: by the short script, the one of many, the whole one, and by a renewal.
        for way in ["free", "many", "whole", "renewed"] {
            let server = RedisServer::start(&RedisOptions::new().with_clock()).unwrap();
            let backend = connect(&server.url()).await;
            let ahead = floor(30 * DAY);
            let wrong = passing("k", TTL).with(|it| it.floor = ahead);
            let before = match way {
                "free" => granted(&backend, &wrong).await,
                "many" => {
                    let other = passing("other", TTL).with(|it| it.floor = ahead);
                    let (one, two) =
                        tokio::join!(granted(&backend, &wrong), granted(&backend, &other));
                    release(&backend, &other).await;
                    one.max(two)
                }
                "whole" => {
                    let reader = wrong.clone().with(|it| it.mode = Mode::Read);
                    granted(&backend, &reader).await
                }
                _ => {
                    granted(&backend, &wrong.clone().with(|it| it.floor = 0)).await;
                    match renew(&backend, &wrong).await.unwrap() {
                        Renewal::Held { token, .. } => token,
                        Renewal::Lost => panic!("lost"),
                    }
                }
            };
            assert!(before >= ahead, "{way}");
            release(&backend, &wrong).await;
            server.clock().unwrap().step_forward(8 * DAY).unwrap();
            let right = passing("k", TTL).with(|it| it.floor = floor(8 * DAY));
            let after = granted(&backend, &right).await;
            assert!(after > before, "{way}: {after} after {before}");
            // Once the clock has passed it by a week it has nothing to say any more.
            release(&backend, &right).await;
            server.clock().unwrap().step_forward(30 * DAY).unwrap();
            assert_eq!(ask(&server, &["EXISTS", "lw:token"]).text(), "0", "{way}");
            let later = granted(&backend, &passing("k", TTL)).await;
            assert!(later > after, "{way}: {later} after {after}");
        }
    });
}

/// H93: the same with a server whose own clock was 30 days ahead and is set right: its counter is
/// ahead of the clock and must not end before the clock has caught up.
#[test]
fn h93_a_clock_that_was_ahead_leaves_tokens_that_rise() {
    run(async {
        let server = RedisServer::start(&RedisOptions::new().with_clock()).unwrap();
        let backend = connect(&server.url()).await;
        let clock = server.clock().unwrap();
        clock.step_forward(30 * DAY).unwrap();
        let one = passing("k", TTL);
        let mut last = granted(&backend, &one).await;
        release(&backend, &one).await;
        clock.reset().unwrap();
        for idle in [Duration::ZERO, 8 * DAY, 14 * DAY] {
            clock.step_forward(idle).unwrap();
            let one = passing("k", TTL);
            let token = granted(&backend, &one).await;
            release(&backend, &one).await;
            assert!(token > last, "{idle:?}: {token} after {last}");
            last = token;
        }
    });
}

/// A plain counter that has expired begins again above all that it gave: at the clock, which no
/// number of grants gets ahead of.
#[test]
fn h93_an_expired_counter_restarts_at_the_clock() {
    run(async {
        let server = RedisServer::start(&RedisOptions::new().with_clock()).unwrap();
        let backend = connect(&server.url()).await;
        let mut last = 0;
        for n in 0..2_000 {
            let one = passing(&format!("k{}", n % 7), TTL);
            let token = granted(&backend, &one).await;
            release(&backend, &one).await;
            assert!(token > last);
            last = token;
        }
        let server_now = micros(server.clock().unwrap().now());
        assert!(last <= server_now, "{last} is ahead of {server_now}");
        server.clock().unwrap().step_forward(8 * DAY).unwrap();
        assert_eq!(ask(&server, &["EXISTS", "lw:token"]).text(), "0");
        let token = granted(&backend, &passing("k", TTL)).await;
        assert!(token > last, "{token} after {last}");
    });
}

/// The largest number of a grant: a script counts exactly up to here.
const LAST: u64 = FencingToken::LAST_GRANT;

/// At the end of the range a try is refused, and it leaves nothing behind.
#[test]
fn h230_tokens_at_the_end_of_their_range_are_refused() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let mut tokens = Vec::new();
        world.ask(&["SET", "lw:token", &(LAST - 3).to_string()]);
        for _ in 0..3 {
            let one = passing("k", TTL);
            tokens.push(granted(&backend, &one).await);
            release(&backend, &one).await;
        }
        assert_eq!(tokens, [LAST - 2, LAST - 1, LAST]);
        let refused = |answer: Result<Attempt, BackendError>, way: &str| {
            let error = answer.expect_err(way);
            assert_eq!(error.kind, BackendErrorKind::Corrupt, "{way}: {error:?}");
            assert_eq!(error.effect, Effect::NotApplied, "{way}: {error:?}");
            assert!(error.message.contains("\"lw:token\" is 9007199254740991"), "{way}: {error:?}");
            assert_eq!(world.keys(), [""; 0], "{way}");
        };
        for mode in [Mode::Exclusive, Mode::Write, Mode::Read, Mode::Permits { take: 1, of: 2 }] {
            for waits in [false, true] {
                let one = passing("k", TTL).with(|it| (it.mode, it.waits) = (mode, waits));
                refused(backend.try_acquire(&one).await, &format!("{mode:?}, {waits}"));
            }
        }
        let (one, two) = (passing("k", TTL), passing("other", TTL));
        let (one, two) = tokio::join!(backend.try_acquire(&one), backend.try_acquire(&two));
        refused(one, "many");
        refused(two, "many");
        let plain = connect(&format!("{}?plain=true", world.server.url())).await;
        refused(plain.try_acquire(&passing("k", TTL)).await, "plain");
        let locks = Client::new(&world.server.url(), TTL).await;
        let error = locks.mutex("k").acquire_within(5 * SEC).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        for word in ["all tokens were given", "lw:token", "delete the counter", "\"k\""] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        let floor = passing("k", TTL).with(|it| it.floor = LAST + 1);
        assert_eq!(backend.try_acquire(&floor).await.unwrap_err().kind, BackendErrorKind::Invalid);
        assert_eq!(world.text(&["GET", "lw:token"]), LAST.to_string());
    });
}

/// A holder releases as ever when there is no token for the next in the queue, which gets the error.
#[test]
fn h230_a_release_needs_no_token() {
    run(async {
        let world = World::new();
        let url = world.server.url();
        for reads in [false, true] {
            let holder = connect(&url).await;
            let waiting = connect(&url).await;
            let held = passing("k", TTL).with(|it| it.mode = Mode::Write);
            granted(&holder, &held).await;
            let mode = if reads { Mode::Read } else { Mode::Write };
            let next = with_mode("k", TTL, mode);
            in_line(&waiting, &next).await;
            world.ask(&["SET", "lw:token", &LAST.to_string()]);
            assert_eq!(release(&holder, &held).await, Released::Yes, "{mode:?}");
            assert!(!world.is_held("k"), "{mode:?}");
            let error = waiting.try_acquire(&next).await.unwrap_err();
            assert_eq!(error.kind, BackendErrorKind::Corrupt, "{mode:?}: {error:?}");
            assert_eq!(world.keys(), [""; 0], "{mode:?}");
            world.ask(&["DEL", "lw:token"]);
        }
    });
}

/// A counter that another client has spoilt: tokens restart at the clock, and no key is left behind.
#[test]
fn h231_a_spoilt_counter_leaves_no_key_behind() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let plain = connect(&format!("{}?plain=true", world.server.url())).await;
        let spoilt = [
            "-5",
            "abc",
            "",
            "1e300",
            "nan",
            "inf",
            "-inf",
            "0x7f",
            "007",
            " 7",
            "7 ",
            "7.5",
            "1900000000000000.5",
            "+7",
            "99999999999999999999",
            "9007199254740992",
        ];
        for value in spoilt {
            let is_number = value.len() > 15 && !value.contains('.');
            for way in ["free", "many", "waits", "reads", "plain"] {
                world.ask(&["SET", "lw:token", value]);
                let one = passing("k", TTL).with(|it| it.waits = way == "waits");
                let one =
                    one.with(|it| it.mode = if way == "reads" { Mode::Read } else { it.mode });
                let backend = if way == "plain" { &plain } else { &backend };
                let answer = match way {
                    "many" => {
                        let two = passing("other", TTL);
                        let (one, two_answer) =
                            tokio::join!(backend.try_acquire(&one), backend.try_acquire(&two));
                        assert_eq!(one.is_ok(), two_answer.is_ok());
                        release(backend, &two).await;
                        one
                    }
                    _ => backend.try_acquire(&one).await,
                };
                match answer {
                    Ok(Attempt::Granted(grant)) => {
                        assert!(!is_number, "{value:?}, {way}: {grant:?}");
                        let now = floor(Duration::ZERO);
                        assert!(grant.token.abs_diff(now) < micros(60 * SEC), "{value:?}, {way}");
                        assert!(matches!(renew(backend, &one).await, Ok(Renewal::Held { .. })));
                        assert_eq!(release(backend, &one).await, Released::Yes);
                    }
                    Err(error) => {
                        assert!(is_number, "{value:?}, {way}: {error:?}");
                        assert_eq!(error.kind, BackendErrorKind::Corrupt, "{value:?}: {error:?}");
                    }
                    other => panic!("{value:?}, {way}: {other:?}"),
                }
                assert_eq!(world.keys(), [""; 0], "{value:?}, {way}");
            }
        }
    });
}

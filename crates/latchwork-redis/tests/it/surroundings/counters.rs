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

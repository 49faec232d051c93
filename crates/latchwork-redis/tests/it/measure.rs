//! No lease is shorter than its ttl, not even by the part of a millisecond that Redis cuts off.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use latchwork::Driver;
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::{
    Attempt, Backend, Claim, ClaimId, Key, Linger, Mode, Moment, Order, Released, Stamp,
};

const TTL: Duration = Duration::from_millis(10);

/// Tries again and again until the claim gets the key, and tells when it asked.
async fn granted(backend: &RedisBackend, driver: &Driver, claim: &Claim) -> Moment {
    loop {
        let sent = driver.io().now();
        // Beside other tests a grant of 10 ms may be over before its client has read its token: that is an error, and no grant.
        if matches!(backend.try_acquire(claim).await, Ok(Attempt::Granted(_))) {
            return sent;
        }
    }
}

/// When a rival gets the key.
async fn free_at(backend: &RedisBackend, driver: &Driver, rival: &Claim) -> Moment {
    granted(backend, driver, rival).await;
    let free = driver.io().now();
    backend.release(rival, Linger::None).await.unwrap();
    free
}

#[tokio::test]
async fn every_lease_and_linger_has_its_full_measure() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    for option in ["", "?plain=true"] {
        let driver = Driver::start().unwrap();
        let config = RedisConfig::parse(&format!("{}{option}", server.url())).unwrap();
        let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
        let claim = |mode| {
            Claim::new(
                Key::new("k").unwrap(),
                ClaimId::random(),
                mode,
                TTL,
                Stamp::new(driver.io().now()),
            )
            .with(|it| {
                it.order = Order::Barging;
                it.holder = "a test".into();
                it.waits = false;
            })
        };
        let two = Mode::Permits { take: 2, of: 2 };
        let mut pairs = vec![(Mode::Exclusive, Mode::Exclusive)];
        if option.is_empty() {
            pairs.extend([(Mode::Write, Mode::Read), (Mode::Read, Mode::Write), (two, two)]);
        }
        for (mode, rival) in pairs {
            let mut short = Vec::new();
            let mut measured = |lasted: Duration| {
                if lasted < TTL {
                    short.push(lasted);
                }
            };
            for _ in 0..50 {
                let (held, rival) = (claim(mode), claim(rival));
                let sent = granted(&backend, &driver, &held).await;
                let lasted = free_at(&backend, &driver, &rival).await.since(sent);
                measured(lasted);

                if option.is_empty() {
                    let (held, other) = (claim(mode), claim(mode));
                    granted(&backend, &driver, &held).await;
                    if mode == Mode::Read {
                        // Closed while somebody still reads, and after.
                        granted(&backend, &driver, &other).await;
                    }
                    let sent = driver.io().now();
                    let closing = backend.release(&held, Linger::For(TTL)).await.unwrap();
                    backend.release(&other, Linger::None).await.unwrap();
                    let lasted = free_at(&backend, &driver, &rival).await.since(sent);
                    // Who had run out before it was released had nothing to close.
                    if closing == Released::Yes {
                        measured(lasted);
                    }
                }
            }
            // A millisecond that is rounded down shows in every second round. The server's idea of the time is now and then older than the
            // request by a part of a millisecond, for which the validity has room.
            let few = short.len() < 10 && short.iter().all(|it| *it + TTL / 10 > TTL);
            assert!(few, "{mode:?} {option}: ended after {short:?}");
        }
    }
}

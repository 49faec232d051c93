//! The restart guard under a client whose connection outlives the loss: its tries go by the short
//! script.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork_redis::RedisConfig;

const TTL: Duration = Duration::from_millis(1_500);

/// The world's server with this database, guarded or not, and prepared for locks.
async fn prepared(world: &World, database: u32, guarded: bool) -> String {
    let options = if guarded { "?guard=true&max_ttl=1500ms" } else { "" };
    let url = format!("{}/{database}{options}", world.server.url());
    if guarded {
        let config = RedisConfig::parse(&url).unwrap();
        latchwork_redis::init(config, io()).await.unwrap();
    }
    url
}

/// H38: nobody is let in beside a holder that was flushed away, by clients that were there before
/// either.
#[test]
fn h38_a_flush_under_a_connected_client() {
    run(async {
        for guarded in [true, false] {
            let world = World::new();
            let url = prepared(&world, 0, guarded).await;
            let (holder, other) = (Client::warm(&url, TTL).await, Client::warm(&url, TTL).await);
            let guard = holder.acquire("k").await;
            world.ask(&["FLUSHALL"]);
            let beside = other.mutex("k").try_acquire().await.unwrap();
            assert_eq!(beside.is_some(), !guarded, "with the guard: {guarded}");
            drop(guard);
        }
    });
}

/// H38, H50: the database that takes the place of this one has an older counter.
#[test]
fn h38_swapdb_gives_no_old_token_to_a_connected_client() {
    run(async {
        let world = World::new();
        let older = prepared(&world, 1, true).await;
        Client::warm(&older, TTL).await;
        let client = Client::warm(&prepared(&world, 0, true).await, TTL).await;
        let before = client.acquire("k").await;
        let token = before.token();
        before.release().await.unwrap();
        world.ask(&["SWAPDB", "0", "1"]);
        let start = Instant::now();
        let after = loop {
            // Without a place in line every try goes by the short script.
            if let Some(guard) = client.mutex("k").try_acquire().await.unwrap() {
                break guard;
            }
            assert!(start.elapsed() < 60 * SEC, "the quarantine has no end");
            pause(20 * MS).await;
        };
        assert!(start.elapsed() >= TTL, "no quarantine: {:?}", start.elapsed());
        assert!(after.token() > token, "{:?} after {token:?}", after.token());
    });
}

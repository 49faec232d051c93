//! Tokens over nodes that come and go (H57, D5).

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use latchwork_services::{Data, RedisOptions};
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

/// One node is ahead. The first majority has it, the second does not: only a write-back can have
/// told the node that they share.
#[test]
fn h57_the_next_majority_knows_the_token_of_the_last() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let warm = five.voter().await;
        let one = passing("k", SEC);
        let token = warm.granted(&one).await;
        warm.released(&one).await;
        five.empties(SEC).await;
        five.ask(0, &["SET", "lw:token", &(token + 1_000_000_000_000).to_string()]);
        five.ask(1, &["SET", "lw:token", &(token + 2_000_000_000_000).to_string()]);
        let (left, right) = (five.way(), five.way());
        left.refuse(&[3, 4]);
        right.refuse(&[0, 1]);
        let (left, right) = (left.voter().await, right.voter().await);
        let (one, two) = (passing("k", 5 * SEC), passing("k", 5 * SEC));
        let first = left.granted(&one).await;
        assert!(first > token + 1_000_000_000_000, "node 0 and 1 gave more");
        left.released(&one).await;
        let second = right.granted(&two).await;
        assert!(second > first, "{first}, then {second}");
        right.released(&two).await;
    });
}

/// H55, H57: twenty clients, and nodes that die, come back empty, and stand still meanwhile:
/// somebody always wins, nobody is left out, no two hold at one time, and tokens rise.
#[test]
fn h55_twenty_clients_all_get_the_lock_while_nodes_fail() {
    run(async {
        let ttl = 2 * SEC;
        let mut five = Five::new("max_ttl=2s").await;
        let stop = Arc::new(AtomicBool::new(false));
        let inside = Arc::new(AtomicU64::new(0));
        let tokens: Arc<Mutex<Vec<FencingToken>>> = Arc::default();
        let mut clients = Vec::new();
        for _ in 0..20 {
            let client = five.client(ttl).await;
            let (stop, inside, tokens) = (stop.clone(), inside.clone(), tokens.clone());
            clients.push(tokio::spawn(async move {
                let mut turns = 0;
                while !stop.load(Ordering::SeqCst) {
                    let guard = match client.mutex("k").acquire_within(20 * SEC).await {
                        Ok(guard) => guard,
                        Err(error) => panic!("after {turns} turns: {error}"),
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    tokens.lock().unwrap().push(guard.token());
                    // All tests share the threads of this process.
                    pause(20 * MS).await;
                    assert!(guard.ensure_held().is_ok());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    turns += 1;
                    let _ = guard.release().await;
                }
                turns
            }));
        }
        let grants = || tokens.lock().unwrap().len();
        until("a turn for each", 30 * SEC, || grants() >= 20).await;
        five.restart(&[0], Data::Empty);
        five.servers[1].stop().unwrap();
        let before = grants();
        until("turns without two nodes", 20 * SEC, || grants() >= before + 10).await;
        five.servers[1].cont().unwrap();
        // The first may vote again.
        pause(ttl + 100 * MS).await;
        five.kill(&[3]);
        let before = grants();
        until("turns without another", 20 * SEC, || grants() >= before + 10).await;
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            let turns: u32 = client.await.unwrap();
            assert!(turns > 0, "left out");
        }
        let tokens = std::mem::take(&mut *tokens.lock().unwrap());
        assert!(tokens.windows(2).all(|two| two[0] < two[1]), "{tokens:?}");
        five.empties(3 * SEC).await;
    });
}

/// H93: a client whose clock is 30 days ahead, then eight days without a lock, by the nodes' clocks.
/// The next client's clock is right.
#[test]
fn h93_a_client_that_was_ahead_leaves_tokens_that_rise() {
    run(async {
        const DAY: Duration = Duration::from_secs(86_400);
        let five = Five::with(&RedisOptions::new().with_clock(), "max_ttl=10s").await;
        let now = io().clock().wall();
        let client = five.voter().await;
        let ahead =
            passing("k", 10 * SEC).with(|it| it.floor = (now + 30 * DAY).as_micros() as u64);
        let before = client.granted(&ahead).await;
        assert!(before >= ahead.floor);
        client.released(&ahead).await;
        five.empties(SEC).await;
        for server in &five.servers {
            server.clock().unwrap().step_forward(8 * DAY).unwrap();
        }
        // Another process, which knows of no token.
        let after = five.voter().await.granted(&passing("k", 10 * SEC)).await;
        assert!(after > before, "{after} after {before}");
    });
}

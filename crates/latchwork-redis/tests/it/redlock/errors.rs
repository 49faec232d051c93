//! What people are told.

use latchwork_services::{Data, RedisOptions, Value};
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

#[test]
fn a_timeout_names_the_holder() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let (client, other) = (five.client(5 * SEC).await, five.client(5 * SEC).await);
        let _guard = client.acquire("k").await;
        let error = other.mutex("k").acquire_within(300 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let said = error.to_string();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert!(said.contains("held by "), "{said}");
        assert!(said.contains(host.trim()), "{said}");
        assert!(said.contains(&std::process::id().to_string()), "{said}");
    });
}

/// Some nodes are down and the others are held: it is the holder that is in the way.
#[test]
fn a_wait_names_the_holder_with_two_nodes_down() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        let (client, other) = (five.client(5 * SEC).await, five.client(5 * SEC).await);
        let _guard = client.acquire("k").await;
        five.kill(&[0, 1]);
        let error = other.mutex("k").acquire_within(400 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("held by "), "{error}");
    });
}

#[test]
fn a_key_of_another_type_on_a_majority_is_a_mismatch() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        let client = warm(five.client(20 * SEC).await).await;
        five.empties(5 * SEC).await;
        // As Redisson keeps its locks.
        for node in [0, 2, 4] {
            five.ask(node, &["HSET", "k", "1f0e:1", "1"]);
        }
        let error = client.mutex("k").acquire_within(SEC).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Mismatch);
        let said = error.to_string();
        assert!(said.contains("3 of 5 nodes refused") && said.contains("hash"), "{said}");
        until("no votes on the others", 5 * SEC, || five.having("k") == [0, 2, 4]).await;
        // On a minority it costs that node's vote and no more.
        five.ask(0, &["DEL", "k"]);
        let guard = client.acquire("k").await;
        guard.release().await.unwrap();
        until("released", 5 * SEC, || five.having("k") == [2, 4]).await;
        for node in [2, 4] {
            assert_eq!(five.ask(node, &["HGET", "k", "1f0e:1"]).text(), "1");
        }
    });
}

#[test]
fn a_wait_in_quarantine_says_so_and_for_how_long() {
    run(async {
        let five = Five::virgin(&RedisOptions::new(), "max_ttl=2s");
        let client = five.client(2 * SEC).await;
        let start = Instant::now();
        let error = client.mutex("k").acquire_within(300 * MS).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let said = error.to_string();
        let left = said.split("in quarantine for ").nth(1).unwrap_or_else(|| panic!("{said}"));
        assert!(left.starts_with("1.") && left.contains("s more"), "{said}");
        assert!(error.next_step().unwrap().contains("latchwork init"), "{error}");
        let shown = client.locks.inspect("k").await.unwrap();
        assert!(shown.notes.iter().any(|note| note.contains("quarantine")), "{shown:?}");
        // It ends by itself.
        let guard = client.acquire("k").await;
        assert!(start.elapsed() >= 2 * SEC);
        in_time(start.elapsed(), 2 * SEC + SLACK);
        guard.release().await.unwrap();
    });
}

/// Too few are in quarantine to be what is in the way.
#[test]
fn a_wait_names_the_holder_with_two_nodes_in_quarantine() {
    run(async {
        let mut five = Five::new("max_ttl=30s").await;
        five.restart(&[0, 1], Data::Empty);
        let way = five.way();
        let (client, other) = (five.client(5 * SEC).await, way.client(5 * SEC).await);
        way.delay(&[2, 3, 4], 30 * MS);
        let _guard = client.acquire("k").await;
        for _ in 0..5 {
            let error = other.mutex("k").acquire_within(300 * MS).await.unwrap_err();
            assert!(error.to_string().contains("held by "), "{error}");
        }
    });
}

/// Three of five are in quarantine: the time that is told is theirs.
#[test]
fn with_a_majority_in_quarantine_the_others_grant_nothing() {
    run(async {
        let mut five = Five::new("max_ttl=20s").await;
        five.restart(&[0, 1, 2], Data::Empty);
        let client = five.client(20 * SEC).await;
        let start = Instant::now();
        // A node that gives back its vote late may be asked by itself once more.
        let left = loop {
            let error = client.mutex("k").acquire_within(400 * MS).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            let said = error.to_string();
            match said.split_once("in quarantine for ") {
                Some((_, left)) => break left.to_owned(),
                None => assert!(start.elapsed() < 10 * SEC, "{said}"),
            }
        };
        let seconds: f64 = left.split_once('s').unwrap().0.parse().unwrap();
        let passed = start.elapsed().as_secs_f64();
        assert!((20.0 - passed - 1.0..20.0).contains(&seconds), "{left}");
        until("no votes stay", 5 * SEC, || five.having("k").is_empty()).await;
    });
}

#[test]
fn a_foreign_client_on_a_majority_is_respected() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let client = warm(five.client(5 * SEC).await).await;
        for node in [0, 1, 2] {
            let set = five.ask(node, &["SET", "k", "theirs", "NX", "PX", "1500"]);
            assert_eq!(set.text(), "OK");
        }
        let start = Instant::now();
        assert!(client.mutex("k").try_acquire().await.unwrap().is_none());
        assert!(client.mutex("k").acquire_within(200 * MS).await.is_err());
        for node in [0, 1, 2] {
            assert_eq!(five.ask(node, &["GET", "k"]).text(), "theirs");
        }
        let guard = client.acquire("k").await;
        assert!(start.elapsed() >= 1_400 * MS);
        in_time(start.elapsed(), 1_500 * MS + SLACK);
        // And the other way round.
        let refused = ALL.iter().filter(|node| {
            five.ask(**node, &["SET", "k", "theirs", "NX", "PX", "1500"]) == Value::Nil
        });
        assert!(refused.count() >= 3);
        guard.release().await.unwrap();
    });
}

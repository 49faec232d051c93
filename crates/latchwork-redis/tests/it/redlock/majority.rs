//! A majority is lost: errors that name it, in time, and nothing that stays.

use latchwork::HoldState;
use latchwork_services::Data;
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

/// Says how many nodes are gone, names those and no others.
#[track_caller]
fn names_the_lost(error: &impl std::fmt::Display, ports: &[u16], lost: &[usize]) {
    let said = error.to_string();
    let told = said.split(" (redlock://").next().unwrap();
    assert!(told.contains("3 of 5 nodes did not answer"), "{said}");
    for (node, port) in ports.iter().enumerate() {
        assert_eq!(
            told.matches(&format!("redis://127.0.0.1:{port}")).count() > 0,
            lost.contains(&node),
            "{said}"
        );
    }
}

fn ports(way: &Way) -> Vec<u16> {
    way.proxies.iter().map(latchwork_services::Proxy::port).collect()
}

#[test]
fn a_dead_majority_is_an_error_that_names_it() {
    run(async {
        let mut five = Five::new("max_ttl=20s").await;
        let way = five.way();
        let client = warm(way.client(20 * SEC).await).await;
        five.empties(SEC).await;
        let lost = [0, 2, 4];
        five.kill(&lost);
        let start = Instant::now();
        let error = client.mutex("k").try_acquire().await.unwrap_err();
        in_time(start.elapsed(), SLACK);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        names_the_lost(&error, &ports(&way), &lost);
        assert!(error.next_step().is_some(), "{error}");
        let start = Instant::now();
        let error = client.mutex("k").acquire_within(SEC).await.unwrap_err();
        in_time(start.elapsed(), SEC + SLACK);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        names_the_lost(&error, &ports(&way), &lost);
        five.empties(2 * SEC).await;
        five.restart(&lost, Data::Empty);
        five.empties(2 * SEC).await;
    });
}

/// The requests that were under way land when the nodes are reached again, and so do their
/// releases.
#[test]
fn abandoned_claims_end_at_an_unreachable_majority() {
    run(async {
        let five = Five::new("max_ttl=20s").await;
        let way = five.way();
        let client = warm(way.client(20 * SEC).await).await;
        five.empties(SEC).await;
        let lost = [1, 2, 3];
        way.cut_off(&lost);
        let start = Instant::now();
        let error = client.mutex("k").acquire_within(SEC).await.unwrap_err();
        in_time(start.elapsed(), SEC + SLACK);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        names_the_lost(&error, &ports(&way), &lost);
        until("nothing at the others", 5 * SEC, || five.having("k").is_empty()).await;
        way.thaw(&lost);
        pause(200 * MS).await;
        five.empties(4 * SEC).await;
        pause(300 * MS).await;
        assert_eq!(five.left(), []);
    });
}

/// H10: the holder is told by its own clock, and until then its failed renewals release nothing.
#[test]
fn a_holder_without_a_majority_loses_in_time() {
    run(async {
        let mut five = Five::new("max_ttl=4s").await;
        let client = warm(five.client(4 * SEC).await).await;
        let guard = client.acquire("k").await;
        until("all have it", 2 * SEC, || five.having("k") == ALL).await;
        until("a renewal", 5 * SEC, || client.story.renewed() > 0).await;
        five.kill(&[0, 1, 2]);
        // No renewal succeeds any more, so this is the end.
        pause(20 * MS).await;
        let end = guard.valid_until();
        let told = tokio::spawn({
            let (begun, left) = (Instant::now(), guard.remaining());
            async move {
                let lost = guard.lost().await;
                (lost, begun.elapsed(), left, guard)
            }
        });
        let mut looks = 0;
        while !told.is_finished() {
            let having = five.having("k");
            // Redis keeps it somewhat longer than the holder believes.
            if clock::boot_time() < end {
                assert_eq!(having, [3, 4], "{looks} looks");
                looks += 1;
            }
            pause(20 * MS).await;
        }
        let (lost, took, left, guard) = told.await.unwrap();
        assert_eq!(lost.reason, LostReason::Expired);
        in_time(took, left + SLACK);
        assert!(matches!(guard.state(), HoldState::Lost(_)));
        assert_eq!(guard.valid_until(), end, "a minority renewed nothing");
        assert!(looks > 10, "{looks} looks");
        assert!(client.story.tells_of("3 of 5 nodes did not answer"));
        five.empties(2 * SEC + SLACK).await;
    });
}

/// A majority that comes back in time costs no lock.
#[test]
fn a_majority_that_is_stopped_for_a_while_costs_no_lock() {
    run(async {
        let mut five = Five::new("max_ttl=6s").await;
        let client = warm(five.client(6 * SEC).await).await;
        let guard = client.acquire("k").await;
        let nodes = [0, 1, 4];
        nodes.iter().for_each(|node| five.servers[*node].stop().unwrap());
        until("a failed renewal", 6 * SEC, || client.story.tells_of("3 of 5 nodes")).await;
        nodes.iter().for_each(|node| five.servers[*node].cont().unwrap());
        let renewed = client.story.renewed();
        until("renewals", 10 * SEC, || client.story.renewed() >= renewed + 2).await;
        assert_eq!(guard.state(), HoldState::Held);
        assert_eq!(client.story.lost(), []);
        guard.release().await.unwrap();
        five.empties(2 * SEC).await;
    });
}

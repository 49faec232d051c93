//! Connecting to as many as decide.

use latchwork_redis::redlock;
use latchwork_services::{Data, Proxy, RedisOptions};
use latchwork_store::*;

use crate::common::*;
use crate::redlock::world::*;

async fn refused(url: &str) -> Error {
    match redlock::connect(redlock::Config::parse(url).unwrap(), io()).await {
        Err(error) => error,
        Ok(_) => panic!("connected to {url}"),
    }
}

#[test]
fn recovered_nodes_vote_again() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        five.kill(&[0, 1]);
        let client = within("connected", SLACK, five.client(5 * SEC)).await;
        client.acquire("k").await.release().await.unwrap();
        five.restart(&[0, 1], Data::Empty);
        five.empties(SEC).await;
        five.init().await;
        five.kill(&[2, 3]);
        let guard = client.acquire("k").await;
        assert_eq!(five.having("k"), [0, 1, 4]);
        guard.release().await.unwrap();
        five.empties(SEC).await;
    });
}

#[test]
fn a_majority_that_is_down_is_named() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        let lost = [0, 1, 3];
        five.kill(&lost);
        let start = Instant::now();
        let error = refused(&five.url()).await;
        in_time(start.elapsed(), SLACK);
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let said = error.message();
        assert!(said.starts_with("3 of 5 nodes cannot be used: "), "{said}");
        for (node, server) in five.servers.iter().enumerate() {
            let named = said.contains(&format!("127.0.0.1:{}", server.port()));
            assert_eq!(named, lost.contains(&node), "{said}");
        }
        assert!(error.next_step().is_some(), "{error}");
    });
}

/// Servers that take connections and say nothing are no majority either.
#[test]
fn a_majority_that_is_stopped_is_named() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        [2, 3, 4].iter().for_each(|node| five.servers[*node].stop().unwrap());
        let error = within("told", 5 * SEC + SLACK, refused(&five.url())).await;
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.message().starts_with("3 of 5 nodes cannot be used: "), "{error}");
        [2, 3, 4].iter().for_each(|node| five.servers[*node].cont().unwrap());
    });
}

#[test]
fn two_addresses_of_one_server_are_refused() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let way = five.way();
        let twin = Proxy::redis(five.servers[1].port()).unwrap();
        // However busy the machine is, both come before it is decided to go on without the last.
        way.delay(&[0, 2, 4], 40 * MS);
        let old = format!("127.0.0.1:{}", way.proxies[3].port());
        let new = format!("127.0.0.1:{}", twin.port());
        let error = refused(&way.url().replace(&old, &new)).await;
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let said = error.message();
        assert!(said.contains("are the same server"), "{said}");
        assert!(said.contains(&new), "{said}");
        assert!(said.contains(&way.proxies[1].port().to_string()), "{said}");
    });
}

/// H539: the second address of a server is reached after the connection was made. It has no vote of its own: with
/// two servers of four there is no majority.
#[test]
fn h539_a_late_second_address_of_a_server_has_no_vote() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        let twin = Proxy::redis(five.servers[1].port()).unwrap();
        twin.refuse_connections().unwrap();
        let old = format!("127.0.0.1:{}", five.servers[3].port());
        let new = format!("127.0.0.1:{}", twin.port());
        let client = client(&five.url().replace(&old, &new), 5 * SEC).await;
        twin.accept_connections().unwrap();
        while twin.counts().total() == 0 {
            client.acquire("k").await.release().await.unwrap();
        }
        pause(300 * MS).await;
        five.kill(&[0, 2]);
        let error = client.mutex("k").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.message().contains(&format!("{new} are the same server")), "{error}");
    });
}

#[test]
fn a_wrong_password_is_denied_and_not_repeated_in_the_error() {
    run(async {
        let options = RedisOptions::new().requirepass("right");
        let five = Five::virgin(&options, "max_ttl=5s");
        let with = |password: &str| five.url().replace("://", &format!("://:{password}@"));
        let error = refused(&with("mistaken")).await;
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(!error.to_string().contains("mistaken"), "{error}");
        let voter = Voter::connect(&with("right")).await;
        assert!(!voter.0.capabilities().store.contains("right"));
    });
}

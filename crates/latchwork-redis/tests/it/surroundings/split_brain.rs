//! Two masters at a time: tokens during the split, and after its end.

use latchwork_redis::RedisBackend;
use latchwork_services::{Direction, Proxy, RedisOptions, RedisServer};
use latchwork_store::*;

use crate::common::*;

const TTL: Duration = Duration::from_secs(10);

/// A master, a replica behind a link that can be cut, and how to make two masters of them.
struct Pair {
    master: RedisServer,
    replica: RedisServer,
    link: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let master = RedisServer::start(&RedisOptions::new()).unwrap();
        let link = Proxy::plain(master.port()).unwrap();
        let replica = RedisServer::start(&RedisOptions::new().replica_of(link.port())).unwrap();
        let pair = Self { master, replica, link };
        pair.in_step(&pair.master, &pair.replica).await;
        pair
    }

    async fn in_step(&self, from: &RedisServer, to: &RedisServer) {
        until("the replica follows", 20 * SEC, || {
            let field = |server: &RedisServer, name: &str| server.info(name).unwrap_or_default();
            field(to, "master_link_status") == "up"
                && field(to, "slave_repl_offset") == field(from, "master_repl_offset")
        })
        .await;
    }

    /// From now on both are masters.
    fn split(&self) {
        self.link.freeze(Direction::ToServer);
        self.link.freeze(Direction::ToClient);
        ask(&self.replica, &["REPLICAOF", "NO", "ONE"]).ok().unwrap();
    }

    /// The first master follows the promoted one, with its data.
    async fn end(&self) {
        let to = self.replica.port().to_string();
        ask(&self.master, &["REPLICAOF", "127.0.0.1", &to]).ok().unwrap();
        self.in_step(&self.replica, &self.master).await;
    }
}

/// The ways in which a token is drawn.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// By the short script.
    Free,
    /// By the short script of many, the largest of them.
    Many,
    /// By the whole script.
    Read,
    /// By a release that passes the key on.
    Push,
}

const WAYS: [Way; 4] = [Way::Free, Way::Many, Way::Read, Way::Push];

/// A token drawn in this way, and given back.
async fn token(backend: &RedisBackend, way: Way) -> u64 {
    match way {
        Way::Free | Way::Read => {
            let mode = if let Way::Read = way { Mode::Read } else { Mode::Exclusive };
            let one = passing("k", TTL).with(|it| it.mode = mode);
            let token = granted(backend, &one).await;
            release(backend, &one).await;
            token
        }
        Way::Many => {
            let claims: Vec<_> = (0..32).map(|n| passing(&format!("k{n}"), TTL)).collect();
            let tries = claims.iter().map(|claim| granted(backend, claim));
            let tokens = futures_util::future::join_all(tries).await;
            let releases = claims.iter().map(|claim| release(backend, claim));
            futures_util::future::join_all(releases).await;
            tokens.into_iter().max().unwrap()
        }
        Way::Push => {
            let (first, next) = (passing("p", TTL), claim("p", TTL));
            granted(backend, &first).await;
            let answer = in_line(backend, &next).await;
            release(backend, &first).await;
            let Wake::Admitted { grant, .. } = backend.wait(&next, &answer).await.unwrap() else {
                panic!("not pushed")
            };
            release(backend, &next).await;
            grant.token
        }
    }
}

/// H85: clients of long standing at both masters, whose clocks agree. During the split each token
/// is larger than all that either master gave before it, so whoever was granted the key last
/// passes the fence; after the end of the split no rightful holder is refused.
#[test]
fn h85_tokens_rise_on_both_sides_of_a_split_and_after_it() {
    run(async {
        let pair = Pair::start().await;
        let old = connect(&pair.master.url()).await;
        let mut last = (0, "nobody".to_owned());
        let mut check = |token: u64, who: String| {
            assert!(token > last.0, "{token} by {who}, after {} by {}", last.0, last.1);
            last = (token, who);
        };
        for way in WAYS {
            check(token(&old, way).await, format!("{way:?} before the split"));
        }
        pair.in_step(&pair.master, &pair.replica).await;
        pair.split();
        let promoted = connect(&pair.replica.url()).await;
        for round in 0..5 {
            for way in WAYS {
                check(token(&promoted, way).await, format!("{way:?} at the promoted, {round}"));
                check(token(&old, way).await, format!("{way:?} at the replaced, {round}"));
            }
            // Clients come and go on the replaced master: their first tokens are by its clock.
            let new = connect(&pair.master.url()).await;
            check(token(&new, Way::Free).await, format!("a new client at the replaced, {round}"));
        }
        pair.end().await;
        for way in WAYS {
            check(token(&promoted, way).await, format!("{way:?} after the split"));
        }
        let moved = connect(&pair.replica.url()).await;
        check(token(&moved, Way::Free).await, "who was at the replaced, after the split".into());
    });
}

/// H85: a master that becomes a replica and a master again, without a break in any connection.
#[test]
fn h85_a_master_that_is_promoted_again_repeats_no_token() {
    run(async {
        let pair = Pair::start().await;
        let old = connect(&pair.master.url()).await;
        token(&old, Way::Free).await;
        pair.in_step(&pair.master, &pair.replica).await;
        pair.split();
        let promoted = connect(&pair.replica.url()).await;
        let mut most = 0;
        for _ in 0..20 {
            most = most.max(token(&promoted, Way::Free).await);
        }
        // It comes back without having heard of these tokens.
        let again = token(&old, Way::Free).await;
        assert!(again > most, "{again} after {most}");
    });
}

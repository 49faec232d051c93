//! Five servers, ways to them through proxies, and clients of all five.

use std::sync::Arc;
use std::thread;

use latchwork::LockManager;
use latchwork_quorum::Quorum;
use latchwork_redis::redlock;
use latchwork_services::{Data, Direction, Proxy, RedisOptions, RedisServer, Value};
use latchwork_store::*;

use crate::common::*;

pub(crate) const ALL: [usize; 5] = [0, 1, 2, 3, 4];

/// One node may take so long where the ttl is 2 s or more.
pub(crate) const NODE_LIMIT: Duration = Duration::from_millis(200);

/// What is done at once is done in much less than a node may take.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(100);

/// The servers, and the options of the address that their clients use.
pub(crate) struct Five {
    pub(crate) servers: Vec<RedisServer>,
    query: String,
}

impl Five {
    /// With the guard, and ready for their first locks.
    pub(crate) async fn new(query: &str) -> Self {
        Self::with(&RedisOptions::new(), query).await
    }

    pub(crate) async fn with(options: &RedisOptions, query: &str) -> Self {
        let five = Self::virgin(options, query);
        five.init().await;
        five
    }

    /// As they are after their start: with the guard, in quarantine.
    pub(crate) fn virgin(options: &RedisOptions, query: &str) -> Self {
        let start = || RedisServer::start(options).expect("a Redis server");
        let servers = thread::scope(|scope| {
            let starting: Vec<_> = ALL.iter().map(|_| scope.spawn(start)).collect();
            starting.into_iter().map(|one| one.join().expect("a Redis server")).collect()
        });
        Self { servers, query: query.to_owned() }
    }

    /// Vouches that they have lost nothing.
    pub(crate) async fn init(&self) {
        let config = redlock::Config::parse(&self.url()).unwrap();
        redlock::init(config, io()).await.unwrap();
    }

    /// Their address without a proxy.
    pub(crate) fn url(&self) -> String {
        address(self.servers.iter().map(RedisServer::port), &self.query)
    }

    /// A way of its own to them.
    pub(crate) fn way(&self) -> Way {
        let proxies = self.servers.iter().map(|server| Proxy::redis(server.port()).unwrap());
        Way { proxies: proxies.collect(), query: self.query.clone() }
    }

    /// A client that goes to them without a proxy.
    pub(crate) async fn client(&self, ttl: Duration) -> Client {
        client(&self.url(), ttl).await
    }

    pub(crate) async fn voter(&self) -> Voter {
        Voter::connect(&self.url()).await
    }

    pub(crate) fn ask(&self, node: usize, words: &[&str]) -> Value {
        ask(&self.servers[node], words)
    }

    pub(crate) fn kill(&mut self, nodes: &[usize]) {
        nodes.iter().for_each(|node| self.servers[*node].kill());
    }

    pub(crate) fn restart(&mut self, nodes: &[usize], data: Data) {
        nodes.iter().for_each(|node| self.servers[*node].restart(data).unwrap());
    }

    /// The running nodes on which a key is.
    pub(crate) fn having(&self, key: &str) -> Vec<usize> {
        let has = |node: &usize| {
            let server = &self.servers[*node];
            server.is_running() && ask(server, &["EXISTS", key]) == Value::Int(1)
        };
        ALL.into_iter().filter(has).collect()
    }

    /// Everything on the running nodes but the counters of tokens and the markers of the guard.
    pub(crate) fn left(&self) -> Vec<(usize, String)> {
        let mut left = Vec::new();
        for (node, server) in self.servers.iter().enumerate().filter(|(_, s)| s.is_running()) {
            let Value::List(keys) = ask(server, &["KEYS", "*"]) else { panic!("KEYS") };
            let keys = keys.iter().map(Value::text);
            let keys = keys.filter(|key| key != "lw:token" && key != "lw:guard");
            left.extend(keys.map(|key| (node, key)));
        }
        left
    }

    /// Waits until only this key is left.
    pub(crate) async fn empties_but(&self, key: &str) {
        let left = || self.left().iter().all(|(_, left)| left == key);
        until("all else is gone", 5 * SEC, left).await;
    }

    /// Waits until nothing is left on any running node.
    pub(crate) async fn empties(&self, limit: Duration) {
        let start = Instant::now();
        loop {
            let left = self.left();
            if left.is_empty() {
                return;
            }
            let took = start.elapsed();
            assert!(took < stalls::widened(limit, took), "still there after {limit:?}: {left:?}");
            pause(5 * MS).await;
        }
    }
}

/// A proxy in front of each server.
pub(crate) struct Way {
    pub(crate) proxies: Vec<Proxy>,
    query: String,
}

impl Way {
    pub(crate) fn url(&self) -> String {
        address(self.proxies.iter().map(Proxy::port), &self.query)
    }

    pub(crate) async fn client(&self, ttl: Duration) -> Client {
        client(&self.url(), ttl).await
    }

    pub(crate) async fn voter(&self) -> Voter {
        Voter::connect(&self.url()).await
    }

    /// Nothing passes any more, in either direction.
    pub(crate) fn cut_off(&self, nodes: &[usize]) {
        for node in nodes {
            self.proxies[*node].freeze(Direction::ToServer);
            self.proxies[*node].freeze(Direction::ToClient);
        }
    }

    pub(crate) fn thaw(&self, nodes: &[usize]) {
        for node in nodes {
            self.proxies[*node].thaw(Direction::ToClient);
            self.proxies[*node].thaw(Direction::ToServer);
        }
    }

    /// Every request takes so much longer.
    pub(crate) fn delay(&self, nodes: &[usize], delay: Duration) {
        nodes.iter().for_each(|node| self.proxies[*node].delay(Direction::ToServer, delay));
    }

    pub(crate) fn refuse(&self, nodes: &[usize]) {
        nodes.iter().for_each(|node| self.proxies[*node].refuse_connections().unwrap());
    }
}

fn address(ports: impl Iterator<Item = u16>, query: &str) -> String {
    let hosts: Vec<String> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
    format!("redlock://{}?{query}", hosts.join(","))
}

/// A manager of its own; to the servers it is a process.
pub(crate) async fn client(url: &str, ttl: Duration) -> Client {
    let story = Arc::new(Story::default());
    let quorum = Voter::connect(url).await.0;
    let locks = LockManager::on_io(quorum, io()).ttl(ttl).observer(story.clone());
    Client { locks, story }
}

/// A client that has used all that its connections need for their first time.
pub(crate) async fn warm(client: Client) -> Client {
    client.acquire("warm").await.release().await.unwrap();
    client
}

/// The bare backend.
pub(crate) struct Voter(pub(crate) Arc<Quorum>);

impl Voter {
    pub(crate) async fn connect(url: &str) -> Self {
        let config = redlock::Config::parse(url).expect("a good address");
        Self(redlock::connect(config, io()).await.expect("a majority of the servers runs"))
    }

    /// Takes a free key. On a busy machine a node may not answer in time, and with just a majority
    /// up the vote is then nobody's.
    pub(crate) async fn granted(&self, claim: &Claim) -> u64 {
        let start = Instant::now();
        loop {
            match self.0.try_acquire(claim).await {
                Ok(Attempt::Granted(grant)) => return grant.token,
                Ok(Attempt::Blocked(blocked)) if blocked.holder.is_none() => {
                    assert!(start.elapsed() < 30 * SEC, "not granted: {blocked:?}");
                }
                Err(error) if error.kind == BackendErrorKind::Unreachable => {
                    assert!(start.elapsed() < 30 * SEC, "not granted: {error}");
                }
                other => panic!("not granted: {other:?}"),
            }
            pause(20 * MS).await;
        }
    }

    pub(crate) async fn blocked(&self, claim: &Claim) -> Blocked {
        match self.0.try_acquire(claim).await {
            Ok(Attempt::Blocked(blocked)) => blocked,
            other => panic!("not blocked: {other:?}"),
        }
    }

    pub(crate) async fn refused(&self, claim: &Claim) -> BackendError {
        match self.0.try_acquire(claim).await {
            Err(error) => error,
            other => panic!("not refused: {other:?}"),
        }
    }

    pub(crate) async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        self.0.renew_all(std::slice::from_ref(claim)).await.pop().unwrap()
    }

    pub(crate) async fn renewed(&self, claim: &Claim) {
        let renewal = self.renew(claim).await;
        assert!(matches!(renewal, Ok(Renewal::Held { .. })), "{renewal:?}");
    }

    pub(crate) async fn released(&self, claim: &Claim) {
        let released = self.0.release(claim, Linger::None).await;
        assert_eq!(released.unwrap(), Released::Yes);
    }
}

//! A server of its own for a test, and what is in it.

use latchwork_services::{Proxy, RedisOptions, RedisServer, Value};

use super::*;

/// A server, and a proxy in front of it.
pub struct World {
    pub proxy: Proxy,
    pub server: RedisServer,
}

impl World {
    pub fn new() -> Self {
        Self::with(&RedisOptions::new())
    }

    pub fn with(options: &RedisOptions) -> Self {
        let server = RedisServer::start(options).expect("a Redis server");
        let proxy = Proxy::redis(server.port()).expect("a proxy");
        Self { proxy, server }
    }

    /// Asks the server past the proxy.
    pub fn ask(&self, words: &[&str]) -> Value {
        ask(&self.server, words)
    }

    pub fn number(&self, words: &[&str]) -> i64 {
        match self.ask(words) {
            Value::Int(number) => number,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    pub fn text(&self, words: &[&str]) -> String {
        self.ask(words).text()
    }

    /// Whether the lock's own key is there.
    pub fn is_held(&self, key: &str) -> bool {
        self.number(&["EXISTS", key]) == 1
    }

    /// How many claims stand in a key's line.
    pub fn in_line(&self, key: &str) -> i64 {
        self.number(&["LLEN", &format!("{key}:lw:line")])
    }

    pub async fn line_is(&self, key: &str, length: i64) {
        until(&format!("{length} in line for {key}"), 20 * SEC, || self.in_line(key) == length)
            .await;
    }

    /// All keys but the counters of tokens.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = match self.ask(&["KEYS", "*"]) {
            Value::List(keys) => keys.into_iter().map(|key| key.text()).collect::<Vec<_>>(),
            other => panic!("KEYS: {other:?}"),
        };
        keys.retain(|key| key != "lw:token" && !key.ends_with(":lw:token"));
        keys.sort();
        keys
    }

    /// Waits until nothing is left but counters of tokens.
    pub async fn empties(&self, limit: Duration) -> Duration {
        let start = Instant::now();
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                return start.elapsed();
            }
            assert!(start.elapsed() < limit, "still there after {limit:?}: {keys:?}");
            pause(5 * MS).await;
        }
    }
}

pub fn ask(server: &RedisServer, words: &[&str]) -> Value {
    server.command(words).expect("the server answers")
}

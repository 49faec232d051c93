//! A holder that is cut off from everything and believes in its lock to the end of its validity.

use latchwork::{Driver, Guard, HoldState, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Direction, Proxy};

use crate::common::*;

/// Longer than any disaster takes on a loaded machine.
pub(crate) const TTL: Duration = Duration::from_secs(5);

pub(crate) struct Believer {
    guard: Guard,
    _locks: LockManager,
    _proxy: Proxy,
}

impl Believer {
    /// Takes the key at this server, and is cut off.
    pub(crate) async fn hold(port: u16, options: &str, key: &str) -> Self {
        let proxy = Proxy::redis(port).unwrap();
        let locks = locks(&at(proxy.port(), options)).await;
        let guard = locks.mutex(key).ttl(TTL).acquire().await.unwrap();
        proxy.freeze(Direction::ToServer);
        proxy.freeze(Direction::ToClient);
        Self { guard, _locks: locks, _proxy: proxy }
    }

    pub(crate) fn believes(&self) -> bool {
        self.guard.state() == HoldState::Held
    }

    /// Lets another client try at this server until it is granted the key; tells whether both held
    /// it then. Its token is the larger one.
    pub(crate) async fn is_joined_at(&self, port: u16, options: &str, key: &str) -> bool {
        assert!(self.believes(), "the disaster took too long");
        let locks = locks(&at(port, options)).await;
        let next = granted_at_last(&locks, key).await;
        let both = self.believes();
        assert!(next.token() > self.guard.token(), "{} after {}", next.token(), self.guard.token());
        both
    }
}

pub(crate) fn at(port: u16, options: &str) -> String {
    format!("redis://127.0.0.1:{port}?{options}")
}

pub(crate) async fn locks(url: &str) -> LockManager {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
    LockManager::new(backend, driver)
}

pub(crate) async fn init(url: &str) {
    let config = RedisConfig::parse(url).unwrap();
    latchwork_redis::init(config, io()).await.unwrap();
}

/// Waits for the key past errors that pass by themselves.
pub(crate) async fn granted_at_last(locks: &LockManager, key: &str) -> Guard {
    let start = Instant::now();
    loop {
        match locks.mutex(key).ttl(TTL).acquire_within(30 * SEC).await {
            Ok(guard) => return guard,
            Err(error) => assert!(start.elapsed() < 30 * SEC, "{error}"),
        }
        pause(20 * MS).await;
    }
}

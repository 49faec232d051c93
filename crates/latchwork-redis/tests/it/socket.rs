//! A server that is reached through its socket in the file system.

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig, doctor};
use latchwork_services::{Data, RedisOptions, RedisServer};
use latchwork_store::{Backend, ErrorKind};

use crate::common::bare::Bare;
use crate::common::{SEC, run, until};
use crate::tls_acl::round;

fn socket_of(server: &RedisServer) -> String {
    server.folder().join("socket").display().to_string()
}

async fn manager(url: &str) -> LockManager {
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(url).unwrap();
    LockManager::new(RedisBackend::connect(config, driver.io()).await.unwrap(), driver)
}

/// With a user, a password and a database, as through a port.
#[test]
fn h282_a_socket_serves_all_that_a_port_serves() {
    let rules = "app on >pa/ss ~* &* +@all";
    let server = RedisServer::start(&RedisOptions::new().user(rules)).unwrap();
    let url = format!("redis+unix://app:pa%2Fss@{}?db=3", socket_of(&server));
    run(async {
        round(&url, true).await.unwrap();
        assert!(server.info("db3").is_ok(), "the keys are in database 3");
        let valkey = url.replacen("redis", "valkey", 1);
        let client = Bare::connect(&valkey).await.unwrap();
        let shown = client.backend.capabilities().store;
        assert_eq!(*shown, *format!("valkey+unix://{}?db=3", socket_of(&server)));
        let driver = Driver::start().unwrap();
        let report = doctor(RedisConfig::parse(&url).unwrap(), driver.io()).await.unwrap();
        assert!(report.is_fit(), "{report:?}");
        let refused = Bare::connect(&url.replace("pa%2F", "not")).await.err().expect("let in");
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    });
}

/// The server restarts under the hold, and makes its socket anew.
#[test]
fn h282_a_hold_through_a_socket_survives_a_restart() {
    let options = RedisOptions::new().persistence(latchwork_services::Persistence::EveryWrite);
    let mut server = RedisServer::start(&options).unwrap();
    let url = format!("redis+unix://{}", socket_of(&server));
    run(async {
        let (first, second) = (manager(&url).await, manager(&url).await);
        let held = first.mutex("k").ttl(6 * SEC).acquire().await.unwrap();
        server.restart(Data::Kept).unwrap();
        let before = held.valid_until();
        until("a renewal at the new server", 6 * SEC, || held.valid_until() > before).await;
        held.ensure_held().unwrap();
        let mutex = second.mutex("k").ttl(6 * SEC);
        let waits = mutex.acquire();
        let release = async {
            crate::common::pause(SEC / 5).await;
            held.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(waits, release);
        next.unwrap().release().await.unwrap();
    });
}

#[test]
fn a_missing_socket_is_named() {
    run(async {
        let error = Bare::connect("redis+unix:///nowhere/redis.sock").await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("cannot connect to /nowhere/redis.sock"), "{error}");
        assert!(error.next_step().unwrap().contains("unixsocket"), "{error}");
    });
}

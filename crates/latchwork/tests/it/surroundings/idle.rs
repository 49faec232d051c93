//! A proxy that closes connections on which nothing has passed for a while, as HAProxy and nginx do by their settings.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::{Event, LockManager, Observer, connect};
use latchwork_services::Proxy;

use super::stores;

/// So long nothing may pass: less than the renewals of a hold are apart, and more than a client itself lets a connection
/// be silent (etcd: a ping after 6 s, PostgreSQL: a sign of life every 3 s).
#[derive(Clone, Copy)]
struct Idle {
    limit: Duration,
    ttl: Duration,
    /// At least so many connections are closed meanwhile.
    closed: u64,
}

const OF_MESSAGES: Idle =
    Idle { limit: Duration::from_secs(1), ttl: Duration::from_secs(12), closed: 3 };
const OF_POSTGRES: Idle =
    Idle { limit: Duration::from_millis(4_500), ttl: Duration::from_secs(21), closed: 1 };
const OF_ETCD: Idle =
    Idle { limit: Duration::from_secs(8), ttl: Duration::from_secs(27), closed: 0 };
/// When a waiter must have the lock that was released, on a slow machine too.
const SOON: Duration = Duration::from_millis(2_500);

/// The failures that an observer sees.
#[derive(Default)]
struct Troubles(Mutex<Vec<String>>);

impl Observer for Troubles {
    fn event(&self, event: &Event<'_>) {
        let is_trouble = matches!(
            event,
            Event::TryFailed { .. }
                | Event::RenewFailed { .. }
                | Event::Suspect { .. }
                | Event::ReleaseFailed { .. }
                | Event::Lost { .. }
        );
        if is_trouble {
            self.0.lock().unwrap().push(format!("{event:?}"));
        }
    }
}

/// A hold lives through many closings, and so does the place of a waiter, which is notified; nothing fails.
async fn live_on(server_port: u16, idle: Idle, url: impl Fn(u16) -> String) {
    let proxy = Proxy::plain(server_port).unwrap();
    proxy.close_idle(idle.limit);
    let troubles = Arc::new(Troubles::default());
    let client = async || -> LockManager {
        connect(&url(proxy.port())).await.unwrap().ttl(idle.ttl).observer(troubles.clone())
    };
    let (holder, waiter) = (client().await, client().await);
    let guard = holder.mutex("k").acquire().await.unwrap();
    let waits = waiter.mutex("k");
    let waiting = tokio::spawn(async move { waits.acquire().await.map(|it| (it, Instant::now())) });
    let before = proxy.counts().connections;
    tokio::time::sleep(idle.ttl.min(3 * idle.limit + Duration::from_secs(10))).await;
    guard.ensure_held().unwrap();
    let closed = proxy.counts().connections - before;
    assert!(closed >= idle.closed, "only {closed} connections were made again");
    let released = Instant::now();
    guard.release().await.unwrap();
    let (next, at) = waiting.await.unwrap().unwrap();
    assert!(at - released < SOON, "{:?}", at - released);
    next.release().await.unwrap();
    for pause in [1, 2] {
        // Not just when the proxy closes.
        tokio::time::sleep(pause * idle.limit + idle.limit / 2).await;
        holder.mutex("another").acquire().await.unwrap().release().await.unwrap();
    }
    let troubles = troubles.0.lock().unwrap();
    assert!(troubles.is_empty(), "{troubles:?}");
}

#[tokio::test]
async fn h321_connections_of_redis_that_a_proxy_closes_cost_nothing() {
    let (server, _) = stores::redis();
    live_on(server.port(), OF_MESSAGES, |port| format!("redis://127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn h321_connections_of_etcd_that_a_proxy_closes_cost_nothing() {
    let (server, _) = stores::etcd();
    live_on(server.port(), OF_ETCD, |port| format!("etcd://127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn h321_connections_of_zookeeper_that_a_proxy_closes_cost_nothing() {
    let (server, _) = stores::zookeeper();
    live_on(server.port(), OF_MESSAGES, |port| format!("zk://127.0.0.1:{port}")).await;
}

#[tokio::test]
async fn h321_connections_of_postgres_that_a_proxy_closes_cost_nothing() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    latchwork::init(&server.url()).await.unwrap();
    live_on(server.port(), OF_POSTGRES, |port| {
        format!("postgres://postgres@127.0.0.1:{port}/postgres")
    })
    .await;
}

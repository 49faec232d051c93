//! Lines that are very long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use latchwork::{Error, Event, LockManager, Observer, connect};
use tokio::task::JoinSet;

/// How many clients share the line.
const CLIENTS: usize = 4;

/// How many wait: as many as the environment says.
fn waiters(usual: usize) -> usize {
    let said = std::env::var("LATCHWORK_WAITERS").ok();
    said.map_or(usual, |said| said.parse().expect("LATCHWORK_WAITERS is a number"))
}

/// How many tries got no answer in time.
#[derive(Debug, Default)]
struct Late(AtomicUsize);

impl Observer for Late {
    fn event(&self, event: &Event<'_>) {
        if let Event::TryFailed { .. } = event {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Many wait for a semaphore of four, each with a place of its own in the store, and each is served. Returns how many tries
/// got no answer.
fn serves_a_long_line(url: &str, all: usize) -> usize {
    let late = Arc::new(Late::default());
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients: Vec<LockManager> = Vec::new();
        for _ in 0..CLIENTS {
            clients.push(connect(url).await.unwrap().observer(late.clone()));
        }
        let held = clients[0].semaphore("k", 4).permits(4).acquire().await.unwrap();
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for n in 0..all {
            let locks = clients[n % CLIENTS].clone();
            tasks.spawn(async move {
                let guard = locks.semaphore("k", 4).permit().acquire().await?;
                // It is repeated in the background, if the answer takes long.
                let _ = guard.release().await;
                Ok::<_, Error>(())
            });
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        held.release().await.unwrap();
        let mut failed = Vec::new();
        while let Some(served) = tasks.join_next().await {
            failed.extend(served.unwrap().err());
        }
        println!("{all} waiters: {:?} in all", begun.elapsed());
        let first = failed.first();
        assert!(failed.is_empty(), "{} of {all} were not served: {first:?}", failed.len());
    });
    late.0.load(Ordering::Relaxed)
}

#[cfg(feature = "zookeeper")]
#[test]
fn h107_no_waiter_of_a_long_queue_fails_on_zookeeper() {
    use latchwork_services::{ZooKeeperOptions, ZooKeeperServer};
    let server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    serves_a_long_line(&server.url(), waiters(400));
}

#[cfg(feature = "etcd")]
#[test]
fn h107_no_waiter_of_a_long_queue_fails_on_etcd() {
    use latchwork_services::{EtcdOptions, EtcdServer};
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    serves_a_long_line(&server.url(), waiters(400));
}

#[cfg(feature = "postgres")]
#[test]
fn h107_no_waiter_of_a_long_queue_fails_on_postgres() {
    use latchwork_services::PostgresServer;
    let server = PostgresServer::start().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(latchwork::init(&server.url())).unwrap();
    let late = serves_a_long_line(&server.url(), waiters(1_000));
    assert_eq!(late, 0, "tries that are sent all together are late, and are sent again");
}

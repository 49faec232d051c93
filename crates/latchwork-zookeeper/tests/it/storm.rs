//! Many clients at one key while servers die and connections break: nobody holds beside another,
//! and tokens rise.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::*;
use latchwork::{Driver, Guard, LockManager};
use latchwork_store::{Io, Moment, NotHeld};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};
use tokio::task::JoinSet;

/// From when until when somebody believed in a hold.
#[derive(Debug, Clone, Copy)]
struct Belief {
    from: Moment,
    to: Moment,
    token: u64,
}

async fn believe(guard: Guard, io: &Io, from: Moment, length: Duration) -> Belief {
    tokio::time::sleep(length).await;
    let token = guard.token().get();
    let to = match guard.ensure_held() {
        // From here on it is given back.
        Ok(_) => io.now(),
        Err(NotHeld::Lost(_)) => guard.lost().await.at,
        Err(_) => guard.valid_until(),
    };
    // If the answer is lost it is released in the background.
    let _ = guard.release().await;
    Belief { from, to, token }
}

async fn contender(url: String, seed: u64, ends: Arc<AtomicBool>, told: Arc<Mutex<Vec<Belief>>>) {
    let driver = Driver::start().unwrap();
    let io = driver.io();
    let config = ZooKeeperConfig::parse(&url).unwrap();
    let backend = ZooKeeperBackend::connect(config, driver.io()).await.unwrap();
    let locks = LockManager::new(backend, driver).ttl(2 * SEC);
    for n in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let mutex = locks.mutex("k");
        let mutex = if seed.is_multiple_of(2) { mutex.fair() } else { mutex };
        match mutex.acquire_within(4 * SEC).await {
            Ok(guard) => {
                let from = io.now();
                let length = Duration::from_millis((n * 7 + seed) % 5);
                let belief = believe(guard, &io, from, length).await;
                told.lock().unwrap().push(belief);
            }
            // Nobody is admitted while there is no leader.
            Err(_) => tokio::time::sleep(20 * MS).await,
        }
    }
}

#[test]
fn dying_servers_make_no_second_holder() {
    let mut ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new()).unwrap();
    let proxy = |server: &ZooKeeperServer| Proxy::zookeeper(server.port()).unwrap();
    let proxies: Vec<_> = ensemble.members().iter().map(proxy).collect();
    let hosts: Vec<_> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    let url = format!("zk://{}", hosts.join(","));
    run(async {
        let (ends, told) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut clients = JoinSet::new();
        for seed in 0..6 {
            clients.spawn(contender(url.clone(), seed, ends.clone(), Arc::clone(&told)));
        }
        for round in 0..2 {
            for n in 0..12 {
                tokio::time::sleep(150 * MS).await;
                let proxy = &proxies[(n + round) % 3];
                match n % 4 {
                    0 => proxy.lose_answer_of("CREATE", 3),
                    1 => proxy.lose_answer_of("DELETE", 2),
                    2 => proxy.lose_answer_of("SET", 1),
                    _ => proxy.cut(Cut::Reset).unwrap(),
                }
            }
            let leader = ensemble.leader().unwrap();
            ensemble.member_mut(leader).kill();
            tokio::time::sleep(2 * SEC).await;
            ensemble.member_mut(leader).restart().unwrap();
            let follower = (ensemble.leader().unwrap() + 1) % 3;
            ensemble.member_mut(follower).stop().unwrap();
            tokio::time::sleep(2 * SEC).await;
            ensemble.member_mut(follower).cont().unwrap();
        }
        ends.store(true, Ordering::Relaxed);
        while let Some(ended) = clients.join_next().await {
            ended.unwrap();
        }
        let mut told: Vec<Belief> = told.lock().unwrap().clone();
        told.sort_by_key(|belief| belief.from.as_nanos());
        assert!(told.len() > 100, "only {} holds", told.len());
        for pair in told.windows(2) {
            let [one, next] = pair else { unreachable!() };
            assert!(one.to <= next.from, "two held: {one:?} and {next:?}");
            assert!(one.token < next.token, "{one:?} and {next:?}");
        }
        let witness = client(&ensemble.url()).await;
        until(&witness, "k", latchwork_store::Snapshot::is_free).await;
    });
}

//! Many clients that wait for one semaphore.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use latchwork_core::{Claim, Driver, LockManager, Mode};
use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};

use crate::common::*;

const PERMITS: u32 = 4;

/// The processor time that this process has taken.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(10 * ticks)
}

fn sent(server: &EtcdServer) -> f64 {
    server.measure("etcd_network_client_grpc_sent_bytes_total", "").unwrap()
}

/// All wait without a limit, through one round in which each keeps its place, and then each holds a
/// permit once. Prints what that costs. CI has 150 of them; `LATCHWORK_WAITERS=1000` has 1,000.
#[test]
fn h107_no_endless_acquire_fails_however_long_the_queue() {
    let waiters = std::env::var("LATCHWORK_WAITERS").map_or(150, |n| n.parse().unwrap());
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let driver = Driver::start().unwrap();
    run(async {
        let mut backends = Vec::new();
        for _ in 0..4 {
            let config = EtcdConfig::parse(&server.url()).unwrap();
            backends.push(EtcdBackend::connect(config, driver.io()).await.unwrap());
        }
        // Each is a client of its own to the store, as another process would be.
        let client =
            |n: usize| LockManager::on_io(backends[n % backends.len()].clone(), driver.io());
        let taken = (0..PERMITS).map(|_| async {
            client(0).semaphore("pool", PERMITS).permit().acquire().await.unwrap()
        });
        let held = join_all(taken).await;
        let (start, cpu_before, sent_before) = (Instant::now(), cpu(), sent(&server));
        let clients: Vec<_> = (0..waiters).map(|n| Arc::new(client(n))).collect();
        let waits = clients.iter().map(|client| async {
            let permit = client.semaphore("pool", PERMITS).permit();
            let granted = permit.acquire().await;
            granted.map(|guard| async { guard.release().await.map(drop) })
        });
        let waits = waits.map(|wait| async { wait.await?.await });
        let release = async {
            loop {
                let there = server.measure("etcd_debugging_mvcc_keys_total", "").unwrap();
                if there as usize == waiters + held.len() || start.elapsed() > 90 * SEC {
                    break;
                }
                tokio::time::sleep(SEC / 4).await;
            }
            let queued = start.elapsed();
            tokio::time::sleep(12 * SEC).await;
            let (cpu, sent) = (cpu() - cpu_before, sent(&server) - sent_before);
            println!(
                "{waiters} waiters: queued after {queued:.1?}, and 12s later: cpu {cpu:.1?}, {:.1} MB",
                sent / 1e6
            );
            let start = Instant::now();
            for guard in held {
                let _ = guard.release().await;
            }
            start
        };
        let (done, released) = tokio::join!(join_all(waits), release);
        let failed: Vec<_> = done.iter().filter_map(|done| done.as_ref().err()).collect();
        let (cpu, sent) = (cpu() - cpu_before, sent(&server) - sent_before);
        println!(
            "{waiters} waiters: all through {:.1?} later; cpu {cpu:.1?}, {:.1} MB, {} failed",
            released.elapsed(),
            sent / 1e6,
            failed.len()
        );
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed[0]);
    });
}

/// More readers than a try reads of a line, behind the one writer that keeps them out.
#[test]
fn h107_a_reader_is_not_admitted_past_a_writer_far_ahead() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let writer = Claim { mode: Mode::Write, ..claim("k") };
        client.granted(&writer).await;
        for _ in 0..80 {
            client.blocked(&Claim { mode: Mode::Read, ..like(&writer, "k") }).await;
        }
        let once = Claim { mode: Mode::Read, waits: false, ..like(&writer, "k") };
        client.blocked(&once).await;
        // Each place that is far back is kept, and the last reader goes with the writer.
        let last = Claim { mode: Mode::Read, ..like(&writer, "k") };
        let blocked = client.blocked(&last).await;
        assert_eq!((blocked.ahead, client.blocked(&last).await.ahead), (Some(80), Some(80)));
        client.released(&writer).await;
        client.granted(&last).await;
    });
}

/// Far back in a line of a mutex: the place is kept, and is lost when its key is deleted.
#[test]
fn h107_a_place_far_back_is_kept_and_noticed_when_it_goes() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let first = claim("k");
        client.granted(&first).await;
        for _ in 0..80 {
            client.blocked(&like(&first, "k")).await;
        }
        let last = like(&first, "k");
        client.blocked(&last).await;
        let place = keys_of(&server, "k").pop().unwrap();
        for _ in 0..3 {
            assert_eq!(client.blocked(&last).await.ahead, None, "nobody has counted");
            assert_eq!(keys_of(&server, "k").pop().unwrap(), place);
        }
        etcdctl(server.port(), &["del", &place]).unwrap();
        client.blocked(&last).await;
        assert_eq!(keys_of(&server, "k").len(), 82, "it stands in line again");
        etcdctl(server.port(), &["del", "k/", "--prefix"]).unwrap();
        client.granted(&last).await;
    });
}

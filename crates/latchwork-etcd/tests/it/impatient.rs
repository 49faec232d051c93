//! Clients that soon give up, alone and beside clients that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::ErrorKind;

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

/// A place that was taken in vain: it is put and deleted, and the look at the end is a read. Its lease is
/// used again.
#[test]
fn h210_an_acquire_in_vain_costs_two_writes_and_no_lease() {
    const ROUNDS: u64 = 20;
    let server = server();
    run(async {
        let holder = connect(&server.url()).await.unwrap().ttl(60 * SEC);
        let held = holder.mutex("k").acquire().await.unwrap();
        let other = connect(&server.url()).await.unwrap();
        let in_vain = async || {
            let asked = other.mutex("k").acquire_within(SEC / 20).await;
            let error = asked.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        };
        let writes = || server.measure("etcd_server_proposals_committed_total", "").unwrap() as u64;
        // The pool has a lease once one was used.
        in_vain().await;
        let (before, written) = (Requests::of(&server), writes());
        for _ in 0..ROUNDS {
            in_vain().await;
        }
        let (asked, written) = (Requests::of(&server).since(before), writes() - written);
        assert_eq!(asked.revoked, 0, "{asked:?}");
        assert!(asked.leases <= 2, "{asked:?}");
        assert!(written <= 2 * ROUNDS + ROUNDS / 2, "{written} writes");
        held.release().await.unwrap();
    });
}

/// The store answers later than the caller waits: that is no failure of the store, and the request under
/// way is not abandoned, which would cost its lease.
#[test]
fn h210_a_request_cut_by_patience_costs_no_lease() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let locks = connect(&format!("etcd://127.0.0.1:{}", proxy.port())).await.unwrap();
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        proxy.delay(Direction::ToClient, Duration::from_millis(400));
        let before = Requests::of(&server);
        for round in 2..7 {
            let asked = locks.mutex("k").acquire_within(SEC / 10).await;
            let error = asked.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            // It is withdrawn once it is answered.
            counted(&server, "etcd_mvcc_delete_total", "", |n| n >= f64::from(round)).await;
        }
        let asked = Requests::of(&server).since(before);
        assert_eq!(asked.revoked, 0, "{asked:?}");
        assert!(asked.leases <= 2, "{asked:?}");
    });
}

/// Writers and readers in turn, each a client of its own, until they are stopped.
struct Crowd {
    stop: Arc<AtomicBool>,
    holds: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Crowd {
    fn start(url: &str, count: usize, patience: Duration) -> Self {
        let (stop, holds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let work = |thread: usize| {
            let (url, stop, holds) = (url.to_owned(), stop.clone(), holds.clone());
            move || {
                run(async {
                    let lock = connect(&url).await.unwrap().rwlock("shared");
                    for turn in thread.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let side = if turn % 2 == 0 { lock.write() } else { lock.read() };
                        match side.acquire_within(patience).await {
                            Ok(guard) => {
                                holds.fetch_add(1, Ordering::Relaxed);
                                tokio::time::sleep(Duration::from_millis(30)).await;
                                guard.release().await.unwrap();
                            }
                            Err(error) => assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}"),
                        }
                    }
                });
            }
        };
        let threads = (0..count).map(|thread| std::thread::spawn(work(thread))).collect();
        Self { stop, holds, threads }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.holds.load(Ordering::Relaxed)
    }
}

/// Six clients wait as long as it takes, and as many beside them give up after 100 ms.
#[test]
fn h210_impatient_clients_cost_patient_ones_less_than_half() {
    let server = server();
    let url = server.url();
    let holds = |impatient| {
        let patient = Crowd::start(&url, 6, 600 * SEC);
        let impatient = Crowd::start(&url, impatient, SEC / 10);
        std::thread::sleep(3 * SEC);
        impatient.end();
        patient.end()
    };
    // On a busy machine, what is measured beside something else is measured again.
    let told: Vec<_> = (0..3).map(|_| (holds(0), holds(6))).collect();
    assert!(told.iter().any(|(alone, beside)| 2 * beside > *alone), "{told:?}");
}

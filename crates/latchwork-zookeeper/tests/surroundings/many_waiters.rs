//! Lines that are very long.

use latchwork_core::{Error, LockManager};
use tokio::task::JoinSet;

use crate::common::*;

/// How many wait: 400, or as many as the environment says.
fn waiters() -> usize {
    let said = std::env::var("LATCHWORK_WAITERS").ok();
    said.map_or(400, |said| said.parse().expect("LATCHWORK_WAITERS is a number"))
}

/// H107: many wait for a semaphore of four, each with a place of its own in the store, and each is
/// served. The full size is `LATCHWORK_WAITERS=2000`, with a line of the cost for each waiter.
#[test]
fn h107_no_waiter_of_a_long_line_fails() {
    const CLIENTS: usize = 4;
    let server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients: Vec<LockManager> = Vec::new();
        for _ in 0..CLIENTS {
            let (backend, driver) = backend(&server.url()).await;
            clients.push(LockManager::new(backend, driver));
        }
        let all = waiters();
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
        tokio::time::sleep(SEC).await;
        let _ = held.release().await;
        while let Some(served) = tasks.join_next().await {
            served.unwrap().expect("an acquire without a limit is served");
        }
        println!("{all} waiters: {:?} in all", begun.elapsed());
    });
}

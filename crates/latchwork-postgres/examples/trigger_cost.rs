//! What the triggers that notify observers cost a free lock that nobody observes, beside its durable commit: the
//! server's data is on a disk, and synced to it.
//!
//! ```text
//! cargo run --release -p latchwork-postgres --example trigger_cost
//! ```
//!
//! Rounds with and without the triggers alternate, for what the disk and the machine do meanwhile.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_postgres::{PostgresBackend, PostgresConfig};
use latchwork_services::{PostgresOptions, PostgresServer};

const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_secs(1);

/// Cycles of acquire and release in a second, by so many tasks with a key each.
async fn cycles(locks: &LockManager, tasks: usize) -> Result<f64, Box<dyn Error>> {
    let ends = Instant::now() + ROUND;
    let mut running = Vec::new();
    for task in 0..tasks {
        let mutex = locks.mutex(format!("k{task}"));
        running.push(tokio::spawn(async move {
            let mut count = 0;
            while Instant::now() < ends {
                mutex.acquire().await?.release().await?;
                count += 1;
            }
            Ok::<_, latchwork_store::Error>(count)
        }));
    }
    let mut all = 0;
    for task in running {
        all += task.await??;
    }
    Ok(f64::from(all) / ROUND.as_secs_f64())
}

fn switch(server: &PostgresServer, on: bool) -> Result<(), Box<dyn Error>> {
    let verb = if on { "ENABLE" } else { "DISABLE" };
    for table in ["latchwork", "latchwork_line"] {
        server.psql(&format!("ALTER TABLE {table} {verb} TRIGGER USER"))?;
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn measure(server: &PostgresServer) -> Result<(), Box<dyn Error>> {
    let (url, driver) = (server.url(), Driver::start()?);
    latchwork_postgres::init(PostgresConfig::parse(&url)?, driver.io()).await?;
    let backend = PostgresBackend::connect(PostgresConfig::parse(&url)?, driver.io()).await?;
    let locks = LockManager::new(backend, driver);
    for tasks in [1, 64] {
        cycles(&locks, tasks).await?; // makes the rows and the connections
        let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let mut pair = [0.0; 2];
            for on in if round % 2 == 0 { [true, false] } else { [false, true] } {
                switch(server, on)?;
                pair[usize::from(on)] = cycles(&locks, tasks).await?;
            }
            without.push(pair[0]);
            with.push(pair[1]);
            ratios.push(pair[1] / pair[0]);
        }
        let ratio = median(&mut ratios);
        println!(
            "{tasks} tasks: {:.0} cycles/s with the triggers, {:.0} without; ratio {ratio:.2}, of rounds {:.2} to {:.2}",
            median(&mut with),
            median(&mut without),
            ratios[0],
            ratios[ROUNDS - 1],
        );
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder =
        std::env::temp_dir().join(format!("latchwork-trigger-cost-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let options = PostgresOptions::new().setting("fsync=on").data_in(&folder);
    let measured = match PostgresServer::start_with(&options) {
        Ok(server) => measure(&server).await,
        Err(error) => Err(error.into()),
    };
    std::fs::remove_dir_all(&folder)?;
    measured
}

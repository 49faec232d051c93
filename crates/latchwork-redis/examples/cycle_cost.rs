//! What a cycle of acquire and release costs: in time, in the client's CPU, in switches of its
//! threads, and in the server's scripts.
//!
//! ```text
//! cargo run --release -p latchwork-redis --example cycle_cost            on one server
//! cargo run --release -p latchwork-redis --example cycle_cost redlock    on a majority of five
//! ```
//!
//! To learn what one shortcut is worth, build it once with and once without the shortcut, run both in
//! turns several times, and compare the medians: single runs on a busy machine differ by a fifth.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig, redlock};
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::Backend;

const CYCLES: usize = 20_000;

/// Clients, tasks of each, and whether all want the same key.
const ROWS: [(&str, usize, usize, bool); 3] =
    [("1 task", 1, 1, false), ("64 tasks", 1, 64, false), ("8 clients, one key", 8, 1, true)];

async fn locks(servers: &[RedisServer]) -> Result<LockManager, latchwork_store::Error> {
    let driver = Driver::start()?;
    let backend: Arc<dyn Backend> = match servers {
        [one] => RedisBackend::connect(RedisConfig::parse(&one.url())?, driver.io()).await?,
        several => {
            let address = |server: &RedisServer| format!("127.0.0.1:{}", server.port());
            let addresses: Vec<_> = several.iter().map(address).collect();
            let url = format!("redlock://{}?guard=false", addresses.join(","));
            redlock::connect(redlock::Config::parse(&url)?, driver.io()).await?
        }
    };
    Ok(LockManager::new(backend, driver))
}

/// CPU time (in hundredths of a second) and voluntary switches of all threads so far.
fn used() -> Result<(u64, u64), Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, rest) = stat.rsplit_once(')').ok_or("no statistics of the process")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let mut switches = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let status = std::fs::read_to_string(task?.path().join("status"))?;
        let field = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        switches += field.ok_or("no count of switches")?.trim().parse::<u64>()?;
    }
    Ok((fields[11].parse::<u64>()? + fields[12].parse::<u64>()?, switches))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let number = if std::env::args().any(|word| word == "redlock") { 5 } else { 1 };
    let start = |_| RedisServer::start(&RedisOptions::new());
    let servers = (0..number).map(start).collect::<Result<Vec<_>, _>>()?;
    let server = &servers[0];
    for (name, clients, tasks, same) in ROWS {
        let mut managers = Vec::new();
        for _ in 0..clients {
            managers.push(locks(&servers).await?);
        }
        server.command(&["CONFIG", "RESETSTAT"])?.ok()?;
        let (began, before) = (Instant::now(), used()?);
        let mut running = Vec::new();
        for (client, locks) in managers.iter().enumerate() {
            for task in 0..tasks {
                let key = if same { "k".to_owned() } else { format!("k{client}-{task}") };
                let mutex = locks.mutex(key);
                running.push(tokio::spawn(async move {
                    for _ in 0..CYCLES / clients / tasks {
                        mutex.acquire().await?.release().await?;
                    }
                    Ok::<_, latchwork_store::Error>(())
                }));
            }
        }
        for task in running {
            task.await??;
        }
        let (took, after) = (began.elapsed(), used()?);
        // None where no script was called.
        let stats = server.info("cmdstat_evalsha").unwrap_or_default();
        let script = stats.split(',').find_map(|field| field.strip_prefix("usec="));
        let script: f64 = script.map_or(Ok(0.0), str::parse)?;
        let each = |all: f64| all / CYCLES as f64;
        println!(
            "{name}: {:.1} us a cycle, {:.1} us CPU of the client, {:.2} switches, {:.1} us in scripts",
            each(took.as_secs_f64() * 1e6),
            each((after.0 - before.0) as f64 * 1e4),
            each((after.1 - before.1) as f64),
            each(script),
        );
    }
    Ok(())
}

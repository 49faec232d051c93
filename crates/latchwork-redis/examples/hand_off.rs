//! How long a hand-off takes: from before the release to the admission of the next of eight waiters.
//! Each holds the key for about 200 ms, so that scripts, caches and threads have cooled down.
//!
//! ```text
//! cargo run --release -p latchwork-redis --example hand_off [HAND-OFFS]
//! ```
//!
//! With a second argument the holder takes the key afresh each time, with its full ttl, before the
//! waiters come: each release then has waiters behind the next holder to warn.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{RedisOptions, RedisServer};

const CLIENTS: usize = 9;

async fn locks(url: &str) -> Result<LockManager, latchwork_store::Error> {
    let driver = Driver::start()?;
    let backend = RedisBackend::connect(RedisConfig::parse(url)?, driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

/// The server's calls of scripts and the microseconds that they took.
fn scripts(server: &RedisServer) -> Result<(f64, f64), Box<dyn Error>> {
    let stats = server.info("cmdstat_evalsha")?;
    let field = |name: &str| {
        let value = stats.split(',').find_map(|field| field.strip_prefix(name));
        value.ok_or("no statistics of EVALSHA")?.parse::<f64>().map_err(Box::<dyn Error>::from)
    };
    Ok((field("calls=")?, field("usec=")?))
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let wanted = args.next().map_or(Ok(100), |text| text.parse::<usize>())?;
    let afresh = args.next().is_some();
    let server = RedisServer::start(&RedisOptions::new())?;
    let mut managers = Vec::new();
    for _ in 0..CLIENTS {
        managers.push(locks(&server.url()).await?);
    }
    let (released, samples) = (Arc::new(Mutex::new(None::<Instant>)), Arc::new(Mutex::new(vec![])));
    let rounds = if afresh { wanted.div_ceil(CLIENTS - 1) } else { 1 };
    server.command(&["CONFIG", "RESETSTAT"])?.ok()?;
    for _ in 0..rounds {
        let mut running = Vec::new();
        for (n, locks) in managers.iter().enumerate() {
            let mutex = locks.mutex("k");
            let (released, samples) = (released.clone(), samples.clone());
            running.push(tokio::spawn(async move {
                loop {
                    let guard = mutex.acquire().await?;
                    let at = Instant::now();
                    let before = released.lock().unwrap().take();
                    let done = {
                        let mut samples = samples.lock().unwrap();
                        samples.extend(before.map(|before| at - before));
                        samples.len() >= wanted
                    };
                    tokio::time::sleep(Duration::from_millis(
                        190 + (at.elapsed().subsec_nanos() % 20) as u64,
                    ))
                    .await;
                    *released.lock().unwrap() = Some(Instant::now());
                    guard.release().await?;
                    if done || afresh {
                        return Ok::<_, latchwork_store::Error>(());
                    }
                }
            }));
            if n == 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        for task in running {
            task.await??;
        }
        *released.lock().unwrap() = None;
    }
    let mut samples = std::mem::take(&mut *samples.lock().unwrap());
    samples.sort_unstable();
    let (calls, micros) = scripts(&server)?;
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize].as_micros();
    println!(
        "{} hand-offs: median {} us, 25 % {} us, 75 % {} us; {:.2} scripts of {:.0} us for each",
        samples.len(),
        at(0.5),
        at(0.25),
        at(0.75),
        calls / samples.len() as f64,
        micros / calls,
    );
    Ok(())
}

//! What the restart guard costs the server, as a ratio of the time its scripts take.
//!
//! Starts a Redis server, takes and releases free locks with and without the guard in turn, and
//! prints the server's own time for a script (`INFO commandstats`).

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "an example")]

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{RedisOptions, RedisServer};

const ROUNDS: usize = 6;
const CYCLES: usize = 2_000;

async fn locks(url: &str) -> Result<LockManager, latchwork_store::Error> {
    let driver = Driver::start()?;
    let backend = RedisBackend::connect(RedisConfig::parse(url)?, driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = RedisServer::start(&RedisOptions::new())?;
    let (plain, guarded) = (server.url(), format!("{}/1?guard=true", server.url()));
    let driver = Driver::start()?;
    latchwork_redis::init(RedisConfig::parse(&guarded)?, driver.io()).await?;
    let managers = [locks(&plain).await?, locks(&guarded).await?];
    let mut best = [f64::MAX; 2];
    for round in 0..ROUNDS {
        for (locks, best) in managers.iter().zip(&mut best) {
            server.command(&["CONFIG", "RESETSTAT"])?.ok()?;
            for cycle in 0..CYCLES {
                locks.mutex(format!("k{cycle}")).acquire().await?.release().await?;
            }
            let stats = server.info("cmdstat_evalsha")?;
            let micros = stats.split(',').find_map(|field| field.strip_prefix("usec_per_call="));
            let micros: f64 = micros.ok_or("no statistics of EVALSHA")?.parse()?;
            // The first round loads the scripts.
            if round > 0 {
                *best = best.min(micros);
            }
        }
    }
    let [plain, guarded] = best;
    // A cycle is two scripts, and the guard is in one of them.
    println!("without the guard {plain:.2} us a script, acquire and release in the mean");
    println!("with the guard    {guarded:.2} us, {:.2} times as long", guarded / plain);
    println!("an acquire takes  {:.2} us longer", 2.0 * (guarded - plain));
    Ok(())
}

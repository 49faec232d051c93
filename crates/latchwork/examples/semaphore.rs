//! At most three at a time, here ten tasks.
//!
//! `cargo run -p latchwork --example semaphore`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::time::Duration;

use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    let exports = locks.semaphore("exports", 3);
    let mut tasks = JoinSet::new();
    for task in 1..=10 {
        let permit = exports.permit();
        tasks.spawn(async move {
            let guard = permit.acquire().await?;
            println!("task {task} exports, token {}", guard.token());
            tokio::time::sleep(Duration::from_millis(200)).await;
            guard.release().await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

//! One at a time, over all processes of this machine.
//!
//! Run it twice side by side: `cargo run -p latchwork --example mutex`.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of a user"
)]

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    println!("waiting for the lock");
    let guard = locks.mutex("stock").acquire_within(Duration::from_secs(60)).await?;
    println!("held, token {}", guard.token());
    // Stopped at once if the lock is lost.
    guard
        .run(async {
            for step in 1..=3 {
                println!("working, step {step}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        })
        .await?;
    // The work is done, whatever the release answers.
    match guard.release().await {
        Ok(()) => println!("released"),
        Err(error) => eprintln!("done, but not released: {error}"),
    }
    Ok(())
}

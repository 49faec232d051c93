//! Many readers or one writer.
//!
//! `cargo run -p latchwork --example rwlock`

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
    let page = locks.rwlock("page");
    let limit = Duration::from_secs(60);
    let one = page.read().acquire_within(limit).await?;
    let two = page.read().acquire_within(limit).await?;
    println!("two readers hold together, tokens {} and {}", one.token(), two.token());
    assert!(page.write().try_acquire().await?.is_none());
    println!("a writer would have to wait");
    for reader in [one, two] {
        if let Err(error) = reader.release().await {
            eprintln!("read, but not released: {error}");
        }
    }
    let writer = page.write().acquire_within(limit).await?;
    println!("the writer is alone, token {}", writer.token());
    if let Err(error) = writer.release().await {
        eprintln!("written, but not released: {error}");
    }
    Ok(())
}

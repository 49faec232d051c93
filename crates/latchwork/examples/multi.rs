//! Two accounts, locked together whatever order they are named in.
//!
//! `cargo run -p latchwork --example multi`

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
    let both = locks.multi(["account/9", "account/2"]);
    let guard = both.acquire_within(Duration::from_secs(60)).await?;
    for (key, token) in guard.tokens() {
        println!("{key} is held, token {token}");
    }
    guard.ensure_held()?;
    if let Err(error) = guard.release().await {
        eprintln!("done, but not released: {error}");
    }
    Ok(())
}

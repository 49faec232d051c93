//! The same without async code.
//!
//! `cargo run -p latchwork --example blocking`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::time::Duration;

use latchwork::BlockOn;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = latchwork::default_store()?;
    let locks = latchwork::connect(&store).block_on()?.namespace("example");
    let guard = locks.mutex("stock").acquire_within(Duration::from_secs(60)).block_on()?;
    println!("held, token {}", guard.token());
    guard.ensure_held()?;
    guard.release().block_on()?;
    Ok(())
}

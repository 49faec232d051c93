//! The same without async code.
//!
//! `cargo run -p latchwork --example blocking`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let store = latchwork::default_store()?;
    let locks = latchwork::blocking::connect(&store)?.namespace("example");
    let guard = locks.mutex("stock").acquire_within(Duration::from_secs(60))?;
    println!("held, token {}", guard.token());
    guard.ensure_held()?;
    guard.release()?;
    Ok(())
}

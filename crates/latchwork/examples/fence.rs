//! A resource that refuses the late write of a holder that was overtaken.
//!
//! `cargo run -p latchwork --example fence`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::time::Duration;

use latchwork::NotHeld;
use latchwork::fence::Fence;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    let stock = Fence::new();
    let slow = locks.mutex("fenced").ttl(Duration::from_secs(1)).acquire().await?;
    stock.check_write(slow.token())?;
    println!("the first holder writes with token {}", slow.token());
    // Somebody takes the lock away while the holder thinks that it has it.
    locks.force_release("fenced").await?;
    let next = locks.mutex("fenced").acquire().await?;
    stock.check_write(next.token())?;
    println!("its successor writes with token {}", next.token());
    match stock.check_write(slow.token()) {
        Err(fenced) => println!("the late write is refused: {fenced}"),
        Ok(()) => unreachable!("a fence never lets a smaller token pass"),
    }
    if let NotHeld::Lost(lost) = loop {
        match slow.ensure_held() {
            Err(not_held) => break not_held,
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    } {
        println!("and the first holder is told: {lost}");
    }
    next.release().await?;
    Ok(())
}

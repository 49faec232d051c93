//! A function that locks calls another one that locks the same key.
//!
//! `cargo run -p latchwork --example reentrant`

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program of a user"
)]

use latchwork::{Error, Owner, ReentrantMutex};

async fn transfer(account: &ReentrantMutex, order: &Owner) -> Result<(), Error> {
    let guard = account.acquire(order).await?;
    println!("transfer, token {}", guard.token());
    book(account, order).await?;
    if let Err(error) = guard.release().await {
        eprintln!("transferred, but not released: {error}");
    }
    Ok(())
}

async fn book(account: &ReentrantMutex, order: &Owner) -> Result<(), Error> {
    // Enters what the order holds already, without a trip to the store.
    let guard = account.acquire(order).await?;
    println!("book, token {}", guard.token());
    if let Err(error) = guard.release().await {
        eprintln!("booked, but not released: {error}");
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    transfer(&locks.reentrant("account"), &Owner::named("order 17")).await?;
    Ok(())
}

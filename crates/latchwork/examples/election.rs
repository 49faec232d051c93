//! Three candidates; each leads for a while, and an observer tells of each change.
//!
//! `cargo run -p latchwork --example election`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::time::Duration;

use futures_util::StreamExt;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    let election = locks.election("scheduler").look_every(Duration::from_millis(100));
    let mut changes = Box::pin(election.observe());
    let observer = tokio::spawn(async move {
        while let Some(Ok(leader)) = changes.next().await {
            match leader {
                Some(leader) => println!("{} leads, term {}", leader.candidate, leader.term),
                None => println!("nobody leads"),
            }
        }
    });
    let mut candidates = JoinSet::new();
    for address in ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"] {
        let election = election.clone().candidate(address);
        candidates.spawn(async move {
            let leadership = election.campaign().await?;
            tokio::time::sleep(Duration::from_millis(500)).await;
            leadership.resign().await
        });
    }
    while let Some(done) = candidates.join_next().await {
        done??;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    observer.abort();
    Ok(())
}

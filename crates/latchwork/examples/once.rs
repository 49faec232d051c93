//! A report that is sent once a minute, however often this is run.
//!
//! `cargo run -p latchwork --example once`

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program of a user")]

use std::io;

use latchwork::Period;
use latchwork::once::OnceOutcome;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = latchwork::connect(&latchwork::default_store()?).await?.namespace("example");
    let report = locks.once("report", Period::parse("1m", None)?);
    let outcome = report
        .run(async |run| {
            println!("sending the report, token {}", run.token());
            Ok::<_, io::Error>(())
        })
        .await?;
    match outcome {
        OnceOutcome::Done(()) => println!("sent; nobody sends it again in this minute"),
        OnceOutcome::Skipped(why) => println!("not sent: {why}"),
        other => println!("{other:?}"),
    }
    Ok(())
}

//! The inventory of the articles about distributed locks, for real.
//!
//! Buyers read how much there is, pack a unit and write one less. Each is a process of its own,
//! this binary started again, or for a store inside this process a task. Nothing is scripted but
//! how long packing takes and, in the last scene, who is stopped: what the table and the picture
//! tell is counted from what the buyers reported.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `args.rs`, `say.rs` | what the command line may say; messages and exit codes |
//! | `demo.rs`, `report.rs` | all scenes, one after the other; what is printed of them |
//! | `words.rs` | the orders that a buyer gets and what it says |
//! | `shop.rs`, `redis_shop.rs` | the stock, a fence on it, and the lock of the articles |
//! | `buyer.rs`, `buyer_main.rs` | what a buyer does; a buyer as a process |
//! | `crowd.rs` | all buyers of a scene: started, heard, stopped |
//! | `scene.rs` | one scene, from opening the shop to the last buyer's leaving |
//! | `tally.rs` | counts what was reported |
//! | `picture.rs` | draws it |

#![expect(clippy::disallowed_methods, reason = "packs and waits; no lock's validity depends on it")]

#[cfg(not(target_os = "linux"))]
compile_error!("the demo stops and continues its buyers as Linux does");

mod args;
mod buyer;
mod buyer_main;
mod crowd;
mod demo;
mod picture;
mod redis_shop;
mod report;
mod say;
mod scene;
mod shop;
mod tally;
mod words;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == buyer_main::ROLE) {
        return buyer_main::main();
    }
    let args = match args::Args::try_parse() {
        Ok(args) => args,
        Err(usage) => {
            let _ = usage.print();
            return if usage.use_stderr() { say::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let say = say::Say { json: args.json };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let played = match &runtime {
        Ok(runtime) => runtime.block_on(demo::run(&args, &say)),
        Err(error) => Err(demo::broken(error)),
    };
    played.unwrap_or_else(|error| say.error(&error)).into()
}

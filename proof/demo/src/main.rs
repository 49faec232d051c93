//! The inventory of the articles about distributed locks, for real.
//!
//! Buyers read how much there is, pack a unit and write one less. Each is a process of its own,
//! this binary started again, or for a store inside this process a task. Nothing is scripted but
//! how long packing takes and, in the last scene, who is stopped: what the table and the picture
//! tell is counted from what the buyers reported.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `demo.rs`, `say.rs` | all scenes, one after the other; messages and exit codes |
//! | `scene.rs` | one scene: buyers are started, heard, stopped |
//! | `words.rs`, `buyer.rs` | the orders that a buyer gets and what it says; what it does |
//! | `shop.rs` | the stock, a fence on it, and the lock of the articles |
//! | `tally.rs`, `report.rs`, `picture.rs` | counts what was reported, prints it, draws it |

#![expect(clippy::disallowed_methods, reason = "packs and waits; no lock's validity depends on it")]

#[cfg(not(target_os = "linux"))]
compile_error!("the demo stops and continues its buyers as Linux does");

mod buyer;
mod demo;
mod picture;
mod report;
mod say;
mod scene;
mod shop;
mod tally;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueHint, value_parser};

const HELP: &str = "\
Buyers read how many units are left, pack one, and write one less. Four scenes, a
few seconds each:
  1  without a lock
  2  with a key that expires after a second and is deleted by whoever is done
  3  with a lock of latchwork
  4  the same, with one buyer stopped (SIGSTOP) before it writes, and a fence that
     refuses its late write
All numbers are counted. Exits with 0 if scenes 3 and 4 sold exactly what there was.
The stock is kept in the Redis server of the locks (redis://), else in a file of the
folder for temporary files. What the demo makes is removed when it ends.

Examples:
  latchwork-demo
  latchwork-demo --store redis://127.0.0.1:6379 --svg stock.svg
  latchwork-demo --json --buyers 8 --stock 50";

/// Sells an inventory: without a lock, with SET NX PX and DEL, and with latchwork
#[derive(Debug, Parser)]
#[command(name = "latchwork-demo", version, after_help = HELP)]
struct Args {
    /// Where the locks are kept: a directory of this machine (file:///DIR), or a server's URL
    /// [default: a directory of this user]
    #[arg(long, value_name = "URL", env = "LATCHWORK_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Print JSON, one value; tokens are strings because they exceed 2^53
    #[arg(long)]
    json: bool,

    /// How many buyers there are, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = value_parser!(u32).range(2..=20))]
    buyers: u32,

    /// How many units there are
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = value_parser!(u32).range(1..=100))]
    stock: u32,

    /// Draw who was at the stock when
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "latchwork-stock.svg", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    let is_buyer = std::env::args_os().nth(1).is_some_and(|word| word == buyer::ROLE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    if is_buyer {
        let bought = runtime.map_err(Into::into).and_then(|it| it.block_on(buyer::main()));
        return bought.map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(usage) => {
            let _ = usage.print();
            return if usage.use_stderr() { say::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let say = say::Say { json: args.json };
    let played = match runtime {
        Ok(runtime) => runtime.block_on(demo::run(&args, &say)),
        Err(error) => Err(demo::broken(error)),
    };
    played.unwrap_or_else(|error| say.error(&error)).into()
}

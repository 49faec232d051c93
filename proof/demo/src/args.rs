//! What the command line may say.

use std::path::PathBuf;

use clap::{Parser, ValueHint};

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
pub(crate) struct Args {
    /// Where the locks are kept: a directory of this machine (file:///DIR), or a server's URL
    /// [default: a directory of this user]
    #[arg(long, value_name = "URL", env = "LATCHWORK_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// Print JSON, one value; tokens are strings because they exceed 2^53
    #[arg(long)]
    pub(crate) json: bool,

    /// How many buyers there are, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=20))]
    pub(crate) buyers: u32,

    /// How many units there are
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) stock: u32,

    /// Draw who was at the stock when
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "latchwork-stock.svg", value_hint = ValueHint::FilePath)]
    pub(crate) svg: Option<PathBuf>,
}

//! `latchwork completions`: completions for the common shells.

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::output::Output;

/// Prints the completions.
pub(crate) fn run(args: &CompletionsArgs, output: &Output) -> u8 {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "latchwork", &mut script);
    output.raw(&script)
}

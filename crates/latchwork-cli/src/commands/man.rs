//! `latchwork man`: manual pages.

use clap::{Command, CommandFactory};

use crate::args::{Cli, ManArgs};
use crate::exit;
use crate::output::Output;

/// Prints the manual page of the command, or writes that of each verb into a directory.
pub(crate) fn run(args: &ManArgs, output: &Output) -> u8 {
    let Some(directory) = &args.dir else {
        let mut page = Vec::new();
        return match clap_mangen::Man::new(command()).render(&mut page) {
            Ok(()) => output.raw(&page),
            Err(error) => broken(output, &error.to_string()),
        };
    };
    let written = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command(), directory));
    match written {
        Ok(()) => 0,
        Err(error) if directory.exists() && !directory.is_dir() => {
            let directory = directory.display();
            output.fail("Usage", &format!("DIR: {directory} is not a directory: {error}"));
            exit::USAGE
        }
        Err(error) => broken(output, &format!("{}: {error}", directory.display())),
    }
}

/// `help` has no page of its own, so no page names one.
fn command() -> Command {
    Cli::command().disable_help_subcommand(true)
}

fn broken(output: &Output, message: &str) -> u8 {
    output.fail("Output", &format!("cannot write the manual pages: {message}"));
    exit::BROKEN
}

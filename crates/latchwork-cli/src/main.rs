//! The `latchwork` command: runs commands under a lock, and shows and frees locks.

#[cfg(not(target_os = "linux"))]
compile_error!("the latchwork command supports Linux only; the library works elsewhere");

mod args;
mod commands;
mod exit;
mod output;
mod process;

use clap::Parser;

fn main() -> std::process::ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(usage) => {
            let printed = usage.print();
            if usage.use_stderr() {
                return exit::USAGE.into();
            }
            return match printed {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => exit::BROKEN,
                _ => 0,
            }
            .into();
        }
    };
    let code = commands::run(cli);
    // At once: what still runs in the background has had its time.
    std::process::exit(code.into())
}

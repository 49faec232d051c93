//! The `latchwork` command: runs commands under a lock, and shows and frees locks.

#[cfg(not(target_os = "linux"))]
compile_error!("the latchwork command supports Linux only; the library works elsewhere");

mod args;
mod commands;
mod exit;
mod keeper;
mod news;
mod output;
mod process;
mod store;
#[cfg(feature = "top")]
mod top;

use clap::CommandFactory;

/// The verbs that print lines for a shell to evaluate.
const EVALUATED: [&str; 3] = ["hold", "upgrade", "downgrade"];

fn main() -> std::process::ExitCode {
    process::signals::survive_file_size_limit();
    let cli = match args::Cli::read() {
        Ok(cli) => cli,
        Err(usage) => {
            if usage.use_stderr() {
                output::usage(&usage);
                let words: Vec<_> = std::env::args_os().collect();
                let verb = args::verb(&words, &args::Cli::command());
                if verb.is_some_and(|verb| EVALUATED.iter().any(|it| verb == *it)) {
                    output::fail_in_shell(exit::USAGE);
                }
                return exit::USAGE.into();
            }
            return match usage.print() {
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => exit::BROKEN,
                _ => 0,
            }
            .into();
        }
    };
    let is_evaluated = match cli.command {
        args::Command::Hold(_) => true,
        args::Command::Upgrade(_) | args::Command::Downgrade(_) => !cli.json,
        _ => false,
    };
    let code = commands::run(cli);
    if is_evaluated && code != 0 {
        output::fail_in_shell(code);
    }
    // At once: what still runs in the background has had its time.
    std::process::exit(code.into())
}

//! What the command line accepts.

mod help;
mod separator;
#[cfg(feature = "serve")]
mod serve;
mod values;
mod verbs;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use rustix::process::Pid;

pub(crate) use separator::verb;
#[cfg(feature = "serve")]
pub(crate) use serve::ServeArgs;
pub(crate) use values::{OnLoss, Permits, ResizePolicy, duration, token, ttl};

use crate::keeper::hold_id::HoldId;

/// The heading of the options that all commands have.
const GLOBAL: &str = "Global options";

/// Runs commands under a lock, and shows and frees locks.
#[derive(Debug, Parser)]
#[command(name = "latchwork", version, after_help = help::ALL, subcommand_required = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Where the locks are kept: a directory of this machine (file:///DIR), or a server's URL
    /// [env: LATCHWORK_STORE] [default: a directory of this user]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "URL", conflicts_with = "store_file")]
    pub(crate) store: Option<String>,

    /// Read the store's URL from this file, so that `ps` shows no password; it is read again when the
    /// server refuses the login
    /// [env: LATCHWORK_STORE_FILE] [default: ~/.config/latchwork/store, /etc/latchwork/store]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) store_file: Option<PathBuf>,

    /// Run TEXT by `sh -c`, and take what it prints as the store's URL; it is run again when the server
    /// refuses the login [env: LATCHWORK_STORE_COMMAND]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "TEXT", conflicts_with_all = ["store", "store_file"])]
    pub(crate) store_command: Option<String>,

    /// Make the store's directory with the directories above it. Without it, a path whose parent does
    /// not exist is taken for a mistake
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) create: bool,

    /// Put NAMESPACE: before each name
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Make all tokens larger than TOKEN, for locks that moved from another store; all clients must
    /// use the same value [env: LATCHWORK_TOKEN_FLOOR]
    #[arg(long, global = true, help_heading = GLOBAL, value_name = "TOKEN", value_parser = values::token, allow_hyphen_values = true)]
    pub(crate) token_floor: Option<u64>,

    /// Print JSON, one document a line: one array for `ls`, and on standard error how `run`, `once` and
    /// `elect` ended. Tokens are strings because they exceed 2^53
    #[arg(long, global = true, help_heading = GLOBAL)]
    pub(crate) json: bool,

    /// Print the store, waits, tokens, failed renewals and the release to standard error
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub(crate) verbose: bool,

    /// Print only errors to standard error
    #[arg(short, long, global = true, help_heading = GLOBAL, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the arguments of this process.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let arguments = std::env::args_os().collect();
        let words = separator::insert(arguments, Self::command)?;
        let cli = Self::try_parse_from(&words).map_err(|error| match error.kind() {
            ErrorKind::InvalidUtf8 => not_utf8(&words),
            _ => verbs::with_whole_word(verbs::with_tip(error), &words),
        })?;
        match &cli.command {
            Command::Run(args) => args.words.check("run", ""),
            Command::Once(args) if !args.reset => args.words.check("once", " --every 1d"),
            Command::Elect(args) if !args.observe => args.words.check("elect", ""),
            _ => Ok(()),
        }?;
        Ok(cli)
    }
}

/// The error for a word of latchwork's own that is not UTF-8, with its place on the command line.
fn not_utf8(words: &[OsString]) -> clap::Error {
    let own = words.iter().enumerate().skip(1).take_while(|(_, word)| *word != "--");
    let mut named = own.filter(|(_, word)| word.to_str().is_none());
    let message = match named.next() {
        Some((place, word)) => format!("argument {place}, {word:?}, is not UTF-8"),
        None => "an argument is not UTF-8".to_owned(),
    };
    Cli::command().error(ErrorKind::InvalidUtf8, message)
}

// The arguments of a command have no doc comments of their own: clap would show those in place of these.

/// The commands, a file each.
///
/// clap builds only the arguments of the command that runs: describing all of them took a good part of a
/// free run's time.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Take a lock, run a command, release the lock
    #[command(after_help = help::RUN, visible_alias = "lock")]
    Run(RunArgs),
    /// Take a lock for several commands of a script
    #[command(after_help = help::HOLD)]
    Hold(HoldArgs),
    /// Make a read hold of this shell a write hold
    #[command(after_help = help::UPGRADE)]
    Upgrade(UpgradeArgs),
    /// Make a write hold of this shell a read hold
    #[command(after_help = help::DOWNGRADE)]
    Downgrade(DowngradeArgs),
    /// Attach a hold to this shell (printed by `hold`, not for typing)
    #[command(hide = true)]
    Attach(AttachArgs),
    /// Run a command once in each period, on one of the hosts that try
    #[command(after_help = help::ONCE)]
    Once(OnceArgs),
    /// Run a command on the one host that leads
    #[command(after_help = help::ELECT)]
    Elect(ElectArgs),
    /// List the locks that are held or waited for
    #[command(after_help = help::LS, visible_alias = "list")]
    Ls(LsArgs),
    /// Show all locks on the terminal, live
    #[cfg(feature = "top")]
    #[command(after_help = help::TOP)]
    Top(TopArgs),
    /// Show who holds a lock and who waits for it
    #[command(after_help = help::SHOW)]
    Show(ShowArgs),
    /// Report whether a lock is held, by exit code
    #[command(after_help = help::STATUS)]
    Status(StatusArgs),
    /// Release what `hold` took, or take a lock away from its holder
    #[command(after_help = help::RELEASE, visible_alias = "unlock")]
    Release(ReleaseArgs),
    /// Change the number of permits while they are held
    #[command(after_help = help::RESIZE)]
    Resize(ResizeArgs),
    /// Check that the store can keep locks safely
    #[command(after_help = help::DOCTOR)]
    Doctor,
    /// Prepare a new store before its first lock
    #[command(after_help = help::INIT)]
    Init,
    /// Serve the locks over HTTP, to programs in other languages
    #[cfg(feature = "serve")]
    #[command(after_help = help::SERVE)]
    Serve(ServeArgs),
    /// Print shell completions
    #[command(after_help = help::COMPLETIONS)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write all of them
    #[command(after_help = help::MAN)]
    Man(ManArgs),
    /// Print the help of a verb, or a page of the book
    #[command(after_help = help::HELP)]
    Help(HelpArgs),
}

// The command to run.
#[derive(Debug, Args)]
pub(crate) struct CommandLine {
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,

    /// Run this text by `sh -c`, instead of a command
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    shell: Option<OsString>,
}

impl CommandLine {
    /// The program and its arguments; nothing if neither was given.
    pub(crate) fn all(&self) -> Vec<OsString> {
        match &self.shell {
            Some(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
            None => self.command.clone(),
        }
    }

    /// Refuses a command line without a command.
    fn check(&self, runner: &str, options: &str) -> Result<(), clap::Error> {
        if self.shell.is_some() || !self.command.is_empty() {
            return Ok(());
        }
        let message = format!(
            "no command to run; write it after the name: latchwork {runner}{options} NAME -- COMMAND"
        );
        let mut command = Cli::command();
        command.build();
        let runner = command.find_subcommand_mut(runner).expect("a verb of this command");
        Err(runner.error(ErrorKind::MissingRequiredArgument, message))
    }
}

// The locks to take, and how.
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The lock's name: any text, behind a -- if it begins with a dash. With several names, acquire
    /// all or none
    #[arg(required = true, value_name = "NAME", value_parser = values::name)]
    pub(crate) names: Vec<String>,

    /// Share the lock with other readers (a read-write lock)
    #[arg(long, group = "mode")]
    pub(crate) read: bool,

    /// Exclude readers and writers (a read-write lock)
    #[arg(long, group = "mode")]
    pub(crate) write: bool,

    /// Take TAKE of OF permits (a semaphore): with 1/5, five run at a time
    #[arg(long, group = "mode", value_name = "TAKE/OF", value_parser = values::permits, allow_hyphen_values = true)]
    pub(crate) permits: Option<Permits>,

    /// What to do if the lock is in use with another OF [default: never]
    #[arg(long, value_name = "POLICY", value_enum, requires = "permits")]
    pub(crate) resize: Option<ResizePolicy>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// How long the lock lasts without a renewal; at least 1s [env: LATCHWORK_TTL] [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// First come, first served, also among the waiters of one process
    #[arg(long)]
    pub(crate) fair: bool,

    /// The longest time to hold the lock. The command gets SIGTERM early enough to end by then
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Keep the lock closed for this long after a hold that ended without a release: the holder
    /// died, could not reach the store, exceeded --max-hold, or its command was killed
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<Duration>,

    /// Description of the holder, shown by `ls` and `show` [default: user, host, process and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,
}

// How long to wait.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// How long to wait for the lock, and for a store that does not answer: 5 (seconds), 500ms, 2m,
    /// 1h30m; 0 tries once. Without it a store that does not answer at the start is an error at once
    /// [env: LATCHWORK_WAIT] [default: forever]
    #[arg(short = 'w', long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: --wait 0
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,
}

impl WaitArgs {
    /// The time, if the command line says it.
    pub(crate) fn time(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait }
    }
}

// `run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// If an outer `latchwork` command or shell holds the lock, run under that hold
    #[arg(long)]
    pub(crate) inherit: bool,

    /// The exit code if the lock was not free in time
    #[arg(short = 'E', long, value_name = "CODE", value_parser = values::exit_code, default_value_t = crate::exit::TIMED_OUT, allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: u8,

    #[command(flatten)]
    pub(crate) words: CommandLine,
}

// `hold`
#[derive(Debug, Args)]
#[command(mut_arg("max_hold", |arg| arg.help(help::MAX_HOLD_OF_SHELL)))]
#[command(mut_arg("lock_delay", |arg| arg.help(help::LOCK_DELAY_OF_SHELL)))]
#[command(mut_arg("holder", |arg| arg.help(help::HOLDER_OF_SHELL)))]
pub(crate) struct HoldArgs {
    #[command(flatten)]
    pub(crate) lock: LockArgs,

    /// The process whose end releases the lock [default: the shell that evaluates the output]
    #[arg(long, value_name = "PID", value_parser = values::pid, allow_hyphen_values = true)]
    pub(crate) pid: Option<Pid>,

    /// The signal that this process gets if the lock is lost
    #[arg(long, value_name = "SIGNAL", value_enum, ignore_case = true, default_value_t = OnLoss::Term)]
    pub(crate) on_loss: OnLoss,
}

// What `hold` took for a shell.
#[derive(Debug, Args)]
pub(crate) struct HeldArgs {
    /// The name of a lock that `hold` took alone for this shell
    #[arg(value_name = "NAME", value_parser = values::name)]
    pub(crate) name: String,

    /// The process that holds the lock, such as $$ in a subshell [default: the shell that runs this command]
    #[arg(long, value_name = "PID", value_parser = values::pid, allow_hyphen_values = true)]
    pub(crate) pid: Option<Pid>,
}

// `upgrade`
#[derive(Debug, Args)]
#[command(mut_arg("wait", |arg| arg.help(help::WAIT_OF_UPGRADE)))]
pub(crate) struct UpgradeArgs {
    #[command(flatten)]
    pub(crate) held: HeldArgs,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,
}

// `downgrade`
#[derive(Debug, Args)]
pub(crate) struct DowngradeArgs {
    #[command(flatten)]
    pub(crate) held: HeldArgs,
}

// `attach`
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The id of the hold
    #[arg(value_parser = values::hold_id)]
    pub(crate) id: HoldId,

    /// The shell: $$
    #[arg(value_parser = values::pid)]
    pub(crate) shell: Pid,
}

// `once`
#[derive(Debug, Args)]
#[command(mut_arg("wait", |arg| arg.help(help::WAIT_OF_ONCE)))]
pub(crate) struct OnceArgs {
    /// The task's name: any text, behind a -- if it begins with a dash
    #[arg(value_parser = values::name)]
    pub(crate) name: String,

    /// The period: 30s, 15m, 6h, of the calendar 1d, 1w, 1mo, 1y, or of cron '0 3 * * *'
    #[arg(
        long,
        value_name = "PERIOD",
        required_unless_present = "reset",
        allow_hyphen_values = true
    )]
    pub(crate) every: Option<String>,

    /// Run the task also if it was done in this period
    #[arg(long)]
    pub(crate) force: bool,

    /// Run nothing: open the task again if it is closed. A run that is under way is left alone (exit 75)
    #[arg(long, conflicts_with_all = ["every", "tz", "wait", "no_wait", "must_run", "ttl", "max_hold", "lock_delay", "holder", "force", "command", "shell"])]
    pub(crate) reset: bool,

    /// The time zone in which days and longer periods begin, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,

    #[command(flatten)]
    pub(crate) wait: WaitArgs,

    /// Exit with 75 instead of 0 if the task was already done or is running
    #[arg(long)]
    pub(crate) must_run: bool,

    /// How long the task stays locked after this host dies; at least 1s
    /// [env: LATCHWORK_TTL] [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// The longest time to run. The command gets SIGTERM early enough to end by then
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// Keep the task closed for this long after a run that ended without an answer: this host died,
    /// could not reach the store, exceeded --max-hold, or the command was killed
    #[arg(long, value_name = "TIME", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<Duration>,

    /// Description of the host that runs it, shown by `ls` and `show` [default: user, host, process
    /// and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,

    #[command(flatten)]
    pub(crate) words: CommandLine,
}

// `elect`
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// The election's name: any text, behind a -- if it begins with a dash
    #[arg(value_parser = values::name)]
    pub(crate) name: String,

    /// Description of this candidate, such as its address, shown to observers [default: user, host,
    /// process and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) candidate: Option<String>,

    /// How long the leadership lasts without a renewal; at least 1s
    /// [env: LATCHWORK_TTL] [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// The longest time to lead. The command gets SIGTERM early enough to end by then
    #[arg(long, value_name = "TIME", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,

    /// When the leadership is lost, exit with 73 instead of campaigning again
    #[arg(long)]
    pub(crate) one_term: bool,

    /// Do not campaign: print who leads, and each change
    #[arg(long, conflicts_with_all = ["candidate", "ttl", "max_hold", "one_term", "command", "shell"])]
    pub(crate) observe: bool,

    #[command(flatten)]
    pub(crate) words: CommandLine,
}

// `ls`
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only names that begin with this text
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print the list again at this interval, until a signal ends it
    #[arg(long, value_name = "TIME", value_parser = values::interval, num_args = 0..=1, require_equals = true, default_missing_value = "1s")]
    pub(crate) watch: Option<Duration>,
}

// `top`
#[cfg(feature = "top")]
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Only names that begin with this text
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

// `show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The locks' names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

// `status`
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The lock's name
    pub(crate) name: String,
}

// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The locks' names [default: all that `hold` took for this shell]
    #[arg(value_name = "NAME", required_if_eq("force", "true"))]
    pub(crate) names: Vec<String>,

    /// Take the locks away from any holder, who may be in the middle of its work
    #[arg(long)]
    pub(crate) force: bool,

    /// The process that holds the locks, such as $$ in a subshell [default: the shell that runs this command]
    #[arg(long, value_name = "PID", value_parser = values::pid, allow_hyphen_values = true, conflicts_with = "force")]
    pub(crate) pid: Option<Pid>,
}

// `resize`
#[derive(Debug, Args)]
pub(crate) struct ResizeArgs {
    /// The lock's name
    #[arg(value_parser = values::name)]
    pub(crate) name: String,

    /// How many permits there are from now on; at least 1
    #[arg(value_name = "OF", value_parser = values::limit, allow_hyphen_values = true)]
    pub(crate) of: u32,
}

// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

// `help`
#[derive(Debug, Args)]
pub(crate) struct HelpArgs {
    /// A verb, or a page such as `redis` or `exit-codes` [default: the verbs]
    pub(crate) topic: Option<String>,
}

// `man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The verb whose page is printed [default: that of latchwork]
    #[arg(conflicts_with = "dir")]
    pub(crate) verb: Option<String>,

    /// Write the pages of all verbs into this directory, and make it if it does not exist
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// What is flattened into a command must not replace what is said of it.
    #[test]
    fn every_command_has_a_description() {
        let mut command = Cli::command();
        command.build();
        for command in command.get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(
                about.contains(' ') && !about.contains("`\n"),
                "{}: {about}",
                command.get_name()
            );
            assert!(command.get_long_about().is_none_or(|long| long.to_string().contains(' ')));
        }
    }
}

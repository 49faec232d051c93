//! What the command line may say.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;

use crate::process::deadlines::MIN_TTL;

const AFTER_HELP: &str = "\
Examples:
  latchwork run nightly -- ./backup.sh          wait for the lock, run, release
  latchwork run --wait 0 nightly -- ./backup.sh run now or not at all (exit 75)
  latchwork once --every 1d report -- ./report  once a day, on one of the hosts
  latchwork elect scheduler -- ./scheduler      on the one host that leads
  latchwork show nightly                        who holds it, who waits
  latchwork ls                                  all locks in use
  latchwork doctor                              is the store fit for locks

Exit codes:
  64 usage, 69 store unreachable, 70 broken, 71 store not fit for locks (doctor),
  73 lock lost and command ended, 75 not admitted in time, 77 denied,
  78 in use as another kind of lock;
  run passes the command's own code back: 126 not executable, 127 not found,
  128 + n ended by signal n";

const RUN_HELP: &str = "\
The command finds LATCHWORK_KEY, LATCHWORK_TOKEN and LATCHWORK_STORE in its
environment. Give the token to the resource that the lock protects and let it
refuse a smaller one than it has seen. Of several locks, keys and tokens stand
one a line, in the same order.

All who use a name must use it as the same kind of lock: a plain one, one with
--read and --write, or one with --permits of the same number.

The command runs in a process group of its own. If the lock is lost, the whole
group gets SIGTERM, then SIGKILL, before the lock can pass on (exit 73); if
latchwork itself is killed, the group is killed with it. The lock is released
when the command ends; what it left in the background runs on without the lock.
If a SIGTERM, SIGINT, SIGHUP or SIGQUIT was passed on to the command, the rest of
its group may clean up for 10 s before the lock is released.
Not covered: what leaves the group (setsid, daemons) or becomes another user
(sudo: run latchwork under sudo instead).

Examples:
  latchwork run nightly -- ./backup.sh --full
  latchwork run --wait 5s deploy -- make deploy
  latchwork run --wait 0 --ttl 1m --max-hold 1h report -- sh -c 'date; sleep 5'
  latchwork run --permits 1/3 export -- ./export  three at a time
  latchwork run --read index -- ./search          while nobody runs with --write
  latchwork run stock orders -- ./reconcile       both or none
  latchwork --store file:///srv/locks run import -- ./import";

const ONCE_HELP: &str = "\
For a task that a scheduler starts on several hosts at one time. One of them runs
it; the others exit with 0 and, with -v, say why. If the command exits with 0, its
period is closed: nobody runs the task again before it is over. If it fails, or is
ended, or was asked to end by a signal (also if it exits with 0 then), the task is
open again at once; if its host dies, after the ttl. A task that is closed until a
moment that is not the end of its period exits with 78: it was run with another
period, or on a host whose clock was wrong. With --reset, and neither --every nor a
command, a task that is closed is opened again: after a wrong clock was set right, or
to repeat a run. A task that is running is left alone, and its holder is named (exit
75). If the store does not answer at the end, latchwork tries to close the period until the ttl is
over, and exits with 69 if it could not: the task may be done again. A store that
may have forgotten what was done (quarantine) admits nobody for a while: that exits
with 75, also without --must-run, for it cannot tell whether the task was done. The
command runs as under `run`, with the same environment, signals and exit codes.

In a crontab, the same line on three hosts:
  0 2 * * *  latchwork --store redis://locks once --every 1d --tz Europe/Berlin report -- ./report

Examples:
  latchwork once --every 1d --tz Europe/Berlin report -- ./report
  latchwork once --every 15m mails -- ./send-mails
  latchwork once --every 1mo --wait 1h bills -- ./bills   take over if the other host fails
  latchwork once --reset report                           open it before its period is over";

const ELECT_HELP: &str = "\
Waits until this candidate leads, and runs the command. When the command ends, the
leadership is resigned and latchwork exits with the command's code. When the
leadership is lost, the command is ended as under `run`, and latchwork campaigns
again, also while the store is away; only the first connection must succeed.
After a SIGTERM, SIGINT or SIGQUIT it does not: it ends by that signal.
LATCHWORK_TOKEN is the term: what the leader writes should carry it.

Examples:
  latchwork elect --candidate 10.0.0.7:8080 scheduler -- ./scheduler
  latchwork elect --observe scheduler            who leads, and each change";

/// Runs commands under a lock, and shows and frees locks.
#[derive(Debug, Parser)]
#[command(name = "latchwork", version, after_help = AFTER_HELP, subcommand_required = true)]
pub(crate) struct Cli {
    /// Where the locks are kept: a directory of this machine (file:///DIR), or a server's URL
    /// [default: a directory of this user]
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "LATCHWORK_STORE",
        hide_env_values = true
    )]
    pub(crate) store: Option<String>,

    /// Print JSON, one value; tokens are strings, for they pass 2^53
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say more on standard error: waiting, tokens, the release
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands, a file each.
///
/// What a command takes is put together only if it is that command that runs: to describe all of them was a
/// good part of a free run's time.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Take a lock, run a command, release
    #[command(after_help = RUN_HELP)]
    Run(RunArgs),
    /// Run a command once in each period, on one of the hosts that try
    #[command(after_help = ONCE_HELP)]
    Once(OnceArgs),
    /// Run a command on the one host that leads
    #[command(after_help = ELECT_HELP)]
    Elect(ElectArgs),
    /// List the locks that are held or waited for
    #[command(after_help = "Examples:\n  latchwork ls\n  latchwork --json ls shop/")]
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    #[command(after_help = "Examples:\n  latchwork show nightly\n  latchwork --json show nightly")]
    Show(ShowArgs),
    /// Take a lock away from its holder
    #[command(after_help = "\
The holder learns that it lost the lock (a command under `run` is ended, exit 73).
The lock's token moves on, so a resource that checks tokens refuses the old holder.

Examples:
  latchwork release nightly --force")]
    Release(ReleaseArgs),
    /// Tell whether the store is fit for locks, and what to do if not
    #[command(after_help = "\
Each finding is ok, info, warning or critical. What follows from it stands beside
`then`, what to do about it beside `do`. Nothing is locked. Exits with 71 if
something critical was found, else with 0.

Examples:
  latchwork doctor
  latchwork --store file:///srv/locks doctor
  latchwork --json doctor")]
    Doctor,
    /// Prepare a store for its first locks, if it needs that
    #[command(after_help = "\
For whoever sets a store up and knows that no lock is held there. A directory needs
no preparation.

Examples:
  latchwork --store file:///srv/locks init")]
    Init,
    /// Print shell completions
    #[command(after_help = "\
Examples:
  latchwork completions bash > ~/.local/share/bash-completion/completions/latchwork
  latchwork completions zsh > ~/.zfunc/_latchwork
  latchwork completions fish > ~/.config/fish/completions/latchwork.fish")]
    Completions(CompletionsArgs),
}

/// `run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The lock's name: any text; of several all are taken or none
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Together with others that read (a read-write lock)
    #[arg(long, group = "mode")]
    pub(crate) read: bool,

    /// Alone among readers and writers (a read-write lock)
    #[arg(long, group = "mode")]
    pub(crate) write: bool,

    /// So many permits of so many (a semaphore): 1/5 lets five run at a time
    #[arg(long, group = "mode", value_name = "TAKE/OF", value_parser = permits)]
    pub(crate) permits: Option<Permits>,

    /// How long to wait for the lock: 5s, 2m, 1h30m; 0 tries once [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// How long the lock lasts without a renewal; at least 1s [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,

    /// First come, first served, also among the waiters of one process
    #[arg(long)]
    pub(crate) fair: bool,

    /// End the command in time to free the lock after this long
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) max_hold: Option<Duration>,

    /// What others read about the holder [default: user, host, process and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `once`
#[derive(Debug, Args)]
pub(crate) struct OnceArgs {
    /// The task's name: any text
    pub(crate) name: String,

    /// The period: 30s, 15m, 6h, or of the calendar 1d, 1w, 1mo, 1y
    #[arg(long, value_name = "PERIOD", required_unless_present = "reset")]
    pub(crate) every: Option<String>,

    /// Run nothing: open the task again if it is closed. A run that is under way is left alone (exit 75)
    #[arg(long, conflicts_with_all = ["every", "tz", "wait", "must_run", "ttl", "max_hold", "holder", "command"])]
    pub(crate) reset: bool,

    /// The time zone in which days and more begin, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,

    /// If it is being run elsewhere, wait so long for it to succeed or fail [default: 0]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) wait: Option<Duration>,

    /// Exit with 75 instead of 0 if there was nothing to do; a quarantine always does
    #[arg(long)]
    pub(crate) must_run: bool,

    /// How long the task stays taken when this host dies; at least 1s [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,

    /// End the command in time to give the task up after this long
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) max_hold: Option<Duration>,

    /// What others read about the host that runs it [default: user, host, process and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) holder: Option<String>,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "reset", value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `elect`
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// The election's name: any text
    pub(crate) name: String,

    /// What others read about this candidate, an address for example [default: user, host, process
    /// and command]
    #[arg(long, value_name = "TEXT")]
    pub(crate) candidate: Option<String>,

    /// How long the leadership lasts without a renewal; at least 1s [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) ttl: Option<Duration>,

    /// Give the leadership up after this long
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    pub(crate) max_hold: Option<Duration>,

    /// When the leadership is lost, exit with 73 instead of campaigning again
    #[arg(long)]
    pub(crate) one_term: bool,

    /// Do not campaign: print who leads, and each change
    #[arg(long, conflicts_with_all = ["candidate", "ttl", "max_hold", "one_term", "command"])]
    pub(crate) observe: bool,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "observe", value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `ls`
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Only names that start so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

/// `show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The lock's name
    pub(crate) name: String,
}

/// `release`
#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The lock's name
    pub(crate) name: String,

    /// Yes, take it away: the holder may be in the middle of its work
    #[arg(long, required = true)]
    pub(crate) force: bool,
}

/// `completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// `--permits 2/5`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Permits {
    pub(crate) take: u32,
    pub(crate) of: u32,
}

/// Reads `2/5`.
fn permits(text: &str) -> Result<Permits, String> {
    let parts =
        text.split_once('/').and_then(|(take, of)| Some((take.parse().ok()?, of.parse().ok()?)));
    match parts {
        Some((take, of)) if (1..=of).contains(&take) => Ok(Permits { take, of }),
        Some(_) => Err("take at least 1 and at most all of them".into()),
        None => Err("write how many of how many, such as 2/5".into()),
    }
}

/// Reads `5s`, `500ms`, `1h30m`, and a plain `0`.
fn duration(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write 500ms, 5s or 1h30m"))
}

/// A duration that leaves a command time to end.
fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        short if short < MIN_TTL => Err(format!(
            "a command needs at least {} to be ended in time",
            humantime::format_duration(MIN_TTL)
        )),
        enough => Ok(enough),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn reads_durations_as_people_write_them() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "5", "-1s", "1.5.s", "soon"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(permits("2/5").is_ok_and(|permits| permits == Permits { take: 2, of: 5 }));
        for text in ["", "2", "0/5", "6/5", "2/0", "-1/5", "a/b", "2/5/7"] {
            assert!(permits(text).is_err(), "{text:?}");
        }
        assert!(ttl("999ms").is_err());
        assert_eq!(ttl("1s"), Ok(MIN_TTL));
    }
}

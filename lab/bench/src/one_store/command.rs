//! What the command line may say, and the measurement from its first word to its last.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueHint};
use latchwork::{Error, ErrorKind, LockManager};
use serde_json::json;

use super::say::{self, Say};
use super::{Plan, Workload, measure, plot, table};

/// How long what the locks leave to the background may take at the end.
const CLOSING: Duration = Duration::from_secs(1);

const HELP: &str = "\
Four workloads, a few seconds each: a lock that nobody else wants, by one task and by
64 with a key each; a lock that several processes want all the time; and one that
each of them holds for 43 to 61 ms. A handover is a change of process. All holds are
stamped on one clock; one that begins before the one before it has ended is an
overlap, which must not be (exit 70). One that its process knows to have lost is
counted as lost, not as an overlap. Uses keys of its own namespace only, refuses to run if
somebody has a lock there, and leaves none.

Examples:
  latchwork-bench store --store redis://127.0.0.1:6379
  latchwork-bench store --store etcd://h1,h2,h3 --for 10s --svg bench.svg
  latchwork-bench store --json --processes 4";

/// Measures a store from here: free, contended and handed-off locks
#[derive(Debug, Parser)]
#[command(name = "latchwork-bench store", after_help = HELP)]
struct Args {
    /// Where the locks are kept: a directory of this machine (file:///DIR), or a server's URL
    /// [default: a directory of this user]
    #[arg(long, value_name = "URL", env = "LATCHWORK_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Print JSON, one value
    #[arg(long)]
    json: bool,

    /// Say what is being measured, also without a terminal
    #[arg(short, long)]
    verbose: bool,

    /// How long to measure each workload
    #[arg(long = "for", value_name = "TIME", default_value = "3s", value_parser = length)]
    length: Duration,

    /// How many processes contend
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
    processes: u32,

    /// Where the keys of the bench are; nobody else may use it
    #[arg(long, value_name = "TEXT", default_value = "latchwork-bench", value_parser = namespace)]
    namespace: String,

    /// Draw which part of all took how long
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "latchwork-bench.svg", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
}

/// A time in which something happens, and that ends.
fn length(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text);
    match length.map_err(|error| format!("{error}; write 500ms, 5s or 1m"))? {
        fits if (Duration::from_millis(100)..=Duration::from_secs(600)).contains(&fits) => Ok(fits),
        _ => Err("choose 100ms to 10m".into()),
    }
}

/// A namespace that is one: without it the keys of the bench would be among all others.
fn namespace(text: &str) -> Result<String, String> {
    match text {
        "" => {
            Err("the bench needs a namespace of its own; leave it out for latchwork-bench".into())
        }
        some => Ok(some.to_owned()),
    }
}

/// Does what the words after `store` say.
pub(crate) fn main() -> ExitCode {
    let args = match Args::try_parse_from(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(usage) => {
            let _ = usage.print();
            return if usage.use_stderr() { say::USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let say = Say { json: args.json };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let measured = match &runtime {
        Ok(runtime) => runtime.block_on(run(&args, &say)),
        Err(error) => Err(Error::new(ErrorKind::Corrupt, format!("cannot start: {error}"))),
    };
    measured.unwrap_or_else(|error| say.error(&error)).into()
}

/// Measures, prints the table, and draws.
async fn run(args: &Args, say: &Say) -> Result<u8, Error> {
    let store = args.store.clone().map_or_else(latchwork::default_store, Ok)?;
    let locks = latchwork::connect(&store).await?.namespace(&args.namespace);
    refuse_keys_of_others(&locks, args).await?;
    let plan = Plan {
        store: store.clone(),
        namespace: args.namespace.clone(),
        length: args.length,
        processes: args.processes,
    };
    let is_shared = !store.starts_with("mem:");
    let mut all = Vec::new();
    for workload in Workload::ALL {
        // Processes that share no store contend for nothing.
        if !is_shared && matches!(workload, Workload::Contended | Workload::HandOff) {
            continue;
        }
        if args.verbose || std::io::stderr().is_terminal() {
            let message = format!("measuring: {}", workload.name());
            say.note(&message, json!({"event": "progress", "message": message}));
        }
        all.push((workload, measure(&plan, &locks, workload).await?));
    }
    let at = &locks.capabilities().store;
    let code = match say.json {
        true => say.print(&table::json(at, &plan, &all).to_string()),
        false => say.print(&table::text(at, &plan, &all)),
    };
    if let Some(file) = &args.svg {
        let svg = plot::draw(at, &all)?;
        std::fs::write(file, svg).map_err(|error| {
            let message = format!("svg: cannot write {}: {error}", file.display());
            Error::new(ErrorKind::Invalid, message)
                .with_next_step("name a file that can be written")
        })?;
    }
    let _ = tokio::time::timeout(CLOSING, locks.close()).await;
    let overlaps: u64 = all.iter().map(|(_, measured)| measured.overlaps).sum();
    if overlaps > 0 {
        let message = format!(
            "the lock was broken: {overlaps} holds began before the one before them had ended \
             (namespace {:?}, store {at}); check that nobody else changes these keys, and run \
             `latchwork doctor`",
            args.namespace,
        );
        say.fail("Overlap", &message);
        return Ok(say::BROKEN);
    }
    Ok(code)
}

/// A bench that takes somebody's lock is an outage.
async fn refuse_keys_of_others(locks: &LockManager, args: &Args) -> Result<(), Error> {
    let Some(seen) = locks.list("").await?.into_iter().next() else { return Ok(()) };
    Err(Error::new(
        ErrorKind::Mismatch,
        "the bench only uses keys of its own, and this one is in use",
    )
    .with_key(&seen.key)
    .with_store(locks.capabilities().store.clone())
    .with_next_step(format!(
        "wait until {:?} is free of locks (of another bench?), or choose another --namespace",
        args.namespace
    )))
}

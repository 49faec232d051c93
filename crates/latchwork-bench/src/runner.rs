//! Which measurements a command line names, and where their tables and pictures go.
//!
//! Each runs in a process of its own: one that fails ends no other, and leaves it no threads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use latchwork_services::Folder;

use crate::bars::{self, CONTENDED, HANDOFF};
use crate::{BENCHES, Bench, peers};

/// The first argument of such a process.
pub(crate) const ROLE: &str = "bench";

const HELP: &str = "\
cargo xtask bench [OPTIONS] all | NAME...

Measures, and prints tables. Without a name, or with `list`, says what can be
measured. What is not installed is fetched at its first use, and is named as
missing if it cannot be.

  --short       a few minutes in all, to see whether it works and what is
                larger; the same as LATCHWORK_BENCH_SHORT=1
  --out FILE    where the tables go beside the standard output; without it
                target/bench.md
  --svg FOLDER  where the pictures go, if something was measured that they
                show: bench-contended.svg and bench-handoff.svg; without it
                the folder of the tables
";

#[derive(Default)]
struct Plan {
    names: Vec<String>,
    short: bool,
    out: Option<PathBuf>,
    svg: Option<PathBuf>,
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What people call.
pub(crate) fn run(args: &[String]) -> Result<ExitCode> {
    let mut plan = Plan::default();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().map(PathBuf::from).ok_or(format!("{arg}: which?"));
        match arg.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            "--short" => plan.short = true,
            "--out" => plan.out = Some(value()?),
            "--svg" => plan.svg = Some(value()?),
            option if option.starts_with('-') => {
                return Err(format!("no option {option}\n\n{HELP}").into());
            }
            name => plan.names.push(name.into()),
        }
    }
    if plan.names.is_empty() || plan.names == ["list"] {
        list();
        return Ok(ExitCode::SUCCESS);
    }
    let known = |name: &String| name == "all" || BENCHES.iter().any(|(known, ..)| known == name);
    if let Some(name) = plan.names.iter().find(|name| !known(name)) {
        return Err(format!("no measurement {name:?}: see `cargo xtask bench list`").into());
    }
    plan.measure()
}

fn list() {
    for (name, what, _) in BENCHES {
        println!("{name:>18}  {what}");
    }
    println!("{:>18}  all of them", "all");
}

/// What such a process does.
pub(crate) fn measure(name: &str) -> ExitCode {
    let bench: Option<&(_, _, Bench)> = BENCHES.iter().find(|(known, ..)| *known == name);
    let done = bench.map_or_else(|| Err("no such measurement".into()), |(.., bench)| bench());
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    fn measure(&self) -> Result<ExitCode> {
        let out = self.out.clone().unwrap_or_else(|| peers::target().join("bench.md"));
        let folder = Folder::new()?;
        let bars = folder.path().join("bars");
        let mut tables = String::new();
        let mut failed = Vec::new();
        for (name, what, _) in BENCHES {
            if !self.names.iter().any(|wanted| wanted == name || wanted == "all") {
                continue;
            }
            let mut tell = |line: &str| {
                println!("{line}");
                tables.push_str(line);
                tables.push('\n');
            };
            tell(&format!("## {name}: {what}\n"));
            if !self.measure_one(name, &bars, &mut tell)? {
                failed.push(*name);
                tell("\nThis measurement failed, see what it said on the standard error.");
            }
            tell("");
            // If the next one is broken off, this one is kept.
            fs::write(&out, &tables).map_err(|error| format!("{}: {error}", out.display()))?;
        }
        let svg = self.svg.as_deref().or(out.parent()).unwrap_or(Path::new("."));
        for chart in [CONTENDED, HANDOFF] {
            if let Some(picture) = chart.draw(&bars)? {
                let path = svg.join(format!("bench-{}.svg", chart.name));
                fs::write(&path, picture)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                eprintln!("the picture is in {}", path.display());
            }
        }
        eprintln!("the tables are in {}", out.display());
        if failed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(format!("failed: {}", failed.join(", ")).into())
    }

    fn measure_one(&self, name: &str, bars: &Path, tell: &mut impl FnMut(&str)) -> Result<bool> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ROLE, name]).env(bars::FILE, bars).stdout(Stdio::piped());
        if self.short {
            command.env("LATCHWORK_BENCH_SHORT", "1");
        }
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or("a pipe to it")?;
        for line in BufReader::new(stdout).lines() {
            tell(&line?);
        }
        Ok(child.wait()?.success())
    }
}

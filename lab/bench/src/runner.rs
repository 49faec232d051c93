//! Which measurements a command line names, and where their tables and pictures go.
//!
//! Each runs in a process of its own: one that fails ends no other, and leaves it no threads.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use latchwork_services::Folder;

use crate::bars::{self, Bars};
use crate::record::{self, Bench, Record};
use crate::roles::Outcome;
use crate::{installing, machine, stats};

/// The first argument of such a process.
pub(crate) const ROLE: &str = "bench";

const HELP: &str = "\
cargo xtask bench [OPTIONS] all | growth | NAME...
cargo xtask bench store URL [PROCESSES]   one store, from here

Measures, and prints tables. Without a name, or with `list`, says what can be
measured. What is not installed is fetched at its first use, and is named as
missing if it cannot be. The beginning of several names up to a hyphen names all
of them: growth, growth-redis. `all` leaves the curves (growth) out.
LATCHWORK_GROWTH_SECONDS (160) is how long a curve may take: what would take
longer is left out, and named.

  --short       a few minutes in all, to see whether it works and what is
                larger; the same as LATCHWORK_BENCH_SHORT=1
  --record      writes what was measured beside what the last runs reached
                (bench/results.tsv), its tables in place of theirs
                (bench/tables), and the page and the pictures of both; without
                a name measures nothing: makes page and pictures anew
  --anew        with --record: forgets what earlier runs of these measurements
                reached, because the code or the machine was another
  --out FILE    where the tables go beside the standard output; without it
                target/bench.md
  --svg FOLDER  where the pictures go, if something was measured that they
                show: bench-free.svg, bench-contended.svg,
                bench-handoff.svg and one for each curve, bench-growth-*.svg;
                without it the folder of the tables
";

#[derive(Default)]
struct Plan<'a> {
    benches: &'a [Bench],
    names: Vec<String>,
    short: bool,
    record: bool,
    anew: bool,
    out: Option<PathBuf>,
    svg: Option<PathBuf>,
}

/// What people call.
pub(crate) fn run(args: &[String], benches: &[Bench]) -> Outcome<ExitCode> {
    let mut plan = Plan { benches, short: stats::is_short(), ..Plan::default() };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().map(PathBuf::from).ok_or(format!("{arg}: which?"));
        match arg.as_str() {
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            "--short" => plan.short = true,
            "--record" => plan.record = true,
            "--anew" => plan.anew = true,
            "--out" => plan.out = Some(value()?),
            "--svg" => plan.svg = Some(value()?),
            option if option.starts_with('-') => {
                return Err(format!("no option {option}\n\n{HELP}").into());
            }
            name => plan.names.push(name.into()),
        }
    }
    if plan.names.is_empty() && plan.record {
        let record = Record::open(&record::folder(), benches)?;
        record.write()?;
        record.draw()?;
        return Ok(ExitCode::SUCCESS);
    }
    if plan.names.is_empty() || plan.names == ["list"] {
        list(benches);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = plan.names.iter().find(|name| chosen(benches, name).is_empty()) {
        return Err(format!("no measurement {name:?}: see `cargo xtask bench list`").into());
    }
    plan.measure()
}

fn list(benches: &[Bench]) {
    for Bench { name, what, .. } in benches {
        println!("{name:>26}  {what}");
    }
    println!("{:>26}  all curves", "growth");
    println!("{:>26}  all but the curves", "all");
}

/// The measurements that a word names: one, all whose names begin with it and a hyphen if none is called so, or all but
/// the curves.
fn chosen<'a>(benches: &'a [Bench], word: &str) -> Vec<&'a Bench> {
    let some = |wanted: &dyn Fn(&str) -> bool| -> Vec<&Bench> {
        benches.iter().filter(|bench| wanted(bench.name)).collect()
    };
    if word == "all" {
        return some(&|name| !name.starts_with("growth-"));
    }
    let exact = some(&|name| name == word);
    match exact.is_empty() {
        true => some(&|name| name.strip_prefix(word).is_some_and(|rest| rest.starts_with('-'))),
        false => exact,
    }
}

impl Plan<'_> {
    fn measure(&self) -> Outcome<ExitCode> {
        let out = self.out.clone().unwrap_or_else(|| installing::target().join("bench.md"));
        let mut record = match self.record {
            true => Some(Record::open(&record::folder(), self.benches)?),
            false => None,
        };
        if let Some(record) = &mut record {
            record.machine(&machine::line(), self.short);
        }
        let folder = Folder::new()?;
        let mut bars = Bars::default();
        let mut tables = String::new();
        let mut failed = Vec::new();
        let wanted: Vec<&str> = self
            .names
            .iter()
            .flat_map(|name| chosen(self.benches, name))
            .map(|it| it.name)
            .collect();
        let is_wanted = |bench: &&Bench| wanted.contains(&bench.name);
        let benches: Vec<&Bench> = self.benches.iter().filter(is_wanted).collect();
        let order: Vec<&str> = self.benches.iter().map(|bench| bench.name).collect();
        let start = Instant::now();
        for (n, bench) in benches.iter().enumerate() {
            let name = bench.name;
            eprintln!("[{} of {}] {name}", n + 1, benches.len());
            let begun = Instant::now();
            let mut section = String::new();
            let mut tell = |line: &str| {
                println!("{line}");
                section.push_str(line);
                section.push('\n');
            };
            tell(&bench.heading(self.short));
            let file = folder.path().join(name);
            let done = self.measure_one(name, &file, &mut tell)?;
            let noted = Bars::noted(name, &file)?;
            bars.replace(name, noted.clone(), &order);
            if !done {
                failed.push(name);
                tell("\nThis measurement failed, see what it said on the standard error.");
            } else if let Some(record) = &mut record {
                if self.anew {
                    record.forget(name);
                }
                record.put(name, &section, noted)?;
                record.write()?;
            }
            tables.push_str(&section);
            tables.push('\n');
            // If the next one is broken off, this one is kept.
            fs::write(&out, &tables).map_err(|error| format!("{}: {error}", out.display()))?;
            let (took, all) = (begun.elapsed().as_secs(), start.elapsed().as_secs());
            eprintln!("[{} of {}] {name}: {took} s, {all} s in all", n + 1, benches.len());
        }
        let svg = self.svg.as_deref().or(out.parent()).unwrap_or(Path::new("."));
        let pictures = match &record {
            Some(record) => record.draw()?,
            None => bars.draw(svg)?,
        };
        for path in pictures {
            eprintln!("the picture is in {}", path.display());
        }
        eprintln!("the tables are in {}", out.display());
        if failed.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        Err(format!("failed: {}", failed.join(", ")).into())
    }

    fn measure_one(&self, name: &str, bars: &Path, tell: &mut impl FnMut(&str)) -> Outcome<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_names_chooses_all_of_them() {
        let benches = crate::benches();
        let names = |word: &str| -> Vec<&str> {
            chosen(&benches, word).iter().map(|bench| bench.name).collect()
        };
        assert_eq!(names("serve"), ["serve"]);
        assert_eq!(names("growth-etcd-keys"), ["growth-etcd-keys"]);
        assert_eq!(names("growth-etcd").len(), 5);
        assert!(names("growth").len() > names("growth-etcd").len());
        assert!(!names("all").iter().any(|name| name.starts_with("growth")));
        for wrong in ["", "grow", "growth-", "no-such"] {
            assert!(names(wrong).is_empty(), "{wrong:?}");
        }
    }
}

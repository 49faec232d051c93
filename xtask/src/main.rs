//! The workspace's own commands: `cargo xtask help`.

#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "times its own stages; no lock depends on it")]

mod book;
#[cfg(test)]
mod circles;
mod docs;
#[cfg(test)]
mod front_page;
mod house;
mod mutants;
mod mutations;
mod notices;
mod package;
mod python;
mod readme;
#[cfg(test)]
mod readmes;
mod recipes;
mod release;
mod servers;
mod setup;
mod stages;
#[cfg(test)]
mod steps;
mod trials;
mod words;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  test [--all]       sets up, checks and tests everything; what CI runs. With --all,
                     the long tests too
  check              formatting, the rules of the house, lints, docs; only reads
  fix                formats and applies what the lints can mend; writes
  setup              installs what the tests need and is not there
  servers [NAME@VERSION...]
                     fetches or builds the newest of each server that the tests use,
                     or these, unless they are there; proof/services/servers.tsv
                     has the versions
  bench [NAME...]    measures; without a name lists what can be measured, `all`
                     measures everything but the curves of how cost grows
                     (`growth`); `bench --help` tells of --short, --record,
                     --out and --svg
  stubs              makes the stubs of etcd's API anew from its protocol file
  package            packs each published crate and builds it from its package
  book               makes the guide as a book of HTML, by mdBook
  readme             makes the library's README from that of the repository
  python [--each [PYTHON...]]
                     builds the Python package and tests it in an environment of
                     its own, which it makes; with --each, the core of the tests
                     on these Pythons, or on all that are installed
  wheel              builds the wheels and the sources as they are published, and tries them
  notices            writes the licences of what is linked into the wheels
  release --dry-run  tries a release up to the publishing; docs/releasing.md
                     has the rest
  map                prints what is in each file, by its first sentence
  simulate [...]     runs the engine on a paused clock, a seed for each run;
                     `simulate --help` tells of --seeds, --seed and --planted
  soak --hours N     runs faults, simulation and contracts in rotation, and writes
                     proof/RECORD.md; `soak --help` has the options
  matrix [NAME@VERSION...]
                     the contract and a minute of the nemesis on each version of
                     each server, or on these; writes docs/servers.md
  mutations [ID...]  breaks the code on purpose, one change at a time, and
                     tells whether the tests notice; --list prints them
  mutants [MODULE]   changes the modules that carry safety by cargo-mutants, and tells
                     what no test notices and nobody has explained
";

fn main() -> ExitCode {
    if docs::is_asked() {
        return docs::test_and_check();
    }
    let mut args = std::env::args().skip(1);
    let command = args.next();
    let rest: Vec<String> = args.collect();
    let done = match command.as_deref() {
        Some("test") => stages::test(&rest),
        Some("check") => stages::check(),
        Some("fix") => stages::fix(),
        Some("setup") => setup::run(),
        Some("servers") => servers::run(&rest),
        Some("bench") => stages::bench(&rest),
        Some("stubs") => stages::stubs(),
        Some("package") => package::run(),
        Some("book") => book::write(),
        Some("readme") => readme::write(),
        Some("python") => python::run(&rest),
        // A part of `test`.
        Some("python-prepare") => python::prepare(&rest),
        Some("python-test") => python::test(&rest),
        Some("wheel") => python::wheel(),
        Some("notices") => python::all_notices(),
        Some("release") => release::run(&rest),
        Some("map") => house::map(),
        Some("simulate") => stages::simulate(&rest),
        Some(name @ ("soak" | "matrix")) => stages::search(name, &rest),
        Some("mutants") => mutants::run(&rest),
        Some("mutations") => mutations::run(&rest),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        _ => Err(format!("which command?\n\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

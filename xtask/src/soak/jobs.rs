//! What a soak runs, in rotation: a store under faults, seeds of the simulation, a conformance suite.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::asked::Asked;
use super::{line, program};
use crate::workspace::cargo_command;

/// One thing that is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// A store of the nemesis: its name, and the words of its run.
    Nemesis(String, Vec<String>),
    Simulate,
    /// The package whose suite it is.
    Conformance(String),
}

impl Job {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Nemesis(store, _) => format!("nemesis {store}"),
            Self::Simulate => "simulation".into(),
            Self::Conformance(package) => format!("conformance {package}"),
        }
    }

    /// How it is started.
    pub(crate) fn command(&self, asked: &Asked, seed: u64) -> Command {
        match self {
            Self::Nemesis(_, words) => {
                let mut command = Command::new(program(asked, "latchwork-nemesis"));
                let length = format!("{}s", asked.round.as_secs_f64());
                command.arg("run").args(words).args(["--for", &length]);
                command
            }
            Self::Simulate => {
                let mut command = Command::new(program(asked, "latchwork-simulate"));
                let (seeds, from) = (asked.seeds.to_string(), seed.to_string());
                command.args(["--seeds", &seeds, "--from", &from]);
                command
            }
            Self::Conformance(package) => {
                let mut command = cargo_command();
                command.args(["test", "--quiet", "--package", package, "--all-features"]);
                command.args(["--test", "contract"]);
                command
            }
        }
    }
}

/// All jobs, in their order.
#[derive(Debug)]
pub(crate) struct Rotation {
    jobs: Vec<Job>,
    /// How many stores the nemesis can break, with those that are left out.
    stores: usize,
}

impl Rotation {
    /// What the nemesis says that it can break, the simulation, and each crate that has a suite.
    pub(crate) fn of(root: &Path, asked: &Asked) -> Result<Self, String> {
        let nemesis = program(asked, "latchwork-nemesis").to_string_lossy().into_owned();
        let stores = offered(&line(&nemesis, &["stores"])?)?;
        let count = stores.len();
        let rotation = Self::mixed(stores, suites(root)?);
        let is_asked = |job: &Job| asked.wants(&job.name());
        let jobs: Vec<Job> = rotation.into_iter().filter(is_asked).collect();
        match jobs.is_empty() {
            true => Err("soak: --only, --except: no job is left; see --list".into()),
            false => Ok(Self { jobs, stores: count }),
        }
    }

    /// Between two stores there is one of the others, and each is there once at least.
    fn mixed(stores: Vec<Job>, suites: Vec<Job>) -> Vec<Job> {
        let (mut mixed, mut suites) = (Vec::new(), suites.into_iter());
        for store in stores {
            mixed.extend([store, Job::Simulate]);
            mixed.extend(suites.next());
        }
        mixed.extend(suites);
        mixed
    }

    /// The job that comes after so many.
    pub(crate) fn job(&self, done: u64) -> &Job {
        &self.jobs[(done % self.jobs.len() as u64) as usize]
    }

    pub(crate) fn stores(&self) -> usize {
        self.stores
    }

    pub(crate) fn print(&self) {
        for job in &self.jobs {
            match job {
                Job::Nemesis(_, words) => println!("{}: {}", job.name(), words.join(" ")),
                _ => println!("{}", job.name()),
            }
        }
    }
}

/// The stores in what `latchwork-nemesis stores` prints: on each line a name, a tab, and the words of its
/// run, between which there are blanks.
fn offered(text: &str) -> Result<Vec<Job>, String> {
    let offer = |line: &str| {
        let (name, words) = line.split_once('\t')?;
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        (!name.is_empty() && words.len() > 1).then(|| Job::Nemesis(name.into(), words))
    };
    let jobs: Option<Vec<Job>> = text.lines().map(offer).collect();
    jobs.filter(|jobs| !jobs.is_empty())
        .ok_or(format!("latchwork-nemesis stores: what is {text:?}?"))
}

/// The crates that have a suite.
fn suites(root: &Path) -> Result<Vec<Job>, String> {
    let folder = root.join("crates");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut packages: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            let tests = entry.path().join("tests");
            tests.join("contract.rs").exists() || tests.join("contract/main.rs").exists()
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    packages.sort();
    Ok(packages.into_iter().map(Job::Conformance).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn each_job_has_its_turn() {
        let stores =
            offered("files\t--store file:///x --faults kill\nredis\t--redis single\n").unwrap();
        let suites: Vec<Job> = ["a", "b", "c"].map(|it| Job::Conformance(it.into())).into();
        let rotation = Rotation {
            jobs: Rotation::mixed(stores.clone(), suites.clone()),
            stores: stores.len(),
        };
        let turns: Vec<String> = (0..14).map(|done| rotation.job(done).name()).collect();
        assert_eq!(turns[..7], turns[7..]);
        for job in stores.iter().chain(&suites).chain([&Job::Simulate]) {
            assert!(turns.contains(&job.name()), "{} is missing in {turns:?}", job.name());
        }
    }

    #[test]
    fn stores_that_cannot_be_read_are_an_error() {
        for text in ["", "files", "files\t", "\t--store x", "files\t--store x\n???"] {
            assert!(offered(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn every_store_with_a_suite_is_soaked() {
        let names: Vec<String> = suites(root()).unwrap().iter().map(Job::name).collect();
        for package in ["latchwork-file", "latchwork-redis", "latchwork-etcd", "latchwork-postgres"]
        {
            assert!(names.contains(&format!("conformance {package}")), "{names:?}");
        }
    }
}

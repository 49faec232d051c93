//! Breaks the code on purpose and tells whether the tests notice.
//!
//! `mutations/*.txt` hold the changes. Each is applied to a copy of the workspace, its test is run
//! there, and the mutation is caught if that fails. The
//! copy has a target folder of its own; the working tree is never touched.
//!
//! Before anything is changed, every test runs once on the copy as it is: a test that fails
//! there, or does not run, would seem to catch whatever it is given. Only tests have a time limit;
//! what they are built from is built before.

mod list;
mod place;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use list::{Mutation, Test, read_all};
use place::Sources;

/// How many seconds a test may take. One that takes longer waits for what does not happen any more.
const LIMIT: u32 = 150;

/// How many seconds the tests of a binary may take together.
const LONGEST_BASELINE: u32 = 15 * 60;

/// Every mutation must find its place in the code.
pub(crate) fn check() -> Result<(), String> {
    let root = root()?;
    let (mut lost, mut sources) = (Vec::new(), Sources::below(root));
    for mutation in &read_all(&root.join("mutations"))? {
        lost.extend(sources.apply(mutation).err());
    }
    if lost.is_empty() { Ok(()) } else { Err(lost.join("\n")) }
}

/// Prints each mutation with the test that catches it.
fn print(mutations: &[Mutation]) {
    println!("| mutation | place | caught by |\n| --- | --- | --- |");
    for Mutation { id, krate, function, test, .. } in mutations {
        let function = function.as_ref().map_or(String::new(), |name| format!(" `{name}`"));
        println!("| `{id}` | {krate}{function} | `{}` |", test.name);
    }
}

fn root() -> Result<&'static Path, String> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or_else(|| "no workspace".into())
}

pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let root = root()?;
    let mutations = read_all(&root.join("mutations"))?;
    if wanted == ["--list"] {
        print(&mutations);
        return Ok(());
    }
    let copy = root.join("target").join("mutations");
    let chosen: Vec<_> =
        mutations.iter().filter(|m| wanted.is_empty() || wanted.contains(&m.id)).collect();
    if chosen.is_empty() {
        let ids: Vec<_> = mutations.iter().map(|m| m.id.as_str()).collect();
        return Err(format!("no such mutation; there are:\n  {}", ids.join("\n  ")));
    }
    mirror(root, &copy)?;
    let baselines = baselines(&copy, &chosen)?;
    let mut survivors = Vec::new();
    for (n, mutation) in chosen.iter().enumerate() {
        println!("[{}/{}] {}: {}", n + 1, chosen.len(), mutation.id, mutation.test.command());
        let caught = match baselines[&mutation.test].has_passed(&mutation.test) {
            Ok(()) => {
                mirror(root, &copy)?;
                try_one(&copy, mutation)?
            }
            unmutated => unmutated,
        };
        match caught {
            Ok(()) => println!("    caught by {}", mutation.test.name),
            Err(why) => {
                println!("    SURVIVED: {why}");
                survivors.push(mutation.id.as_str());
            }
        }
    }
    println!("{} of {} caught", chosen.len() - survivors.len(), chosen.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("survived: {}", survivors.join(", "))) }
}

/// What each test of these mutations says when nothing is broken.
///
/// The tests of a binary run together, and those that did not pass so once more alone.
fn baselines<'a>(
    copy: &Path,
    chosen: &[&'a Mutation],
) -> Result<BTreeMap<&'a Test, Outcome>, String> {
    let mut binaries = BTreeMap::<(&str, &str), BTreeSet<&Test>>::new();
    for Mutation { test, .. } in chosen {
        binaries.entry((&test.package, &test.target)).or_default().insert(test);
    }
    let mut baselines = BTreeMap::new();
    for ((package, target), tests) in binaries {
        println!("[baseline] {package} {target}, {} tests", tests.len());
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        let all = tests.first().map(|test| {
            format!("{} && timeout {LONGEST_BASELINE} {}", test.build(), test.beside(&names))
        });
        let (_, said) = shell(copy, &all.unwrap_or_default())?;
        for test in tests {
            let outcome = if test.is_passed(&said) {
                Outcome::Passed(said.clone())
            } else {
                println!("[baseline] alone: {}", test.command());
                run_in(copy, test)?
            };
            baselines.insert(test, outcome);
        }
    }
    Ok(baselines)
}

/// `Ok(Err(why))` if the tests did not notice.
fn try_one(copy: &Path, mutation: &Mutation) -> Result<Result<(), String>, String> {
    let (path, text) = Sources::below(copy).apply(mutation)?;
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(run_in(copy, &mutation.test)?.has_caught(&mutation.test))
}

/// How a command ended.
enum Outcome {
    NotBuilt(String),
    Passed(String),
    Failed(String),
    /// It took longer than the limit.
    Endless(String),
}

impl Outcome {
    /// Whether the test ran and passed, as it must while nothing is broken.
    fn has_passed(&self, test: &Test) -> Result<(), String> {
        match self {
            Outcome::Passed(said) if test.is_passed(said) => Ok(()),
            Outcome::Passed(_) => Err(format!("its command does not run {}", test.name)),
            Outcome::NotBuilt(said) => Err(format!("does not compile unmutated:\n{}", tail(said))),
            Outcome::Failed(said) => Err(format!("fails unmutated:\n{}", tail(said))),
            Outcome::Endless(said) => {
                Err(format!("takes longer than {LIMIT} s unmutated:\n{}", tail(said)))
            }
        }
    }

    /// Whether the test noticed that something is broken.
    fn has_caught(&self, test: &Test) -> Result<(), String> {
        match self {
            // A test that never ends has noticed, too: unmutated it did end.
            Outcome::Endless(_) => Ok(()),
            Outcome::Failed(said) if test.is_failed(said) => Ok(()),
            Outcome::Failed(said) => {
                Err(format!("noticed, but not by {}:\n{}", test.name, tail(said)))
            }
            Outcome::NotBuilt(said) => Err(format!("it does not compile:\n{}", tail(said))),
            Outcome::Passed(_) => Err("every test passed".into()),
        }
    }
}

/// Builds the test, then runs it within the limit.
fn run_in(copy: &Path, test: &Test) -> Result<Outcome, String> {
    let (built, said) = shell(copy, &test.build())?;
    if built != Some(0) {
        return Ok(Outcome::NotBuilt(said));
    }
    let (code, said) = shell(copy, &format!("timeout {LIMIT} {}", test.command()))?;
    Ok(match code {
        Some(0) => Outcome::Passed(said),
        Some(124) => Outcome::Endless(said),
        _ => Outcome::Failed(said),
    })
}

/// Runs a line of shell in the copy: its exit code, and all that it printed.
fn shell(copy: &Path, line: &str) -> Result<(Option<i32>, String), String> {
    let output = Command::new("sh")
        .args(["-c", &format!("{line} 2>&1")])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .env("RUST_BACKTRACE", "0")
        .output()
        .map_err(|e| format!("sh: {e}"))?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// Copies what changed, and removes what is gone; the copy's own target folder stays.
fn mirror(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(to).map_err(|e| format!("{}: {e}", to.display()))? {
        let entry = entry.map_err(|e| e.to_string())?;
        let path = entry.path();
        if entry.file_name() == "target" || from.join(entry.file_name()).exists() {
            continue;
        }
        let removed =
            if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(|e| format!("{}: {e}", path.display()))?;
    }
    for entry in fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))? {
        let entry = entry.map_err(|e| e.to_string())?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let (from, to): (PathBuf, PathBuf) = (entry.path(), to.join(&name));
        if from.is_dir() {
            mirror(&from, &to)?;
            continue;
        }
        let new = fs::read(&from).map_err(|e| format!("{}: {e}", from.display()))?;
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::write(&to, new).map_err(|e| format!("{}: {e}", to.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "failures:\n\nfailures:\n    rules::h01_it_holds\n\ntest result: FAILED.";

    fn test(name: &str) -> Test {
        Test { package: "latchwork".into(), target: "it".into(), name: name.into() }
    }

    #[test]
    fn a_mirrored_folder_equals_its_source() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        for made in ["from/src/kept", "to/src/gone", "to/gone/file", "to/target/built"] {
            let path = folder.path().join(made);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, made).unwrap();
        }
        mirror(&from, &to).unwrap();
        let is_there = |name: &str| to.join(name).exists();
        assert!(is_there("src/kept") && is_there("target/built"));
        assert!(!is_there("src/gone") && !is_there("gone"));
    }

    #[test]
    fn a_build_timeout_catches_no_mutation() {
        assert!(
            Outcome::NotBuilt("error: could not compile".into()).has_caught(&test("h01")).is_err()
        );
    }

    #[test]
    fn only_the_expected_test_catches() {
        assert!(Outcome::Failed(FAILED.into()).has_caught(&test("h01_it_holds")).is_ok());
        assert!(Outcome::Failed(FAILED.into()).has_caught(&test("h02_another")).is_err());
        assert!(Outcome::Passed(String::new()).has_caught(&test("h01_it_holds")).is_err());
    }

    #[test]
    fn a_mutation_needs_a_passing_test() {
        let passed = Outcome::Passed("test rules::h01_it_holds ... ok".into());
        assert!(passed.has_passed(&test("h01_it_holds")).is_ok());
        assert!(passed.has_passed(&test("h02_another")).is_err());
        assert!(Outcome::Failed(FAILED.into()).has_passed(&test("h01_it_holds")).is_err());
        assert!(Outcome::Endless(String::new()).has_passed(&test("h01_it_holds")).is_err());
    }
}

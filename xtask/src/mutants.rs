//! Mutation testing beyond the list: cargo-mutants over the modules that carry safety.
//!
//! What survives is killed by a test, or listed in `mutations/survivors.tsv` with the reason: the file, what was changed,
//! and why nothing observable depends on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The newest version at the time of writing; `--locked` builds with what its authors tested.
const VERSION: &str = "27.1.0";
/// How many seconds the tests of a module may take. Whole, they take much less.
const LIMIT: &str = "45";

/// A module, and the tests that are to notice what is changed in it.
struct Module {
    name: &'static str,
    file: &'static str,
    tests: Tests,
}

struct Tests {
    /// Of `cargo test`.
    arguments: &'static [&'static str],
    /// What they need: with all features, each build would take half a minute.
    features: &'static str,
}

const STORE: Tests =
    Tests { arguments: &["--package=latchwork-store", "--lib", "--test=contract"], features: "" };
/// The engine on its paused clock; what needs a server or another process is left out.
const ENGINE: Tests = Tests {
    arguments: &["--package=latchwork", "--lib", "--test=it", "--", "engine::", "::tests::"],
    features: "latchwork/metrics",
};
const QUORUM: Tests =
    Tests { arguments: &["--package=latchwork-quorum", "--lib", "--test=contract"], features: "" };

const MODULES: &[Module] = &[
    Module { name: "validity", file: "crates/latchwork-store/src/validity.rs", tests: STORE },
    Module { name: "record", file: "crates/latchwork-store/src/kit/record.rs", tests: STORE },
    Module { name: "lineup", file: "crates/latchwork-store/src/kit/lineup.rs", tests: STORE },
    Module { name: "lease", file: "crates/latchwork/src/hold/lease.rs", tests: ENGINE },
    Module { name: "acquire", file: "crates/latchwork/src/wait/acquire.rs", tests: ENGINE },
    Module {
        name: "quorum",
        file: "crates/latchwork-quorum/src/{acquire,hold,round,tally}.rs",
        tests: QUORUM,
    },
];

/// Mutants by file and change, without their lines.
type Mutants = BTreeMap<(String, String), String>;

pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("no workspace")?;
    let chosen: Vec<&Module> = MODULES
        .iter()
        .filter(|it| wanted.is_empty() || wanted.iter().any(|name| name == it.name))
        .collect();
    let known = MODULES.iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
    if let Some(name) = wanted.iter().find(|name| MODULES.iter().all(|it| it.name != **name)) {
        return Err(format!("{name}: no such module; there are {known}"));
    }
    let program = install(root)?;
    let listed = listed(root)?;
    let mut alive = Vec::new();
    for module in chosen {
        let folder = root.join("target/mutants").join(module.name);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        println!("== {}: {}", module.name, module.file);
        let status = Command::new(&program)
            .args(["mutants", "--workspace", "--no-shuffle", "--timeout", LIMIT])
            .args(["--file", module.file])
            .args(["--test-workspace=false", "--cap-lints=true"])
            .args(["--features", module.tests.features, "--output"])
            .arg(&folder)
            .arg("--")
            .args(module.tests.arguments)
            .current_dir(root)
            .stdin(Stdio::null())
            .status();
        let status = status.map_err(|error| format!("cargo-mutants: {error}"))?;
        // 2: some survived; 3: some did not end, and so were noticed.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            return Err(format!("{}: cargo-mutants: {status}", module.name));
        }
        let missed = folder.join("mutants.out/missed.txt");
        let text = fs::read_to_string(&missed).map_err(|e| format!("{}: {e}", missed.display()))?;
        for (mutant, line) in survivors(&text)? {
            match listed.get(&mutant) {
                Some(reason) => println!("listed: {line}: {reason}"),
                None => alive.push(line),
            }
        }
    }
    match alive.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "survived; write a test, or the reason into mutations/survivors.tsv:\n  {}",
            alive.join("\n  ")
        )),
    }
}

/// `path:line:column: what was changed`, as cargo-mutants lists them; with the whole line.
fn survivors(text: &str) -> Result<Mutants, String> {
    let mut found = Mutants::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let parts: Vec<&str> = line.splitn(4, ':').collect();
        let [file, _, _, change] = parts[..] else { return Err(format!("no mutant: {line:?}")) };
        found.insert((file.into(), change.trim().into()), line.into());
    }
    Ok(found)
}

/// Those that may survive, each with its reason.
fn listed(root: &Path) -> Result<Mutants, String> {
    let path = root.join("mutations/survivors.tsv");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    read_list(&text)
        .map_err(|line| format!("{}: not `file, change, reason`: {line:?}", path.display()))
}

fn read_list(text: &str) -> Result<Mutants, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| match line.split('\t').collect::<Vec<_>>()[..] {
            [file, change, reason] if !reason.trim().is_empty() => {
                Ok(((file.into(), change.into()), reason.into()))
            }
            _ => Err(line.to_owned()),
        })
        .collect()
}

/// The program, from the registry at its first use.
fn install(root: &Path) -> Result<PathBuf, String> {
    let folder = root.join("target/tools");
    let program = folder.join("bin/cargo-mutants");
    let said = Command::new(&program).args(["mutants", "--version"]).output();
    if said.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).contains(VERSION)) {
        return Ok(program);
    }
    println!("installing cargo-mutants {VERSION}");
    let status = Command::new("cargo")
        .args(["install", "cargo-mutants", "--locked", "--force", "--version", VERSION, "--root"])
        .arg(&folder)
        .status();
    match status {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("cargo install cargo-mutants: {status}")),
        Err(error) => Err(format!("cargo install cargo-mutants: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survivor_is_known_by_its_file_and_change() {
        let text =
            "a/b.rs:7:9: replace f -> bool with true\na/b.rs:9:12: replace < with <= in a::b\n";
        let found = survivors(text).unwrap();
        assert_eq!(found.len(), 2);
        let key = ("a/b.rs".to_owned(), "replace < with <= in a::b".to_owned());
        assert_eq!(found[&key], "a/b.rs:9:12: replace < with <= in a::b");
        assert!(survivors("nothing").is_err());
    }

    #[test]
    fn the_list_needs_a_reason_for_each() {
        assert_eq!(read_list("# a comment\n\na\tb\tc\n").unwrap().len(), 1);
        assert!(read_list("a\tb\n").is_err());
        assert!(read_list("a\tb\t \n").is_err());
    }

    #[test]
    fn all_modules_and_listed_survivors_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for module in MODULES.iter().filter(|module| !module.file.contains('{')) {
            assert!(root.join(module.file).exists(), "{}", module.file);
        }
        for ((file, change), _) in listed(root).unwrap() {
            assert!(root.join(&file).exists(), "{file}: {change}");
        }
    }
}

//! Finds what is not tried: a backend without a suite, a rule or primitive without a trial.
//!
//! Use [`gaps`] in a test of the workspace. It reads sources, so it knows what is written there,
//! not what a macro makes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::primitives;
use crate::rules::{self, Rule};

/// What is missing in the workspace at `root`, one line each; empty if nothing is.
///
/// `suites` is the folder of this crate, `backend_page` is the source with the table of rules.
///
/// # Errors
///
/// If the sources cannot be read.
pub fn gaps(root: &Path, suites: &Path, backend_page: &Path) -> io::Result<Vec<String>> {
    let mut gaps = Vec::new();
    for folder in ["crates", "proof"] {
        for entry in fs::read_dir(root.join(folder))? {
            gaps.extend(untried_backends(&entry?.path())?);
        }
    }
    gaps.extend(untried_rules(backend_page)?);
    gaps.extend(unlisted(&suites.join("src/rules"), &rules::all())?);
    gaps.extend(unlisted(&suites.join("src/primitives"), &primitives::all())?);
    Ok(gaps)
}

/// Above the `impl` of a wrapper that disturbs a store: what it wraps is tried.
const NOT_ENROLLED: &str = "// Not enrolled: ";

/// Backends of a crate that its `tests/contract.rs`, or the files of `tests/contract`, do not name.
fn untried_backends(krate: &Path) -> io::Result<Vec<String>> {
    let mut gaps = Vec::new();
    let backends = backends(krate)?;
    if backends.is_empty() {
        return Ok(gaps);
    }
    let name = krate.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut contract = fs::read_to_string(krate.join("tests/contract.rs")).unwrap_or_default();
    for (_, text) in rust_files(&krate.join("tests/contract"))? {
        contract += &text;
    }
    let manifest = fs::read_to_string(krate.join("Cargo.toml"))?;
    if !contract.contains("latchwork_conformance::") {
        gaps.push(format!("{name}: tests/contract does not run the suite"));
    }
    if !manifest.contains("name = \"contract\"\nharness = false") {
        gaps.push(format!("{name}: contract is not a test with `harness = false`"));
    }
    for kind in backends.iter().filter(|kind| !contract.contains(kind.as_str())) {
        gaps.push(format!(
            "{name}: {kind} implements Backend, and tests/contract does not name it"
        ));
    }
    Ok(gaps)
}

/// Every type of a crate that implements `Backend` outside of tests, and is to be tried.
fn backends(krate: &Path) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for (path, text) in rust_files(&krate.join("src"))? {
        let name = path.file_stem().unwrap_or_default();
        if name == "tests" || path.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut above = "";
        for line in code.lines() {
            if line.starts_with("impl") && !above.starts_with(NOT_ENROLLED) {
                found.extend(implementor(line).map(str::to_owned));
            }
            above = line;
        }
    }
    Ok(found)
}

/// The type in `impl Backend for Type`.
fn implementor(line: &str) -> Option<&str> {
    let (before, kind) = line.split_once("Backend for ")?;
    let is_trait = before.ends_with(' ') || before.ends_with("::");
    let end = kind.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(kind.len());
    is_trait.then_some(&kind[..end])
}

fn untried_rules(backend_page: &Path) -> io::Result<Vec<String>> {
    let mut gaps = Vec::new();
    let cases = rules::all();
    let page = fs::read_to_string(backend_page)?;
    let numbers: Vec<u32> = page.lines().filter_map(rule_number).collect();
    if numbers.is_empty() {
        gaps.push(format!("no table of rules in {}", backend_page.display()));
    }
    for number in numbers {
        let start = format!("b{number:02}_");
        match cases.iter().filter(|rule| rule.name.starts_with(&start)).count() {
            1 => {}
            n => gaps.push(format!("B{number} has {n} files in src/rules")),
        }
    }
    Ok(gaps)
}

/// Files and functions of a folder that look like trials and are not played.
fn unlisted(folder: &Path, cases: &[Rule]) -> io::Result<Vec<String>> {
    let mut gaps = Vec::new();
    for (path, text) in rust_files(folder)? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if name == "mod" {
            continue;
        }
        let Some(rule) = cases.iter().find(|rule| rule.name == name) else {
            gaps.push(format!("{name}.rs is not among those of {}", folder.display()));
            continue;
        };
        if rule.cases.is_empty() {
            gaps.push(format!("{name} has no trial"));
        }
        gaps.extend(untried_functions(&name, &text));
    }
    Ok(gaps)
}

/// Functions that look like trials and are not named in `cases`, or have no rule above them.
fn untried_functions(name: &str, text: &str) -> Vec<String> {
    let mut gaps = Vec::new();
    let mut above = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("async fn ")
            && let Some((function, _)) = rest.split_once("(stage: Stage)")
        {
            let listed = [",", ")"].map(|end| format!("case!({function}{end}"));
            if !listed.iter().any(|listed| text.contains(listed)) {
                gaps.push(format!("{name}::{function} is not among its cases"));
            }
            if !above.starts_with("///") {
                gaps.push(format!("{name}::{function} does not say which rule it checks"));
            }
        }
        above = line;
    }
    gaps
}

/// The number of a rule, from its line in the table: `//! | B7 wake-ups | ...`.
fn rule_number(line: &str) -> Option<u32> {
    let rest = line.strip_prefix("//! | B")?;
    rest.split(' ').next()?.parse().ok()
}

fn rust_files(folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = fs::read_to_string(&path)?;
                files.push((path, text));
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_implementor_in_any_spelling() {
        assert_eq!(implementor("impl Backend for Mine {"), Some("Mine"));
        assert_eq!(implementor("impl latchwork_store::Backend for Mine<'_> {"), Some("Mine"));
        assert_eq!(implementor("impl<B: Backend> Backend for Quorum<B> {"), Some("Quorum"));
        assert_eq!(implementor("impl fmt::Debug for MyBackend {"), None);
        assert_eq!(implementor("impl SubBackend for Mine {"), None);
    }

    #[test]
    fn an_unlisted_case_is_reported() {
        let text =
            "case!(one), \n/// Rule.\nasync fn one(stage: Stage) {}\nasync fn two(stage: Stage) {}";
        let gaps = untried_functions("b00", text);
        assert_eq!(gaps.len(), 2, "{gaps:?}");
        assert!(gaps.iter().all(|gap| gap.contains("two")));
    }

    #[test]
    fn an_unenrolled_backend_is_reported() {
        let krate = std::env::temp_dir().join(format!("enrolment {}", std::process::id()));
        fs::create_dir_all(krate.join("src")).unwrap();
        fs::create_dir_all(krate.join("tests")).unwrap();
        let code = "impl Backend for New {\n}\n// Not enrolled: delays.\nimpl Backend for Slow {\n";
        fs::write(krate.join("src/lib.rs"), code).unwrap();
        fs::write(krate.join("Cargo.toml"), "").unwrap();
        let nothing = untried_backends(&krate).unwrap();
        let suite = "latchwork_conformance::main(\"new\", New)";
        fs::write(krate.join("tests/contract.rs"), suite).unwrap();
        let enrolled = "[[test]]\nname = \"contract\"\nharness = false\n";
        fs::write(krate.join("Cargo.toml"), enrolled).unwrap();
        let all = untried_backends(&krate).unwrap();
        fs::remove_dir_all(&krate).unwrap();
        assert!(nothing.iter().any(|gap| gap.contains("New implements Backend")), "{nothing:?}");
        assert!(nothing.iter().any(|gap| gap.contains("does not run the suite")), "{nothing:?}");
        assert!(nothing.iter().any(|gap| gap.contains("harness = false")), "{nothing:?}");
        assert_eq!((nothing.len(), all), (3, Vec::<String>::new()));
    }

    #[test]
    fn a_rule_without_a_file_is_reported() {
        let page = std::env::temp_dir().join(format!("rules {}.rs", std::process::id()));
        fs::write(&page, "//! | B1 atomic | x |\n//! | B99 new | y |\n").unwrap();
        let gaps = untried_rules(&page).unwrap();
        fs::remove_file(&page).unwrap();
        assert_eq!(gaps, ["B99 has 0 files in src/rules"]);
    }

    #[test]
    fn an_unlisted_primitive_is_reported() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/primitives");
        let mut played = primitives::all();
        assert_eq!(unlisted(&folder, &played).unwrap(), [""; 0]);
        played.retain(|primitive| primitive.name != "once");
        let gaps = unlisted(&folder, &played).unwrap();
        assert!(gaps.iter().any(|gap| gap.contains("once.rs is not among those")), "{gaps:?}");
    }
}

//! The list of all trials, in `proof/trials.txt`: one that is on it and did not run is missed.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::stages::root;

fn path() -> PathBuf {
    root().join("proof").join("trials.txt")
}

/// The trials that passed, by what their run printed: `package program path::name`.
///
/// What a test prints by itself may stand between its name and its result, so whatever has begun
/// and is not among the failures has passed.
pub(crate) fn passed(run: &str, said: &str) -> BTreeSet<String> {
    let failures = said.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    let failed: BTreeSet<&str> = failures.lines().map(str::trim).collect();
    let begun = said.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    let names = begun.filter(|(_, result)| *result != "ignored").map(|(name, _)| name.trim());
    let names = names.map(|name| name.trim_end_matches(" - should panic"));
    names.filter(|name| !failed.contains(name)).map(|name| format!("{run} {name}")).collect()
}

/// Compares what ran with the list, and says what is new; what is missed is an error.
pub(crate) fn compare(ran: &BTreeSet<String>) -> Result<(), String> {
    let list = fs::read_to_string(path()).map_err(|e| format!("{}: {e}", path().display()))?;
    let listed: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    let missed: Vec<&String> = listed.difference(ran).collect();
    let new = ran.difference(&listed).count();
    if new > 0 {
        println!("{new} trials are not in proof/trials.txt yet: cargo xtask trials");
    }
    if missed.is_empty() {
        return Ok(());
    }
    let some: Vec<&str> = missed.iter().take(20).map(|name| name.as_str()).collect();
    Err(format!(
        "{} trials of proof/trials.txt did not run or pass (where they were renamed or are gone for a \
         reason: cargo xtask trials):\n  {}",
        missed.len(),
        some.join("\n  ")
    ))
}

/// Writes the list anew, from the last run of all tests.
pub(crate) fn write() -> Result<(), String> {
    let logs = root().join("target").join("trials");
    let said = fs::read_to_string(logs.join("names.txt"))
        .map_err(|e| format!("{}: {e}; run cargo xtask test first", logs.display()))?;
    fs::write(path(), said).map_err(|e| format!("{}: {e}", path().display()))
}

/// Keeps what ran, for [`write()`].
pub(crate) fn keep(ran: &BTreeSet<String>) -> Result<(), String> {
    let path = root().join("target").join("trials").join("names.txt");
    let text: String = ran.iter().map(|name| format!("{name}\n")).collect();
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_harnesses_are_read() {
        let said = "test a::b ... ok\ntest redis::b01::c      ... ok\ntest d ... FAILED\n\
                    test e ... it prints\nok\n\nfailures:\n    d\n";
        let names = passed("p it", said);
        let names: Vec<_> = names.into_iter().collect();
        assert_eq!(names, ["p it a::b", "p it e", "p it redis::b01::c"]);
    }
}

//! The judge of histories, `proof/eye`, which knows of Latchwork only what the documents say.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The file with what a run is judged by, in the folder of its history: so anybody can judge it again.
const TERMS: &str = "terms.txt";

/// What a rule said of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The name of the rule.
    pub rule: String,
    /// How many things it examined.
    pub examined: u64,
    /// How many violations are expected under the faults of the run.
    pub excused: u64,
    /// How many are not.
    pub violations: u64,
}

/// What it said of a history.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// What it printed: a table, and the story of each violation.
    pub said: String,
    /// The rows of that table.
    pub verdicts: Vec<Verdict>,
    /// Whether it accepts the history.
    pub passed: bool,
}

/// Where it is.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../eye")
}

/// Runs one of its programs.
///
/// # Errors
///
/// If there is no Python.
pub fn python(words: &[&str]) -> io::Result<Output> {
    let mut command = Command::new("python3");
    command.env("PYTHONDONTWRITEBYTECODE", "1").current_dir(folder()).args(words).output()
}

/// What it says of the history in a folder, with these words.
///
/// # Errors
///
/// If there is no Python, or the history cannot be read.
pub fn judge(logs: &Path, words: &[String]) -> io::Result<Judgement> {
    // It runs in a folder of its own.
    let logs = logs.canonicalize()?.display().to_string();
    let words = words.iter().map(String::as_str);
    let output = python(&["check.py", &logs].into_iter().chain(words).collect::<Vec<_>>())?;
    let said = said(&output);
    let verdicts: Vec<_> = said.lines().filter_map(row).collect();
    match output.status.code() {
        Some(0 | 1 | 3) if !verdicts.is_empty() => {
            Ok(Judgement { said, verdicts, passed: output.status.success() })
        }
        _ => Err(io::Error::other(said)),
    }
}

fn row(line: &str) -> Option<Verdict> {
    let mut words = line.split_ascii_whitespace();
    let rule = words.next()?.to_owned();
    let mut number = || words.next()?.parse().ok();
    let (examined, excused, violations) = (number()?, number()?, number()?);
    Some(Verdict { rule, examined, excused, violations })
}

/// What a program printed.
pub fn said(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(errors))
}

/// Writes what a run is judged by into the folder of its history.
pub(crate) fn write_terms(logs: &Path, words: &[String]) -> io::Result<()> {
    fs::write(logs.join(TERMS), words.join("\n") + "\n")
}

/// What the run was judged by that has left its history in a folder.
///
/// # Errors
///
/// A file that cannot be read.
pub fn terms(logs: &Path) -> io::Result<Vec<String>> {
    let file = logs.join(TERMS);
    let text = fs::read_to_string(&file)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", file.display())))?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_its_table_are_read() {
        let said = "rule  examined  excused  violations\nexclusion  100  2  0  kept\nghost: w0.log:3: 1 2 3\n";
        let rows: Vec<_> = said.lines().filter_map(row).collect();
        let rule = "exclusion".into();
        assert_eq!(rows[0], Verdict { rule, examined: 100, excused: 2, violations: 0 });
    }
}

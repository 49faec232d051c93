//! Corrupted copies of a history: the eye must find each.

use std::fmt;
use std::fs;
use std::io;

use crate::eye;
use crate::run::Outcome;

/// What became of the lies about one history.
#[derive(Debug, Default)]
pub struct Lies {
    /// Those that were found.
    pub found: Vec<String>,
    /// Those that the history has no place for, or none outside of what is excused.
    pub without_a_place: Vec<String>,
    /// Those that were accepted, and the rule that should have found them.
    pub unseen: Vec<String>,
}

impl Lies {
    /// Tells lies about a history that was accepted, at places that the number chooses: so many, drawn
    /// by the number, or all. Copies that were accepted stay in the folder `lies` beside it.
    ///
    /// # Errors
    ///
    /// If there is no Python, or the history cannot be read.
    pub fn tell(outcome: &Outcome, number: u64, count: Option<usize>) -> io::Result<Self> {
        let out = outcome.folder.join("lies");
        // The program runs in a folder of its own.
        let from = fs::canonicalize(&outcome.folder)?;
        let (from, to) = (from.display().to_string(), from.join("lies").display().to_string());
        let number = number.to_string();
        let count = count.map(|count| count.to_string());
        let mut words = vec!["corrupt.py", &from, &to, "--number", &number];
        if let Some(count) = &count {
            words.extend(["--count", count]);
        }
        words.push("--judge");
        words.extend(outcome.terms.iter().map(String::as_str));
        let output = eye::python(&words)?;
        // 1: the eye has not found them all, and its output says which.
        if !matches!(output.status.code(), Some(0 | 1)) || !output.stderr.is_empty() {
            return Err(io::Error::other(eye::said(&output)));
        }
        let mut lies = Self::default();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split(' ');
            let (Some(name), Some(rule), Some(became)) = (words.next(), words.next(), words.next())
            else {
                return Err(io::Error::other(format!("corrupt.py said {line:?}")));
            };
            if became == "no-place" {
                lies.without_a_place.push(name.into());
                continue;
            }
            if became == "found" {
                fs::remove_dir_all(out.join(name))?;
                lies.found.push(name.into());
            } else {
                lies.unseen.push(format!("{name}: by the rule {rule}"));
            }
        }
        if lies.unseen.is_empty() && out.exists() {
            fs::remove_dir_all(&out)?;
        }
        Ok(lies)
    }
}

impl fmt::Display for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} lies were found", self.found.len())?;
        if !self.without_a_place.is_empty() {
            writeln!(f, "no place for {}", self.without_a_place.join(", "))?;
        }
        self.unseen.iter().try_for_each(|lie| writeln!(f, "UNSEEN {lie}"))
    }
}

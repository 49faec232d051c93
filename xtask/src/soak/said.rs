//! What a job printed, as numbers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use super::jobs::Job;

/// Lines of a failed job that the record shows.
const SHOWN: usize = 4;

/// What was looked at in a job, and found.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Said {
    /// Faults that were made, by kind.
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) holds: u64,
    /// What the rules of the nemesis examined, or the trials of a suite that passed.
    pub(crate) checked: u64,
    /// Findings that the documentation allows, by rule.
    pub(crate) exceptions: BTreeMap<String, u64>,
    pub(crate) violations: u64,
    pub(crate) seeds: u64,
    /// Hours of virtual time.
    pub(crate) virtual_hours: f64,
    /// What it says of its failure.
    pub(crate) failures: Vec<String>,
    /// The history, where there is one.
    folder: Option<PathBuf>,
}

impl Said {
    pub(crate) fn read(job: &Job, text: &str) -> Self {
        let mut said = match job {
            Job::Nemesis(..) => Self::of_nemesis(text),
            Job::Simulate => Self::of_simulation(text),
            Job::Conformance(_) => Self::of_suite(text),
        };
        let tells = |line: &&str| {
            [
                "FAILED",
                "VIOLATED",
                "required",
                "breaks a rule",
                "broken:",
                "panicked",
                "error",
                "latchwork-nemesis:",
            ]
            .iter()
            .any(|word| line.contains(word))
        };
        let lines = text.lines().filter(tells).map(|line| line.trim().to_owned());
        said.failures = lines.take(SHOWN).collect();
        said
    }

    fn of_nemesis(text: &str) -> Self {
        let mut said = Self::default();
        let number = |text: &str| text.parse::<u64>().ok();
        for line in text.lines() {
            if let Some((_, folder)) = line.split_once("logs in ") {
                said.folder = Some(PathBuf::from(folder));
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, "events,", holds, "holds,", _, "faults"] => {
                    said.holds = number(holds).unwrap_or_default();
                }
                // The row of a rule; lines of violations are indented.
                [rule, checked, exceptions, violations, _, ..] if !line.starts_with(' ') => {
                    let row = (number(checked), number(exceptions), number(violations));
                    let (Some(checked), Some(exceptions), Some(violations)) = row else { continue };
                    said.checked += checked;
                    said.violations += violations;
                    if exceptions > 0 {
                        *said.exceptions.entry(rule.into()).or_default() += exceptions;
                    }
                }
                _ => {}
            }
        }
        if let Some(folder) = &said.folder {
            said.faults = faults(&fs::read_to_string(folder.join("run.log")).unwrap_or_default());
        }
        said
    }

    fn of_simulation(text: &str) -> Self {
        let pattern = r"(?m)^(\d+) seeds from \d+ break no rule: (\d+) hours of virtual time";
        let pattern = Regex::new(pattern).expect("a pattern");
        let mut said = Self::default();
        if let Some(found) = pattern.captures(text) {
            said.seeds = found[1].parse().unwrap_or_default();
            said.virtual_hours = found[2].parse().unwrap_or_default();
            said.checked = said.seeds;
        } else {
            said.violations = u64::from(text.contains("breaks a rule"));
        }
        said
    }

    fn of_suite(text: &str) -> Self {
        let pattern =
            Regex::new(r"test result: \w+\. (\d+) passed; (\d+) failed").expect("a pattern");
        let mut said = Self::default();
        for found in pattern.captures_iter(text) {
            said.checked += found[1].parse::<u64>().unwrap_or_default();
            said.violations += found[2].parse::<u64>().unwrap_or_default();
        }
        said
    }

    /// Whether it says that it has done its work: an exit code alone is not enough.
    pub(crate) fn is_whole(&self) -> bool {
        self.checked > 0 && self.violations == 0
    }

    /// Removes the history.
    pub(crate) fn forget(&self) {
        let is_ours = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("latchwork-nemesis-")
        };
        if let Some(folder) = self.folder.as_deref().filter(|folder| is_ours(folder)) {
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Where its history is.
    pub(crate) fn history(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The result in one line.
    pub(crate) fn line(&self, passed: bool) -> String {
        let mut parts = vec![format!("{} checked", self.checked)];
        if self.holds > 0 {
            parts.push(format!("{} holds", self.holds));
        }
        let faults: u64 = self.faults.values().sum();
        if faults > 0 {
            parts.push(format!("{faults} faults"));
        }
        let exceptions: u64 = self.exceptions.values().sum();
        if exceptions > 0 {
            parts.push(format!("{exceptions} exceptions"));
        }
        parts.push(match (passed, self.failures.first()) {
            (true, _) => "passed".into(),
            (false, None) => "FAILED".into(),
            (false, Some(why)) => format!("FAILED: {why}"),
        });
        parts.join(", ")
    }
}

/// The faults that a run's own log tells of, by kind. The format: `docs/history.md`.
fn faults(log: &str) -> BTreeMap<String, u64> {
    let mut faults = BTreeMap::new();
    for line in log.lines() {
        let mut words = line.split(' ').skip(3);
        let name = match words.next() {
            Some("killed") => "kill",
            Some("stopped") => "stop",
            Some("evicted") => "evict",
            Some("struck") => match words.find_map(|word| word.strip_prefix("fault=")) {
                Some(fault) => fault,
                None => continue,
            },
            _ => continue,
        };
        *faults.entry(name.to_owned()).or_default() += 1;
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nemesis() -> Job {
        Job::Nemesis("files".into(), Vec::new())
    }

    #[test]
    fn a_run_of_the_nemesis_is_read_with_its_faults() {
        let folder = tempfile::tempdir().unwrap();
        let log = "5 run - killed whom=w1.0\n6 run - struck fault=restart\n7 run - healed fault=restart\n\
                   8 run - stopped whom=w0.0\n9 run - struck fault=restart\n";
        fs::write(folder.path().join("run.log"), log).unwrap();
        let text = format!(
            "seed 7, logs in {}\n    0.0 s  calm\n900 events, 120 holds, 4 faults\n\
             rule              examined  excused  violations\n\
             exclusion              100        2           0  kept\n\
             ghost                    3        0           1  VIOLATED\n  key 7 has 8 9 holders\n",
            folder.path().display()
        );
        let said = Said::read(&nemesis(), &text);
        assert_eq!((said.holds, said.checked, said.violations), (120, 103, 1));
        assert_eq!(said.exceptions, BTreeMap::from([("exclusion".into(), 2)]));
        let faults = [("kill".into(), 1), ("restart".into(), 2), ("stop".into(), 1)];
        assert_eq!(said.faults, BTreeMap::from(faults));
        assert!(said.failures[0].contains("ghost") && !said.is_whole());
        // A folder that the nemesis has not made by itself stays.
        said.forget();
        assert!(folder.path().join("run.log").exists());
    }

    #[test]
    fn seeds_and_suites_are_counted() {
        let text = "1000 seeds from 5000 break no rule: 3 hours of virtual time in 12s\n";
        let said = Said::read(&Job::Simulate, text);
        assert_eq!((said.seeds, said.virtual_hours, said.is_whole()), (1_000, 3.0, true));
        let said = Said::read(&Job::Simulate, "seed 17 breaks a rule after 18 seeds\n");
        assert_eq!((said.seeds, said.violations, said.is_whole()), (0, 1, false));
        let suite = Job::Conformance("latchwork-file".into());
        let text = "test result: ok. 100 passed; 0 failed; 0 ignored\ntest result: ok. 5 passed; 0 failed;";
        assert_eq!(Said::read(&suite, text).checked, 105);
        assert!(
            !Said::read(&suite, "test result: FAILED. 9 passed; 1 failed; 0 ignored").is_whole()
        );
    }

    #[test]
    fn a_job_that_says_nothing_has_not_passed() {
        for job in [nemesis(), Job::Simulate, Job::Conformance("x".into())] {
            assert!(!Said::read(&job, "").is_whole(), "{job:?}");
        }
        assert!(
            !Said::read(&Job::Conformance("x".into()), "test result: ok. 0 passed; 0 failed;")
                .is_whole()
        );
    }
}

//! All that a soak has done so far, kept in a file: an interruption costs the job under way only.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::asked::Asked;
use super::jobs::Job;
use super::said::Said;

/// The form of the file.
const FORM: u32 = 1;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    form: u32,
    /// When it was begun, and with which code.
    pub(crate) began: String,
    pub(crate) commit: String,
    /// Jobs that have ended; those that were interrupted are not among them.
    pub(crate) jobs: u64,
    pub(crate) next_seed: u64,
    /// By the name of the job.
    pub(crate) tallies: BTreeMap<String, Tally>,
    pub(crate) found: Vec<Found>,
}

/// The sum of all runs of a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) failed: u64,
    pub(crate) seconds: f64,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) holds: u64,
    pub(crate) checked: u64,
    pub(crate) exceptions: BTreeMap<String, u64>,
    pub(crate) seeds: u64,
    pub(crate) virtual_hours: f64,
}

/// A job that has not passed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) job: String,
    pub(crate) said: Vec<String>,
    pub(crate) log: String,
    pub(crate) history: Option<String>,
}

impl State {
    pub(crate) fn new(commit: &str, began: &str) -> Self {
        Self {
            form: FORM,
            began: began.into(),
            commit: commit.into(),
            jobs: 0,
            next_seed: 0,
            tallies: BTreeMap::new(),
            found: Vec::new(),
        }
    }

    /// Goes on with what the file has, if it is of the same code; begins again otherwise.
    pub(crate) fn open(file: &Path, commit: &str, now: &str) -> Result<Self, String> {
        let text = match fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::new(commit, now));
            }
            Err(error) => return Err(format!("{}: {error}", file.display())),
        };
        let state: Self = serde_json::from_str(&text)
            .map_err(|error| format!("{}: {error}; remove it to begin again", file.display()))?;
        if state.form != FORM {
            return Err(format!(
                "{}: of another version; remove it to begin again",
                file.display()
            ));
        }
        Ok(if state.commit == commit { state } else { Self::new(commit, now) })
    }

    /// Writes it in one step: a crash leaves the old one or the new one.
    pub(crate) fn save(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|e| e.to_string())?;
        let new = file.with_extension("new");
        let done = fs::write(&new, text).and_then(|()| fs::rename(&new, file));
        done.map_err(|e| format!("{}: {e}", file.display()))
    }

    /// Adds a job that has ended.
    pub(crate) fn add(
        &mut self,
        job: &Job,
        asked: &Asked,
        said: &Said,
        passed: bool,
        took: Duration,
    ) {
        self.jobs += 1;
        if *job == Job::Simulate {
            // A seed that broke a rule counts as well: the record has its story, and the next seeds are tried.
            self.next_seed += asked.seeds;
        }
        let tally = self.tallies.entry(job.name()).or_default();
        tally.runs += 1;
        tally.failed += u64::from(!passed);
        tally.seconds += took.as_secs_f64();
        tally.holds += said.holds;
        tally.checked += said.checked;
        tally.seeds += said.seeds;
        tally.virtual_hours += said.virtual_hours;
        for (sums, more) in
            [(&mut tally.faults, &said.faults), (&mut tally.exceptions, &said.exceptions)]
        {
            for (name, count) in more {
                *sums.entry(name.clone()).or_default() += count;
            }
        }
    }

    /// Notes a job that has not passed.
    pub(crate) fn find(&mut self, job: &Job, said: &Said, log: &Path) {
        self.found.push(Found {
            job: job.name(),
            said: said.failures.clone(),
            log: log.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            history: said.history().map(|path| path.display().to_string()),
        });
    }

    pub(crate) fn hours(&self) -> f64 {
        self.tallies.values().map(|tally| tally.seconds).sum::<f64>() / 3600.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked::read(&["--hours".into(), "1".into()]).unwrap().unwrap()
    }

    fn worked(state: &mut State) {
        let text = "1000 seeds from 0 break no rule: 3 hours of virtual time in 12s\n";
        let said = Said::read(&Job::Simulate, text);
        state.add(&Job::Simulate, &asked(), &said, true, Duration::from_secs(12));
    }

    #[test]
    fn an_interrupted_soak_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let mut state = State::open(&file, "abc", "today").unwrap();
        worked(&mut state);
        state.save(&file).unwrap();
        let mut again = State::open(&file, "abc", "tomorrow").unwrap();
        assert_eq!(again, state);
        worked(&mut again);
        let tally = &again.tallies["simulation"];
        assert_eq!((again.jobs, again.next_seed, tally.runs, tally.seeds), (2, 2_000, 2, 2_000));
        assert_eq!(again.began, "today");
    }

    #[test]
    fn other_code_begins_a_soak_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let mut state = State::new("abc", "today");
        worked(&mut state);
        state.save(&file).unwrap();
        assert_eq!(State::open(&file, "def", "now").unwrap(), State::new("def", "now"));
        fs::write(&file, "{").unwrap();
        assert!(State::open(&file, "abc", "now").unwrap_err().contains("remove it"));
    }

    #[test]
    fn a_failed_job_is_found_in_the_state() {
        let mut state = State::new("abc", "today");
        let job = Job::Conformance("latchwork-x".into());
        let said =
            Said::read(&job, "test b01 ... FAILED\ntest result: FAILED. 3 passed; 1 failed;");
        state.add(&job, &asked(), &said, false, Duration::from_secs(1));
        state.find(&job, &said, Path::new("/t/7.txt"));
        assert_eq!(state.tallies["conformance latchwork-x"].failed, 1);
        assert_eq!((&*state.found[0].log, state.found[0].said.len()), ("7.txt", 2));
    }
}

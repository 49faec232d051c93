//! The command line of the soak.

use std::time::Duration;

pub(crate) const HELP: &str = "\
cargo xtask soak --hours N [options]

Runs the nemesis on each of its stores, seeds of the simulation, and the
conformance suite of each store in rotation, for so long. It goes on where it was
when it ended, was interrupted or was killed (target/soak/state.json), as long as
the code is the same. After each job it writes proof/RECORD.md. Ctrl-C ends the
job under way, which is not counted, and leaves the record complete. The exit
code is 1 if a job has found something.

  --hours N       how long, for example 0.5
  --round N       seconds of one run of the nemesis (default 120)
  --seeds N       seeds of one run of the simulation (default 1000)
  --at-once N     runs of the nemesis at a time (default 1): the more, the more the
                  machine's load is among the faults
  --only A,B      only jobs whose names contain one of these words
  --except A,B    no jobs whose names contain one of these
  --debug         runs unoptimised builds, which are there sooner
  --list          prints the jobs and runs none
";

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Asked {
    pub(crate) hours: f64,
    pub(crate) round: Duration,
    pub(crate) seeds: u64,
    pub(crate) at_once: usize,
    pub(crate) only: Vec<String>,
    pub(crate) except: Vec<String>,
    pub(crate) list: bool,
    pub(crate) debug: bool,
}

impl Asked {
    /// What holds without a word.
    pub(crate) fn nothing() -> Self {
        Self {
            hours: 0.0,
            round: Duration::from_secs(120),
            seeds: 1_000,
            at_once: 1,
            only: Vec::new(),
            except: Vec::new(),
            list: false,
            debug: false,
        }
    }

    /// Reads the words; `None` for `--help`.
    pub(crate) fn read(args: &[String]) -> Result<Option<Self>, String> {
        let mut asked = Self::nothing();
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let mut value = || args.next().ok_or(format!("soak: {name} needs a value"));
            let wrong =
                |text: &str| format!("soak: {name}: {text:?} is no number between 0 and a million");
            match name.as_str() {
                "--help" | "-h" => return Ok(None),
                "--list" => asked.list = true,
                "--debug" => asked.debug = true,
                "--only" => asked.only = words(value()?),
                "--except" => asked.except = words(value()?),
                "--hours" => {
                    let text = value()?;
                    asked.hours = positive(text).ok_or_else(|| wrong(text))?;
                }
                "--round" => {
                    let text = value()?;
                    let seconds = positive(text).ok_or_else(|| wrong(text))?;
                    asked.round = Duration::from_secs_f64(seconds);
                }
                "--at-once" => {
                    let text = value()?;
                    let count = text.parse().ok().filter(|count| (1..=64).contains(count));
                    asked.at_once =
                        count.ok_or(format!("soak: {name}: {text:?} is not from 1 to 64"))?;
                }
                "--seeds" => {
                    let text = value()?;
                    let seeds = text.parse().ok().filter(|seeds| *seeds > 0);
                    asked.seeds = seeds
                        .ok_or(format!("soak: {name}: {text:?} is no whole number above 0"))?;
                }
                _ => return Err(format!("soak: no option {name}\n\n{HELP}")),
            }
        }
        if asked.hours == 0.0 && !asked.list {
            return Err(format!("soak: --hours is missing\n\n{HELP}"));
        }
        Ok(Some(asked))
    }

    /// Whether a job of this name is to be run.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let has = |word: &String| name.contains(word.as_str());
        (self.only.is_empty() || self.only.iter().any(has)) && !self.except.iter().any(has)
    }
}

/// The words of a list with commas between them.
fn words(text: &str) -> Vec<String> {
    text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn positive(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| *number > 0.0 && *number < 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Option<Asked>, String> {
        Asked::read(&words.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_wrong_option_of_the_soak_is_named() {
        for (words, part) in [
            (&["--hours", "x"][..], "--hours: \"x\""),
            (&["--hours", "-1"], "--hours: \"-1\""),
            (&["--hours", "1000000"], "between 0 and a million"),
            (&["--seeds", "0.5"], "--seeds: \"0.5\" is no whole number"),
            (&["--hours"], "--hours needs a value"),
            (&["--hours", "1", "--at-once", "0"], "--at-once: \"0\""),
            (&["--round", "5"], "--hours is missing"),
            (&["--hours", "1", "--for", "2"], "no option --for"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(part), "{words:?}: {error}");
        }
        assert_eq!(read(&["--help"]), Ok(None));
        let asked =
            read(&["--hours", "0.5", "--round", "30", "--only", "redis,etcd"]).unwrap().unwrap();
        assert_eq!((asked.hours, asked.round.as_secs()), (0.5, 30));
        assert_eq!(asked.only, ["redis", "etcd"]);
        let asked = read(&["--hours", "1", "--seeds", "1000000"]).unwrap().unwrap();
        assert_eq!(asked.seeds, 1_000_000);
    }

    #[test]
    fn jobs_are_chosen_by_words_of_their_names() {
        let asked = read(&["--hours", "1", "--only", "redis,etcd", "--except", "-py,go-"]);
        let asked = asked.unwrap().unwrap();
        let all = [
            "nemesis redis",
            "nemesis redis-py-single",
            "nemesis etcd",
            "nemesis go-etcd",
            "simulation",
        ];
        let chosen: Vec<_> = all.iter().filter(|name| asked.wants(name)).collect();
        assert_eq!(chosen, [&"nemesis redis", &"nemesis etcd"]);
        assert!(read(&["--hours", "1"]).unwrap().unwrap().wants("simulation"));
    }
}

//! All logs of a run, merged by their stamps, and what a test asks of them.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use latchwork_store::Moment;

use crate::event::{Event, What};

/// A run, as those who took part have told it.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Everything that happened, by time.
    pub events: Vec<Event>,
    /// All attempts, by when they began.
    pub attempts: Vec<Attempt>,
    /// The names of all faults, by when they began: `kill`, `stop`, or how a
    /// [`Nemesis`](crate::faults::Nemesis) calls itself.
    pub faults: Vec<Arc<str>>,
}

/// One acquire, and the hold that it led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Who.
    pub process: Arc<str>,
    /// What was to be locked.
    pub key: Arc<str>,
    /// The attempt whose hold it replaces: an upgrade or a downgrade.
    pub beside: Option<u64>,
    /// Before the acquire.
    pub tried: Moment,
    /// When its holder was told of the grant.
    pub granted: Option<Moment>,
    /// Why it was lost, if it was.
    pub lost: Option<Arc<str>>,
}

impl History {
    /// Reads all `*.log` of a folder. A last line without its end is what a killed process left.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or a whole line that is none of ours.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let mut paths: Vec<_> =
            fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
        paths.retain(|path| path.extension().is_some_and(|e| e == "log"));
        paths.sort();
        let mut events = Vec::new();
        for path in paths {
            let text = fs::read(&path)?;
            let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let bad = |e: String| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display()))
            };
            let text = std::str::from_utf8(&text[..whole]).map_err(|e| bad(e.to_string()))?;
            for line in text.lines() {
                events.push(Event::parse(line).map_err(bad)?);
            }
        }
        // Stable: what one process wrote in one nanosecond stays in its order.
        events.sort_by_key(|event| event.at);
        Ok(Self::of(events))
    }

    fn of(events: Vec<Event>) -> Self {
        let mut history = Self::default();
        let mut known: HashMap<(&str, u64), usize> = HashMap::new();
        for event in &events {
            let place = |attempt: u64| known.get(&(&*event.process, attempt)).copied();
            match &event.what {
                What::Killed { .. } => history.faults.push("kill".into()),
                What::Stopped { .. } => history.faults.push("stop".into()),
                What::Struck { fault } => history.faults.push(fault.clone()),
                What::Try { attempt, key, beside, .. } => {
                    known.insert((&event.process, *attempt), history.attempts.len());
                    let (process, key, beside) = (event.process.clone(), key.clone(), *beside);
                    let (tried, granted, lost) = (event.at, None, None);
                    history.attempts.push(Attempt { process, key, beside, tried, granted, lost });
                }
                What::Granted { attempt, .. } => {
                    if let Some(place) = place(*attempt) {
                        history.attempts[place].granted = Some(event.at);
                    }
                }
                What::Lost { attempt, reason, .. } => {
                    if let Some(place) = place(*attempt) {
                        history.attempts[place].lost = Some(reason.clone());
                    }
                }
                _ => {}
            }
        }
        drop(known);
        Self { events, ..history }
    }

    /// How many holds ended with this reason.
    pub fn lost(&self, why: &str) -> usize {
        self.attempts.iter().filter(|attempt| attempt.lost.as_deref() == Some(why)).count()
    }

    /// The holders of each key, by when they were told.
    pub fn holders(&self) -> BTreeMap<&str, Vec<&str>> {
        let granted = self.attempts.iter().filter_map(|attempt| Some((attempt.granted?, attempt)));
        let mut granted: Vec<_> = granted.collect();
        granted.sort_by_key(|(at, _)| *at);
        let mut holders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (_, attempt) in granted {
            holders.entry(&attempt.key).or_default().push(&attempt.process);
        }
        holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_merged_and_a_torn_last_line_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write(
            "w0.0.log",
            "5 w0.0 0 try attempt=0 key=k mode=exclusive fair=true waits=true several=false\n7 w0.0 0 gran",
        );
        write(
            "w1.0.log",
            "6 w1.0 0 try attempt=0 key=k mode=write fair=true waits=true several=false beside=7\n\
             7 w1.0 0 granted attempt=0 token=1024 ttl=9 valid_until=15\n\
             9 w1.0 0 lost attempt=0 since=8 reason=expired\n",
        );
        write("run.log", "8 run - killed whom=w0.0\n");
        write("note.txt", "nothing of ours");
        let history = History::read(folder.path()).unwrap();
        assert_eq!(history.events.len(), 5);
        assert_eq!(history.attempts[0].granted, None);
        assert_eq!(history.attempts[1].beside, Some(7));
        assert_eq!((history.lost("expired"), history.lost("taken")), (1, 0));
        assert_eq!(history.holders(), BTreeMap::from([("k", vec!["w1.0"])]));
        assert!(history.faults.iter().map(|fault| &**fault).eq(["kill"]));
        write("w2.0.log", "what is this\n");
        assert!(History::read(folder.path()).is_err());
    }
}

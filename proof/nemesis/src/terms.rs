//! What a run is judged by, written beside its history, so that anybody can judge it again.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::checks::{ALL, Allowed, Bounds, Check};
use crate::flags::{Flags, duration};
use crate::foreign;

/// The file with them, in the folder of the logs.
const FILE: &str = "terms.txt";

type Length = fn(&mut Bounds) -> &mut Duration;
type Truth = fn(&mut Bounds) -> &mut bool;

const LENGTHS: &[(&str, Length)] = &[
    ("ttl", |bounds| &mut bounds.ttl),
    ("slice", |bounds| &mut bounds.slice),
    ("told", |bounds| &mut bounds.told),
    ("wake", |bounds| &mut bounds.wake),
    ("takeover", |bounds| &mut bounds.takeover),
    ("patience", |bounds| &mut bounds.patience),
    ("settle", |bounds| &mut bounds.settle),
    ("relay", |bounds| &mut bounds.relay),
    ("ends", |bounds| &mut bounds.ends),
    ("travel", |bounds| &mut bounds.travel),
    ("slack", |bounds| &mut bounds.slack),
];
const TRUTHS: &[(&str, Truth)] =
    &[("queues", |bounds| &mut bounds.queues), ("votes", |bounds| &mut bounds.votes)];

/// Bounds, and the checks that use them.
#[derive(Debug, Clone)]
pub struct Terms {
    /// What the store and the run are judged by.
    pub bounds: Bounds,
    /// The checks.
    pub checks: Vec<Check>,
}

impl Terms {
    /// All checks, with these bounds.
    pub fn all(bounds: Bounds) -> Self {
        Self { bounds, checks: ALL.to_vec() }
    }

    /// Writes them into the folder of a history.
    ///
    /// # Errors
    ///
    /// What the file system says.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        fs::write(folder.join(FILE), self.text())
    }

    /// Reads those of the history in a folder.
    ///
    /// # Errors
    ///
    /// A file that is missing, or none of ours.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let file = folder.join(FILE);
        let bad = |e: String| io::Error::other(format!("{}: {e}", file.display()));
        let text = fs::read_to_string(&file).map_err(|e| bad(e.to_string()))?;
        Self::parse(&text).map_err(bad)
    }

    fn text(&self) -> String {
        let mut bounds = self.bounds.clone();
        let mut lines = vec![("processes", bounds.processes.to_string())];
        lines.extend(LENGTHS.iter().map(|(name, of)| (*name, millis(*of(&mut bounds)))));
        lines.extend(TRUTHS.iter().map(|(name, of)| (*name, of(&mut bounds).to_string())));
        if let Some(grain) = bounds.grain {
            lines.push(("grain", millis(grain)));
        }
        lines.push(("cut", bounds.cut.into()));
        if let Some(foreign) = &bounds.foreign {
            lines.push(("foreign", foreign.name.into()));
        }
        let allowed = bounds.allowed.iter();
        let allowed = allowed.map(|it| format!("{}:{}:{}", it.check, it.fault, millis(it.after)));
        lines.push(("allowed", allowed.collect::<Vec<_>>().join(",")));
        let checks: Vec<_> = self.checks.iter().map(|check| check.name).collect();
        lines.push(("checks", checks.join(",")));
        lines.iter().map(|(name, value)| format!("--{name} {value}\n")).collect()
    }

    fn parse(text: &str) -> Result<Self, String> {
        let words = text.lines().flat_map(|line| {
            let (name, value) = line.split_once(' ').unwrap_or((line, ""));
            [name.to_owned(), value.to_owned()]
        });
        let mut flags = Flags::read(words)?;
        let ttl = flags.duration("ttl", Duration::ZERO)?;
        let mut bounds = Bounds::new(ttl, flags.parsed("processes", 0)?);
        for (name, of) in LENGTHS.iter().filter(|(name, _)| *name != "ttl") {
            let known = of(&mut bounds);
            *known = flags.duration(name, *known)?;
        }
        for (name, of) in TRUTHS {
            let known = of(&mut bounds);
            *known = flags.parsed(name, *known)?;
        }
        let length = |text: &str| duration(text).ok_or_else(|| format!("{text:?} is no duration"));
        bounds.grain = flags.text("grain").map(|text| length(&text)).transpose()?;
        bounds.cut = if flags.needed("cut")? == Bounds::CUT { Bounds::CUT } else { bounds.cut };
        if let Some(name) = flags.text("foreign") {
            let foreign = foreign::ALL.iter().find(|foreign| foreign.name() == name);
            let foreign = foreign.ok_or_else(|| format!("who is {name:?}?"))?;
            bounds.foreign = Some(foreign.bounds(ttl));
        }
        for text in flags.needed("allowed")?.split(',').filter(|text| !text.is_empty()) {
            let mut words = text.split(':');
            let (Some(check), Some(fault), Some(after)) =
                (words.next(), words.next(), words.next())
            else {
                return Err(format!("{text:?} is not CHECK:FAULT:LENGTH"));
            };
            let (check, fault, after) = (check.into(), fault.into(), length(after)?);
            bounds.allowed.push(Allowed { check, fault, after });
        }
        let names = flags.needed("checks")?;
        let named = |name| Check::named(name).ok_or_else(|| format!("{name:?} is no check"));
        let checks = names.split(',').map(named).collect::<Result<_, _>>()?;
        flags.done()?;
        Ok(Self { bounds, checks })
    }
}

fn millis(length: Duration) -> String {
    format!("{}ms", length.as_secs_f64() * 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_they_were_written() {
        let url = "redis+sentinel://a,b/main?max_ttl=1s&guard=true&deposed=2s";
        let mut bounds = Bounds::of_store(url, Duration::from_millis(1_250), 7);
        bounds.of_service();
        let (check, fault) = ("exclusion".into(), "split".into());
        bounds.allowed.push(Allowed { check, fault, after: Duration::from_secs(1) });
        let etcd = Bounds::of_store("etcd://a", Duration::from_secs(2), 3);
        let foreign = Some(foreign::ALL[0].bounds(Duration::from_secs(2)));
        for bounds in [bounds, Bounds { foreign, ..etcd }] {
            let checks = ALL[1..4].to_vec();
            let terms = Terms { bounds, checks };
            let read = Terms::parse(&terms.text()).unwrap();
            assert_eq!(format!("{read:?}"), format!("{terms:?}"));
        }
        assert!(Terms::parse("--checks exclusion\n").is_err());
        assert!(
            Terms::parse(&(Terms::all(Bounds::new(Duration::ZERO, 1)).text() + "--x y\n")).is_err()
        );
    }
}

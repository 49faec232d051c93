//! `--name value` on a command line.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

/// The flags of a command; each may be taken once, and none may be left over.
#[derive(Debug)]
pub struct Flags(BTreeMap<String, String>);

impl Flags {
    /// Reads pairs of `--name value`.
    ///
    /// # Errors
    ///
    /// The word that is out of place.
    pub fn read(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let mut flags = BTreeMap::new();
        while let Some(word) = words.next() {
            let name = word.strip_prefix("--").ok_or_else(|| format!("{word:?} is no --flag"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            if flags.insert(name.to_owned(), value).is_some() {
                return Err(format!("--{name} is given twice"));
            }
        }
        Ok(Self(flags))
    }

    /// Takes a flag's text.
    pub fn text(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Takes a flag that must be there.
    ///
    /// # Errors
    ///
    /// That it is missing.
    pub fn needed(&mut self, name: &str) -> Result<String, String> {
        self.text(name).ok_or_else(|| format!("--{name} is missing"))
    }

    /// Takes a flag that can be parsed, or its default.
    ///
    /// # Errors
    ///
    /// That it cannot be parsed.
    pub fn parsed<T: FromStr>(&mut self, name: &str, default: T) -> Result<T, String> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text.parse().map_err(|_| format!("--{name}: what is {text:?}?")),
        }
    }

    /// Takes a duration: `250ms`, `1.5s`, `2m`.
    ///
    /// # Errors
    ///
    /// That it is no duration.
    pub fn duration(&mut self, name: &str, default: Duration) -> Result<Duration, String> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let bad = || format!("--{name}: {text:?} is no duration; 250ms, 1.5s and 2m are");
        duration(&text).ok_or_else(bad)
    }

    /// Ends the reading.
    ///
    /// # Errors
    ///
    /// A flag that nobody took.
    pub fn done(self) -> Result<(), String> {
        match self.0.into_keys().next() {
            None => Ok(()),
            Some(name) => Err(format!("--{name} is unknown")),
        }
    }
}

/// Reads a duration: `250ms`, `1.5s`, `2m`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let unit = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    let number: f64 = number.parse().ok()?;
    Duration::try_from_secs_f64(number * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(text: &str) -> Result<Flags, String> {
        Flags::read(text.split(' ').map(str::to_owned))
    }

    #[test]
    fn flags_are_taken_once() {
        let mut read = flags("--for 1.5s --tasks 3 --faults kill,stop").unwrap();
        assert_eq!(read.duration("for", Duration::ZERO), Ok(Duration::from_millis(1_500)));
        assert_eq!(read.parsed("tasks", 1), Ok(3));
        assert_eq!(read.parsed("keys", 2), Ok(2));
        assert!(read.done().unwrap_err().contains("--faults"));
    }

    #[test]
    fn a_bad_flag_is_named() {
        assert!(flags("for 1s").unwrap_err().contains("\"for\""));
        assert!(flags("--for").unwrap_err().contains("--for"));
        assert!(flags("--for 1s --for 2s").unwrap_err().contains("twice"));
        assert!(flags("--for 1h").unwrap().duration("for", Duration::ZERO).is_err());
        assert!(flags("--tasks x").unwrap().parsed("tasks", 1).is_err());
        assert!(flags("--tasks 1").unwrap().needed("store").is_err());
    }
}

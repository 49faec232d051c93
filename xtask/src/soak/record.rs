//! `proof/RECORD.md`: what was soaked, for how long, and what was found.
//!
//! Each soak has a section between two comments, which only that soak writes again; the rest of the page
//! is written by hand.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::jobs::Rotation;
use super::line;
use super::state::{State, Tally};

const PAGE: &str = "proof/RECORD.md";
/// Below this line come the sections, the newest first.
const BEGIN: &str = "<!-- Each section below is written by `cargo xtask soak`. -->\n";

const HEAD: &str = "\
# The record

`cargo xtask soak --hours N` runs the nemesis on all of its stores, the simulation and the conformance suites in rotation, and adds to this
page what it did. The first part is written by hand.

## Found and mended

Nothing yet.

## Exceptions, and why

An exception is a finding that the documentation allows: [testing.md](../docs/testing.md) says for each fault whether two may hold at once.

";

/// Writes the section of this soak.
pub(crate) fn write(root: &Path, state: &State, rotation: &Rotation) -> Result<(), String> {
    let path = root.join(PAGE);
    let page = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("{HEAD}{BEGIN}"),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let section = section(state, &versions(), rotation.stores());
    let page = replaced(&page, &id(state), &section)?;
    fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
}

fn id(state: &State) -> String {
    format!("{} {}", state.began, state.commit)
}

/// The page with this section in place of its old one, or as the first one.
fn replaced(page: &str, id: &str, section: &str) -> Result<String, String> {
    let (open, close) = (format!("<!-- soak {id} -->\n"), format!("<!-- end {id} -->\n"));
    let new = format!("{open}{section}{close}");
    if let Some((before, rest)) = page.split_once(&open) {
        let (_, after) = rest.split_once(&close).ok_or(format!("{PAGE}: no end of {id}"))?;
        return Ok(format!("{before}{new}{after}"));
    }
    let (head, sections) =
        page.split_once(BEGIN).ok_or(format!("{PAGE}: the line {BEGIN:?} is not there"))?;
    Ok(format!("{head}{BEGIN}\n{new}{sections}"))
}

/// What a soak has done.
fn section(state: &State, versions: &[(String, String)], stores: usize) -> String {
    let all = |what: fn(&Tally) -> u64| state.tallies.values().map(what).sum::<u64>();
    let of = |begin: &str| state.tallies.keys().filter(|name| name.starts_with(begin)).count();
    let mut text = format!("## {}, Latchwork {}\n\n", state.began, state.commit);
    text += &format!(
        "{:.2} hours, {} jobs: {} holds under {} faults on {} of {stores} stores of the nemesis, {} seeds of the simulation \
         ({:.0} hours of virtual time), {} trials of {} suites. {} jobs have found something.\n\n",
        state.hours(),
        state.jobs,
        all(|tally| tally.holds),
        all(|tally| tally.faults.values().sum()),
        of("nemesis "),
        all(|tally| tally.seeds),
        state.tallies.values().map(|tally| tally.virtual_hours).sum::<f64>(),
        state
            .tallies
            .iter()
            .filter(|(name, _)| name.starts_with("conformance "))
            .map(|(_, t)| t.checked)
            .sum::<u64>(),
        of("conformance "),
        state.found.len(),
    );
    let versions: Vec<String> =
        versions.iter().map(|(name, text)| format!("{name} {text}")).collect();
    text += &format!("Versions: {}.\n\n", versions.join(", "));
    text += "| job | hours | runs | failed | holds | checked | faults made | exceptions seen |\n";
    text += "| --- | --- | --- | --- | --- | --- | --- | --- |\n";
    for (name, tally) in &state.tallies {
        text += &format!(
            "| {name} | {:.2} | {} | {} | {} | {} | {} | {} |\n",
            tally.seconds / 3600.0,
            tally.runs,
            tally.failed,
            tally.holds,
            tally.checked,
            listed(&tally.faults),
            listed(&tally.exceptions),
        );
    }
    for found in &state.found {
        let history = match &found.history {
            Some(history) => format!(", history in `{history}`"),
            None => String::new(),
        };
        text +=
            &format!("\nFound by {} (log `target/soak/{}`{history}):\n\n", found.job, found.log);
        text += &format!("```text\n{}\n```\n", found.said.join("\n"));
    }
    text
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    match counts.is_empty() {
        true => "-".into(),
        false => {
            counts.iter().map(|(name, n)| format!("{n} {name}")).collect::<Vec<_>>().join(", ")
        }
    }
}

/// It says its version only to those who ask it while it runs.
const ZOOKEEPER: &str =
    "sh proof/services/provide zookeeper | sed 's/.*zookeeper-\\([0-9.]*\\)\\.jar.*/\\1/'";

/// The versions of the programs that are there.
fn versions() -> Vec<(String, String)> {
    let asked = [
        ("Redis", "sh", &["-c", "\"$(sh proof/services/provide redis)\" --version"][..]),
        ("etcd", "sh", &["-c", "\"$(sh proof/services/provide etcd)\" --version"]),
        ("ZooKeeper", "sh", &["-c", ZOOKEEPER]),
        (
            "PostgreSQL",
            "sh",
            &["-c", "\"$(sh proof/services/provide postgres)/postgres\" --version"],
        ),
        ("Linux", "uname", &["-r"]),
        ("Rust", "rustc", &["--version"]),
    ];
    let version = |(name, program, args): (&str, &str, &[&str])| {
        let text = line(program, args).ok()?;
        Some((name.to_owned(), number(text.lines().next()?)?))
    };
    asked.into_iter().filter_map(version).collect()
}

/// The first word with a dot in it that begins with a digit, perhaps after a letter and an equals sign.
fn number(text: &str) -> Option<String> {
    let words = text.split_whitespace().map(|word| word.trim_start_matches("v="));
    let mut numbers =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    numbers.next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soak_replaces_its_own_section_only() {
        let first = replaced(&format!("{HEAD}{BEGIN}"), "monday abc", "one\n").unwrap();
        let second = replaced(&first, "tuesday def", "two\n").unwrap();
        let third = replaced(&second, "monday abc", "three\n").unwrap();
        let place =
            |text: &str| third.find(text).unwrap_or_else(|| panic!("no {text:?} in {third}"));
        assert!(
            place("Nothing yet.") < place("two\n") && place("two\n") < place("three\n"),
            "{third}"
        );
        assert!(!third.contains("one\n"));
        let by_hand = third.replace("Nothing yet.", "Much.");
        assert!(replaced(&by_hand, "tuesday def", "four\n").unwrap().contains("Much."));
        assert!(replaced("nothing", "a", "b").is_err());
    }

    #[test]
    fn the_record_names_faults_exceptions_and_findings() {
        let mut state = State::new("abc", "2026-01-02 03:04");
        let counts = |name: &str| BTreeMap::from([(name.to_owned(), 7)]);
        let tally = Tally {
            runs: 2,
            seconds: 1_800.0,
            holds: 300,
            checked: 900,
            faults: counts("kill"),
            exceptions: counts("exclusion"),
            ..Tally::default()
        };
        state.tallies.insert("nemesis files".into(), tally);
        state.found.push(super::super::state::Found {
            job: "simulation".into(),
            said: vec!["seed 17 breaks a rule".into()],
            log: "5.txt".into(),
            history: None,
        });
        let text = section(&state, &[("Redis".into(), "7.0.15".into())], 5);
        for part in [
            "## 2026-01-02 03:04, Latchwork abc",
            "0.50 hours",
            "300 holds under 7 faults on 1 of 5 stores",
            "Versions: Redis 7.0.15.",
            "| nemesis files | 0.50 | 2 | 0 | 300 | 900 | 7 kill | 7 exclusion |",
            "1 jobs have found something",
            "seed 17 breaks a rule",
        ] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (text, version) in [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0", "7.0.15"),
            ("etcd Version: 3.5.16", "3.5.16"),
            ("psql (PostgreSQL) 17.6 (Debian 17.6-0+deb13u1)", "17.6"),
            ("rustc 1.95.0 (abc 2026-01-01)", "1.95.0"),
            ("6.18.44-custom", "6.18.44-custom"),
        ] {
            assert_eq!(number(text).as_deref(), Some(version));
        }
        assert_eq!(number("none here"), None);
    }
}

//! `bench/RESULTS.md`: what was measured last, a section for each measurement.
//!
//! A section is between two comments that name its measurement, so that a run replaces what it has
//! measured and leaves the rest. Its tables are the run's; the text below them is a note by hand,
//! `bench/notes/NAME.md`. A note whose name is no measurement's is a section of its own at the end.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::bars::{self, Bars};
use crate::{Bench, benches, goals, growth, named, place};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RESULTS: &str = "RESULTS.md";
const BARS: &str = "bars.tsv";
/// The note above all.
const INTRO: &str = "intro";
const MACHINE: &str = "machine";

/// A section, without its note.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    name: String,
    text: String,
}

/// What was measured, and where it is written down.
pub(crate) struct Record {
    folder: PathBuf,
    machine: String,
    sections: Vec<Section>,
    bars: Bars,
}

/// The folder `bench` of this repository.
pub(crate) fn folder() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).unwrap_or(Path::new(".")).join("bench")
}

/// What the section of a measurement begins with.
pub(crate) fn heading(bench: &Bench, short: bool) -> String {
    let Bench { name, title, what, .. } = bench;
    let short = if short { " --short" } else { "" };
    format!("## {title}\n\n`cargo xtask bench{short} {name}`: {what}.\n")
}

impl Record {
    /// Reads what there is.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let text = read(&folder.join(RESULTS))?;
        let machine = between(&text, MACHINE).unwrap_or_default().to_string();
        let section = |bench: &Bench| {
            let body = between(&text, &format!("bench {}", bench.name))?;
            let (tables, _) = body.split_once(NOTE).unwrap_or((body, ""));
            Some(Section { name: bench.name.into(), text: tables.trim_end().into() })
        };
        let sections = benches().filter_map(section).collect();
        let bars = Bars::parse(&read(&folder.join(BARS))?)?;
        Ok(Self { folder: folder.into(), machine, sections, bars })
    }

    /// What is said of the machine.
    pub(crate) fn machine(&mut self, line: &str, short: bool) {
        let form = match short {
            true => "the short form, to see what is larger",
            false => "the whole form",
        };
        self.machine = format!("Measured last on: {line}; {form}.");
    }

    /// Replaces the section of a measurement, and its bars.
    pub(crate) fn put(&mut self, name: &str, text: &str, bars: Bars) {
        let section = Section { name: name.into(), text: text.trim_end().into() };
        match self.sections.iter_mut().find(|section| section.name == name) {
            Some(old) => *old = section,
            None => self.sections.push(section),
        }
        self.sections.sort_by_key(|section| place(&section.name));
        self.bars.replace(name, bars);
    }

    /// Writes the page and what the pictures are made of.
    pub(crate) fn write(&self) -> Result<()> {
        let write = |name: &str, text: String| {
            let path = self.folder.join(name);
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        write(BARS, self.bars.text())?;
        Ok(write(RESULTS, self.page()?)?)
    }

    /// Draws the pictures.
    pub(crate) fn draw(&self) -> Result<Vec<PathBuf>> {
        self.bars.draw(&self.folder)
    }

    fn page(&self) -> Result<String> {
        let notes = self.folder.join("notes");
        let note = |name: &str| read(&notes.join(format!("{name}.md")));
        let mut page = format!("# Measured\n\n{}\n", note(INTRO)?.trim_end());
        page += &format!("\n{}\n", marked(MACHINE, &self.machine));
        page += &self.goals()?;
        page += "\n## Pictures\n";
        for chart in bars::CHARTS {
            if self.bars.has(chart.name) {
                page += &format!("\n![{}]({})\n", chart.title(), chart.file());
            }
        }
        for chart in growth::CHARTS {
            if self.bars.has(chart.name) {
                page += &format!("\n![{}]({})\n", chart.title, chart.file());
            }
        }
        for Section { name, text } in &self.sections {
            let note = note(name)?;
            let note = match note.trim_end() {
                "" => String::new(),
                note => format!("\n\n{NOTE}\n{note}"),
            };
            page += &format!("\n{}\n", marked(&format!("bench {name}"), &format!("{text}{note}")));
        }
        for name in others(&notes)? {
            page += &format!("\n{}\n", note(&name)?.trim_end());
        }
        Ok(page)
    }

    /// The table of all goals, what is missed first.
    fn goals(&self) -> Result<String> {
        let mut rows: Vec<(bool, String)> = Vec::new();
        for Section { name, text } in &self.sections {
            let bench = named(name).ok_or("a measurement")?;
            for told in goals::told(text).map_err(|error| format!("{name}: {error}"))? {
                let verdict = told.verdict;
                let ends = match &verdict.missed_by {
                    Some(by) => format!("**MISSED** by {by}"),
                    None => "holds".into(),
                };
                let row = format!(
                    "| [{name}](#{}) | {} | {} | {} | {} | {ends} |\n",
                    anchor(bench.title),
                    told.setting,
                    told.what,
                    verdict.goal,
                    verdict.reached,
                );
                rows.push((verdict.missed_by.is_none(), row));
            }
        }
        let (count, missed) = (rows.len(), rows.iter().filter(|(holds, _)| !holds).count());
        rows.sort_by_key(|(holds, _)| *holds);
        let rows: String = rows.into_iter().map(|(_, row)| row).collect();
        Ok(format!(
            "\n## Goals\n\n{missed} of {count} are missed. Where a row is another lock's, the goal is for \
             what Latchwork has in\ncomparison with it.\n\n\
             | measurement | setting | row | goal | reached | |\n\
             | --- | --- | --- | --- | --- | --- |\n{rows}"
        ))
    }
}

/// Where the text by hand begins in a section.
const NOTE: &str = "<!-- note -->";

fn marked(name: &str, text: &str) -> String {
    let end = name.trim_start_matches("bench ");
    format!("<!-- {name} -->\n{text}\n<!-- end {end} -->")
}

/// What is between the two comments of this name.
fn between<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let end = name.trim_start_matches("bench ");
    let (_, rest) = text.split_once(&format!("<!-- {name} -->\n"))?;
    let (body, _) = rest.split_once(&format!("\n<!-- end {end} -->"))?;
    Some(body)
}

/// How a page's heading is linked to.
fn anchor(title: &str) -> String {
    let plain = title.to_lowercase().replace(' ', "-");
    plain.chars().filter(|c| c.is_alphanumeric() || *c == '-').collect()
}

/// The names of notes that belong to no measurement.
fn others(notes: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(notes).map_err(|error| format!("{}: {error}", notes.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_suffix(".md") else { continue };
        if name != INTRO && named(name).is_none() {
            names.push(name.to_string());
        }
    }
    names.sort();
    Ok(names)
}

/// The text of a file, or nothing if there is none.
fn read(path: &Path) -> Result<String> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("{}: {error}", path.display()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goals::Goal;

    fn tables(reached: f64) -> String {
        let goal = Goal::at_least(5.0).judge(reached);
        format!(
            "## Title\n\n8 processes:\n\n| what | goal |\n| --- | --- |\n| other | {goal} |\n\n"
        )
    }

    /// A folder with notes of this text.
    fn folder(notes: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("notes")).unwrap();
        for (name, text) in notes {
            fs::write(folder.path().join(format!("notes/{name}.md")), text).unwrap();
        }
        folder
    }

    fn page(folder: &Path) -> String {
        fs::read_to_string(folder.join(RESULTS)).unwrap()
    }

    #[test]
    fn a_bench_run_replaces_its_own_rows_only() {
        let folder =
            folder(&[(INTRO, "To begin with.\n"), ("stock", "## Stock\n\nOf articles.\n")]);
        let mut record = Record::open(folder.path()).unwrap();
        record.machine("9 cores", true);
        record.put("redis-held", &tables(7.0), Bars::default());
        record.put("local", &tables(6.0), Bars::default());
        record.write().unwrap();
        let mut record = Record::open(folder.path()).unwrap();
        record.put("redis-held", &tables(4.0), Bars::default());
        record.write().unwrap();
        let text = page(folder.path());
        assert!(!text.contains(">= 5: 7.00"), "{text}");
        let places = [
            "To begin with.",
            "9 cores; the short form",
            "1 of 2 are missed",
            "| [redis-held](#redis-10000-held-locks) | 8 processes | other | >= 5 | 4.00 | **MISSED** by 20 % |",
            "| [local](#handovers-inside-one-process-16-tasks-on-one-key) | 8 processes | other | >= 5 | 6.00 | holds |",
            "<!-- bench local -->",
            "| other | >= 5: 6.00, holds |",
            "<!-- end local -->",
            "<!-- bench redis-held -->",
            "| other | >= 5: 4.00, MISSED by 20 % |",
            "<!-- end redis-held -->",
            "## Stock",
        ]
        .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}")));
        assert!(places.is_sorted(), "{places:?} {text}");
    }

    #[test]
    fn a_note_is_read_on_each_run() {
        let folder = folder(&[("local", "The first.\n")]);
        let mut record = Record::open(folder.path()).unwrap();
        record.put("local", &tables(6.0), Bars::default());
        record.write().unwrap();
        let first = page(folder.path());
        fs::write(folder.path().join("notes/local.md"), "| not | a goal |\n").unwrap();
        Record::open(folder.path()).unwrap().write().unwrap();
        let second = page(folder.path());
        assert_eq!(second, first.replace("The first.", "| not | a goal |"));
        Record::open(folder.path()).unwrap().write().unwrap();
        assert_eq!(page(folder.path()), second);
    }

    #[test]
    fn the_results_page_matches_its_notes_and_tables() {
        let folder = super::folder();
        let record = Record::open(&folder).unwrap();
        let same = page(&folder) == record.page().unwrap();
        assert!(same, "bench/RESULTS.md is older than bench/notes: `cargo xtask bench --record`");
        for bench in benches() {
            assert!(!bench.title.is_empty() && !bench.what.ends_with('.'), "{}", bench.name);
        }
    }
}

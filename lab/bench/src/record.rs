//! What was measured: `bench/RESULTS.md` shows for each measurement how near it is to its goals. Behind it stand
//! `bench/results.tsv`, with what each of the last runs reached for each goal, and `bench/tables/NAME.md`, with the
//! tables of the last run and a note by hand below them.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::bars::Bars;
use crate::goals::{self, Told};
use crate::roles::Outcome;

/// What can be measured.
#[derive(Clone, Copy)]
pub(crate) struct Bench {
    pub(crate) name: &'static str,
    /// Of its section.
    pub(crate) title: &'static str,
    /// In the list, and below the title.
    pub(crate) what: &'static str,
    pub(crate) run: fn() -> Outcome,
}

const RESULTS: &str = "RESULTS.md";
const RUNS: &str = "results.tsv";
const TABLES: &str = "tables";
const BARS: &str = "bars.tsv";
/// What stands above all, by hand.
const INTRO: &str = "intro.md";
/// The text about the machine stands between these two.
const MACHINE: &str = "<!-- machine -->\n";
const MACHINE_END: &str = "\n<!-- end machine -->";

/// So many runs are kept of each goal.
const KEPT: usize = 9;

/// How the names of measurements begin, and the section that they are in.
const SECTIONS: &[(&str, &str)] = &[
    ("redis-", "Redis"),
    ("redlock-", "Redlock"),
    ("etcd-", "etcd"),
    ("zookeeper-", "ZooKeeper"),
    ("postgres-", "PostgreSQL"),
    ("growth-", "How cost grows"),
    ("", "Library, command, service, Python, and several stores"),
];

/// A goal, and what the last runs reached, the newest last.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    setting: String,
    what: String,
    goal: String,
    reached: Vec<String>,
}

/// What was measured, and where it is written down.
pub(crate) struct Record {
    folder: PathBuf,
    /// The names of all measurements.
    order: Vec<&'static str>,
    machine: String,
    rows: Vec<Row>,
    /// By the name of the measurement; without notes.
    tables: BTreeMap<String, String>,
    bars: Bars,
}

/// The folder `bench` of this repository.
pub(crate) fn folder() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    crates.and_then(Path::parent).unwrap_or(Path::new(".")).join("bench")
}

impl Bench {
    /// What its section begins with.
    pub(crate) fn heading(&self, short: bool) -> String {
        let Self { name, title, what, .. } = self;
        let short = if short { " --short" } else { "" };
        format!("# {title}\n\n`cargo xtask bench{short} {name}`: {what}.\n")
    }
}

impl Record {
    /// Reads what there is.
    pub(crate) fn open(folder: &Path, benches: &[Bench]) -> Outcome<Self> {
        let page = read(&folder.join(RESULTS))?;
        let machine = page.split_once(MACHINE).and_then(|(_, rest)| rest.split_once(MACHINE_END));
        let machine = machine.map_or(String::new(), |(machine, _)| machine.to_owned());
        let order: Vec<&str> = benches.iter().map(|bench| bench.name).collect();
        let rows = read(&folder.join(RUNS))?;
        let rows = rows.lines().filter(|line| !line.starts_with('#'));
        let rows = rows.map(Row::parse).collect::<Outcome<_>>()?;
        let mut tables = BTreeMap::new();
        for name in &order {
            let text = read(&table(folder, name))?;
            let (text, _) = text.split_once(NOTE).unwrap_or((&text, ""));
            if !text.is_empty() {
                tables.insert((*name).into(), text.trim_end().into());
            }
        }
        let bars = Bars::parse(&read(&folder.join(BARS))?)?;
        Ok(Self { folder: folder.into(), order, machine, rows, tables, bars })
    }

    /// Forgets what earlier runs of a measurement reached: the code or the machine was another.
    pub(crate) fn forget(&mut self, name: &str) {
        self.rows.retain(|row| row.name != name);
    }

    /// What is said of the machine.
    pub(crate) fn machine(&mut self, line: &str, short: bool) {
        let form = match short {
            true => "the short form, to see what is larger",
            false => "the whole form",
        };
        self.machine = format!("Measured last on: {line}; {form}.");
    }

    /// Takes in a run of a measurement: its tables and bars in place of the last ones, and what it reached beside what
    /// earlier runs did.
    pub(crate) fn put(&mut self, name: &str, text: &str, bars: Bars) -> Outcome {
        let told = goals::told(text).map_err(|error| format!("{name}: {error}"))?;
        let (mut earlier, others): (Vec<Row>, Vec<Row>) =
            self.rows.drain(..).partition(|row| row.name == name);
        self.rows = others;
        for told in told {
            let same = |row: &Row| {
                (&row.setting, &row.what, &row.goal)
                    == (&told.setting, &told.what, &told.verdict.goal)
            };
            let place = earlier.iter().position(same);
            let mut row =
                place.map_or_else(|| Row::new(name, &told), |place| earlier.remove(place));
            row.reached.push(told.verdict.reached);
            let old = row.reached.len().saturating_sub(KEPT);
            row.reached.drain(..old);
            self.rows.push(row);
        }
        self.rows.sort_by_key(|row| self.order.iter().position(|name| *name == row.name));
        self.tables.insert(name.into(), text.trim_end().into());
        self.bars.replace(name, bars, &self.order);
        Ok(())
    }

    /// Writes the page, what it is made of, and what the pictures are made of.
    pub(crate) fn write(&self) -> Outcome {
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
        };
        fs::create_dir_all(self.folder.join(TABLES))?;
        for (name, text) in &self.tables {
            let path = table(&self.folder, name);
            let old = read(&path)?;
            let note = old
                .split_once(NOTE)
                .map_or(String::new(), |(_, note)| format!("\n\n{NOTE}\n{}", note.trim()));
            write(path, format!("{text}{note}\n"))?;
        }
        let rows: String = self.rows.iter().map(Row::line).collect();
        let head =
            "# measurement, setting, row, goal, what the last runs reached (the newest last)\n";
        write(self.folder.join(RUNS), format!("{head}{rows}"))?;
        write(self.folder.join(BARS), self.bars.text())?;
        Ok(write(self.folder.join(RESULTS), self.page()?)?)
    }

    /// Draws the pictures.
    pub(crate) fn draw(&self) -> Outcome<Vec<PathBuf>> {
        self.bars.draw(&self.folder)
    }

    fn page(&self) -> Outcome<String> {
        let missed = self.rows.iter().filter(|row| row.is_missed()).count();
        let mut page = format!(
            "# Measured\n\n{}\n\n{MACHINE}{}{MACHINE_END}\n\n{missed} of {} goals are missed by all of their runs.\n",
            read(&self.folder.join(INTRO))?.trim_end(),
            self.machine,
            self.rows.len(),
        );
        for (begin, title) in SECTIONS {
            let is_of = |name: &str| {
                SECTIONS.iter().find(|(b, _)| name.starts_with(b)).is_some_and(|(b, _)| b == begin)
            };
            page += &format!(
                "\n## {title}\n\n| measurement | goals | nearest to its goal, or missed | goal | median [least, most] of runs |\n\
                 | --- | --- | --- | --- | --- |\n"
            );
            for name in self.tables.keys().filter(|name| is_of(name)) {
                page += &self.shown(name);
            }
        }
        page += "\n## Pictures\n\n";
        for (title, file) in self.bars.pictures() {
            page += &format!("![{title}]({file})\n");
        }
        Ok(page)
    }

    /// The line of a measurement: the goal that is missed by most, or held by least.
    fn shown(&self, name: &str) -> String {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| row.name == name).collect();
        let missed = rows.iter().filter(|row| row.is_missed()).count();
        let count = match missed {
            0 => rows.len().to_string(),
            missed => format!("{}, **{missed} missed**", rows.len()),
        };
        let nearest = rows.iter().min_by(|a, b| a.margin().total_cmp(&b.margin()));
        let told = nearest.map_or_else(|| " - | - | -".into(), |row| row.cells());
        format!("| [{name}]({TABLES}/{name}.md) | {count} |{told} |\n")
    }
}

impl Row {
    fn new(name: &str, told: &Told) -> Self {
        Self {
            name: name.into(),
            setting: told.setting.clone(),
            what: told.what.clone(),
            goal: told.verdict.goal.clone(),
            reached: Vec::new(),
        }
    }

    fn parse(line: &str) -> Outcome<Self> {
        let [name, setting, what, goal, reached] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("{RUNS}: five fields, in {line:?}").into());
        };
        Ok(Self {
            name: name.into(),
            setting: setting.into(),
            what: what.into(),
            goal: goal.into(),
            reached: reached.split("; ").map(str::to_owned).collect(),
        })
    }

    fn line(&self) -> String {
        let Self { name, setting, what, goal, reached } = self;
        format!("{name}\t{setting}\t{what}\t{goal}\t{}\n", reached.join("; "))
    }

    /// How far each run is on the right side of the goal, as a ratio: below 1 it is missed.
    fn margins(&self) -> Vec<f64> {
        let mut margins: Vec<_> =
            self.reached.iter().map(|reached| goals::margin(&self.goal, reached)).collect();
        margins.sort_by(f64::total_cmp);
        margins
    }

    /// That of the median.
    fn margin(&self) -> f64 {
        let margins = self.margins();
        margins.get(margins.len() / 2).copied().unwrap_or(0.0)
    }

    fn is_missed(&self) -> bool {
        self.margins().iter().all(|margin| *margin < 1.0)
    }

    /// The cells about the goal.
    fn cells(&self) -> String {
        let Self { setting, what, goal, reached, .. } = self;
        let mut sorted = reached.clone();
        sorted.sort_by(|a, b| goals::value(a).total_cmp(&goals::value(b)));
        let middle = sorted.get(sorted.len() / 2).map_or("", String::as_str);
        let range = match &sorted[..] {
            [first, .., last] => format!("{middle} [{first}, {last}] of {}", sorted.len()),
            _ => format!("{middle} of 1"),
        };
        let place = if setting.is_empty() { what.clone() } else { format!("{setting}: {what}") };
        format!(" {place} | {goal} | {range}")
    }
}

/// The page of a measurement's tables.
fn table(folder: &Path, name: &str) -> PathBuf {
    folder.join(TABLES).join(format!("{name}.md"))
}

/// Where the text by hand begins below the tables.
const NOTE: &str = "<!-- note -->";

/// The text of a file, or nothing if there is none.
fn read(path: &Path) -> Outcome<String> {
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

    const fn bench(name: &'static str) -> Bench {
        Bench { name, title: "Title", what: "what", run: || Ok(()) }
    }

    const BENCHES: &[Bench] = &[bench("local"), bench("redis-held")];

    fn tables(reached: f64) -> String {
        let goal = Goal::at_least(5.0).judge(reached);
        format!("# Title\n\n8 processes:\n\n| what | goal |\n| --- | --- |\n| other | {goal} |\n\n")
    }

    #[test]
    fn a_run_stands_beside_earlier_ones_and_replaces_its_own_tables() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join(INTRO), "To begin with.\n").unwrap();
        fs::create_dir(path.join(TABLES)).unwrap();
        let note = format!("{NOTE}\n| not | a goal |\n");
        fs::write(table(path, "local"), format!("old\n\n{note}")).unwrap();
        for (name, reached) in
            [("redis-held", 7.0), ("local", 4.0), ("redis-held", 4.0), ("redis-held", 6.0)]
        {
            let mut record = Record::open(path, BENCHES).unwrap();
            record.machine("9 cores", true);
            record.put(name, &tables(reached), Bars::default()).unwrap();
            record.write().unwrap();
        }
        let text = fs::read_to_string(path.join(RESULTS)).unwrap();
        let places = [
            "To begin with.",
            "9 cores; the short form",
            "1 of 2 goals are missed by all",
            "| [redis-held](tables/redis-held.md) | 1 | 8 processes: other | >= 5 | 6.00 [4.00, 7.00] of 3 |",
            "| [local](tables/local.md) | 1, **1 missed** | 8 processes: other | >= 5 | 4.00 of 1 |",
        ]
        .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part:?} in {text}")));
        assert!(places.is_sorted(), "{places:?} {text}");
        let last = |name| fs::read_to_string(table(path, name)).unwrap();
        assert_eq!(last("redis-held"), tables(6.0).trim_end().to_owned() + "\n");
        assert!(
            last("local").ends_with(&format!("MISSED by 20 % |\n\n{note}")),
            "{}",
            last("local")
        );
        let mut record = Record::open(path, BENCHES).unwrap();
        record.forget("local");
        assert_eq!(record.rows.len(), 1);
    }

    #[test]
    fn the_results_page_is_short_and_matches_what_was_measured() {
        let folder = super::folder();
        let record = Record::open(&folder, &crate::benches()).unwrap();
        let page = fs::read_to_string(folder.join(RESULTS)).unwrap();
        assert!(
            page == record.page().unwrap(),
            "bench/RESULTS.md is old: `cargo xtask bench --record`"
        );
        assert!(page.lines().count() <= 150, "{} lines", page.lines().count());
        for bench in crate::benches() {
            assert!(!bench.title.is_empty() && !bench.what.ends_with('.'), "{}", bench.name);
        }
    }
}

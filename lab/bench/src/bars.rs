//! Pictures of a run: a bar for each lock, in a group for each store; and the points of the curves.
//!
//! Bars begin at zero on a linear axis, so one that is twice as long stands for twice as much.
//!
//! Each measurement is a process of its own, so what it measured reaches the picture by a file.

use std::io::Write;
use std::path::{Path, PathBuf};

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub(crate) use crate::picture::Curve;
use crate::picture::Series;
use crate::roles::Outcome;

/// Ours has another color.
const LATCHWORK: &str = "latchwork";
/// The variable that names the file.
pub(crate) const FILE: &str = "LATCHWORK_BENCH_BARS";

pub(crate) const FREE: Chart = Chart {
    name: "free",
    title: "A free lock, one task: cycles of acquire and release a second (more is better)",
};
pub(crate) const CONTENDED: Chart = Chart {
    name: "contended",
    title: "8 processes want one key: handovers a second (more is better)",
};
pub(crate) const HANDOFF: Chart = Chart {
    name: "handoff",
    title: "From a release to the next hold, 8 wait, held for 200 ms: median in us (less is better)",
};
const CHARTS: &[Chart] = &[FREE, CONTENDED, HANDOFF];

macro_rules! curves {
    ($($constant:ident $name:literal $title:literal $size:literal;)*) => {
        $(pub(crate) const $constant: Curve = Curve { name: $name, title: $title, size: $size };)*
        const CURVES: &[Curve] = &[$($constant),*];
    };
}

curves! {
    GROWTH_CPU "growth-waiters-cpu" "Waiters on one key: processor time of the server for each release, in us" "waiters";
    GROWTH_DRAIN "growth-waiters-drain" "Waiters on one key: until all have held it, in ms" "waiters";
    GROWTH_MOVING "growth-waiters-moving" "Waiters on one key that is held for 20 ms each time: processor time of the server a second, in ms" "waiters";
    GROWTH_KEYS "growth-keys" "Keys used once, 64 at a time: processor time of client and server for each, in us" "keys used before and now";
    GROWTH_HOLDS "growth-holds" "Holds of one process, ttl 30 s: processor time of client and server a second, in ms" "holds";
    GROWTH_PROCESSES "growth-processes" "Processes that want one key: processor time of clients and server for each hold, in us" "processes";
    GROWTH_DISTANCE "growth-distance" "Members that are apart: a free acquire and release, median in ms" "round trip between members (Redlock: from the client to each server) in ms";
}

const OURS: RGBColor = RGBColor(0x4c, 0x8e, 0xd9);
const OTHERS: RGBColor = RGBColor(0xaf, 0xb8, 0xc1);
const WIDTH: u32 = 900;
const LINE: u32 = 20;
const TOP: u32 = 44;
const BOTTOM: u32 = 30;
/// Where the bars begin, and what is left for their numbers.
const LEFT: i32 = 300;
const RIGHT: i32 = 80;

pub(crate) struct Chart {
    pub(crate) name: &'static str,
    title: &'static str,
}

#[derive(Clone, Debug, PartialEq)]
struct Bar {
    bench: String,
    chart: String,
    store: String,
    kind: String,
    value: f64,
}

/// The bars of all pictures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Bars(Vec<Bar>);

impl Bars {
    /// Reads what [`Self::text`] has written.
    pub(crate) fn parse(text: &str) -> Outcome<Self> {
        let bar = |line: &str| {
            let [bench, chart, store, kind, value] = line.split('\t').collect::<Vec<_>>()[..]
            else {
                return Err(format!("a bar: what is {line:?}?").into());
            };
            let [bench, chart, store, kind] = [bench, chart, store, kind].map(str::to_string);
            Ok(Bar { bench, chart, store, kind, value: value.parse()? })
        };
        Ok(Self(text.lines().map(bar).collect::<Outcome<_>>()?))
    }

    /// What a measurement has noted.
    pub(crate) fn noted(bench: &str, file: &Path) -> Outcome<Self> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error.into()),
        };
        Self::parse(&text.lines().map(|line| format!("{bench}\t{line}\n")).collect::<String>())
    }

    pub(crate) fn text(&self) -> String {
        let line = |bar: &Bar| {
            let Bar { bench, chart, store, kind, value } = bar;
            format!("{bench}\t{chart}\t{store}\t{kind}\t{value}\n")
        };
        self.0.iter().map(line).collect()
    }

    /// Takes those of one measurement in place of its old ones. Groups come in the order of the measurements.
    pub(crate) fn replace(&mut self, bench: &str, bars: Self, order: &[&str]) {
        self.0.retain(|bar| bar.bench != bench);
        self.0.extend(bars.0);
        self.0.sort_by_key(|bar| order.iter().position(|name| *name == bar.bench));
    }

    /// The titles and the files of the pictures that there is anything for.
    pub(crate) fn pictures(&self) -> impl Iterator<Item = (&'static str, String)> {
        let bars = CHARTS.iter().map(|chart| (chart.name, chart.title, chart.file()));
        let curves = CURVES.iter().map(|chart| (chart.name, chart.title, chart.file()));
        let all =
            bars.chain(curves).filter(|(name, ..)| self.0.iter().any(|bar| bar.chart == *name));
        all.map(|(_, title, file)| (title, file))
    }

    /// The lines of a picture of curves: a point is a bar whose kind is its size.
    fn series(&self, chart: &Curve) -> Vec<Series> {
        let mut series: Vec<Series> = Vec::new();
        for bar in self.0.iter().filter(|bar| bar.chart == chart.name) {
            let Ok(size) = bar.kind.parse() else { continue };
            match series.iter_mut().find(|(name, _)| *name == bar.store) {
                Some((_, points)) => points.push((size, bar.value)),
                None => series.push((bar.store.clone(), vec![(size, bar.value)])),
            }
        }
        series
    }

    /// Draws the pictures that there are bars for into a folder.
    pub(crate) fn draw(&self, folder: &Path) -> Outcome<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for chart in CHARTS {
            let mut bars: Vec<&Bar> = Vec::new();
            for bar in self.0.iter().filter(|bar| bar.chart == chart.name) {
                // Who was measured twice is shown as it was beside the others on its store.
                if !bars.iter().any(|old| old.store == bar.store && old.kind == bar.kind) {
                    bars.push(bar);
                }
            }
            if let Some(picture) = chart.picture(&bars)? {
                paths.push(write(folder, &chart.file(), &picture)?);
            }
        }
        for chart in CURVES {
            if let Some(picture) = chart.picture(&self.series(chart))? {
                paths.push(write(folder, &chart.file(), &picture)?);
            }
        }
        Ok(paths)
    }
}

fn write(folder: &Path, file: &str, picture: &str) -> Outcome<PathBuf> {
    let path = folder.join(file);
    std::fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Remembers a number for the picture of this name, if this run makes pictures. What is not above zero
/// has no place there.
pub(crate) fn note(chart: &str, store: &str, kind: &str, value: f64) {
    let Some(file) = std::env::var_os(FILE) else { return };
    if !value.is_finite() {
        return;
    }
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    let wrote = file.and_then(|mut file| writeln!(file, "{chart}\t{store}\t{kind}\t{value}"));
    if let Err(error) = wrote {
        eprintln!("the picture will lack {kind} on {store}: {error}");
    }
}

impl Chart {
    /// The name of its file.
    fn file(&self) -> String {
        format!("bench-{}.svg", self.name)
    }

    /// Remembers a number. Of Latchwork's settings only the plain one.
    pub(crate) fn note(&self, store: &str, kind: &str, value: f64) {
        if !kind.starts_with(LATCHWORK) || kind == LATCHWORK {
            note(self.name, store, kind, value);
        }
    }

    fn picture(&self, bars: &[&Bar]) -> Outcome<Option<String>> {
        if bars.is_empty() {
            return Ok(None);
        }
        let mut groups: Vec<&str> = Vec::new();
        for bar in bars {
            if !groups.contains(&bar.store.as_str()) {
                groups.push(&bar.store);
            }
        }
        let mut svg = String::new();
        {
            let lines = (bars.len() + groups.len()) as u32;
            let size = (WIDTH, TOP + lines * LINE + BOTTOM);
            let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            self.draw_on(&area, &groups, bars)?;
            area.present()?;
        }
        Ok(Some(svg))
    }

    fn draw_on(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        groups: &[&str],
        bars: &[&Bar],
    ) -> Outcome {
        let plain = ("sans-serif", 13).into_font();
        let left = TextStyle::from(plain.clone()).pos(Pos::new(HPos::Left, VPos::Center));
        let right = TextStyle::from(plain).pos(Pos::new(HPos::Right, VPos::Center));
        let bold = TextStyle::from(("sans-serif", 14, FontStyle::Bold).into_font())
            .pos(Pos::new(HPos::Left, VPos::Center));
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title, (12, 20), bold.clone()))?;
        let ticks = ticks(bars.iter().map(|bar| bar.value).fold(0.0, f64::max));
        let to = ticks.last().copied().unwrap_or(1.0);
        let width = f64::from(WIDTH as i32 - LEFT - RIGHT);
        let x = |value: f64| LEFT + (value.max(0.0) / to * width).round() as i32;
        let (_, height) = area.dim_in_pixel();
        let floor = height as i32 - BOTTOM as i32;
        for tick in ticks {
            let at = x(tick);
            area.draw(&PathElement::new([(at, TOP as i32), (at, floor)], BLACK.mix(0.15)))?;
            let center = right.pos(Pos::new(HPos::Center, VPos::Center));
            area.draw(&Text::new(tick.to_string(), (at, floor + 14), center))?;
        }
        let mut y = (TOP + LINE / 2) as i32;
        for group in groups {
            area.draw(&Text::new(*group, (12, y), bold.clone()))?;
            y += LINE as i32;
            for bar in bars.iter().filter(|bar| bar.store == *group) {
                let ours = bar.kind == LATCHWORK;
                let color = if ours { OURS } else { OTHERS };
                area.draw(&Text::new(bar.kind.clone(), (LEFT - 8, y), right.clone()))?;
                let end = x(bar.value);
                let corners = [(LEFT, y - 7), (end.max(LEFT + 1), y + 7)];
                area.draw(&Rectangle::new(corners, color.filled()))?;
                let number = match bar.value {
                    value if value < 10.0 => format!("{value:.1}"),
                    value => format!("{value:.0}"),
                };
                area.draw(&Text::new(number, (end + 6, y), left.clone()))?;
                y += LINE as i32;
            }
        }
        Ok(())
    }
}

/// The values that get a line: from zero, by 1, 2 or 5 times a power of ten, to the first that is not below `most`.
fn ticks(most: f64) -> Vec<f64> {
    let most = most.max(5.0);
    let power = 10f64.powf((most / 5.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|part| part * power);
    let step = steps.into_iter().find(|step| step * 5.0 >= most).unwrap_or(power * 10.0);
    let count = (most / step).ceil() as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_number_is_large() {
        let text = "a\tcontended\tRedis\tlatchwork\t5000\na\tcontended\tRedis\tanother\t500\n";
        let bars = Bars::parse(text).unwrap();
        assert_eq!(bars.text(), text);
        let svg = CONTENDED.picture(&bars.0.iter().collect::<Vec<_>>()).unwrap().unwrap();
        for text in ["Redis", "latchwork", "another", "5000", "500"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        let width = |color: &str| -> f64 {
            let line = svg.lines().find(|line| line.contains(color)).unwrap();
            let from = line.find(" width=\"").unwrap() + 8;
            line[from..].split('"').next().unwrap().parse().unwrap()
        };
        assert_eq!(width("#4C8ED9"), 10.0 * width("#AFB8C1"), "{svg}");
        for most in [0.0, 0.3, 1.0, 5.0, 5.1, 999.0, 66_872.7, 1e9] {
            let ticks = ticks(most);
            assert!(ticks.len() <= 6 && *ticks.last().unwrap() >= most, "{most}: {ticks:?}");
        }
    }

    /// `bench/bars.tsv` is what was measured.
    #[test]
    fn the_pictures_of_the_repository_are_drawn_from_its_numbers() {
        let folder = crate::record::folder();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let bars = Bars::parse(&read(&folder.join("bars.tsv"))).unwrap();
        let made = tempfile::tempdir().unwrap();
        let paths = bars.draw(made.path()).unwrap();
        assert_eq!(paths.len(), CHARTS.len() + CURVES.len());
        for path in paths {
            let name = path.file_name().unwrap();
            let is_same = read(&path) == read(&folder.join(name));
            assert!(is_same, "{name:?} shows other numbers: cargo xtask bench --record");
        }
    }

    #[test]
    fn a_measurement_replaces_its_own_bars() {
        let bars = |bench: &str, kind: &str| {
            Bars::parse(&format!("{bench}\thandoff\tRedis\t{kind}\t1\n")).unwrap()
        };
        let (mut all, order) = (bars("stores", "latchwork"), ["redis-handoff", "stores"]);
        all.replace("redis-handoff", bars("redis-handoff", "old"), &order);
        all.replace("redis-handoff", bars("redis-handoff", "new"), &order);
        let kinds: Vec<&str> = all.0.iter().map(|bar| &*bar.kind).collect();
        assert_eq!(kinds, ["new", "latchwork"]);
        assert_eq!(all.pictures().map(|it| it.1).collect::<Vec<_>>(), [HANDOFF.file()]);
        assert!(Bars::parse("a\tb\n").is_err());
    }
}

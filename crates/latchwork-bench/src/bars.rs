//! Pictures of a run: a bar for each lock, in a group for each store.
//!
//! Each measurement is a process of its own, so what it measured reaches the picture by a file.

use std::io::Write;
use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::peers::LATCHWORK;

/// The variable that names the file.
pub(crate) const FILE: &str = "LATCHWORK_BENCH_BARS";

pub(crate) const CONTENDED: Chart = Chart {
    name: "contended",
    title: "8 processes want one key: handovers a second (more is better)",
};
pub(crate) const HANDOFF: Chart = Chart {
    name: "handoff",
    title: "From a release to the next hold, 8 wait, held for 200 ms: median in us (less is better)",
};

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

struct Bar {
    store: String,
    kind: String,
    value: f64,
}

impl Chart {
    /// Remembers a number, if this run makes pictures. Of Latchwork's settings only the plain one.
    pub(crate) fn note(&self, store: &str, kind: &str, value: f64) {
        let Some(file) = std::env::var_os(FILE) else { return };
        if (kind.starts_with(LATCHWORK.name) && kind != LATCHWORK.name) || !value.is_finite() {
            return;
        }
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let wrote =
            file.and_then(|mut file| writeln!(file, "{}\t{store}\t{kind}\t{value}", self.name));
        if let Err(error) = wrote {
            eprintln!("the picture will lack {kind} on {store}: {error}");
        }
    }

    /// Draws what the file has of it; `None` if that is nothing.
    pub(crate) fn draw(&self, file: &Path) -> Result<Option<String>, Box<dyn std::error::Error>> {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bars: Vec<Bar> = Vec::new();
        for line in text.lines() {
            let [chart, store, kind, value] = line.split('\t').collect::<Vec<_>>()[..] else {
                return Err(format!("{}: what is {line:?}?", file.display()).into());
            };
            let twice = bars.iter().any(|bar| bar.store == store && bar.kind == kind);
            if chart == self.name && !twice {
                let (store, kind) = (store.to_string(), kind.to_string());
                bars.push(Bar { store, kind, value: value.parse()? });
            }
        }
        self.picture(&bars)
    }

    fn picture(&self, bars: &[Bar]) -> Result<Option<String>, Box<dyn std::error::Error>> {
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
        bars: &[Bar],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let plain = ("sans-serif", 13).into_font();
        let left = TextStyle::from(plain.clone()).pos(Pos::new(HPos::Left, VPos::Center));
        let right = TextStyle::from(plain).pos(Pos::new(HPos::Right, VPos::Center));
        let bold = TextStyle::from(("sans-serif", 14, FontStyle::Bold).into_font())
            .pos(Pos::new(HPos::Left, VPos::Center));
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title, (12, 20), bold.clone()))?;
        // Whole powers of ten, so that the scale is plain to read.
        let values = || bars.iter().map(|bar| bar.value.max(0.1).log10());
        let from = values().fold(f64::INFINITY, f64::min).floor();
        let to = values().fold(f64::NEG_INFINITY, f64::max).ceil().max(from + 1.0);
        let width = f64::from(WIDTH as i32 - LEFT - RIGHT);
        let x = |power: f64| LEFT + ((power - from) / (to - from) * width) as i32;
        let (_, height) = area.dim_in_pixel();
        let floor = height as i32 - BOTTOM as i32;
        for power in from as i32..=to as i32 {
            let at = x(f64::from(power));
            area.draw(&PathElement::new([(at, TOP as i32), (at, floor)], BLACK.mix(0.15)))?;
            let label = format!("{}", 10f64.powi(power));
            let center = right.pos(Pos::new(HPos::Center, VPos::Center));
            area.draw(&Text::new(label, (at, floor + 14), center))?;
        }
        let mut y = (TOP + LINE / 2) as i32;
        for group in groups {
            area.draw(&Text::new(*group, (12, y), bold.clone()))?;
            y += LINE as i32;
            for bar in bars.iter().filter(|bar| bar.store == *group) {
                let ours = bar.kind == LATCHWORK.name;
                let color = if ours { OURS } else { OTHERS };
                area.draw(&Text::new(bar.kind.clone(), (LEFT - 8, y), right.clone()))?;
                let end = x(bar.value.max(0.1).log10());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_a_longer_bar_for_a_larger_number() {
        let bar = |kind: &str, value| Bar { store: "Redis".into(), kind: kind.into(), value };
        let bars = [bar("latchwork", 5_000.0), bar("another", 50.0)];
        let svg = CONTENDED.picture(&bars).unwrap().unwrap();
        for text in ["Redis", "latchwork", "another", "5000", "50"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        let width = |color: &str| -> f64 {
            let line = svg.lines().find(|line| line.contains(color)).unwrap();
            let from = line.find(" width=\"").unwrap() + 8;
            line[from..].split('"').next().unwrap().parse().unwrap()
        };
        assert!(width("#4C8ED9") > 2.0 * width("#AFB8C1"), "{svg}");
        assert!(CONTENDED.picture(&[]).unwrap().is_none());
    }
}

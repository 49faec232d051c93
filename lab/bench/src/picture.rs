//! Pictures of curves: one line for each store or lock, both axes logarithmic, so that each power of ten is as long as the
//! one before.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::roles::Outcome;

/// A size, and the cost at that size.
type Point = (f64, f64);
type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

const SIZE: (u32, u32) = (900, 420);
const LEFT: i32 = 80;
const RIGHT: i32 = 640;
const TOP: i32 = 44;
const BOTTOM: i32 = 360;
/// Between two names beside the picture.
const LINE: i32 = 20;
const COLORS: [RGBColor; 8] = [
    RGBColor(0x4c, 0x8e, 0xd9),
    RGBColor(0xd1, 0x24, 0x2f),
    RGBColor(0x1a, 0x7f, 0x37),
    RGBColor(0x82, 0x50, 0xdf),
    RGBColor(0xbf, 0x6a, 0x02),
    RGBColor(0x0a, 0x8f, 0x8f),
    RGBColor(0xbf, 0x39, 0x89),
    RGBColor(0x57, 0x60, 0x6a),
];

/// A picture of curves.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What the axis below counts.
    pub(crate) size: &'static str,
}

/// A line, and what it is of.
pub(crate) type Series = (String, Vec<Point>);

impl Curve {
    /// The name of its file.
    pub(crate) fn file(&self) -> String {
        format!("bench-{}.svg", self.name)
    }

    /// The picture in SVG, or nothing if there is nothing to see.
    pub(crate) fn picture(&self, series: &[Series]) -> Outcome<Option<String>> {
        let has_place = |point: &&Point| point.0 > 0.0 && point.1 > 0.0;
        let points = || series.iter().flat_map(|(_, points)| points).filter(has_place);
        let (Some(x), Some(y)) =
            (LogAxis::over(points().map(|p| p.0)), LogAxis::over(points().map(|p| p.1)))
        else {
            return Ok(None);
        };
        let mut svg = String::new();
        {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            self.draw_on(&area, series, (&x, &y))?;
            area.present()?;
        }
        Ok(Some(svg))
    }

    fn draw_on(&self, area: &Area<'_>, series: &[Series], axes: (&LogAxis, &LogAxis)) -> Outcome {
        let plain = ("sans-serif", 13).into_font();
        let at = |h, v| TextStyle::from(plain.clone()).pos(Pos::new(h, v));
        let bold = TextStyle::from(("sans-serif", 14, FontStyle::Bold).into_font())
            .pos(Pos::new(HPos::Left, VPos::Center));
        area.fill(&WHITE)?;
        area.draw(&Text::new(self.title, (12, 20), bold))?;
        let across = |part: f64| LEFT + (part * f64::from(RIGHT - LEFT)) as i32;
        let up = |part: f64| BOTTOM - (part * f64::from(BOTTOM - TOP)) as i32;
        for tick in axes.0.ticks() {
            let Some(x) = axes.0.place(tick).map(across) else { continue };
            area.draw(&PathElement::new([(x, TOP), (x, BOTTOM)], BLACK.mix(0.15)))?;
            area.draw(&Text::new(label(tick), (x, BOTTOM + 14), at(HPos::Center, VPos::Center)))?;
        }
        for tick in axes.1.ticks() {
            let Some(y) = axes.1.place(tick).map(up) else { continue };
            area.draw(&PathElement::new([(LEFT, y), (RIGHT, y)], BLACK.mix(0.15)))?;
            area.draw(&Text::new(label(tick), (LEFT - 8, y), at(HPos::Right, VPos::Center)))?;
        }
        let middle = (LEFT + RIGHT) / 2;
        let size = format!("{}; both axes are logarithmic", self.size);
        area.draw(&Text::new(size, (middle, BOTTOM + 38), at(HPos::Center, VPos::Center)))?;
        for (n, (name, points)) in series.iter().enumerate() {
            let color = COLORS[n % COLORS.len()];
            let place = |(x, y): &Point| Some((across(axes.0.place(*x)?), up(axes.1.place(*y)?)));
            let line: Vec<(i32, i32)> = points.iter().filter_map(place).collect();
            for point in &line {
                area.draw(&Circle::new(*point, 3, color.filled()))?;
            }
            area.draw(&PathElement::new(line, color.stroke_width(2)))?;
            let y = TOP + 8 + n as i32 * LINE;
            area.draw(&PathElement::new(
                [(RIGHT + 16, y), (RIGHT + 36, y)],
                color.stroke_width(2),
            ))?;
            area.draw(&Text::new(name.clone(), (RIGHT + 44, y), at(HPos::Left, VPos::Center)))?;
        }
        Ok(())
    }
}

/// More lines than that are no help.
const LINES: i32 = 9;

/// From one power of ten to another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LogAxis {
    from: i32,
    to: i32,
}

impl LogAxis {
    /// The shortest that has all these values, from one whole power to the next; one power at least. What
    /// is not above zero has no place on it.
    fn over(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let powers = values.into_iter().filter(|value| *value > 0.0 && value.is_finite());
        let powers: Vec<f64> = powers.map(f64::log10).collect();
        let least = powers.iter().copied().fold(f64::INFINITY, f64::min);
        let most = powers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // A power of ten that is a little off by its arithmetic is that power.
        let (from, to) = ((least + 1e-9).floor() as i32, (most - 1e-9).ceil() as i32);
        (!powers.is_empty()).then(|| Self { from, to: to.max(from + 1) })
    }

    /// Where a value is, from 0 to 1; `None` if it is not on the axis.
    fn place(&self, value: f64) -> Option<f64> {
        let part = (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        (-1e-9..=1.0 + 1e-9).contains(&part).then(|| part.clamp(0.0, 1.0))
    }

    /// The values that get a line: powers of ten; twice and five times as much between them if there
    /// are few, and not each of them if there are many.
    fn ticks(&self) -> Vec<f64> {
        let length = self.to - self.from;
        let step = (length + LINES - 1) / LINES;
        let between: &[f64] = if length <= 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let powers = (self.from..=self.to).step_by(step.max(1) as usize);
        let last = 10f64.powi(self.to);
        powers
            .flat_map(|power| between.iter().map(move |part| part * 10f64.powi(power)))
            .filter(|value| *value <= last * (1.0 + 1e-9))
            .collect()
    }
}

/// A value as it stands beside its line: 0.02, 5, 10k, 2M.
fn label(value: f64) -> String {
    for (unit, suffix) in [(1e9, "G"), (1e6, "M"), (1e3, "k")] {
        if value >= unit * (1.0 - 1e-9) {
            return format!("{}{suffix}", rounded(value / unit));
        }
    }
    rounded(value)
}

/// Without the last digits of its arithmetic.
fn rounded(value: f64) -> String {
    let digits = (-value.abs().max(1e-12).log10()).ceil().max(0.0) as usize + 2;
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_is_a_straight_line_on_log_axes() {
        const CURVE: Curve = Curve { name: "growth-x", title: "Cost of x", size: "waiters" };
        let line =
            |power: f64| [1.0, 10.0, 100.0, 1_000.0].map(|n: f64| (n, n.powf(power))).to_vec();
        let series = [("Redis".to_string(), line(1.0)), ("etcd, a peer".to_string(), line(2.0))];
        let svg = CURVE.picture(&series).unwrap().unwrap();
        for text in ["Cost of x", "waiters; both axes are log", "Redis", "etcd, a peer", "1k", "1M"]
        {
            assert!(svg.contains(text), "{text} is missing");
        }
        let number = |line: &str, name: &str| -> f64 {
            let from = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
            line[from..].split('"').next().unwrap().parse().unwrap()
        };
        let circles = svg.lines().filter(|it| it.contains("<circle") && it.contains("#D1242F"));
        let places: Vec<_> = circles.map(|it| (number(it, "cx"), number(it, "cy"))).collect();
        let [first, .., last] = places[..] else { panic!("{places:?}") };
        let slope = (last.1 - first.1) / (last.0 - first.0);
        for (x, y) in places {
            assert!((y - (first.1 + slope * (x - first.0))).abs() <= 1.5, "({x}, {y}) {slope}");
        }
        let nothing = [("Redis".to_string(), vec![(10.0, 0.0), (0.0, 5.0)])];
        assert!(CURVE.picture(&nothing).unwrap().is_none());
    }

    #[test]
    fn ticks_are_powers_of_ten_and_never_many() {
        let axis = |values: &[f64]| LogAxis::over(values.iter().copied()).unwrap();
        assert_eq!(axis(&[3.0, 7_000.0]).ticks(), [1.0, 10.0, 100.0, 1_000.0, 10_000.0]);
        assert_eq!(axis(&[10.0]), LogAxis { from: 1, to: 2 });
        let labels: Vec<String> = axis(&[0.2, 7.0]).ticks().into_iter().map(label).collect();
        assert_eq!(labels, ["0.1", "0.2", "0.5", "1", "2", "5", "10"]);
        for power in 1..40 {
            let ticks = LogAxis { from: -3, to: power - 3 }.ticks();
            assert!((4..=10).contains(&ticks.len()), "{power}: {ticks:?}");
        }
        let cases = [(0.001, "0.001"), (0.1 + 0.2, "0.3"), (20_000.0, "20k"), (5e6, "5M")];
        for (value, text) in cases {
            assert_eq!(label(value), text);
        }
    }
}

//! Pictures of curves: one line for each store or lock, both axes logarithmic.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::growth::axis::{LogAxis, label};
use crate::growth::exponent::Point;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
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
pub(crate) struct Chart {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What the axis below counts.
    pub(crate) size: &'static str,
}

/// A line, and what it is of.
pub(crate) type Series = (String, Vec<Point>);

impl Chart {
    /// The name of its file.
    pub(crate) fn file(&self) -> String {
        format!("bench-{}.svg", self.name)
    }

    /// The picture in SVG, or nothing if there is nothing to see.
    pub(crate) fn picture(&self, series: &[Series]) -> Result<Option<String>> {
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

    fn draw_on(
        &self,
        area: &Area<'_>,
        series: &[Series],
        axes: (&LogAxis, &LogAxis),
    ) -> Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    const CHART: Chart = Chart { name: "growth-x", title: "Cost of x", size: "waiters" };

    #[test]
    fn a_power_is_a_straight_line_on_log_axes() {
        let sizes = [1.0, 10.0, 100.0, 1_000.0];
        let line = |power: f64| sizes.iter().map(|n: &f64| (*n, n.powf(power))).collect();
        let series = [("Redis".to_string(), line(1.0)), ("etcd, a peer".to_string(), line(2.0))];
        let svg = CHART.picture(&series).unwrap().unwrap();
        for text in ["Cost of x", "waiters; both axes are log", "Redis", "etcd, a peer", "1k", "1M"]
        {
            assert!(svg.contains(text), "{text} is missing");
        }
        let circles: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.contains("<circle") && line.contains("#D1242F"))
            .map(|line| {
                let number = |name: &str| -> f64 {
                    let from = line.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
                    line[from..].split('"').next().unwrap().parse().unwrap()
                };
                (number("cx"), number("cy"))
            })
            .collect();
        let [first, .., last] = circles[..] else { panic!("{circles:?}") };
        let slope = (last.1 - first.1) / (last.0 - first.0);
        assert_eq!(circles.len(), 4);
        for (x, y) in circles {
            assert!((y - (first.1 + slope * (x - first.0))).abs() <= 1.5, "({x}, {y}) {slope}");
        }
    }

    #[test]
    fn a_picture_of_nothing_is_not_drawn() {
        assert!(CHART.picture(&[]).unwrap().is_none());
        let nothing = [("Redis".to_string(), vec![(10.0, 0.0), (0.0, 5.0)])];
        assert!(CHART.picture(&nothing).unwrap().is_none());
    }
}

//! Draws who was at the stock when: one row for each buyer, in SVG.

use std::fmt::Write as _;
use std::time::Duration;

use latchwork_store::Moment;

use crate::tally::Tally;
use crate::words::Scene;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const ROW: f64 = 18.0;
const BAR: f64 = 12.0;
/// Above the rows of a scene: its title.
const TITLE: f64 = 34.0;
/// Below them: the axis.
const AXIS: f64 = 30.0;
const FOOT: f64 = 40.0;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#24292f}\
.t{font-weight:600}\
.n{fill:#57606a}\
.held{fill:#4c8ed9}\
.two{fill:#d1242f}\
.stop{fill:#24292f}\
.row{fill:#f3f5f7}\
.no{stroke:#8b1a1a;stroke-width:2.5;fill:none}\
.axis{stroke:#8c959f;stroke-width:1}";

/// The whole picture.
pub(crate) fn draw(tallies: &[Tally]) -> String {
    let panel = |tally: &Tally| TITLE + rows(tally) * ROW + AXIS;
    let height = tallies.iter().map(panel).sum::<f64>() + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>Who was at the stock, and when</title>\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    let mut top = 0.0;
    for tally in tallies {
        Panel::new(tally, top).draw(&mut svg);
        top += panel(tally);
    }
    legend(&mut svg, top + 14.0);
    svg.push_str("</svg>\n");
    svg
}

fn rows(tally: &Tally) -> f64 {
    tally.visits.iter().map(|visit| visit.buyer).max().unwrap_or(1).into()
}

/// One scene.
struct Panel<'a> {
    tally: &'a Tally,
    top: f64,
    seconds: f64,
}

impl<'a> Panel<'a> {
    fn new(tally: &'a Tally, top: f64) -> Self {
        // Never empty, so that everything has a place.
        let seconds = tally.took().max(Duration::from_millis(1)).as_secs_f64();
        Self { tally, top, seconds }
    }

    fn x(&self, at: Moment) -> f64 {
        self.x_of(at.since(self.tally.opened).as_secs_f64())
    }

    fn x_of(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.seconds).min(1.0)
    }

    fn y(&self, buyer: u32) -> f64 {
        self.top + TITLE + f64::from(buyer - 1) * ROW
    }

    fn draw(&self, svg: &mut String) {
        let rows = rows(self.tally);
        let _ = writeln!(
            svg,
            "<text class=\"t\" x=\"12\" y=\"{:.0}\">{}</text>",
            self.top + 22.0,
            headline(self.tally)
        );
        for buyer in 1..=rows as u32 {
            let y = self.y(buyer);
            let _ = writeln!(
                svg,
                "<text class=\"n\" x=\"12\" y=\"{:.0}\">buyer {buyer}</text>\
                 <rect class=\"row\" x=\"{LEFT}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"{BAR}\"/>",
                y + 10.0,
                WIDTH - LEFT - RIGHT
            );
        }
        for visit in &self.tally.visits {
            self.bar(svg, "held", visit.buyer, visit.from, visit.to);
        }
        for (from, to) in self.tally.crowded() {
            for visit in &self.tally.visits {
                let (from, to) = (visit.from.max(from), visit.to.min(to));
                if from < to {
                    self.bar(svg, "two", visit.buyer, from, to);
                }
            }
        }
        for stop in &self.tally.stops {
            let (x, end) = (self.x(stop.from), self.x(stop.to));
            strip(svg, x, self.y(stop.buyer), end - x);
        }
        for refusal in &self.tally.refused {
            cross(svg, self.x(refusal.at), self.y(refusal.buyer) + BAR / 2.0);
        }
        self.axis(svg, self.top + TITLE + rows * ROW + 2.0);
    }

    fn bar(&self, svg: &mut String, class: &str, buyer: u32, from: Moment, to: Moment) {
        let (x, end) = (self.x(from), self.x(to));
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"{BAR}\"/>",
            self.y(buyer),
            (end - x).max(0.6)
        );
    }

    fn axis(&self, svg: &mut String, y: f64) {
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {y:.0}H{:.0}\"/>", WIDTH - RIGHT);
        let step = [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .find(|step| self.seconds / step <= 12.0)
            .unwrap_or(30.0);
        let mut tick = 0.0;
        while tick <= self.seconds {
            let x = self.x_of(tick);
            let _ = writeln!(
                svg,
                "<path class=\"axis\" d=\"M{x:.1} {y:.0}v4\"/>\
                 <text class=\"n\" x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{} s</text>",
                y + 17.0,
                (tick * 100.0).round() / 100.0
            );
            tick += step;
        }
    }
}

/// A thin bar, for the time in which a buyer stood still: what it held then is seen behind it.
fn strip(svg: &mut String, x: f64, y: f64, width: f64) {
    let _ = writeln!(
        svg,
        "<rect class=\"stop\" x=\"{x:.1}\" y=\"{:.0}\" width=\"{width:.1}\" height=\"4\"/>",
        y + 4.0
    );
}

fn cross(svg: &mut String, x: f64, y: f64) {
    let _ =
        writeln!(svg, "<path class=\"no\" d=\"M{:.1} {:.1}l8 8m0 -8l-8 8\"/>", x - 4.0, y - 4.0);
}

/// What a scene is, and what came of it.
fn headline(tally: &Tally) -> String {
    let Tally { scene, sold, stock, .. } = tally;
    let mut text = format!("{}. {}: {sold} sold of {stock}", scene.number(), scene.name());
    if *scene == Scene::Naive {
        let _ =
            write!(text, ", {} expired at work, {} deleted by others", tally.expired, tally.freed);
    }
    if !tally.refused.is_empty() {
        let _ = write!(text, ", late writes refused: {}", tally.refused.len());
    }
    text
}

fn legend(svg: &mut String, y: f64) {
    let all = [
        ("held", "at the stock"),
        ("two", "more than one at the stock"),
        ("stop", "stopped"),
        ("no", "late write, refused by its token"),
    ];
    let mut x = LEFT;
    for (class, text) in all {
        match class {
            "stop" => strip(svg, x, y, BAR),
            "no" => cross(svg, x + BAR / 2.0, y + BAR / 2.0),
            _ => {
                let _ = writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{x:.0}\" y=\"{y:.0}\" width=\"{BAR}\" \
                     height=\"{BAR}\"/>"
                );
            }
        }
        let _ = writeln!(svg, "<text x=\"{:.0}\" y=\"{:.0}\">{text}</text>", x + 18.0, y + 10.0);
        x += 40.0 + 6.6 * text.len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Event, Said};

    fn said(buyer: u32, millis: u64, event: Event) -> Said {
        Said { buyer, at: Moment::from_nanos(1_000_000 * (millis + 5_000)), event }
    }

    fn count(svg: &str, class: &str) -> usize {
        // The last of each is in the legend.
        svg.matches(&format!("class=\"{class}\"")).count() - 1
    }

    #[test]
    fn the_picture_marks_visits_overlaps_and_refusals() {
        let left = || Event::Left { expired: false, freed: false };
        let all = [
            said(1, 0, Event::Entered { token: Some(1) }),
            said(1, 10, Event::Stopped),
            said(2, 500, Event::Entered { token: Some(2) }),
            said(1, 600, Event::Continued),
            said(1, 700, Event::Refused { left: 1, token: 1, newest: 2 }),
            said(1, 800, left()),
            said(2, 1_000, left()),
        ];
        let svg = draw(&[Tally::of(Scene::Fenced, 2, 0, &all)]);
        assert_eq!(count(&svg, "held"), 2);
        assert_eq!(count(&svg, "two"), 2, "in the row of each of the two");
        assert_eq!(count(&svg, "stop"), 1);
        assert_eq!(count(&svg, "no"), 1);
        assert_eq!(svg.matches(">buyer ").count(), 2);
        // The red of 500 to 800 ms, in a picture of 1 s and 852 units.
        assert!(svg.contains("class=\"two\" x=\"510.0\" y=\"34\" width=\"255.6\""), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_scene_without_visits_can_be_drawn() {
        let svg = draw(&[Tally::of(Scene::NoLock, 1, 1, &[])]);
        assert!(svg.contains("0 sold of 1") && !svg.contains("NaN"), "{svg}");
    }
}

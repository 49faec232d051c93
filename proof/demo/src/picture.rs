//! Draws who was at the stock when: one row for each buyer, in SVG.

use std::fmt::Write as _;

use crate::tally::Tally;
use crate::words::Scene;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const SPAN: f64 = WIDTH - LEFT - RIGHT;
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
    let height = |tally: &Tally| TITLE + f64::from(rows(tally)) * ROW + AXIS;
    let whole = tallies.iter().map(height).sum::<f64>() + FOOT;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {whole}\" \
         width=\"{WIDTH}\" height=\"{whole}\" role=\"img\">\n\
         <title>Who was at the stock, and when</title>\n\
         <style>{STYLE}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{whole}\" fill=\"#fff\"/>\n"
    );
    let mut top = 0.0;
    for tally in tallies {
        panel(&mut svg, tally, top);
        top += height(tally);
    }
    legend(&mut svg, top + 14.0);
    svg.push_str("</svg>\n");
    svg
}

fn rows(tally: &Tally) -> u32 {
    tally.visits.iter().map(|visit| visit.buyer).max().unwrap_or(1)
}

/// One scene.
fn panel(svg: &mut String, tally: &Tally, top: f64) {
    // Never empty, so that everything has a place.
    let whole = (tally.took() as f64 / 1e9).max(0.001);
    let x_of = |seconds: f64| LEFT + SPAN * (seconds / whole).min(1.0);
    let x = |at: u64| x_of(at.saturating_sub(tally.opened) as f64 / 1e9);
    let y = |buyer: u32| top + TITLE + f64::from(buyer - 1) * ROW;
    text(svg, " class=\"t\"", 12.0, top + 22.0, &headline(tally));
    for buyer in 1..=rows(tally) {
        text(svg, " class=\"n\"", 12.0, y(buyer) + 10.0, &format!("buyer {buyer}"));
        rect(svg, "row", (LEFT, SPAN), y(buyer), BAR);
    }
    let bar = |svg: &mut String, class, buyer, from, to| {
        rect(svg, class, (x(from), (x(to) - x(from)).max(0.6)), y(buyer), BAR);
    };
    for visit in &tally.visits {
        bar(svg, "held", visit.buyer, visit.from, visit.to);
    }
    for (from, to) in tally.crowded() {
        for visit in &tally.visits {
            let (from, to) = (visit.from.max(from), visit.to.min(to));
            if from < to {
                bar(svg, "two", visit.buyer, from, to);
            }
        }
    }
    for stop in &tally.stops {
        strip(svg, x(stop.from), y(stop.buyer), x(stop.to) - x(stop.from));
    }
    for refusal in &tally.refused {
        cross(svg, x(refusal.at), y(refusal.buyer) + BAR / 2.0);
    }
    let y = y(rows(tally) + 1) + 2.0;
    let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {y:.0}H{:.0}\"/>", LEFT + SPAN);
    let steps = [0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0];
    let step = steps.into_iter().find(|step| whole / step <= 12.0).unwrap_or(30.0);
    for tick in (0..).map(|n| f64::from(n) * step).take_while(|tick| *tick <= whole) {
        let x = x_of(tick);
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{x:.1} {y:.0}v4\"/>");
        let label = format!("{} s", (tick * 100.0).round() / 100.0);
        text(svg, " class=\"n\" text-anchor=\"middle\"", x, y + 17.0, &label);
    }
}

fn rect(svg: &mut String, class: &str, (x, width): (f64, f64), y: f64, height: f64) {
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.0}\" width=\"{width:.1}\" height=\"{height}\"/>"
    );
}

fn text(svg: &mut String, attributes: &str, x: f64, y: f64, text: &str) {
    let _ = writeln!(svg, "<text{attributes} x=\"{x:.1}\" y=\"{y:.0}\">{text}</text>");
}

/// A thin bar, for the time in which a buyer stood still: what it held then is seen behind it.
fn strip(svg: &mut String, x: f64, y: f64, width: f64) {
    rect(svg, "stop", (x, width), y + 4.0, 4.0);
}

fn cross(svg: &mut String, x: f64, y: f64) {
    let (x, y) = (x - 4.0, y - 4.0);
    let _ = writeln!(svg, "<path class=\"no\" d=\"M{x:.1} {y:.1}l8 8m0 -8l-8 8\"/>");
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
    for (class, meaning) in all {
        match class {
            "stop" => strip(svg, x, y, BAR),
            "no" => cross(svg, x + BAR / 2.0, y + BAR / 2.0),
            _ => rect(svg, class, (x, BAR), y, BAR),
        }
        text(svg, "", x + 18.0, y + 10.0, meaning);
        x += 40.0 + 6.6 * meaning.len() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Event, Said};

    fn said(buyer: u32, millis: u64, event: Event) -> Said {
        Said { buyer, at: 1_000_000 * (millis + 5_000), event }
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

//! The picture of the published crates in `docs/architecture.svg`: who depends on whom, and the rooms of the
//! engine, as the manifests and the files say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::house::{ROOMS, job};
use crate::workspace::root;

const PICTURE: &str = "docs/architecture.svg";

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 16.0;
/// Of a box, with the one of the engine being wider.
const BOX: f64 = 226.0;
const ENGINE: f64 = 720.0;
const TITLE: f64 = 26.0;
const LINE: f64 = 17.0;
const GAP: f64 = 46.0;
/// Letters of a description in a line of a box.
const LETTERS: usize = 28;

const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#24292f}\
.n{font-weight:600;font-size:14px}\
.m{font-family:ui-monospace,monospace;font-weight:600}\
.b{fill:#f6f8fa;stroke:#8c959f}\
.r{fill:#fff;stroke:#d0d7de}\
.e{fill:none;stroke:#57606a;stroke-width:1.4}\
.h{fill:#57606a}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.b{fill:#161b22;stroke:#6e7681}\
.r{fill:#0d1117;stroke:#30363d}.e{stroke:#8d96a0}.h{fill:#8d96a0}}";

/// Draws the picture anew, or tells that it is not as it should be.
pub(crate) fn draw(write: bool) -> Result<(), String> {
    let path = root().join(PICTURE);
    let new = picture(&crates()?)?;
    if fs::read_to_string(&path).is_ok_and(|old| old == new) {
        return Ok(());
    }
    if !write {
        return Err(format!("{PICTURE} is not what the manifests say: cargo xtask fix"));
    }
    fs::write(&path, new).map_err(|e| format!("{PICTURE}: {e}"))
}

/// A published crate, by its name in the map of them.
struct Krate {
    about: String,
    /// Those of the workspace that it needs to be built, also if a feature chooses it.
    needs: Vec<String>,
}

type Crates = BTreeMap<String, Krate>;

fn crates() -> Result<Crates, String> {
    let mut crates = Crates::new();
    let folder = root().join("crates");
    for entry in fs::read_dir(&folder).map_err(|e| format!("crates: {e}"))? {
        let manifest = entry.map_err(|e| e.to_string())?.path().join("Cargo.toml");
        let text =
            fs::read_to_string(&manifest).map_err(|e| format!("{}: {e}", manifest.display()))?;
        let (name, krate) =
            read(&text).ok_or(format!("{}: no name or description", manifest.display()))?;
        crates.insert(name, krate);
    }
    Ok(crates)
}

fn read(manifest: &str) -> Option<(String, Krate)> {
    let field = |name: &str| {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{name} = ")))?;
        Some(line.split('"').nth(1)?.to_owned())
    };
    let dependencies = manifest.split("\n[dependencies]").nth(1).unwrap_or_default();
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.split([' ', '.', '=']).next());
    let needs = names.filter(|name| name.starts_with("latchwork")).map(str::to_owned).collect();
    Some((field("name")?, Krate { about: field("description")?, needs }))
}

/// Those that a crate needs and that nothing else that it needs brings with it.
fn edges<'a>(crates: &'a Crates, name: &str) -> Vec<&'a str> {
    let direct = &crates[name].needs;
    let is_brought =
        |one: &String| direct.iter().any(|other| other != one && is_above(crates, other, one));
    let edges = direct.iter().filter(|one| crates.contains_key(*one) && !is_brought(one));
    edges.map(String::as_str).collect()
}

fn is_above(crates: &Crates, upper: &str, lower: &str) -> bool {
    crates.get(upper).is_some_and(|krate| {
        krate.needs.iter().any(|next| next == lower || is_above(crates, next, lower))
    })
}

/// How many stand below a crate in a row.
fn level(crates: &Crates, name: &str) -> usize {
    let below = edges(crates, name);
    below.iter().map(|next| level(crates, next) + 1).max().unwrap_or(0)
}

/// A box, with its place.
struct Boxed<'a> {
    name: &'a str,
    lines: Vec<String>,
    middle: f64,
    top: f64,
    width: f64,
    height: f64,
}

fn picture(crates: &Crates) -> Result<String, String> {
    let highest = crates.keys().map(|name| level(crates, name)).max().unwrap_or(0);
    let mut boxes: Vec<Boxed<'_>> = Vec::new();
    // From below, so that a box can stand above what it needs.
    let mut rows: Vec<Vec<Boxed<'_>>> = Vec::new();
    for row in 0..=highest {
        let names: Vec<&String> = crates.keys().filter(|name| level(crates, name) == row).collect();
        let mut placed = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let needs = edges(crates, name);
            let below: Vec<f64> = rows
                .iter()
                .flatten()
                .filter(|it: &&Boxed<'_>| needs.contains(&it.name))
                .map(|it| it.middle)
                .collect();
            let share = (WIDTH - 2.0 * MARGIN) / names.len() as f64;
            // In a row of its own, over what it needs; else in its share of the row.
            let middle = match names.len() {
                1 if !below.is_empty() => below.iter().sum::<f64>() / below.len() as f64,
                _ => MARGIN + share * (at as f64 + 0.5),
            };
            placed.push(boxed(name, &crates[*name].about, middle));
        }
        rows.push(placed);
    }
    let mut top = MARGIN;
    for mut row in rows.into_iter().rev() {
        let height = row.iter().map(|it| it.height).fold(0.0, f64::max);
        for it in &mut row {
            // Of one height, so that no arrow passes behind a neighbour.
            (it.top, it.height) = (top, height);
        }
        top += height + GAP;
        boxes.extend(row);
    }
    let height = top - GAP + MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n\
         <title>The crates of Latchwork, and which needs which</title>\n<style>{STYLE}</style>\n\
         <defs><marker id=\"h\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" \
         markerHeight=\"7\" orient=\"auto\"><path class=\"h\" d=\"M0 0 8 4 0 8z\"/></marker></defs>\n"
    );
    for upper in &boxes {
        for name in edges(crates, upper.name) {
            let lower = boxes.iter().find(|it| it.name == name);
            let lower = lower.ok_or(format!("{name} has no box"))?;
            edge(&mut svg, upper, lower);
        }
    }
    for it in &boxes {
        draw_box(&mut svg, it)?;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn boxed<'a>(name: &'a str, about: &str, middle: f64) -> Boxed<'a> {
    let is_engine = name == "latchwork";
    let (width, letters) = if is_engine { (ENGINE, LETTERS * 4) } else { (BOX, LETTERS) };
    let lines = wrapped(about, letters);
    let rooms = if is_engine { ROOMS.len() as f64 * (LINE + 11.0) + 8.0 } else { 0.0 };
    let height = TITLE + lines.len() as f64 * LINE + 8.0 + rooms;
    Boxed { name, lines, middle, top: 0.0, width, height }
}

/// Lines of at most so many letters.
fn wrapped(text: &str, letters: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| line.len() + word.len() < letters);
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                let _ = write!(line, " {word}");
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines
}

/// From the lower side of one to the upper side of the other, at the height of the other if it is wide enough.
fn edge(svg: &mut String, upper: &Boxed<'_>, lower: &Boxed<'_>) {
    let reach = |it: &Boxed<'_>, other: &Boxed<'_>| {
        let room = it.width / 2.0 - 24.0;
        it.middle + (other.middle - it.middle).clamp(-room, room)
    };
    let (from, to) = (reach(upper, lower), reach(lower, upper));
    let (start, end) = (upper.top + upper.height, lower.top);
    let bend = GAP * 0.6;
    let _ = writeln!(
        svg,
        "<path class=\"e\" marker-end=\"url(#h)\" d=\"M{from:.0} {start:.0} C{from:.0} {:.0} {to:.0} {:.0} \
         {to:.0} {end:.0}\"/>",
        start + bend,
        end - bend
    );
}

fn draw_box(svg: &mut String, it: &Boxed<'_>) -> Result<(), String> {
    let left = it.middle - it.width / 2.0;
    let _ = writeln!(
        svg,
        "<rect class=\"b\" rx=\"6\" x=\"{left:.0}\" y=\"{:.0}\" width=\"{:.0}\" height=\"{:.0}\"/>\
         <text class=\"n\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
        it.top,
        it.width,
        it.height,
        left + 12.0,
        it.top + 20.0,
        it.name
    );
    let mut y = it.top + TITLE + 12.0;
    for line in &it.lines {
        let _ = writeln!(svg, "<text x=\"{:.0}\" y=\"{y:.0}\">{}</text>", left + 12.0, plain(line));
        y += LINE;
    }
    if it.name == "latchwork" {
        rooms(svg, left, y - 2.0)?;
    }
    Ok(())
}

/// The rooms of the engine: each may use those below it.
fn rooms(svg: &mut String, left: f64, mut y: f64) -> Result<(), String> {
    let source = Path::new("crates").join("latchwork").join("src");
    for room in ROOMS.iter().rev() {
        let job = job(&root().join(&source).join(room).join("mod.rs"))?;
        let _ = writeln!(
            svg,
            "<rect class=\"r\" rx=\"4\" x=\"{:.0}\" y=\"{y:.0}\" width=\"{:.0}\" height=\"{:.0}\"/>\
             <text class=\"m\" x=\"{:.0}\" y=\"{:.0}\">{room}/</text>\
             <text x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            left + 12.0,
            ENGINE - 24.0,
            LINE + 7.0,
            left + 20.0,
            y + 16.0,
            left + 104.0,
            y + 16.0,
            plain(&job)
        );
        y += LINE + 11.0;
    }
    Ok(())
}

fn plain(text: &str) -> String {
    text.replace('`', "").replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crate_picture_matches_the_manifests() {
        draw(false).unwrap();
    }

    #[test]
    fn a_crate_stands_above_all_that_it_needs() {
        let krate = |needs: &[&str]| Krate {
            about: "A crate with a description of more than a line".to_owned(),
            needs: needs.iter().map(|&name| name.to_owned()).collect(),
        };
        let crates = Crates::from([
            ("base".to_owned(), krate(&[])),
            ("middle".to_owned(), krate(&["base"])),
            ("top".to_owned(), krate(&["base", "middle", "serde"])),
        ]);
        let levels = ["base", "middle", "top"].map(|name| level(&crates, name));
        assert_eq!(levels, [0, 1, 2]);
        assert_eq!(edges(&crates, "top"), ["middle"]);
        let svg = picture(&crates).unwrap();
        assert_eq!(svg.matches("<rect").count(), 3);
        assert_eq!(svg.matches("class=\"e\"").count(), 2);
    }
}

//! The guide as a book: pages of the repository under one table of contents, made by mdBook.
//!
//! `docs/SUMMARY.md` is that table, with links as they are in the repository. A page of the book lies where it
//! lies in the repository, so most links stay as they are; a link to a file that is no page becomes text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::readme::{lines, link};
use crate::workspace::root;

/// The version of mdBook that is installed if there is none.
const MDBOOK: &str = "0.5.4";

/// The table of contents, from the root.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Pages below which all those of a folder stand.
const BELOW: &[(&str, &str)] =
    &[("docs/adr/README.md", "docs/adr"), ("bench/RESULTS.md", "bench/tables")];

const BOOK: &str = "\
[book]
title = \"Latchwork\"
language = \"en\"
src = \"src\"

[output.html]
default-theme = \"light\"
preferred-dark-theme = \"navy\"
";

/// Makes the book below `target/book`, and says where its first page is.
pub(crate) fn write() -> Result<(), String> {
    let book = root().join("target").join("book");
    let _ = fs::remove_dir_all(&book);
    let pages = pages()?;
    for page in &pages {
        put(&book.join("src").join(page), &of_book(&read(page)?, page, &pages))?;
    }
    for picture in pictures(&pages)? {
        let to = book.join("src").join(&picture);
        fs::create_dir_all(to.parent().unwrap_or(&book))
            .and_then(|()| fs::copy(root().join(&picture), &to))
            .map_err(|error| format!("{}: {error}", picture.display()))?;
    }
    put(&book.join("src/SUMMARY.md"), &summary(&read(Path::new(SUMMARY))?, &pages))?;
    put(&book.join("book.toml"), BOOK)?;
    let status = Command::new(mdbook()?).arg("build").arg(&book).status();
    match status {
        Ok(status) if status.success() => {
            println!("book: {}", book.join("book/index.html").display());
            Ok(())
        }
        Ok(status) => Err(format!("mdbook: {status}")),
        Err(error) => Err(format!("mdbook: {error}")),
    }
}

/// mdBook, from the path or installed for this workspace.
fn mdbook() -> Result<PathBuf, String> {
    let works = |program: &Path| {
        Command::new(program).arg("--version").output().is_ok_and(|done| done.status.success())
    };
    let folder = root().join("target").join("tools");
    let installed = folder.join("bin").join("mdbook");
    for program in [PathBuf::from("mdbook"), installed.clone()] {
        if works(&program) {
            return Ok(program);
        }
    }
    println!("book: installing mdBook {MDBOOK}");
    let arguments = ["install", "mdbook", "--locked", "--version", MDBOOK, "--root"];
    let done = Command::new("cargo").args(arguments).arg(&folder).status();
    match done {
        Ok(status) if status.success() => Ok(installed),
        other => Err(format!("book: mdBook was not installed: {other:?}")),
    }
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    let failed = |error| format!("{}: {error}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    fs::write(path, text).map_err(failed)
}

fn read(page: &Path) -> Result<String, String> {
    let path = root().join(page);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The pages of the book, from the root: those of the table, each decision and each measurement.
pub(crate) fn pages() -> Result<BTreeSet<PathBuf>, String> {
    let summary = read(Path::new(SUMMARY))?;
    let mut pages: BTreeSet<PathBuf> =
        links(&summary).filter_map(|target| leads_to(Path::new(SUMMARY), target)).collect();
    for (_, folder) in BELOW {
        pages.extend(markdown(folder)?);
    }
    Ok(pages)
}

/// The pages of a folder, from the root.
pub(crate) fn markdown(folder: &str) -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(root().join(folder)).map_err(|error| format!("{folder}: {error}"))?;
    let names = entries.flatten().map(|entry| Path::new(folder).join(entry.file_name()));
    Ok(names.filter(|name| name.extension().is_some_and(|it| it == "md")).collect())
}

/// The pictures that the pages show, from the root.
fn pictures(pages: &BTreeSet<PathBuf>) -> Result<BTreeSet<PathBuf>, String> {
    let mut pictures = BTreeSet::new();
    for page in pages {
        let text = read(page)?;
        let shown = links(&text).filter(|target| is_picture(target));
        pictures.extend(shown.filter_map(|target| leads_to(page, target)));
    }
    Ok(pictures)
}

fn is_picture(target: &str) -> bool {
    [".svg", ".png"].iter().any(|end| target.ends_with(end))
}

/// The targets of all links of a page, but not of its code.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let text = lines(text).filter(|(_, is_code)| !is_code);
    text.flat_map(|(line, _)| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()))
}

/// The file that a link on a page leads to, from the root; `None` if it leads elsewhere.
pub(crate) fn leads_to(page: &Path, target: &str) -> Option<PathBuf> {
    let file = target.split('#').next().filter(|file| !file.is_empty())?;
    if target.contains("://") {
        return None;
    }
    let mut path = page.parent()?.to_owned();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path)
}

/// A page as the book has it: links to what is no page are text.
fn of_book(text: &str, page: &Path, pages: &BTreeSet<PathBuf>) -> String {
    let mut made = String::new();
    for (line, is_code) in lines(text) {
        made.push_str(&if is_code { line.to_owned() } else { line_of_book(line, page, pages) });
        made.push('\n');
    }
    made
}

fn line_of_book(line: &str, page: &Path, pages: &BTreeSet<PathBuf>) -> String {
    let (mut made, mut rest) = (String::new(), line);
    while let Some((before, label, target, after)) = link(rest) {
        made.push_str(before);
        let stays = match leads_to(page, target) {
            None => true,
            Some(file) => pages.contains(&file) || is_picture(target),
        };
        made.push_str(&if stays { format!("[{label}]({target})") } else { label.to_owned() });
        rest = after;
    }
    made + rest
}

/// The table of contents as mdBook reads it: from the root, with the decisions and the measurements below their pages.
fn summary(text: &str, pages: &BTreeSet<PathBuf>) -> String {
    let mut made = String::new();
    for line in text.lines() {
        let Some((before, label, target, after)) = link(line) else {
            made.push_str(line);
            made.push('\n');
            continue;
        };
        let file = leads_to(Path::new(SUMMARY), target).unwrap_or_default();
        made.push_str(&format!("{before}[{label}]({}){after}\n", file.display()));
        let below = BELOW.iter().filter(|(page, _)| file == Path::new(page));
        for page in below.flat_map(|(_, folder)| {
            pages
                .iter()
                .filter(|page| page.starts_with(folder) && **page != file)
                .collect::<Vec<_>>()
        }) {
            let title = title(page).unwrap_or_else(|| page.display().to_string());
            made.push_str(&format!("  - [{title}]({})\n", page.display()));
        }
    }
    made
}

/// The first heading of a page.
fn title(page: &Path) -> Option<String> {
    let text = read(page).ok()?;
    let heading = text.lines().find_map(|line| line.strip_prefix("# "))?;
    Some(heading.replace(['[', ']'], ""))
}

/// What a forge and mdBook call the place of a heading.
#[cfg(test)]
fn anchor(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_in_the_table_of_contents() {
        let pages = pages().unwrap();
        let mut missing = Vec::new();
        for folder in ["docs", "docs/guide", "docs/guide/recipes"] {
            missing.extend(markdown(folder).unwrap_or_default());
        }
        missing.retain(|page| !pages.contains(page) && page != Path::new(SUMMARY));
        assert!(missing.is_empty(), "not in {SUMMARY}: {missing:?}");
        let gone: Vec<_> = pages.iter().filter(|page| !root().join(page).exists()).collect();
        assert!(gone.is_empty(), "only in {SUMMARY}: {gone:?}");
    }

    #[test]
    fn every_link_leads_to_a_heading() {
        let mut broken = Vec::new();
        for page in pages().unwrap() {
            let text = read(&page).unwrap();
            for target in links(&text) {
                let Some((_, wanted)) = target.split_once('#').filter(|_| !target.contains("://"))
                else {
                    continue;
                };
                let file = leads_to(&page, target).unwrap_or_else(|| page.clone());
                if file.extension().is_none_or(|it| it != "md") {
                    continue;
                }
                let there = read(&file).unwrap_or_default();
                let found = lines(&there).any(|(line, is_code)| {
                    !is_code && line.starts_with('#') && anchor(line) == wanted
                });
                if !found {
                    broken.push(format!("{}: {target}", page.display()));
                }
            }
        }
        assert!(broken.is_empty(), "{broken:#?}");
    }

    #[test]
    fn a_link_to_a_non_page_becomes_text() {
        let pages = [PathBuf::from("docs/time.md")].into();
        let page = Path::new("docs/fencing.md");
        for (line, made) in [
            ("see [time](time.md#x) and [it](../crates/a.rs)", "see [time](time.md#x) and it"),
            (
                "![p](stock.svg), ![q](q.png), [x](https://docs.rs/x), [y](#y)",
                "![p](stock.svg), ![q](q.png), [x](https://docs.rs/x), [y](#y)",
            ),
        ] {
            assert_eq!(line_of_book(line, page, &pages), made);
        }
    }

    #[test]
    fn a_heading_has_its_place() {
        assert_eq!(anchor("## Redis: 10,000 held locks"), "redis-10000-held-locks");
        assert_eq!(anchor("### `once`, and time"), "once-and-time");
    }
}

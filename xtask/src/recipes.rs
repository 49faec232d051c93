//! The code of the recipes, copied from `proof/recipes`, where it is tested, into the pages of the guide.
//!
//! A source marks a piece by `// recipe: NAME` (`# recipe: NAME` in scripts) and `// end`. A page names it by
//! `<!-- recipe: NAME -->` above a block of code.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::root;

const SOURCES: &str = "proof/recipes";
const PAGES: &str = "docs/guide/recipes";

/// A piece of code: the language of its block, and its text.
#[derive(Debug, PartialEq, Eq)]
struct Piece {
    language: &'static str,
    text: String,
}

/// Writes the code into the pages, or tells which page does not have it.
pub(crate) fn pages(write: bool) -> Result<(), String> {
    let mut pieces = BTreeMap::new();
    for file in sources()? {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        for (name, piece) in pieces_of(&text, language(&file))? {
            if pieces.insert(name.clone(), piece).is_some() {
                return Err(format!("{}: another piece is called {name:?}", file.display()));
            }
        }
    }
    let mut used = Vec::new();
    for page in crate::house::files(&root().join(PAGES), &["md"])? {
        let text = fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))?;
        let new = filled(&text, &pieces, &mut used)
            .map_err(|wrong| format!("{}: {wrong}", page.display()))?;
        if new != text && !write {
            return Err(format!(
                "{}: the code is not that of {SOURCES}: cargo xtask fix",
                page.display()
            ));
        }
        if new != text {
            fs::write(&page, new).map_err(|e| format!("{}: {e}", page.display()))?;
        }
    }
    match pieces.keys().find(|name| !used.contains(name)) {
        Some(name) => Err(format!("{SOURCES}: no page of {PAGES} shows {name:?}")),
        None => Ok(()),
    }
}

/// The files that may have pieces.
fn sources() -> Result<Vec<PathBuf>, String> {
    let folder = root().join(SOURCES);
    let mut files = crate::house::files(&folder.join("src"), &["rs"])?;
    let scripts = fs::read_dir(folder.join("scripts")).map_err(|e| format!("scripts: {e}"))?;
    for script in scripts {
        files.push(script.map_err(|e| e.to_string())?.path());
    }
    files.sort();
    Ok(files)
}

fn language(file: &Path) -> &'static str {
    match file.extension().and_then(|end| end.to_str()) {
        Some("rs") => "rust",
        Some("sh") => "sh",
        _ => "text",
    }
}

/// What follows a mark on its line, without the sign of a comment.
fn mark(line: &str) -> Option<&str> {
    let line = line.trim();
    line.strip_prefix("// ").or_else(|| line.strip_prefix("# "))
}

/// The pieces of a source, each without the blanks that all its lines begin with.
fn pieces_of(text: &str, language: &'static str) -> Result<Vec<(String, Piece)>, String> {
    let (mut pieces, mut open) = (Vec::new(), None::<(String, Vec<&str>)>);
    for line in text.lines() {
        let begins = mark(line).and_then(|mark| mark.strip_prefix("recipe: "));
        match (begins, &mut open) {
            (Some(name), None) => open = Some((name.to_owned(), Vec::new())),
            (Some(name), Some((before, _))) => {
                return Err(format!("{name:?} begins within {before:?}"));
            }
            (None, Some((_, lines))) if mark(line) != Some("end") => lines.push(line),
            (None, _) => {
                if let Some((name, lines)) = open.take() {
                    pieces.push((name, Piece { language, text: dedented(&lines) }));
                }
            }
        }
    }
    match open {
        Some((name, _)) => Err(format!("{name:?} has no end")),
        None => Ok(pieces),
    }
}

fn dedented(lines: &[&str]) -> String {
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let least = indents.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| format!("{}\n", line.get(least..).unwrap_or_default())).collect()
}

/// A page with the code of its pieces. The block below a mark is replaced, or made if there is none.
fn filled(
    page: &str,
    pieces: &BTreeMap<String, Piece>,
    used: &mut Vec<String>,
) -> Result<String, String> {
    let (mut made, mut lines) = (String::new(), page.lines().peekable());
    while let Some(line) = lines.next() {
        made += line;
        made.push('\n');
        let name = line.strip_prefix("<!-- recipe: ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(name) = name else { continue };
        let piece = pieces.get(name).ok_or(format!("{SOURCES} has no piece {name:?}"))?;
        used.push(name.to_owned());
        made += &format!("```{}\n{}```\n", piece.language, piece.text);
        if lines.peek().is_some_and(|line| line.starts_with("```")) {
            lines.next();
            if !lines.by_ref().any(|line| line == "```") {
                return Err(format!("the block of {name:?} has no end"));
            }
        }
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_show_the_code_that_is_tested() {
        pages(false).unwrap();
    }

    #[test]
    fn every_recipe_is_in_the_index() {
        let folder = root().join(PAGES);
        let index = fs::read_to_string(folder.join("README.md")).unwrap();
        for page in crate::house::files(&folder, &["md"]).unwrap() {
            let name = page.file_name().unwrap().to_string_lossy().into_owned();
            assert!(name == "README.md" || index.contains(&format!("]({name})")), "{name}");
        }
    }

    #[test]
    fn a_block_is_replaced_by_the_piece_of_its_name() {
        let source = "x\n    // recipe: a\n    if y {\n        z\n\n    }\n    // end\nw\n";
        let pieces: BTreeMap<_, _> = pieces_of(source, "rust").unwrap().into_iter().collect();
        assert_eq!(pieces["a"].text, "if y {\n    z\n\n}\n");
        let made = "t\n<!-- recipe: a -->\n```rust\nif y {\n    z\n\n}\n```\nu\n";
        for page in
            ["t\n<!-- recipe: a -->\n```text\nold\n```\nu\n", "t\n<!-- recipe: a -->\nu\n", made]
        {
            let mut used = Vec::new();
            assert_eq!(filled(page, &pieces, &mut used).unwrap(), made);
            assert_eq!(used, ["a"]);
        }
        assert!(filled("<!-- recipe: b -->\n", &pieces, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_piece_without_an_end_is_an_error() {
        for source in ["# recipe: a\nx\n", "// recipe: a\n// recipe: b\n// end\n"] {
            assert!(pieces_of(source, "sh").is_err(), "{source}");
        }
    }
}

//! Where a mutation belongs: by package, function and text, so that neither a move of the file nor
//! another line break loses it.

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::list::Mutation;
use crate::house::files;

/// How the names of files end that are written by hand.
const WRITTEN: &[&str] = &["rs", "lua", "sql", "c", "txt", "py", "go", "java"];

/// The sources of the workspace below a folder, each read once.
pub(crate) struct Sources {
    root: PathBuf,
    by_crate: HashMap<String, Vec<Source>>,
}

struct Source {
    path: PathBuf,
    text: String,
    packed: Packed,
}

impl Sources {
    pub(crate) fn below(root: &Path) -> Self {
        Self { root: root.into(), by_crate: HashMap::new() }
    }

    /// The file with the one place of the mutation, and its text with the mutation in it.
    pub(crate) fn apply(&mut self, mutation: &Mutation) -> Result<(PathBuf, String), String> {
        let Mutation { id, krate, function, .. } = mutation;
        if !self.by_crate.contains_key(krate) {
            self.by_crate.insert(krate.clone(), read(&folder_of(&self.root, krate)?)?);
        }
        let mut found = Vec::new();
        for source in &self.by_crate[krate] {
            if mutation.file.as_ref().is_none_or(|file| source.path.ends_with(file)) {
                found.extend(places(source, mutation).into_iter().map(|place| (source, place)));
            }
        }
        let [(source, place)] = &found[..] else {
            let within =
                function.as_ref().map_or(String::new(), |name| format!(" within fn {name}"));
            return Err(format!(
                "{id}: {krate} has the text {} times{within}; mend the list",
                found.len()
            ));
        };
        Ok((source.path.clone(), mutated(&source.text, place, mutation)))
    }
}

/// The text with the mutation in its place.
///
/// A comma at the end of what is to be found may be missing in the code, before a bracket; one that is
/// there belongs to the place.
fn mutated(text: &str, place: &Range<usize>, mutation: &Mutation) -> String {
    let (mut place, mut replace) = (place.clone(), mutation.replace.trim());
    if mutation.find.trim_end().ends_with(',') {
        if text[place.end..].starts_with(',') {
            place.end += 1;
        } else {
            replace = replace.trim_end_matches(',');
        }
    }
    let mut mutated = text.to_owned();
    mutated.replace_range(place, replace);
    mutated
}

fn read(folder: &Path) -> Result<Vec<Source>, String> {
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Source { packed: Packed::of(&text), path, text })
    };
    // What is assembled from others is no place to break something.
    let written = files(folder, WRITTEN)?.into_iter();
    let written = written.filter(|path| !path.iter().any(|part| part == "assembled"));
    written.map(read).collect()
}

/// The folder of a package: `crates/NAME`, or `proof/NAME` or `NAME` without the prefix.
fn folder_of(root: &Path, krate: &str) -> Result<PathBuf, String> {
    let short = krate.strip_prefix("latchwork-").unwrap_or(krate);
    [root.join("crates").join(krate), root.join("proof").join(short), root.join(short)]
        .into_iter()
        .find(|folder| folder.is_dir())
        .ok_or_else(|| format!("there is no crate {krate}"))
}

/// Every place of the mutation's text, within its function if it names one.
fn places(source: &Source, mutation: &Mutation) -> Vec<Range<usize>> {
    let (haystack, needle) = (&source.packed, Packed::of(&mutation.find));
    let needle = needle.text.trim_end_matches(',');
    let found: Vec<_> = haystack.text.match_indices(needle).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let bodies = mutation.function.as_ref().map(|name| functions(&source.text, name));
    let is_inside = |place: &Range<usize>| {
        bodies.as_ref().is_none_or(|bodies| {
            bodies.iter().any(|body| body.start <= place.start && place.end <= body.end)
        })
    };
    let places = found.into_iter().map(|(at, _)| haystack.place(at, needle.len()));
    places.filter(is_inside).collect()
}

/// A text without white space, and without commas before a closing bracket: how it is broken into
/// lines says nothing.
struct Packed {
    text: String,
    /// Where each byte stood.
    origin: Vec<usize>,
}

impl Packed {
    fn of(text: &str) -> Self {
        let (mut packed, mut origin) = (String::new(), Vec::new());
        for (at, c) in text.char_indices().filter(|(_, c)| !c.is_whitespace()) {
            if matches!(c, ')' | ']' | '}') && packed.ends_with(',') {
                packed.pop();
                origin.pop();
            }
            packed.push(c);
            origin.extend((0..c.len_utf8()).map(|byte| at + byte));
        }
        Self { text: packed, origin }
    }

    fn place(&self, at: usize, length: usize) -> Range<usize> {
        self.origin[at]..self.origin[at + length - 1] + 1
    }
}

/// Every function of this name, from its head to the bracket that closes it, which stands as far in
/// as the head does.
fn functions(text: &str, name: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut start = 0;
    let mut open: Option<(usize, usize)> = None;
    let head = format!("fn {name}");
    for line in text.split_inclusive('\n') {
        let indent = line.len() - line.trim_start().len();
        match open {
            Some((from, by)) if indent == by && line.trim_start().starts_with('}') => {
                found.push(from..start + line.len());
                open = None;
            }
            None if is_head(line, &head) => {
                if line.trim_end().ends_with('}') {
                    found.push(start..start + line.len());
                } else {
                    open = Some((start, indent));
                }
            }
            _ => {}
        }
        start += line.len();
    }
    found
}

fn is_head(line: &str, head: &str) -> bool {
    line.match_indices(head).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + head.len()..]);
        let is_word = before.is_empty() || before.ends_with([' ', '\t']);
        is_word && !before.contains("//") && after.starts_with(['(', '<'])
    })
}

#[cfg(test)]
mod tests {
    use super::super::list::Test;
    use super::*;

    const CODE: &str = "\
impl A {
    fn one(&self) -> u32 {
        call(a, b);
        7
    }

    fn one_more(&self) {
        call(a, b);
    }
}
";

    fn mutation(function: Option<&str>, find: &str) -> Mutation {
        Mutation {
            id: "m".into(),
            krate: "c".into(),
            function: function.map(Into::into),
            file: None,
            test: Test { package: "c".into(), target: "lib".into(), name: "t".into() },
            find: find.into(),
            replace: "gone()".into(),
        }
    }

    fn found(code: &str, function: Option<&str>, find: &str) -> Vec<String> {
        let mutation = mutation(function, find);
        places(&source(code), &mutation).into_iter().map(|place| code[place].to_owned()).collect()
    }

    fn source(code: &str) -> Source {
        Source { path: "a.rs".into(), text: code.into(), packed: Packed::of(code) }
    }

    #[test]
    fn a_function_name_distinguishes_equal_texts() {
        assert_eq!(found(CODE, None, "call(a, b);").len(), 2);
        assert_eq!(found(CODE, Some("one"), "call(a, b);"), ["call(a, b);"]);
        assert_eq!(found(CODE, Some("one_more"), "call(a, b);").len(), 1);
        assert_eq!(found(CODE, Some("two"), "call(a, b);").len(), 0);
    }

    #[test]
    fn a_trailing_comma_is_replaced_with_its_text() {
        for (code, find, replace, want) in [
            ("a => b,\nc => d,", "a => b,", "a => x,\ny => z,", "a => x,\ny => z,\nc => d,"),
            ("a => b,\nc => d,", "a => b,", "", "\nc => d,"),
            ("f(a, b)", "b,", "x,", "f(a, x)"),
        ] {
            let mutation = Mutation { replace: replace.into(), ..mutation(None, find) };
            let source = source(code);
            let place = &places(&source, &mutation)[0];
            assert_eq!(mutated(code, place, &mutation), want);
        }
    }

    #[test]
    fn line_breaks_lose_nothing() {
        let broken = CODE.replace(
            "call(a, b);\n        7",
            "call(\n            a,\n            b,\n        );\n        7",
        );
        assert_eq!(found(&broken, Some("one"), "    call(a, b);\n    7").len(), 1);
        assert_eq!(found(CODE, Some("one"), "call(\n    a,\n    b,\n);").len(), 1);
    }
}

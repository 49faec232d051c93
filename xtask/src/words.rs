//! Phrases that make readers stop, kept out of the pages and help texts that users see.
//!
//! The list is short: each entry is wrong wherever it stands. Everything else is for reviewers.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::house::{BEGIN, files};
use crate::stages::root;

/// What is not written, and what is written instead.
const PHRASES: &[(&str, &str)] = &[
    (r"\b[Ww]hoever\b", "name the actor: the client, the holder, the waiter"),
    (r"\b(for|to|by|from) who (is|was|waits|comes|has|knows|goes)\b", "name the actor"),
    (r"\blook(s|ed|ing)? (whether|by itself|by themselves)\b", "check"),
    (r"\bis left of\b", "name the thing that remains"),
    (r"\b(?:if|unless) not said\b", "name the default"),
    (r"\b(?:pass|passes|past) 2\^53\b", "exceed 2^53"),
    (r"\bby lot\b", "at random"),
    (r"\bbears? (?:no|more)\b", "tolerate"),
    (r"\b(?:is to|can) be had\b", "acquire, or get"),
    (r"\b[Ff]ail-?overs? of before\b|\bof before\b [a-z]", "from before"),
    (r"\bnot admitted\b", "timed out, or not free"),
    (r"\bstands? in line\b", "waits in the queue"),
    (r"\b(says?|said) hello\b", "connects"),
];

/// The pages that readers start from, the help of the command, and the sources of what is published.
fn texts() -> Result<Vec<PathBuf>, String> {
    let mut texts = vec!["README.md".into(), "CONTRIBUTING.md".into()];
    texts.extend(
        ["crates/latchwork-cli/src/args.rs", "crates/latchwork-cli/src/args/help.rs"]
            .map(PathBuf::from),
    );
    let pages = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
        let names = entries.map(|entry| Path::new(folder).join(entry.file_name()));
        names.filter(|name| name.extension().is_some_and(|it| it == "md")).collect::<Vec<_>>()
    };
    texts.extend(pages("docs"));
    texts.extend(pages("docs/guide"));
    texts.extend(pages("docs/guide/recipes"));
    let crates = fs::read_dir(root().join("crates")).into_iter().flatten().flatten();
    texts.extend(crates.map(|entry| Path::new("crates").join(entry.file_name()).join("README.md")));
    texts.extend(sources()?);
    // Made from the names of other files.
    texts.retain(|text| !text.ends_with("mutations.md"));
    texts.sort();
    texts.dedup();
    Ok(texts)
}

/// Names each phrase of the list that stands in a text.
///
/// # Errors
///
/// The places, and what to write there.
pub(crate) fn check() -> Result<(), String> {
    let (patterns, mut found) = (patterns(), Vec::new());
    for text in texts()? {
        let path = root().join(&text);
        let content = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let is_page = text.extension().is_some_and(|it| it == "md");
        // In a store, comments are for those who work on it; the texts are for users.
        let content =
            if is_library(&text) || is_page { content } else { without_comments(&content) };
        for (number, phrase, instead) in phrases(&patterns, &content, is_page) {
            found.push(format!("{}:{number}: {phrase:?}; write: {instead}", text.display()));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(format!("phrases:\n  {}", found.join("\n  "))) }
}

/// The sources of the published crates, without those of tests alone.
fn sources() -> Result<Vec<PathBuf>, String> {
    let is_of_tests = |path: &PathBuf| {
        path.iter().any(|part| ["tests", "tests.rs", "examples"].iter().any(|it| part == *it))
    };
    let all = files(&root().join("crates"), &["rs"])?.into_iter();
    let all = all.map(|path| path.strip_prefix(root()).map_or(path.clone(), Path::to_owned));
    Ok(all.filter(|path| !is_of_tests(path)).collect())
}

/// Whether the file is of a crate whose comments are its users' reference.
fn is_library(text: &Path) -> bool {
    let crates = ["latchwork", "latchwork-store"].map(|name| Path::new("crates").join(name));
    crates.iter().any(|folder| text.starts_with(folder.join("src"))) || text.ends_with("args.rs")
}

fn without_comments(content: &str) -> String {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let lines = content.lines().map(|line| if is_comment(line) { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// A phrase, and what to write instead.
type Pattern = (Regex, &'static str);

fn patterns() -> Vec<Pattern> {
    let pattern = |text| Regex::new(text).expect("a pattern of the list");
    PHRASES.iter().map(|(text, instead)| (pattern(text), *instead)).collect()
}

/// The phrases in a text, by line. In a page, code is passed over.
fn phrases(
    patterns: &[Pattern],
    content: &str,
    is_page: bool,
) -> Vec<(usize, String, &'static str)> {
    let content = content.split(BEGIN).next().unwrap_or(content);
    let (mut found, mut is_code) = (Vec::new(), false);
    for (number, line) in (1..).zip(content.lines()) {
        if is_page && line.trim_start().starts_with("```") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let prose: String = match is_page {
            true => line.split('`').step_by(2).collect::<Vec<_>>().join("x"),
            false => line.to_owned(),
        };
        for (pattern, instead) in patterns {
            found.extend(
                pattern.find_iter(&prose).map(|hit| (number, hit.as_str().to_owned(), *instead)),
            );
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_prose_alone() {
        let text = "whoever waits\n```text\nwhoever\n```\n`whoever` is\nTokens pass 2^53.\n";
        let found = phrases(&patterns(), text, true);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 6]);
        assert_eq!(phrases(&patterns(), "/// `whoever`", false).len(), 1);
    }
}

//! Phrases that make readers stop, kept out of the pages and texts that users see.
//!
//! The list is short: each entry is wrong in any context. Everything else is for reviewers.

use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use crate::house::files;
use crate::workspace::root;

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
    (r"\bof before\b [a-z]", "from before"),
    (r"\bnot admitted\b", "timed out, or not free"),
    (r"\bstands? in line\b", "waits in the queue"),
    (r"\b(says?|said) hello\b", "connects"),
    (
        r"\bWho (?:is|was|has|had|waits?|comes?|came|holds?|asks?|leads?|takes?|polls?)\b",
        "name the actor: the client, the holder, the waiter",
    ),
    (r"\b(?:is|are|was|were|be|been) told\b", "notify, report, or learn"),
    (r"\b[Aa]new\b", "again, or restart"),
    (r"\b[Ww]hat (?:is|was) left\b", "name the thing that remains"),
    (r"\b[Ww]hat (?:came|comes|became|becomes) of\b", "the result of"),
    (r"\b[Oo]ver for good\b", "lost, or final"),
    (r"\b(?:given|gives?|gave|giving) back\b", "release"),
    (r"\btaken back\b", "released in the background"),
    (r"\b(?:stood|stands?|standing) still\b", "is paused, or stopped"),
    (r", for (?:they|there|nobody|nothing|somebody)\b", "because"),
    (r"\bmay pay\b", "may succeed"),
    (r"\b[Ll]ook(?:s|ed|ing)? again\b", "check again, or retry"),
    (r"\b[Ff]ail-overs?\b", "failover"),
    (r"\bcounts? on (?:the|its|a|it)\b", "rely on"),
    (
        r"\b(?:first|next|last|ahead|behind|places?|claims?|waiters?) in line(?:[ ,;:)]|$)",
        "in the queue",
    ),
    // 870 万 and the community's words for the same things.
    (r"\d ?百万", "万"),
    (r"围栏令牌|栅栏令牌|击剑令牌|防护令牌", "隔离令牌"),
    (r"多重锁", "联锁"),
];

/// How the first line of an item's documentation does not begin: an index shows it alone.
const OPENINGS: &[(&str, &str)] = &[
    (r"^(?:Who|Whom|Whose)\b", "name the actor, or the thing"),
    (r"^What (?:is|was|came|became|becomes|went)\b", "name the thing"),
];

/// The pages that readers start from, the help of the command, and the sources of what is published.
fn texts() -> Result<Vec<PathBuf>, String> {
    let pages = ["README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut texts: Vec<PathBuf> = pages.map(PathBuf::from).into();
    texts.extend(
        ["crates/latchwork-cli/src/args.rs", "crates/latchwork-cli/src/args/help.rs"]
            .map(PathBuf::from),
    );
    let pages = |folder: &str| {
        let entries = fs::read_dir(root().join(folder)).into_iter().flatten().flatten();
        let names = entries.map(|entry| Path::new(folder).join(entry.file_name()));
        names.filter(|name| name.extension().is_some_and(|it| it == "md")).collect::<Vec<_>>()
    };
    for folder in ["docs", "docs/guide", "docs/guide/recipes"] {
        texts.extend(pages(folder));
    }
    let packaging = files(&root().join("packaging"), &["json", "yml", "service", "timer"])?;
    texts.extend(packaging.into_iter().map(relative));
    texts.push("packaging/Containerfile".into());
    let crates = fs::read_dir(root().join("crates")).into_iter().flatten().flatten();
    texts.extend(crates.map(|entry| Path::new("crates").join(entry.file_name()).join("README.md")));
    texts.extend(sources()?);
    texts.sort();
    texts.dedup();
    Ok(texts)
}

/// Names each phrase of the list that is in a text.
///
/// # Errors
///
/// The places, and what to write there.
pub(crate) fn check() -> Result<(), String> {
    let (patterns, openings, mut found) = (patterns(PHRASES), patterns(OPENINGS), Vec::new());
    for text in texts()? {
        let path = root().join(&text);
        let content = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let is_page = text.extension().is_some_and(|it| it == "md");
        let is_read = is_page || text.starts_with("crates") && !is_left_out(&text);
        let content = if is_read { content } else { without_comments(&content) };
        let mut hits = phrases(&patterns, &content, is_page);
        if is_library(&text) && !text.ends_with("args.rs") {
            hits.extend(first_lines(&openings, &content));
        }
        for (number, phrase, instead) in hits {
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
    let all = files(&root().join("crates"), &["rs"])?.into_iter().map(relative);
    Ok(all.filter(|path| !is_of_tests(path)).collect())
}

fn relative(path: PathBuf) -> PathBuf {
    path.strip_prefix(root()).map_or(path.clone(), Path::to_owned)
}

/// Whether the comments of a file are not read: those of the service's handlers are the text of its OpenAPI description.
fn is_left_out(text: &Path) -> bool {
    text.starts_with("crates/latchwork-serve/src/http")
}

/// Whether the file is of a crate whose comments are its users' reference.
fn is_library(text: &Path) -> bool {
    let crates = ["latchwork", "latchwork-store", "latchwork-wire"]
        .map(|name| Path::new("crates").join(name));
    crates.iter().any(|folder| text.starts_with(folder.join("src"))) || text.ends_with("args.rs")
}

pub(crate) fn without_comments(content: &str) -> String {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    let lines = content.lines().map(|line| if is_comment(line) { "" } else { line });
    lines.collect::<Vec<_>>().join("\n")
}

/// A phrase, and what to write instead.
type Pattern = (Regex, &'static str);

fn patterns(list: &[(&str, &'static str)]) -> Vec<Pattern> {
    let pattern = |text| Regex::new(text).expect("a pattern of the list");
    list.iter().map(|(text, instead)| (pattern(text), *instead)).collect()
}

/// The bad openings among the first lines of documentation in a source.
fn first_lines(openings: &[Pattern], content: &str) -> Vec<(usize, String, &'static str)> {
    let (mut found, mut is_inside) = (Vec::new(), false);
    for (number, line) in (1..).zip(content.lines()) {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let first = text.filter(|_| !is_inside).map(str::trim_start).unwrap_or_default();
        is_inside = text.is_some();
        for (pattern, instead) in openings {
            found.extend(pattern.find(first).map(|hit| (number, hit.as_str().into(), *instead)));
        }
    }
    found
}

/// The phrases in a text, by line. In a page, code is skipped.
fn phrases(
    patterns: &[Pattern],
    content: &str,
    is_page: bool,
) -> Vec<(usize, String, &'static str)> {
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
        let found = phrases(&patterns(PHRASES), text, true);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 6]);
        assert_eq!(phrases(&patterns(PHRASES), "/// `whoever`", false).len(), 1);
    }

    /// The table of the house's style, and what it says of single words.
    #[test]
    fn the_bans_of_the_style_are_caught() {
        let patterns = patterns(PHRASES);
        for text in [
            "Who waits does not poll.",
            "Who is told what happens.",
            "If it is told, it stops.",
            "A claim is not admitted within 2s.",
            "Nothing is lost by fail-overs of before.",
            "The clock stands still.",
            "The holder counts on the lease.",
            "When trying again may pay.",
            "A place in line, and then the lock.",
            "What is left of the ttl.",
            "Tokens are text, for they exceed 2^53.",
            "8.7 百万次",
        ] {
            assert!(!phrases(&patterns, text, true).is_empty(), "{text}");
        }
        for text in [
            "Waiters don't poll: on release, the server notifies the next in the queue.",
            "Who may publish or listen?",
            "for place in line.places.iter() {}",
            "870 万次；fencing token（隔离令牌）",
        ] {
            assert_eq!(phrases(&patterns, text, true), [], "{text}");
        }
    }

    #[test]
    fn a_first_line_does_not_begin_with_a_riddle() {
        let source = "/// What is counted.\n/// Who waits.\nfn a() {}\n    /// Who leads.\n    b: u8,\n\
                      /// What a store answers.\n//! Whose turn it is.\n";
        let found = first_lines(&patterns(OPENINGS), source);
        assert_eq!(found.iter().map(|it| it.0).collect::<Vec<_>>(), [1, 4]);
    }
}

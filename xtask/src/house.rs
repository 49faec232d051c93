//! The rules of the house, and the map of its files.
//!
//! The rules are tests: who may import whom, between crates and between the rooms of the engine, and
//! how long a file may be. The map is made of the first line of each file's documentation.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::root;

/// The crates of the map, in the order to read them.
const MAPPED: &[&str] = &[
    "crates/latchwork-store",
    "crates/latchwork-wire",
    "crates/latchwork",
    "crates/latchwork-quorum",
    "crates/latchwork-file",
    "crates/latchwork-redis",
    "crates/latchwork-etcd",
    "crates/latchwork-zookeeper",
    "crates/latchwork-postgres",
    "crates/latchwork-kubernetes",
    "crates/latchwork-serve",
    "crates/latchwork-cli",
];

/// The rooms of the engine, each of which may import those before it.
#[cfg(test)]
pub(crate) const ROOMS: &[&str] = &["runtime", "rules", "hold", "wait", "locks"];

const RUST: &[&str] = &["rs"];

/// Prints the map of the files: what is in each.
pub(crate) fn map() -> Result<(), String> {
    print!("{}", tables()?);
    Ok(())
}

/// A table for each crate: its files, and what is in them.
fn tables() -> Result<String, String> {
    let mut text = String::new();
    for krate in MAPPED {
        text += &format!("\n### `{krate}`\n\n| file | what is in it |\n| --- | --- |\n");
        let folder = root().join(krate).join("src");
        for file in files(&folder, RUST)? {
            let name = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
            let is_test = name.ends_with("tests.rs") || name.contains("tests/");
            if is_test || name.starts_with("proto/") {
                continue;
            }
            text += &format!("| `{name}` | {} |\n", job(&file)?);
        }
    }
    Ok(text)
}

/// The first sentence of a file's documentation.
fn job(file: &Path) -> Result<String, String> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    if text.starts_with("#![doc = include_str!") {
        return Ok("the public API, documented by its README".into());
    }
    let lines = text.lines().skip_while(|line| !line.starts_with("//!"));
    let paragraph: Vec<&str> = lines
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let paragraph = paragraph.join(" ");
    let sentence = paragraph.split_once(". ").map_or(paragraph.as_str(), |(first, _)| first);
    let job = sentence.trim_end_matches(['.', ':']).replace('|', "\\|");
    if job.is_empty() {
        return Err(format!("{}: no documentation says what is in it", file.display()));
    }
    Ok(unlinked(&job))
}

/// The text without the brackets of links: they lead nowhere from another page.
fn unlinked(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('[') {
        let Some((name, tail)) = after.split_once(']') else { break };
        out += before;
        out += name;
        rest =
            tail.strip_prefix('(').and_then(|link| Some(link.split_once(')')?.1)).unwrap_or(tail);
    }
    out + rest
}

/// All files below a folder whose names end so, by name; a module before what is in its folder.
pub(crate) fn files(folder: &Path, ends: &[&str]) -> Result<Vec<PathBuf>, String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_path_buf()]);
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for entry in entries {
            let path = entry.map_err(|e| e.to_string())?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| ends.iter().any(|wanted| end == *wanted)) {
                found.push(path);
            }
        }
    }
    found.sort_by_key(|path| path.with_extension(""));
    Ok(found)
}

/// The code of a file, and its unit tests.
#[cfg(test)]
pub(crate) fn code_and_tests(text: &str) -> (&str, &str) {
    let begins = ["#[cfg(test)]\nmod tests {", "#[cfg(test)]\npub(crate) mod tests {"];
    let cut = begins.iter().find_map(|begin| text.split_once(begin));
    cut.unwrap_or((text, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::without_comments;

    /// The outer limit of a file.
    const LINES: usize = 900;
    /// The outer limit of a tracked one, of any kind.
    const BYTES: u64 = 500_000;

    /// What a published crate may have of the workspace's crates.
    const MAY_IMPORT: &[(&str, &[&str])] = &[
        ("latchwork-store", &[]),
        ("latchwork-wire", &["latchwork-store"]),
        ("latchwork-quorum", &["latchwork-store", "latchwork-wire"]),
        ("latchwork-file", &["latchwork-store", "latchwork-wire"]),
        ("latchwork-redis", &["latchwork-store", "latchwork-wire", "latchwork-quorum"]),
        ("latchwork-etcd", &["latchwork-store", "latchwork-wire"]),
        ("latchwork-zookeeper", &["latchwork-store", "latchwork-wire"]),
        ("latchwork-postgres", &["latchwork-store", "latchwork-wire"]),
        ("latchwork-kubernetes", &["latchwork-store", "latchwork-wire"]),
    ];

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    /// The code of a file without its unit tests and its documentation.
    fn code(path: &Path) -> String {
        without_comments(code_and_tests(&read(path)).0)
    }

    #[test]
    fn stores_import_the_contract_and_the_wire_only() {
        for (krate, may) in MAY_IMPORT {
            let manifest = read(&root().join("crates").join(krate).join("Cargo.toml"));
            let dependencies = manifest.split("\n[dependencies]").nth(1).unwrap_or_default();
            let dependencies = dependencies.split("\n[").next().unwrap_or_default();
            for line in dependencies.lines().filter(|line| line.starts_with("latchwork")) {
                let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
                assert!(may.contains(&name), "{krate} depends on {name}");
            }
            for file in files(&root().join("crates").join(krate).join("src"), RUST).unwrap() {
                let imports_engine = code(&file).contains("use latchwork::");
                assert!(!imports_engine, "{}: imports the engine", file.display());
            }
        }
    }

    /// A file that no module names is not compiled: its tests are not run, and nothing says so.
    #[test]
    fn every_file_is_in_a_module() {
        let mut lost = Vec::new();
        for folder in ["crates", "proof", "lab", "xtask/src"] {
            for file in files(&root().join(folder), RUST).unwrap() {
                let (Some(folder), Some(name)) = (file.parent(), file.file_stem()) else {
                    continue;
                };
                let name = name.to_string_lossy();
                let is_target = ["tests", "examples", "benches", "bin"]
                    .iter()
                    .any(|part| folder.ends_with(part) && !folder.join("mod.rs").exists());
                if is_target
                    || ["lib", "main", "build"].contains(&&*name)
                    || folder.ends_with("proto")
                {
                    continue;
                }
                // The file of a folder's module is named by the folder above.
                let (module, named_in) = match &*name {
                    "mod" => (folder.file_name().unwrap().to_string_lossy(), folder.parent()),
                    name => (name.into(), Some(folder)),
                };
                let named_in = named_in.unwrap();
                let by = ["mod.rs", "lib.rs", "main.rs"].map(|file| named_in.join(file));
                let by = by.into_iter().chain([named_in.with_extension("rs")]);
                // By `mod`, by a path, or by a macro that takes a list of them.
                let is_named = |text: String| {
                    let mut words = text.split(|c: char| c != '_' && !c.is_alphanumeric());
                    words.any(|word| word == module)
                };
                if !by.filter_map(|file| fs::read_to_string(file).ok()).any(is_named) {
                    lost.push(file.display().to_string());
                }
            }
        }
        assert!(lost.is_empty(), "in no module:\n{}", lost.join("\n"));
    }

    #[test]
    fn no_file_is_longer_than_its_limit() {
        let mut long = Vec::new();
        for folder in ["crates", "proof", "lab", "xtask/src"] {
            for file in files(&root().join(folder), RUST).unwrap() {
                let lines = read(&file).lines().count();
                let is_made = file.components().any(|part| part.as_os_str() == "proto");
                if lines > LINES && !is_made {
                    long.push(format!("{} has {lines} lines", file.display()));
                }
            }
        }
        assert!(long.is_empty(), "more than {LINES} lines:\n{}", long.join("\n"));
    }

    /// What was built has no place among what is written: each clone would bring it along.
    #[test]
    fn no_tracked_file_is_larger_than_its_limit() {
        let asked = std::process::Command::new("git")
            .args(["ls-files", "-z"])
            .current_dir(root())
            .output()
            .unwrap();
        assert!(asked.status.success(), "{asked:?}");
        let names = String::from_utf8(asked.stdout).unwrap();
        let size = |name: &&str| fs::metadata(root().join(name)).map_or(0, |file| file.len());
        let names = names.split_terminator('\0');
        let large: Vec<_> = names.filter(|name| size(name) > BYTES).collect();
        assert!(large.is_empty(), "more than {BYTES} bytes: {large:?}");
    }

    #[test]
    fn the_first_sentence_of_each_file_says_what_is_in_it() {
        tables().unwrap();
    }

    #[test]
    fn a_link_becomes_plain_text() {
        assert_eq!(unlinked("a [`Lock`](x::Lock) and [`y`] b"), "a `Lock` and `y` b");
        assert_eq!(unlinked("a [b"), "a [b");
    }
}

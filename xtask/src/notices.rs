//! The licences of what is linked into the wheel: they have to be passed on with it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::workspace::cargo_command;

/// Writes the notices of what is linked into a package.
pub(crate) fn write(file: &Path, manifest: &Path, package: &str) -> Result<(), String> {
    // By their text: hundreds of crates have the same.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for linked in linked_into(&metadata(manifest)?, package)? {
        let name = format!("{} {}", linked.name, linked.version);
        for text in licences(Path::new(&linked.folder))? {
            texts.entry(text).or_default().insert(name.clone());
        }
        names.insert(name, linked.license);
    }
    let mut said =
        String::from("The wheel of Latchwork contains these packages, under these licences:\n\n");
    for (name, license) in &names {
        let _ = writeln!(said, "{name}: {license}");
    }
    for (text, names) in &texts {
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let _ = write!(said, "\n\n=== {}\n\n{}\n", names.join(", "), text.trim());
    }
    fs::write(file, said).map_err(|error| format!("{}: {error}", file.display()))
}

struct Linked {
    name: String,
    version: String,
    license: String,
    folder: String,
}

fn metadata(manifest: &Path) -> Result<Value, String> {
    let mut command = cargo_command();
    command.args(["metadata", "--format-version", "1", "--locked", "--manifest-path"]);
    command.arg(manifest);
    let said = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !said.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&said.stderr)));
    }
    serde_json::from_slice(&said.stdout).map_err(|error| format!("{command:?}: {error}"))
}

/// The packages of others that a package of this workspace needs when it runs.
fn linked_into(metadata: &Value, package: &str) -> Result<Vec<Linked>, String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages = list(&metadata["packages"]);
    let by_id: HashMap<_, _> = packages.iter().map(|it| (text(&it["id"]), it)).collect();
    let nodes = list(&metadata["resolve"]["nodes"]);
    let nodes: HashMap<_, _> = nodes.iter().map(|it| (text(&it["id"]), it)).collect();
    let first = packages.iter().find(|it| it["name"] == package);
    let mut todo = vec![text(&first.ok_or(format!("no package {package}"))?["id"])];
    let mut seen = BTreeSet::new();
    let mut linked = Vec::new();
    while let Some(id) = todo.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let it = by_id.get(&id).ok_or(format!("no package {id}"))?;
        if !it["source"].is_null() {
            let folder = Path::new(it["manifest_path"].as_str().unwrap_or_default()).parent();
            let folder = folder.unwrap_or(Path::new("")).display().to_string();
            let license = it["license"].as_str().unwrap_or("see its text").to_owned();
            linked.push(Linked {
                name: text(&it["name"]),
                version: text(&it["version"]),
                license,
                folder,
            });
        }
        for needed in nodes.get(&id).map(|node| list(&node["deps"])).unwrap_or_default() {
            // Those without a kind run; the others build or test.
            if list(&needed["dep_kinds"]).iter().any(|kind| kind["kind"].is_null()) {
                todo.push(text(&needed["pkg"]));
            }
        }
    }
    Ok(linked)
}

/// The texts of the licences in the folder of a package.
fn licences(folder: &Path) -> Result<Vec<String>, String> {
    let said = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).map_err(said)?.flatten() {
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_one = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT"]
            .iter()
            .any(|begin| name.starts_with(begin));
        if is_one && entry.path().is_file() {
            let text = fs::read(entry.path()).map_err(said)?;
            texts.push(String::from_utf8_lossy(&text).replace("\r\n", "\n"));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    #[test]
    fn the_notices_name_what_is_linked_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("notices");
        write(&file, &root().join("python/Cargo.toml"), "latchwork-python").unwrap();
        let said = fs::read_to_string(file).unwrap();
        assert!(said.contains("\ntokio 1."), "{said}");
        assert!(said.contains("Permission is hereby granted"), "no text");
        // What is ours has its own files, and what tests is not in the wheel.
        assert!(!said.contains("\nlatchwork"), "our own");
        assert!(!said.contains("\ntempfile "), "of tests");
    }
}

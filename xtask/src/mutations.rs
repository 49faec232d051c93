//! Breaks the code on purpose and tells whether the tests notice.
//!
//! `mutations/*.txt` hold the changes. Each is applied to a copy of the workspace, its command is
//! run there, and the mutation is caught if the command fails *and* names the expected test. The
//! copy has a target folder of its own; the working tree is never touched.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Mutation {
    id: String,
    file: String,
    find: String,
    replace: String,
    command: String,
    expect: String,
}

const PAGE_HEAD: &str = "\
# Mutations

Before a safety test is trusted, the code is broken on purpose and the test has to notice. These are the
changes, each with the test that catches it. `cargo xtask mutations` applies all of them, one at a time,
to a copy of the workspace and tells which were caught; `cargo xtask mutations ID` does one. The exact
texts are in `mutations/*.txt`; this page is written by `cargo xtask fix`.

";

/// Writes `docs/mutations.md` anew, or tells that it is not as it should be; either way every
/// mutation must still find its place in the code.
pub(crate) fn page(write: bool) -> Result<(), String> {
    let root = root()?;
    let mut page = String::from(PAGE_HEAD);
    let mutations = read_all(&root.join("mutations"))?;
    page += &format!("There are {} of them.\n\n", mutations.len());
    page += "| mutation | file | caught by |\n| --- | --- | --- |\n";
    for mutation in &mutations {
        apply(root, mutation)?;
        let Mutation { id, file, expect, .. } = mutation;
        page += &format!("| `{id}` | `{file}` | `{expect}` |\n");
    }
    let path = root.join("docs").join("mutations.md");
    if fs::read_to_string(&path).ok().as_ref() == Some(&page) {
        return Ok(());
    }
    if !write {
        return Err("docs/mutations.md is not what mutations/*.txt say: cargo xtask fix".into());
    }
    fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))
}

fn root() -> Result<&'static Path, String> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or_else(|| "no workspace".into())
}

pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let root = root()?;
    let mutations = read_all(&root.join("mutations"))?;
    let copy = root.join("target").join("mutations");
    let chosen: Vec<_> =
        mutations.iter().filter(|m| wanted.is_empty() || wanted.contains(&m.id)).collect();
    if chosen.is_empty() {
        let ids: Vec<_> = mutations.iter().map(|m| m.id.as_str()).collect();
        return Err(format!("no such mutation; there are:\n  {}", ids.join("\n  ")));
    }
    let mut survivors = Vec::new();
    for (n, mutation) in chosen.iter().enumerate() {
        println!("[{}/{}] {}: {}", n + 1, chosen.len(), mutation.id, mutation.command);
        mirror(root, &copy)?;
        match try_one(&copy, mutation)? {
            Ok(()) => println!("    caught by {}", mutation.expect),
            Err(why) => {
                println!("    SURVIVED: {why}");
                survivors.push(mutation.id.as_str());
            }
        }
    }
    println!("{} of {} caught", chosen.len() - survivors.len(), chosen.len());
    if survivors.is_empty() { Ok(()) } else { Err(format!("survived: {}", survivors.join(", "))) }
}

/// `Ok(Err(why))` if the tests did not notice.
fn try_one(copy: &Path, mutation: &Mutation) -> Result<Result<(), String>, String> {
    let path = copy.join(&mutation.file);
    let text = apply(copy, mutation)?;
    fs::write(&path, text).map_err(|e| format!("{}: {e}", mutation.file))?;
    let output = Command::new("sh")
        .args(["-c", &format!("timeout 150 {} 2>&1", mutation.command)])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", copy.join("target"))
        .env("RUSTFLAGS", "-Awarnings")
        .env("RUST_BACKTRACE", "0")
        .output()
        .map_err(|e| format!("sh: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    Ok(if output.status.success() {
        Err("every test passed".into())
    } else if said.contains("could not compile") {
        Err(format!("it does not compile:\n{}", tail(&said)))
    } else if output.status.code() == Some(124) || failed(&said, &mutation.expect) {
        // A test that never ends has noticed, too: it waits for what does not happen any more.
        Ok(())
    } else {
        Err(format!("noticed, but not by {}:\n{}", mutation.expect, tail(&said)))
    })
}

/// Whether the list of failures at the end of the output has this test.
fn failed(said: &str, test: &str) -> bool {
    said.lines()
        .skip_while(|line| line.trim() != "failures:")
        .any(|line| line.starts_with("    ") && line.trim().ends_with(test))
}

/// The text of the mutation's file below `root` with the mutation in it.
fn apply(root: &Path, mutation: &Mutation) -> Result<String, String> {
    let Mutation { id, file, .. } = mutation;
    let text = fs::read_to_string(root.join(file)).map_err(|e| format!("{file}: {e}"))?;
    mutate(&text, mutation)
        .map_err(|found| format!("{id}: {file} has the text {found} times; mend the list"))
}

/// Replaces the one place where the text is found, or tells how many there are.
///
/// One line is found anywhere in a line; several lines are found whatever their indentation.
fn mutate(text: &str, mutation: &Mutation) -> Result<String, usize> {
    let wanted: Vec<&str> = mutation.find.lines().map(str::trim).collect();
    if let [wanted] = wanted[..] {
        let found = text.matches(wanted).count();
        return if found == 1 {
            Ok(text.replacen(wanted, mutation.replace.trim(), 1))
        } else {
            Err(found)
        };
    }
    let lines: Vec<&str> = text.lines().collect();
    let places: Vec<usize> = lines
        .windows(wanted.len())
        .enumerate()
        .filter(|(_, window)| window.iter().map(|line| line.trim()).eq(wanted.iter().copied()))
        .map(|(at, _)| at)
        .collect();
    let [at] = places[..] else { return Err(places.len()) };
    let (before, after) = (&lines[..at], &lines[at + wanted.len()..]);
    Ok([before, &mutation.replace.lines().collect::<Vec<_>>(), after].concat().join("\n") + "\n")
}

fn tail(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

/// Copies what changed; the copy's own target folder stays.
fn mirror(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))? {
        let entry = entry.map_err(|e| e.to_string())?;
        let name = entry.file_name();
        if name == "target" || name == ".git" {
            continue;
        }
        let (from, to): (PathBuf, PathBuf) = (entry.path(), to.join(&name));
        if from.is_dir() {
            mirror(&from, &to)?;
            continue;
        }
        let new = fs::read(&from).map_err(|e| format!("{}: {e}", from.display()))?;
        if fs::read(&to).ok().as_ref() != Some(&new) {
            fs::write(&to, new).map_err(|e| format!("{}: {e}", to.display()))?;
        }
    }
    Ok(())
}

fn read_all(folder: &Path) -> Result<Vec<Mutation>, String> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    files.sort();
    let mut mutations = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        for block in text.split("\n---\n").map(str::trim).filter(|b| !b.is_empty()) {
            mutations.push(parse(block).map_err(|e| format!("{}: {e}", file.display()))?);
        }
    }
    Ok(mutations)
}

/// `id:`, `file:`, `command:`, `expect:`, then `find:` and `replace:` with indented lines below.
fn parse(block: &str) -> Result<Mutation, String> {
    let field = |name: &str| {
        let prefix = format!("{name}: ");
        block
            .lines()
            .find_map(|line| line.strip_prefix(&prefix))
            .map(|value| value.trim().to_owned())
            .ok_or_else(|| format!("no `{name}:` in\n{block}"))
    };
    let text = |name: &str| {
        let lines = block
            .lines()
            .skip_while(|line| line.trim_end() != format!("{name}:"))
            .skip(1)
            .take_while(|line| line.starts_with("    ") || line.is_empty())
            .map(|line| line.strip_prefix("    ").unwrap_or(line))
            .collect::<Vec<_>>();
        lines.join("\n").trim_end().to_owned()
    };
    let mutation = Mutation {
        id: field("id")?,
        file: field("file")?,
        command: field("command")?,
        expect: field("expect")?,
        find: text("find"),
        replace: text("replace"),
    };
    if mutation.find.is_empty() {
        return Err(format!("no `find:` in\n{block}"));
    }
    Ok(mutation)
}

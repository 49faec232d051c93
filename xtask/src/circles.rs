//! Circles of imports inside a crate: files that can only be understood together.
//!
//! A file imports another if its code names something of it, by `use` or by a path. A name that a module passes on
//! by `pub use` belongs to the file that has it. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::house::{ROOMS, code_and_tests, files};
use crate::workspace::root;

/// A path in code: the names from the root of the crate.
type Names = Vec<String>;

/// The modules of a crate, by their names from its root.
struct Modules {
    files: BTreeMap<Names, String>,
    /// What a module passes on: the name, and where it comes from.
    passed_on: BTreeMap<Names, BTreeMap<String, Names>>,
    /// All that a module names, but for what it passes on.
    named: BTreeMap<Names, Vec<Names>>,
}

impl Modules {
    /// Reads all modules of a source folder.
    fn read(source: &Path) -> Result<Self, String> {
        let mut modules =
            Self { files: BTreeMap::new(), passed_on: BTreeMap::new(), named: BTreeMap::new() };
        let mut code = BTreeMap::new();
        for file in files(source, &["rs"])? {
            let name = file.strip_prefix(source).unwrap_or(&file).display().to_string();
            let is_test = name.ends_with("tests.rs") || name.contains("tests/");
            if is_test || name.starts_with("proto/") || name.starts_with("bin/") {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let mut path: Names =
                name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            path.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
            code.insert(path.clone(), text);
            modules.files.insert(path, name);
        }
        for (module, text) in &code {
            modules.imports(module, &bare(text));
        }
        Ok(modules)
    }

    /// Notes what the code of a module names.
    fn imports(&mut self, module: &Names, code: &str) {
        let (mut rest, mut before) = (code, '\n');
        while let Some(c) = rest.chars().next() {
            let is_start = before != '_' && before != ':' && !before.is_alphanumeric();
            let is_use = is_start && rest.starts_with("use ");
            let is_path = is_start && ["crate::", "super::"].iter().any(|it| rest.starts_with(it));
            if !is_use && !is_path {
                before = c;
                rest = &rest[c.len_utf8()..];
                continue;
            }
            let begin = code.len() - rest.len();
            let tree = if is_use { &rest["use ".len()..] } else { rest };
            let end = tree.find(|c: char| {
                if is_use { c == ';' } else { c != '_' && c != ':' && !c.is_alphanumeric() }
            });
            let (tree, after) = tree.split_at(end.unwrap_or(tree.len()));
            (rest, before) = (after, ' ');
            let is_passed_on = is_use && {
                let line = code[..begin].rsplit(['\n', ';', '}']).next().unwrap_or_default();
                line.trim_start().starts_with("pub")
            };
            for (path, name) in leaves(tree) {
                let Some(path) = self.seen_from_root(module, path, is_use) else { continue };
                if is_passed_on {
                    self.passed_on.entry(module.clone()).or_default().insert(name, path);
                } else {
                    self.named.entry(module.clone()).or_default().push(path);
                }
            }
        }
    }

    /// A path as the root of the crate sees it; nothing if it leads to another crate.
    fn seen_from_root(&self, module: &Names, path: Names, is_use: bool) -> Option<Names> {
        let mut at = module.clone();
        let mut names = path.into_iter().peekable();
        match names.peek()?.as_str() {
            "crate" => {
                at.clear();
                names.next();
            }
            "self" => drop(names.next()),
            "super" => {
                while names.next_if(|name| name == "super").is_some() {
                    at.pop();
                }
            }
            child => {
                let mut below = at.clone();
                below.push(child.to_owned());
                if !is_use || !self.files.contains_key(&below) {
                    return None;
                }
            }
        }
        at.extend(names);
        Some(at)
    }

    /// The module that has what a path names.
    fn owner(&self, path: &[String], depth: usize) -> Names {
        let (mut at, mut rest) = (Names::new(), path);
        while let Some((name, after)) = rest.split_first() {
            at.push(name.clone());
            if !self.files.contains_key(&at) {
                at.pop();
                let passed_on = self.passed_on.get(&at).and_then(|names| names.get(name));
                if let Some(from) = passed_on.filter(|_| depth < 9) {
                    let from: Names = from.iter().chain(after).cloned().collect();
                    return self.owner(&from, depth + 1);
                }
                break;
            }
            rest = after;
        }
        at
    }

    /// Which file imports which.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (module, file) in &self.files {
            let those = arrows.entry(file).or_default();
            for path in self.named.get(module).into_iter().flatten() {
                let owner = &self.files[&self.owner(path, 0)];
                if owner != file {
                    those.insert(owner);
                }
            }
        }
        arrows
    }

    /// The circles, the largest first: files of which each leads to each.
    fn circles(&self) -> Vec<BTreeSet<&str>> {
        let arrows = self.arrows();
        let reached = |from: &str| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(file) = next.pop() {
                for to in arrows.get(file).into_iter().flatten() {
                    if seen.insert(*to) {
                        next.push(to);
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            arrows.keys().map(|file| (*file, reached(file))).collect();
        let circle = |file: &&str| -> BTreeSet<&str> {
            reached[*file].iter().filter(|to| reached[**to].contains(*file)).copied().collect()
        };
        let circles: BTreeSet<_> = reached.keys().map(circle).filter(|it| it.len() > 1).collect();
        let mut circles: Vec<_> = circles.into_iter().collect();
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }
}

/// Code without unit tests, comments and texts.
fn bare(text: &str) -> String {
    let (code, _) = code_and_tests(text);
    let mut bare = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, from) = rest.split_at(at);
        bare += before;
        rest = if from.starts_with("//") {
            from.split_at(from.find('\n').unwrap_or(from.len())).1
        } else if from.starts_with("'\"'") || from.starts_with("'\\") {
            from.get(4..).unwrap_or_default()
        } else if let Some(text) = from.strip_prefix('"') {
            let hashes = before.bytes().rev().take_while(|c| *c == b'#').count();
            let is_raw = before.trim_end_matches('#').ends_with('r');
            if is_raw {
                let end = format!("\"{}", "#".repeat(hashes));
                text.split_once(&end).map_or("", |(_, after)| after)
            } else {
                let mut escaped = false;
                let end = text.find(|c| {
                    let is_end = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    is_end
                });
                text.get(end.map_or(text.len(), |end| end + 1)..).unwrap_or_default()
            }
        } else {
            bare.push_str(&from[..1]);
            &from[1..]
        };
    }
    bare + rest
}

/// The paths of a tree of imports, each with the name that it gets.
fn leaves(tree: &str) -> Vec<(Names, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut path: Names = path.split("::").map(|name| name.trim().to_owned()).collect();
        path.pop_if(|last| last.is_empty() || last == "*");
        // `a::{self}` is `a`.
        if path.len() > 1 {
            path.pop_if(|last| last == "self");
        }
        let name = if name.is_empty() {
            path.last().cloned().unwrap_or_default()
        } else {
            name.trim().to_owned()
        };
        return vec![(path, name)];
    };
    let group = group.rsplit_once('}').map_or(group, |(group, _)| group);
    let (mut depth, mut parts, mut begin) = (0, Vec::new(), 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[begin..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(|part| leaves(&format!("{}{part}", prefix.trim()))).collect()
}

/// A circle may have as many files.
const MOST: usize = 4;

/// The circles of today that are larger, by their sizes. The list only gets shorter.
const KNOWN: &[(&str, &[usize])] = &[];

/// A room, and the room of the same crate that it never imports.
const NEVER: [(&str, &str); 12] = [
    ("server/", "protocol/"),
    // A folder, or one file.
    ("server/", "doctor"),
    ("protocol/", "doctor"),
    ("disk/", "records/"),
    ("disk/", "protocol/"),
    ("disk/", "doctor"),
    ("records/", "protocol/"),
    ("records/", "doctor"),
    ("address/", "server/"),
    ("domain/", "http/"),
    ("domain/", "server/"),
    ("http/", "server/"),
];

/// The rooms of each store, the lower ones first.
const STORE_ROOMS: [(&str, &[&str]); 6] = [
    ("latchwork-redis", &["server", "protocol", "doctor"]),
    ("latchwork-etcd", &["server", "protocol"]),
    ("latchwork-zookeeper", &["server", "protocol"]),
    ("latchwork-postgres", &["address", "server", "protocol", "doctor"]),
    ("latchwork-file", &["disk", "records", "protocol"]),
    ("latchwork-kubernetes", &["server", "protocol"]),
];

/// What stands above all rooms of the engine.
const ABOVE_ROOMS: [&str; 4] = ["connect", "address", "observers", "testing"];

/// The source folders of this workspace.
fn sources() -> Vec<std::path::PathBuf> {
    let mut found = vec![root().join("xtask/src"), root().join("python/src")];
    for folder in ["crates", "proof", "lab"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            found.push(entry.unwrap().path().join("src"));
        }
    }
    found.retain(|source| source.is_dir());
    found.sort();
    found
}

fn name(source: &Path) -> String {
    source.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn no_circle_has_more_than_four_files() {
    let (mut wrong, mut sizes) = (Vec::new(), BTreeMap::new());
    for source in sources() {
        let modules = Modules::read(&source).unwrap();
        for circle in modules.circles().into_iter().filter(|circle| circle.len() > MOST) {
            sizes.entry(name(&source)).or_insert_with(Vec::new).push(circle.len());
            wrong.push(format!("{}, {}:", name(&source), circle.len()));
            // How they lead to one another: what to cut.
            let arrows = modules.arrows();
            for file in &circle {
                let to: Vec<_> = arrows[file].intersection(&circle).collect();
                wrong.push(format!("  {file} -> {to:?}"));
            }
        }
    }
    let known: BTreeMap<_, _> =
        KNOWN.iter().map(|(name, sizes)| ((*name).to_owned(), sizes.to_vec())).collect();
    assert_eq!(
        sizes,
        known,
        "a circle is new or larger, or KNOWN can be lower:\n{}",
        wrong.join("\n")
    );
}

/// What each room of a crate never imports: how the names of the files begin.
fn never(name: &str) -> Vec<(String, String)> {
    let mut never: Vec<_> =
        NEVER.iter().map(|(room, above)| ((*room).to_owned(), (*above).to_owned())).collect();
    if name == "latchwork" {
        for (n, room) in ROOMS.iter().enumerate() {
            let above = ROOMS[n + 1..].iter().map(|above| format!("{above}/"));
            let outside = ABOVE_ROOMS.iter().map(|above| (*above).to_owned());
            never.extend(above.chain(outside).map(|above| (format!("{room}/"), above)));
        }
    }
    never
}

#[test]
fn lower_rooms_do_not_import_higher_ones() {
    let mut wrong = Vec::new();
    for source in sources() {
        let (modules, name) = (Modules::read(&source).unwrap(), name(&source));
        let never = never(&name);
        for (file, imports) in modules.arrows() {
            for (_, above) in never.iter().filter(|(room, _)| file.starts_with(room)) {
                let those = imports.iter().filter(|to| to.starts_with(above));
                wrong.extend(those.map(|to| format!("{name}: {file} imports {to}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let rooms = fs::read_dir(root().join("crates/latchwork/src")).unwrap().filter(|entry| {
        let path = entry.as_ref().unwrap().path();
        path.join("mod.rs").exists() && !path.ends_with("fence")
    });
    assert_eq!(rooms.count(), ROOMS.len(), "every room is among those that are looked at");
    for (name, rooms) in STORE_ROOMS {
        for room in rooms {
            let folder = root().join("crates").join(name).join("src").join(room);
            let those = files(&folder, &["rs"]).unwrap().len();
            assert!(those > 3, "{name}: {room} is no room: it has {those} files");
            let is_known = NEVER.iter().any(|(a, b)| a.starts_with(room) || b.starts_with(room));
            assert!(is_known, "{name}: nothing says what {room} may import");
        }
    }
}

#[test]
fn circles_are_found_through_what_modules_pass_on() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\npub use a::inner::{Thing as Other, More};\n");
    write("a/mod.rs", "pub mod inner;\n");
    write(
        "a/inner.rs",
        "// crate::lost\nuse super::super::b::{self, x};\nconst T: &str = \"crate::lost\";\n",
    );
    // A module of tests in a file of its own ends no code.
    write(
        "b.rs",
        "#[cfg(test)]\nmod tests;\nfn x() -> crate::Other { '\"'; }\n#[cfg(test)]\nmod tests { use crate::a; }",
    );
    let modules = Modules::read(folder.path()).unwrap();
    let expected: BTreeSet<&str> = ["a/inner.rs", "b.rs"].into();
    assert_eq!(modules.circles(), [expected]);
    assert!(modules.arrows()["lib.rs"].is_empty());
}

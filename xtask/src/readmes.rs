//! The READMEs and pages: both languages say the same, links lead somewhere, packages stand alone.

use std::fs;
use std::path::{Path, PathBuf};

use crate::readme::lines;

/// What a README is made of, whatever its language: headings by level, code without its comments,
/// rows of tables by their number of cells, links, and numbers.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    headings: Vec<usize>,
    code: Vec<String>,
    rows: Vec<usize>,
    links: Vec<String>,
    numbers: Vec<String>,
}

impl Shape {
    fn of(text: &str) -> Self {
        let mut shape = Self {
            headings: Vec::new(),
            code: Vec::new(),
            rows: Vec::new(),
            links: Vec::new(),
            numbers: Vec::new(),
        };
        let mut in_code = false;
        for line in text.lines() {
            if line.starts_with("```") {
                in_code = !in_code;
            } else if in_code {
                let code = line.split(" // ").next().unwrap_or_default();
                // What a command does is told two blanks behind it.
                let code = code.trim_start().split("  ").next().unwrap_or_default().trim();
                shape.code.push(code.to_owned());
            } else {
                let level = line.len() - line.trim_start_matches('#').len();
                if level > 0 {
                    shape.headings.push(level);
                }
                if line.starts_with('|') {
                    shape.rows.push(line.matches(" |").count());
                }
                shape.numbers.extend(numbers(line));
            }
        }
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        shape.links = links.filter(|link| !link.starts_with("README")).map(str::to_owned).collect();
        shape.links.sort();
        shape.numbers.sort();
        shape
    }
}

/// Numbers of two digits and more; small ones are words in one language or the other.
fn numbers(line: &str) -> impl Iterator<Item = String> {
    line.split(|c: char| !c.is_ascii_digit() && c != ',')
        .map(|number| number.trim_matches(',').replace(',', ""))
        .filter(|number| number.len() > 1)
}

#[test]
fn the_chinese_readme_matches_the_english_one() {
    let (english, chinese) = (Shape::of(&read("README.md")), Shape::of(&read("README.zh-CN.md")));
    assert_eq!(english.headings, chinese.headings, "headings");
    assert_eq!(english.code, chinese.code, "code");
    assert_eq!(english.rows, chinese.rows, "rows of tables");
    assert_eq!(english.links, chinese.links, "links");
    assert_eq!(english.numbers, chinese.numbers, "numbers");
}

/// More words than that on a front page nobody reads; code and tables count.
const WORDS: usize = 900;

#[test]
fn the_front_page_is_short_and_begins_with_what_one_sees() {
    for page in ["README.md", "README.zh-CN.md"] {
        let text = read(page);
        let words = text.split_whitespace().count();
        assert!(words <= WORDS, "{page} has {words} words");
        let (top, _) = text.split_at(text.find("cargo install").unwrap());
        for seen in ["cargo run ", "cargo xtask test", "docs/images/page", "docs/stock.svg"] {
            assert!(top.contains(seen), "{page}: {seen} is not above the installation");
        }
    }
}

#[test]
fn the_front_pages_name_each_feature_and_the_oldest_compiler() {
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let compiler = field(&read("Cargo.toml"), "rust-version = ");
    let manifest = read("crates/latchwork/Cargo.toml");
    let features = manifest.split("\n[features]\n").nth(1).unwrap().split("\n[").next().unwrap();
    let names: Vec<_> = features.lines().filter_map(|line| line.split_once(" = [")).collect();
    assert!(names.len() > 10, "{names:?}");
    for page in ["README.md", "README.zh-CN.md"] {
        let text = read(page);
        assert!(text.contains(&format!("Rust {compiler}")), "{page} needs Rust {compiler}");
        for (name, _) in names.iter().filter(|(name, _)| *name != "default") {
            assert!(text.contains(&format!("`{name}`")), "{page}: feature {name} is missing");
        }
    }
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages in Markdown, relative to the root.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().to_owned()];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !name.starts_with('.') && name != "target" {
                folders.push(path);
            } else if name.ends_with(".md") {
                pages.push(path.strip_prefix(root()).unwrap().to_owned());
            }
        }
    }
    pages.sort();
    pages
}

/// Where a line of text links to, without what is elsewhere in the web or on the same page.
fn files(line: &str) -> impl Iterator<Item = &str> {
    let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.filter(|link| is_file(link)).filter_map(|link| link.split('#').next())
}

fn is_file(link: &str) -> bool {
    !link.starts_with("https://") && !link.starts_with('#')
}

#[test]
fn the_front_pages_name_each_server_that_was_tried() {
    let table = read("docs/servers.md");
    let servers = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let servers: Vec<_> = servers.filter_map(|name| name.split_once(' ')).collect();
    assert!(servers.len() > 10, "docs/servers.md has {} rows", servers.len());
    for (name, version) in servers {
        let name = if name == "kube-apiserver" { "kubernetes" } else { name };
        for page in ["README.md", "README.zh-CN.md"] {
            let has = |line: &str| line.to_lowercase().contains(name) && line.contains(version);
            assert!(read(page).lines().any(has), "{page}: {name} {version} is missing");
        }
    }
}

#[test]
fn every_link_leads_to_a_file() {
    let mut broken = Vec::new();
    for page in &pages() {
        let folder = root().join(page).parent().unwrap().to_owned();
        for (line, _) in lines(&read(page)).filter(|(_, is_code)| !is_code) {
            let missing = files(line).filter(|file| !folder.join(file).exists());
            broken.extend(missing.map(|file| format!("{}: {file}", page.display())));
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// rustdoc hides lines that begin with `# `; a forge shows them.
#[test]
fn no_readme_hides_lines_from_rustdoc_alone() {
    for page in pages().iter().filter(|page| page.to_string_lossy().contains("README")) {
        let text = read(page);
        let mut rust = false;
        for line in text.lines() {
            if let Some(language) = line.strip_prefix("```") {
                rust = language.starts_with("rust");
            }
            let hidden = rust && (line.trim() == "#" || line.trim().starts_with("# "));
            assert!(!hidden, "{}: {line:?}", page.display());
        }
    }
}

/// A package is read without the repository: on docs.rs and in a registry, of Rust or of Python.
#[test]
fn readmes_of_packages_link_to_no_file() {
    let crates = crate::package::published().unwrap().into_iter().map(|package| package.folder);
    for folder in crates.chain([root().join("python")]) {
        let page = folder.join("README.md");
        for (line, _) in lines(&read(&page)).filter(|(_, is_code)| !is_code) {
            assert_eq!(files(line).next(), None, "{}: {line}", page.display());
        }
    }
}

#[test]
fn the_readme_of_the_library_is_that_of_the_repository() {
    let (page, made) = (read(crate::readme::COPY), crate::readme::of_package(&read("README.md")));
    assert!(page == made, "{} is not made from README.md: cargo xtask readme", crate::readme::COPY);
}

#[test]
fn packages_have_registry_metadata() {
    let packages = crate::package::published().unwrap();
    assert_eq!(packages.len(), 13, "{packages:?}");
    for package in packages {
        let manifest = read(package.folder.join("Cargo.toml"));
        let name = &package.name;
        for line in [
            "description = ",
            "version.workspace = true",
            "rust-version.workspace = true",
            "license.workspace = true",
            "keywords.workspace = true",
            "categories",
            "repository.workspace = true",
            "readme = \"README.md\"",
            &format!("documentation = \"https://docs.rs/{name}\""),
            "[package.metadata.docs.rs]\nall-features = true",
        ] {
            assert!(manifest.contains(line), "{name} has no {line}");
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(read(package.folder.join(licence)) == read(licence), "{licence} of {name}");
        }
    }
}

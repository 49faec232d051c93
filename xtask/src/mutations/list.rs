//! The list of mutations: blocks of text in `mutations/*.txt`.

use std::fs;
use std::path::{Path, PathBuf};

/// One deliberate mistake, and the test that must notice it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mutation {
    pub(crate) id: String,
    /// The package whose sources have the text.
    pub(crate) krate: String,
    /// The function that has it, if it is in one.
    pub(crate) function: Option<String>,
    /// The end of the file's path, where the function's name does not tell it apart.
    pub(crate) file: Option<String>,
    pub(crate) test: Test,
    pub(crate) find: String,
    pub(crate) replace: String,
}

/// A test of the workspace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: String,
    /// `lib`, or the name of a test binary.
    pub(crate) target: String,
    /// The end of its path.
    pub(crate) name: String,
}

impl Test {
    fn cargo(&self) -> String {
        let target = match self.target.as_str() {
            "lib" => "--lib".to_owned(),
            test => format!("--test {test}"),
        };
        format!("cargo test --package {} --all-features {target}", self.package)
    }

    /// The command that builds it.
    pub(crate) fn build(&self) -> String {
        format!("{} --no-run", self.cargo())
    }

    /// The command that runs the tests of these names beside it.
    pub(crate) fn beside(&self, names: &[&str]) -> String {
        format!("{} --no-fail-fast -- --test-threads 4 {}", self.cargo(), names.join(" "))
    }

    /// The command that runs it alone.
    pub(crate) fn command(&self) -> String {
        format!("{} -- {}", self.cargo(), self.name)
    }

    /// Whether it is among those that passed.
    pub(crate) fn is_passed(&self, said: &str) -> bool {
        said.lines().any(|line| {
            line.strip_prefix("test ")
                .and_then(|line| line.strip_suffix("... ok"))
                .is_some_and(|name| name.trim().ends_with(&self.name))
        })
    }

    /// Whether the list of failures at the end of the output has it.
    pub(crate) fn is_failed(&self, said: &str) -> bool {
        said.lines()
            .skip_while(|line| line.trim() != "failures:")
            .any(|line| line.starts_with("    ") && line.trim().ends_with(&self.name))
    }
}

pub(crate) fn read_all(folder: &Path) -> Result<Vec<Mutation>, String> {
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

/// `id:`, `crate:` (that of the test, if it is left out), `function:`, `test:`, then `find:` and `replace:` with a text in
/// the same line, or with indented lines below.
fn parse(block: &str) -> Result<Mutation, String> {
    let optional = |name: &str| {
        let prefix = format!("{name}: ");
        let line = block.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map(|value| value.trim().to_owned())
    };
    let field = |name: &str| optional(name).ok_or_else(|| format!("no `{name}:` in\n{block}"));
    let text = |name: &str| {
        if let Some(line) = optional(name) {
            return line;
        }
        let lines = block
            .lines()
            .skip_while(|line| line.trim_end() != format!("{name}:"))
            .skip(1)
            .take_while(|line| line.starts_with("    ") || line.is_empty())
            .map(|line| line.strip_prefix("    ").unwrap_or(line))
            .collect::<Vec<_>>();
        lines.join("\n").trim_end().to_owned()
    };
    let test = field("test")?;
    let [package, target, name] = test.split_whitespace().collect::<Vec<_>>()[..] else {
        return Err(format!(
            "`test:` is a package, `lib` or a test binary, and a name, in\n{block}"
        ));
    };
    let mutation = Mutation {
        id: field("id")?,
        krate: optional("crate").unwrap_or_else(|| package.into()),
        function: optional("function"),
        file: optional("file"),
        test: Test { package: package.into(), target: target.into(), name: name.into() },
        find: text("find"),
        replace: text("replace"),
    };
    if mutation.find.trim().is_empty() {
        return Err(format!("no `find:` in\n{block}"));
    }
    Ok(mutation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: &str = "id: a\ncrate: latchwork\nfunction: f\ntest: latchwork it m::t\nfind:\n    \
                         one\n        two\nreplace:\n    three";

    #[test]
    fn a_block_is_read() {
        let mutation = parse(BLOCK).unwrap();
        assert_eq!(mutation.find, "one\n    two");
        assert_eq!((mutation.replace.as_str(), mutation.function.as_deref()), ("three", Some("f")));
        let command = "cargo test --package latchwork --all-features --test it -- m::t";
        assert_eq!(mutation.test.command(), command);
    }

    #[test]
    fn a_short_block_has_a_line_for_each_text() {
        let mutation = parse("id: a\ntest: latchwork it m::t\nfind: one\nreplace: two").unwrap();
        assert_eq!((mutation.krate.as_str(), mutation.function), ("latchwork", None));
        assert_eq!((mutation.find.as_str(), mutation.replace.as_str()), ("one", "two"));
    }

    #[test]
    fn a_test_is_found_in_what_its_program_said() {
        let ours =
            Test { package: "latchwork".into(), target: "it".into(), name: "h01_it_holds".into() };
        assert!(ours.is_passed("test rules::h01_it_holds ... ok"));
        assert!(!ours.is_passed("test rules::h01_it_holds ... FAILED"));
        assert!(ours.is_failed("failures:\n\nfailures:\n    rules::h01_it_holds\n"));
    }

    #[test]
    fn a_block_that_lacks_something_is_refused() {
        for gone in ["id: a\n", "test: latchwork it m::t\n", "    one\n        two\n"] {
            assert!(parse(&BLOCK.replace(gone, "")).is_err(), "without {gone:?}");
        }
    }
}

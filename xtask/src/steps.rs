//! Next steps of errors, and remedies of `doctor`: a test shows each of them.
//!
//! A text that no test mentions may stand in code that nobody reaches, or fit nothing that is said. So each text in
//! `.with_next_step(..)`, `.remedy(..)` or a constant `*STEP` or `*NEXT` must have a part that stands in a test as well: the
//! test that provokes the situation.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use crate::house::{code_and_tests, files};
use crate::words::without_comments;
use crate::workspace::root;

/// A shorter part of a text is no proof that a test means it.
const SHORTEST: usize = 8;
/// Whose tests provoke the errors of other crates.
const ABOVE: [&str; 3] = ["latchwork", "latchwork-cli", "proof"];

/// The code of a file, and the part of it that is a test.
fn parts(text: &str, is_test: bool) -> (String, String) {
    let (code, tests) = if is_test { ("", text) } else { code_and_tests(text) };
    (without_comments(code), without_comments(tests))
}

/// The text literals of some code, with the breaks of their lines undone.
fn literals(code: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), code.chars().peekable());
    while let Some(c) = rest.next() {
        // A quote as a character begins no text.
        if c == '\'' && rest.peek() == Some(&'"') {
            rest.next();
            continue;
        }
        if c != '"' {
            continue;
        }
        let mut text = String::new();
        while let Some(c) = rest.next().filter(|c| *c != '"') {
            match (c, rest.peek().copied()) {
                ('\\', Some('\n')) => while rest.next_if(|c| c.is_whitespace()).is_some() {},
                ('\\', Some(escaped)) => {
                    text.push(if escaped == 'n' { '\n' } else { escaped });
                    rest.next();
                }
                _ => text.push(c),
            }
        }
        found.push(text);
    }
    found
}

/// The argument of a call that begins here: up to its closing parenthesis.
fn argument(code: &str) -> &str {
    let (mut depth, mut in_text, mut escaped) = (1, false, false);
    for (at, c) in code.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => in_text = !in_text,
            '(' if !in_text => depth += 1,
            ')' if !in_text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &code[..at];
        }
    }
    code
}

/// The texts that tell a reader what to do.
fn steps(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for call in [".with_next_step(", ".remedy("] {
        for (at, _) in code.match_indices(call) {
            found.extend(literals(argument(&code[at + call.len()..])));
        }
    }
    for (at, _) in code.match_indices("const ") {
        let Some((name, value)) = code[at..].split_once(": &str =") else { continue };
        if name.ends_with("STEP") || name.ends_with("NEXT") {
            found.extend(literals(value).into_iter().next());
        }
    }
    // What is filled in is short, or a text of its own.
    found.retain(|text| chunks(text).any(|chunk| chunk.len() >= SHORTEST));
    found
}

/// The parts of a text between those that are filled in.
fn chunks(text: &str) -> impl Iterator<Item = &str> {
    text.split(['{', '}']).step_by(2)
}

/// The texts of tests, by how they begin.
#[derive(Default)]
struct Texts(HashMap<Vec<u8>, Vec<String>>);

impl Texts {
    fn add(&mut self, texts: Vec<String>) {
        for text in texts.into_iter().filter(|text| text.len() >= SHORTEST) {
            self.0.entry(text.as_bytes()[..SHORTEST].to_vec()).or_default().push(text);
        }
    }

    /// Whether a part of a text is among them.
    fn show(&self, step: &str) -> bool {
        chunks(step).any(|chunk| {
            let bytes = chunk.as_bytes();
            bytes.windows(SHORTEST).enumerate().any(|(at, start)| {
                let those = self.0.get(start).into_iter().flatten();
                those.into_iter().any(|text| bytes[at..].starts_with(text.as_bytes()))
            })
        })
    }
}

/// The texts that no test mentions, each after the name of its crate.
fn unshown() -> Result<BTreeSet<String>, String> {
    let (mut all, mut tests) = (Vec::new(), BTreeMap::<String, Texts>::new());
    for folder in ["crates", "proof"] {
        for file in files(&root().join(folder), &["rs"])? {
            let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let place = file.strip_prefix(root()).unwrap_or(&file);
            let mut names = place.iter().map(|part| part.to_string_lossy().into_owned()).skip(1);
            let krate =
                if folder == "proof" { folder.into() } else { names.next().unwrap_or_default() };
            let is_test =
                folder == "proof" || file.ends_with("tests.rs") || names.any(|it| it == "tests");
            let (code, test) = parts(&text, is_test);
            all.extend(steps(&code).into_iter().map(|step| (krate.clone(), step)));
            tests.entry(krate).or_default().add(literals(&test));
        }
    }
    let is_unshown = |(krate, step): &(String, String)| {
        let mut of = tests.iter().filter(|(of, _)| *of == krate || ABOVE.contains(&&***of));
        !of.any(|(_, texts)| texts.show(step))
    };
    Ok(all.into_iter().filter(is_unshown).map(|(krate, step)| format!("{krate}: {step}")).collect())
}

#[test]
fn each_next_step_is_shown_by_a_test() {
    let unshown = unshown().unwrap();
    assert!(
        unshown.is_empty(),
        "no test mentions these: provoke each, and assert a part of it: {unshown:#?}"
    );
}

#[test]
fn texts_are_found_however_they_are_written() {
    let code = "error.with_next_step(\"do (this), \\\n   and that\").remedy(format!(\"run {name} as \\\"root\\\"\"));\n\
                const A_STEP: &str = \"wait a moment\";\nlet quote = '\"'; x.next_step(step)";
    let found = steps(code);
    assert_eq!(found, ["do (this), and that", "run {name} as \"root\"", "wait a moment"]);
    let mut texts = Texts::default();
    texts.add(vec![" as \"root\"".to_owned(), "run name as".to_owned(), "this".to_owned()]);
    assert_eq!([0, 1, 2].map(|at: usize| texts.show(&found[at])), [false, true, false]);
    let (code, tests) = parts("a\n// no\n#[cfg(test)]\nmod tests {\nb", false);
    assert_eq!((&*code, &*tests), ("a\n", "\nb"));
}

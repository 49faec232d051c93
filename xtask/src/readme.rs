//! The README of the package `latchwork`, made from that of the repository.
//!
//! docs.rs and a registry show it without the repository around it: links to files become plain
//! text, and what stands between `<!-- repository -->` and `<!-- /repository -->` is left out.

use std::fs;

/// What is made, from the root of the workspace.
pub(crate) const COPY: &str = "crates/latchwork/README.md";

/// Makes it anew.
pub(crate) fn write() -> Result<(), String> {
    let text = fs::read_to_string("README.md").map_err(|error| format!("README.md: {error}"))?;
    fs::write(COPY, of_package(&text)).map_err(|error| format!("{COPY}: {error}"))
}

/// The text of the package.
pub(crate) fn of_package(text: &str) -> String {
    let (mut made, mut is_in, mut is_code) = (String::new(), true, false);
    for line in text.lines() {
        match line {
            "<!-- repository -->" => is_in = false,
            "<!-- /repository -->" => is_in = true,
            // One blank line where two would meet.
            "" if made.ends_with("\n\n") => {}
            _ if is_in => {
                is_code ^= line.starts_with("```");
                made.push_str(&if is_code { line.to_owned() } else { without_files(line) });
                made.push('\n');
            }
            _ => {}
        }
    }
    made
}

/// Lines with whether they are code.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    let mut in_code = false;
    text.lines().map(move |line| {
        let fence = line.starts_with("```");
        in_code ^= fence;
        (line, in_code || fence)
    })
}

/// A line whose links to files are text.
fn without_files(line: &str) -> String {
    let (mut made, mut rest) = (String::new(), line);
    while let Some((before, label, target, after)) = link(rest) {
        made.push_str(before);
        let file = target.split('#').next().unwrap_or(target);
        made.push_str(&match () {
            () if target.starts_with("https://") || file.is_empty() => {
                format!("[{label}]({target})")
            }
            () if label == file => format!("`{file}`"),
            () => format!("{label} (`{file}`)"),
        });
        rest = after;
    }
    made + rest
}

/// The first link: what is before it, its label, its target, and what is after it.
pub(crate) fn link(line: &str) -> Option<(&str, &str, &str, &str)> {
    let middle = line.find("](")?;
    let open = line[..middle].rfind('[')?;
    let close = middle + line[middle..].find(')')?;
    Some((&line[..open], &line[open + 1..middle], &line[middle + 2..close], &line[close + 1..]))
}

#[cfg(test)]
mod tests {
    use super::of_package;

    #[test]
    fn links_to_files_become_text() {
        for (text, made) in [
            ("see [docs/a.md](docs/a.md#x), [b](c.md)", "see `docs/a.md`, b (`c.md`)"),
            ("[x](https://docs.rs/x) [y](#y)", "[x](https://docs.rs/x) [y](#y)"),
            ("```rust\na[0](1)\n```", "```rust\na[0](1)\n```"),
        ] {
            assert_eq!(of_package(text), format!("{made}\n"));
        }
    }

    #[test]
    fn the_packaged_readme_omits_repository_parts() {
        let text = "a\n\n<!-- repository -->\n![p](p.svg)\n<!-- /repository -->\n\nb\n";
        assert_eq!(of_package(text), "a\n\nb\n");
    }
}

//! `latchwork help`: the help of a verb, or a page of the book.

use clap::{CommandFactory, Parser};
use latchwork_wire::address::nearest;

use crate::args::{Cli, HelpArgs};
use crate::exit;
use crate::output::Output;

/// A page of the book.
struct Page {
    name: &'static str,
    /// Its file in the repository, which links of other pages lead to.
    path: &'static str,
    text: &'static str,
}

/// The page of this name; its text is a link to the file in the repository.
macro_rules! page {
    ($name:literal, $path:literal) => {
        Page {
            name: $name,
            path: $path,
            text: include_str!(concat!("../../pages/", $name, ".txt")),
        }
    };
}

/// A part of a page that has a name of its own, and its heading.
const PARTS: [(&str, &str, &str); 2] =
    [("exit-codes", "command", "Exit codes"), ("passwords", "command", "Rotating credentials")];

static PAGES: [Page; 25] = [
    page!("command", "docs/guide/command.md"),
    page!("choosing-a-store", "docs/guide/choosing-a-store.md"),
    page!("choosing-a-ttl", "docs/guide/choosing-a-ttl.md"),
    page!("failure-modes", "docs/guide/failure-modes.md"),
    page!("settings", "docs/guide/settings.md"),
    page!("observing", "docs/guide/observing.md"),
    page!("moving", "docs/guide/moving-to-another-store.md"),
    page!("cron", "docs/guide/recipes/cron.md"),
    page!("deployment", "docs/guide/recipes/deployment.md"),
    page!("leader", "docs/guide/recipes/leader.md"),
    page!("service", "docs/serve.md"),
    page!("proxy", "docs/guide/behind-a-proxy.md"),
    page!("python", "docs/python.md"),
    page!("fencing", "docs/fencing.md"),
    page!("glossary", "docs/glossary.md"),
    page!("tls", "docs/tls.md"),
    page!("files", "crates/latchwork-file/README.md"),
    page!("redis", "docs/redis.md"),
    page!("failover", "docs/redis-failover.md"),
    page!("guard", "docs/guard.md"),
    page!("redlock", "docs/redlock.md"),
    page!("etcd", "docs/etcd.md"),
    page!("zookeeper", "docs/zookeeper.md"),
    page!("kubernetes", "docs/kubernetes.md"),
    page!("postgres", "docs/postgres.md"),
];

/// Prints the help of the command or of a verb, or a page.
pub(crate) fn run(args: &HelpArgs, output: &Output) -> u8 {
    let Some(topic) = args.topic.as_deref() else {
        return of_verb(None, output);
    };
    if Cli::command().find_subcommand(topic).is_some() {
        return of_verb(Some(topic), output);
    }
    if let Some(text) = text_of(topic) {
        return output.raw(text.as_bytes());
    }
    let names: Vec<_> = names().collect();
    let all = names.join(", ");
    let hint = nearest(topic, &names).map(|name| format!("; did you mean {name}?"));
    let message = format!(
        "TOPIC: {topic:?} is no verb and no page{}; the pages are {all}",
        hint.unwrap_or_default()
    );
    output.fail("Usage", &message);
    exit::USAGE
}

fn names() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|page| page.name).chain(PARTS.map(|(name, ..)| name))
}

/// As `--help` prints it.
fn of_verb(verb: Option<&str>, output: &Output) -> u8 {
    let words = ["latchwork"].into_iter().chain(verb).chain(["--help"]);
    match Cli::try_parse_from(words) {
        Err(help) => output.raw(help.render().to_string().as_bytes()),
        Ok(_) => exit::BROKEN,
    }
}

/// The text of a page or of a part of one.
fn text_of(name: &str) -> Option<String> {
    let part = PARTS.iter().find(|(part, ..)| *part == name);
    let name = part.map_or(name, |(_, page, _)| page);
    let page = PAGES.iter().find(|page| page.name == name)?;
    let text = match part {
        Some((_, _, heading)) => section(page.text, heading)?,
        None => page.text,
    };
    Some(without_links(text, page))
}

/// The section with this heading, up to the next one that is no part of it.
fn section<'t>(text: &'t str, heading: &str) -> Option<&'t str> {
    let title = format!(" {heading}\n");
    let at = text.match_indices(&title).find_map(|(at, _)| {
        let line = text[..at].rfind('\n').map_or(0, |at| at + 1);
        text[line..at].bytes().all(|byte| byte == b'#').then_some(line)
    })?;
    let level = text[at..].bytes().take_while(|byte| *byte == b'#').count();
    let rest = &text[at + level..];
    let end = rest.match_indices("\n#").find_map(|(at, _)| {
        let marks = rest[at + 1..].bytes().take_while(|byte| *byte == b'#').count();
        (marks <= level).then_some(at + 1)
    });
    Some(&text[at..end.map_or(text.len(), |end| at + level + end)])
}

/// Writes a link to a page as the command that prints that page. A reader of the command has no repository.
fn without_links(text: &str, page: &Page) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, part) in text.split("```").enumerate() {
        if index > 0 {
            out.push_str("```");
        }
        // Every second part is code.
        if index % 2 == 1 {
            out.push_str(part);
            continue;
        }
        let mut rest = part;
        while let Some((text, target, start, end)) = link(rest) {
            // A picture is what is said of it.
            out.push_str(rest[..start].trim_end_matches('!'));
            out.push_str(text);
            if target.starts_with("http") {
                out.push_str(&format!(" <{target}>"));
            } else if let Some(other) = led_to(target, page) {
                out.push_str(&format!(" (latchwork help {other})"));
            }
            rest = &rest[end..];
        }
        out.push_str(rest);
    }
    out
}

/// The first link: its text, its target, where it begins and where it ends.
fn link(text: &str) -> Option<(&str, &str, usize, usize)> {
    let middle = text.find("](")?;
    let start = text[..middle].rfind('[')?;
    let length = text[middle + 2..].find(')')?;
    let target = &text[middle + 2..middle + 2 + length];
    Some((&text[start + 1..middle], target, start, middle + 3 + length))
}

/// The page that a link of another page leads to.
fn led_to(target: &str, from: &Page) -> Option<&'static str> {
    let target = target.split('#').next().filter(|target| !target.is_empty())?;
    let mut folders: Vec<_> = from.path.split('/').collect();
    folders.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(folders.pop()),
            "." => {}
            part => folders.push(part),
        }
    }
    let path = folders.join("/");
    PAGES.iter().find(|page| page.path == path).map(|page| page.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are in every binary.
    #[test]
    fn pages_are_small_and_have_no_link_of_the_repository() {
        let size: usize = PAGES.iter().map(|page| page.text.len()).sum();
        assert!(size < 300_000, "{size}");
        for name in names() {
            let text = text_of(name).unwrap();
            assert!(text.starts_with('#') && text.len() > 500, "{name}: {text}");
            let prose: String = text.split("```").step_by(2).collect();
            assert!(!prose.contains("]("), "{name}");
        }
    }

    #[test]
    fn a_page_is_the_file_that_links_lead_to() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        for page in &PAGES {
            assert_eq!(std::fs::read_to_string(format!("{root}{}", page.path)).unwrap(), page.text);
        }
    }

    #[test]
    fn a_link_names_the_command_that_prints_the_page() {
        let page = PAGES.iter().find(|page| page.name == "command").unwrap();
        let text = "See [Redis](../redis.md#a), [here](#b), [x](../adr/1.md), [y](https://z).\n```\n[a](b)\n```\n";
        let said = "See Redis (latchwork help redis), here, x, y <https://z>.\n```\n[a](b)\n```\n";
        assert_eq!(without_links(text, page), said);
    }

    #[test]
    fn a_section_ends_at_the_next_of_its_level() {
        let text = "# A\n\n## B\nb\n### C\nc\n## D\nd\n";
        assert_eq!(section(text, "B"), Some("## B\nb\n### C\nc\n"));
        assert_eq!(section(text, "D"), Some("## D\nd\n"));
        assert_eq!(section(text, "E"), None);
    }
}

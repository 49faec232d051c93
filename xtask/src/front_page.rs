//! The front page of `latchwork` on docs.rs: few names, each under one heading of its text.

use std::collections::BTreeMap;

const SOURCE: &str = include_str!("../../crates/latchwork/src/lib.rs");

const HEADINGS: [&str; 5] = ["Connect", "Locks", "Holds", "Settings", "Errors and events"];

/// More than that nobody reads.
const MOST: usize = 45;

/// What an author of a store needs, in `latchwork::store`.
const MOST_OF_STORE: usize = 30;

/// The names that are exported at the root.
fn names(source: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let items: Vec<_> = source.split("\npub ").collect();
    let shown = items.windows(2).filter(|pair| !pair[0].ends_with("#[doc(hidden)]"));
    for item in shown.map(|pair| pair[1]) {
        let (kind, rest) = item.split_once(' ').unwrap();
        let end = if kind == "use" { rest.find(';') } else { rest.find([';', ' ', '(', '<']) };
        let what = &rest[..end.unwrap()];
        let list = what.split_once("::{").map_or(what, |(_, list)| list.trim_end_matches('}'));
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = name.rsplit_once(" as ").map_or(name, |(_, alias)| alias);
            names.push(name.rsplit("::").next().unwrap());
        }
    }
    names
}

/// The headings under which each linked name stands.
fn links(source: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut links: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut heading = "";
    for line in source.lines() {
        if let Some(title) = line.strip_prefix("//! # ") {
            heading = title;
        } else if line.starts_with("//!") || line.trim_start().starts_with("doc = ") {
            for link in line.split("[`").skip(1) {
                links.entry(link.split('`').next().unwrap()).or_default().push(heading);
            }
        }
    }
    links
}

#[test]
fn the_front_page_has_few_names_each_under_one_heading() {
    let (names, links) = (names(SOURCE), links(SOURCE));
    assert!(names.len() <= MOST, "{} names: {names:?}", names.len());
    for name in &names {
        let found = links.get(name).map_or(&[][..], Vec::as_slice);
        assert_eq!(found.len(), 1, "{name} is linked under {found:?}");
        assert!(HEADINGS.contains(&found[0]), "{name} is linked under {found:?}");
    }
    let unknown: Vec<_> = links.keys().filter(|link| !names.contains(link)).collect();
    assert!(unknown.is_empty(), "links to what is not at the root: {unknown:?}");
}

#[test]
fn the_module_store_has_the_contract_and_no_machinery() {
    let store = SOURCE.split_once("pub mod store {").unwrap().1.split_once("\n}").unwrap().0;
    let store = store.replace("\n    pub use", "\npub use");
    let names = names(&store);
    assert!(names.len() <= MOST_OF_STORE, "{} names: {names:?}", names.len());
    assert!(!store.contains("latchwork_wire"), "machinery is in latchwork::store");
}

#[test]
fn exports_of_every_form_are_names() {
    let source = "\npub mod a;\npub use b::{C, d as e};\npub use f as g;\npub use h::I;\npub fn j() {}\n\
                  mod k;\n";
    assert_eq!(names(source), ["a", "C", "e", "g", "I", "j"]);
}

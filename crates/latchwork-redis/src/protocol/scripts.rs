//! The scripts: one for each verb, sent by their hash.

use std::sync::LazyLock;

use crate::server::script::Script;

/// The pieces that scripts share, in this order, because they include each other.
const INCLUDED: [(&str, &str); 6] = [
    ("--#include common.lua\n", include_str!("scripts/common.lua")),
    ("--#include serve.lua\n", include_str!("scripts/serve.lua")),
    ("--#include token.lua\n", include_str!("scripts/token.lua")),
    ("--#include draw.lua\n", include_str!("scripts/draw.lua")),
    ("--#include keep.lua\n", include_str!("scripts/keep.lua")),
    ("--#include displaced.lua\n", include_str!("scripts/displaced.lua")),
];

/// The times (ms) of scripts, each written `@NAME@` there.
const TIMES: [(&str, &str); 3] = [
    // How long after the moment at which it promised to look a waiter is taken for stopped.
    ("@LATE@", "500"),
    // The longest pause between two looks of a waiter.
    ("@REST@", "10000"),
    // Over how long the looks of a long queue are spread when its holder does not come. Less than LATE, so that who
    // waits behind a grant on probation need not be warned.
    ("@SPREAD@", "490"),
];

/// The piece in front of a script while the restart guard is on.
const GUARD: &str = include_str!("scripts/guard.lua");
/// The pieces of the guard inside scripts. Without the guard they are left out.
const GUARD_PIECES: [(&str, &str); 3] = [
    ("--#guard guard_ask.lua\n", include_str!("scripts/guard_ask.lua")),
    ("--#guard guard_place.lua\n", include_str!("scripts/guard_place.lua")),
    ("--#guard guard_release.lua\n", include_str!("scripts/guard_release.lua")),
];
/// Assembles a script.
pub(super) fn script(source: &str) -> Script {
    assembled(source, |_| "")
}

/// Assembles a script with the guard in front, then these pieces, and the guard's other pieces in their places.
pub(super) fn guarded(between: &[&str], source: &str) -> Script {
    assembled(&(GUARD.to_owned() + &between.concat() + source), |piece| piece)
}

fn assembled(source: &str, choose: impl Fn(&'static str) -> &'static str) -> Script {
    let mut source = whole(source);
    for (mark, piece) in GUARD_PIECES {
        source = source.replace(mark, choose(piece));
    }
    // A mark that no piece replaces would be removed with the comments.
    let mut parts = source.split('@').skip(1);
    let is_left = parts.any(|part| part.starts_with(|c: char| c.is_ascii_uppercase()));
    debug_assert!(!source.contains("--#") && !is_left, "{source}");
    Script::new(without_comments(&source))
}

/// The same script for a Cluster, where a message goes to one node. The command is written into the script, because
/// some hosted services refuse a command that is an argument.
pub(super) fn sharded(script: Script) -> Script {
    Script::new(script.source.replace("'PUBLISH'", "'SPUBLISH'"))
}

/// A script without comments and indents: they are half of it, and a service that checks the text of scripts may
/// mistake a comment for code.
pub(crate) fn without_comments(source: &str) -> String {
    let mut bare = String::with_capacity(source.len() / 2);
    for line in source.lines() {
        let mut end = line.match_indices("--").map(|(at, _)| at);
        // No comment begins inside quotes.
        let end = end.find(|at| line[..*at].matches('\'').count() % 2 == 0);
        let code = line[..end.unwrap_or(line.len())].trim();
        if !code.is_empty() {
            bare.push_str(code);
            bare.push('\n');
        }
    }
    bare
}

/// A script with what it includes.
pub(crate) fn whole(source: &str) -> String {
    let marks = INCLUDED.iter().chain(&TIMES);
    marks.fold(source.to_owned(), |source, (mark, piece)| source.replace(mark, piece))
}

pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("scripts/renew.lua")));
/// The release of one key that no claim waits for: the same with and without the guard.
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("scripts/release.lua")));
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("scripts/inspect.lua")));
pub(crate) static FREE: LazyLock<Script> =
    LazyLock::new(|| script(include_str!("scripts/free.lua")));
pub(crate) static GUARD_LOOK: LazyLock<Script> =
    LazyLock::new(|| guarded(&[], include_str!("scripts/guard_look.lua")));
pub(crate) static GUARD_INIT: LazyLock<Script> =
    LazyLock::new(|| guarded(&[], include_str!("scripts/guard_init.lua")));

/// The scripts of plain mode. They are sent whole, so they have no hash.
pub(crate) const PLAIN_TAKE: &str = include_str!("scripts/plain/take.lua");
pub(crate) static PLAIN_TOKEN: LazyLock<String> =
    LazyLock::new(|| whole(include_str!("scripts/plain/token.lua")));
pub(crate) const PLAIN_CONFIRM: &str = include_str!("scripts/plain/confirm.lua");
pub(crate) const PLAIN_RENEW: &str = include_str!("scripts/plain/renew.lua");
pub(crate) const PLAIN_RELEASE: &str = include_str!("scripts/plain/release.lua");
pub(crate) const PLAIN_INSPECT: &str = include_str!("scripts/plain/inspect.lua");

/// The scripts of plain mode, by name.
pub(crate) fn of_plain_mode() -> [(&'static str, String); 6] {
    [
        ("plain take", PLAIN_TAKE.to_owned()),
        ("plain token", PLAIN_TOKEN.clone()),
        ("plain confirm", PLAIN_CONFIRM.to_owned()),
        ("plain renew", PLAIN_RENEW.to_owned()),
        ("plain release", PLAIN_RELEASE.to_owned()),
        ("plain inspect", PLAIN_INSPECT.to_owned()),
    ]
}

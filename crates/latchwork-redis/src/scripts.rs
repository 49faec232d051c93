//! The scripts: one for each verb, sent by their hash.

use std::sync::LazyLock;

use redis::Cmd;

use crate::guard::Rule;
use crate::link::Link;
use crate::names::Names;

/// What scripts share.
///
/// In this order, for they include each other.
const INCLUDED: [(&str, &str); 6] = [
    ("--#include common.lua\n", include_str!("scripts/common.lua")),
    ("--#include serve.lua\n", include_str!("scripts/serve.lua")),
    ("--#include token.lua\n", include_str!("scripts/token.lua")),
    ("--#include draw.lua\n", include_str!("scripts/draw.lua")),
    ("--#include keep.lua\n", include_str!("scripts/keep.lua")),
    ("--#include displaced.lua\n", include_str!("scripts/displaced.lua")),
];

/// What stands in front of a script while the restart guard is on.
const GUARD: &str = include_str!("scripts/guard.lua");
/// What stands between that and a try.
const GUARD_TRY: &str = include_str!("scripts/guard_try.lua");
/// What stands between that and a try of many.
const GUARD_TAKE: &str = include_str!("scripts/guard_take.lua");
/// What is put in its place inside a script while the guard is on, and left out otherwise.
const GUARD_PIECES: [(&str, &str); 3] = [
    ("--#guard guard_ask.lua\n", include_str!("scripts/guard_ask.lua")),
    ("--#guard guard_place.lua\n", include_str!("scripts/guard_place.lua")),
    ("--#guard guard_release.lua\n", include_str!("scripts/guard_release.lua")),
];
/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Script {
    fn new(source: &str) -> Self {
        Self::made(source, |_| "")
    }

    /// With the guard in front, and its pieces in their places.
    fn guarded(front: &[&str], source: &str) -> Self {
        Self::made(&(front.concat() + source), |piece| piece)
    }

    fn made(source: &str, choose: impl Fn(&'static str) -> &'static str) -> Self {
        let mut source = whole(source);
        for (mark, piece) in GUARD_PIECES {
            source = source.replace(mark, choose(piece));
        }
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

/// A script with what it includes.
pub(crate) fn whole(source: &str) -> String {
    INCLUDED.iter().fold(source.to_owned(), |source, (mark, piece)| source.replace(mark, piece))
}

pub(crate) static TRY: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/try.lua")));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
pub(crate) static ENQUEUE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/enqueue.lua")));
pub(crate) static HAND_ON: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/hand_on.lua")));
pub(crate) static WARN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/warn.lua")));
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/inspect.lua")));
pub(crate) static TAKE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/take.lua")));
pub(crate) static FREE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/free.lua")));

pub(crate) static TRY_GUARDED: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD, GUARD_TRY], include_str!("scripts/try.lua")));
pub(crate) static TAKE_GUARDED: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD, GUARD_TAKE], include_str!("scripts/take.lua")));
pub(crate) static RELEASE_GUARDED: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD], include_str!("scripts/release.lua")));
pub(crate) static ENQUEUE_GUARDED: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD], include_str!("scripts/enqueue.lua")));
pub(crate) static HAND_ON_GUARDED: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD], include_str!("scripts/hand_on.lua")));
pub(crate) static GUARD_LOOK: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD], include_str!("scripts/guard_look.lua")));
pub(crate) static GUARD_INIT: LazyLock<Script> =
    LazyLock::new(|| Script::guarded(&[GUARD], include_str!("scripts/guard_init.lua")));

/// The scripts that grant or keep a place, with the guard in them or not: chosen once.
#[derive(Clone)]
pub(crate) struct Chosen {
    pub(crate) try_: &'static Script,
    pub(crate) take: &'static Script,
    pub(crate) release: &'static Script,
    pub(crate) enqueue: &'static Script,
    pub(crate) hand_on: &'static Script,
    rule: Option<Rule>,
}

impl Chosen {
    pub(crate) fn by(rule: Option<Rule>) -> Self {
        match rule {
            None => Self {
                try_: &TRY,
                take: &TAKE,
                release: &RELEASE,
                enqueue: &ENQUEUE,
                hand_on: &HAND_ON,
                rule,
            },
            Some(_) => Self {
                try_: &TRY_GUARDED,
                take: &TAKE_GUARDED,
                release: &RELEASE_GUARDED,
                enqueue: &ENQUEUE_GUARDED,
                hand_on: &HAND_ON_GUARDED,
                rule,
            },
        }
    }

    /// Appends the keys of a script, and the marker while the guard is on.
    pub(crate) fn keys(
        &self,
        command: &mut Cmd,
        names: &Names,
        keys: &[impl redis::ToSingleRedisArg],
    ) {
        command.arg(keys.len() + usize::from(self.rule.is_some())).arg(keys);
        if self.rule.is_some() {
            command.arg(names.guard());
        }
    }

    /// Appends what the guard reads, while it is on.
    pub(crate) fn fill(&self, command: &mut Cmd, link: &Link) {
        if let Some(rule) = &self.rule {
            rule.fill(command, link);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_is_in_the_scripts_only_while_it_is_on() {
        for (plain, guarded) in [
            (&TRY, &TRY_GUARDED),
            (&RELEASE, &RELEASE_GUARDED),
            (&ENQUEUE, &ENQUEUE_GUARDED),
            (&HAND_ON, &HAND_ON_GUARDED),
        ] {
            assert!(!plain.source.contains("guard"));
            assert!(!guarded.source.contains("--#"));
            assert!(guarded.source.matches("guard.is_open").count() >= 3);
            assert_ne!(plain.hash, guarded.hash);
        }
    }
}

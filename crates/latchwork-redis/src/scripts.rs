//! The scripts: one for each verb, sent by their hash.

use std::sync::LazyLock;

const COMMON: &str = include_str!("scripts/common.lua");

/// Raises a counter of tokens to the clock; sent as it is, for it runs once for a connection.
pub(crate) const RAISE: &str = include_str!("scripts/raise.lua");

/// A script and its hash.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) hash: String,
}

impl Script {
    fn new(source: &str) -> Self {
        let source = source.replace("--#include common.lua\n", COMMON);
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self { source, hash }
    }
}

pub(crate) static TRY: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/try.lua")));
pub(crate) static RENEW: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/renew.lua")));
pub(crate) static RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/release.lua")));
pub(crate) static INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/inspect.lua")));

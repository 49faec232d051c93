//! Options that the environment may set: `LATCHWORK_WAIT`, `LATCHWORK_TTL`, `LATCHWORK_TOKEN_FLOOR`.

use std::time::Duration;

use latchwork::{Error, ErrorKind, FencingToken};

/// The variable with what all tokens are larger than.
pub(super) const TOKEN_FLOOR: &str = "LATCHWORK_TOKEN_FLOOR";

/// How long to wait, if the command line does not say it.
pub(super) fn wait(option: Option<Duration>) -> Result<Option<Duration>, Error> {
    option
        .map_or_else(|| read("LATCHWORK_WAIT", "--wait", crate::args::duration), |it| Ok(Some(it)))
}

/// The ttl, if the command line does not say it.
pub(super) fn ttl(option: Option<Duration>) -> Result<Option<Duration>, Error> {
    option.map_or_else(|| read("LATCHWORK_TTL", "--ttl", crate::args::ttl), |it| Ok(Some(it)))
}

/// What all tokens are larger than, if the command line does not say it.
pub(super) fn token_floor(option: Option<u64>) -> Result<Option<FencingToken>, Error> {
    let read = || read(TOKEN_FLOOR, "--token-floor", crate::args::token);
    let floor = option.map_or_else(read, |it| Ok(Some(it)))?;
    Ok(floor.map(FencingToken::from_raw))
}

/// A variable, in place of an option; one that is empty is not set.
fn read<T>(
    name: &str,
    option: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, Error> {
    let Some(text) = std::env::var_os(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    parse(&text).map(Some).map_err(|problem| {
        Error::new(ErrorKind::Invalid, format!("{name}={text}: {problem}"))
            .with_next_step(format!("correct or unset {name}, or use {option}"))
    })
}

//! Options that the environment may set: `LATCHWORK_WAIT`, `LATCHWORK_TTL`.

use std::time::Duration;

use latchwork::{Error, ErrorKind};

/// How long to wait, if the command line does not say it.
pub(super) fn wait(option: Option<Duration>) -> Result<Option<Duration>, Error> {
    option.map_or_else(|| read("LATCHWORK_WAIT", crate::args::duration), |it| Ok(Some(it)))
}

/// The ttl, if the command line does not say it.
pub(super) fn ttl(option: Option<Duration>) -> Result<Option<Duration>, Error> {
    option.map_or_else(|| read("LATCHWORK_TTL", crate::args::ttl), |it| Ok(Some(it)))
}

/// A variable; one that is empty is not set.
fn read(
    name: &str,
    parse: fn(&str) -> Result<Duration, String>,
) -> Result<Option<Duration>, Error> {
    let Some(text) = std::env::var_os(name).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let text = text.to_string_lossy();
    parse(&text).map(Some).map_err(|problem| {
        Error::new(ErrorKind::Invalid, format!("{name}={text}: {problem}"))
            .next_step(format!("correct or unset {name}, or use the option"))
    })
}

//! `latchwork doctor`: whether a store is fit for locks.

use latchwork::Error;

use super::Context;
use crate::exit;

/// Examines the store; a critical finding has an exit code of its own.
pub(crate) async fn run(place: &Context) -> Result<u8, Error> {
    let report = latchwork::doctor(place.store.address()).await;
    let report = report.map_err(|error| place.store.explained(error))?;
    Ok(match place.output.report(&report) {
        0 if !report.is_fit() => exit::UNFIT,
        code => code,
    })
}

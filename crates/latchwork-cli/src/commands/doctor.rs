//! `latchwork doctor`: whether a store is fit for locks.

use latchwork::Error;

use crate::exit;
use crate::output::Output;

/// Examines the store; a critical finding has an exit code of its own.
pub(crate) async fn run(store: &str, output: &Output) -> Result<u8, Error> {
    let report = latchwork::doctor(store).await?;
    Ok(match output.report(&report) {
        0 if !report.is_fit() => exit::UNFIT,
        code => code,
    })
}

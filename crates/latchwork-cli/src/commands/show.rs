//! `latchwork show`: who holds a lock and who waits for it.

use latchwork::Error;

use crate::args::ShowArgs;
use crate::output::Output;

/// Shows one lock.
pub(crate) async fn run(args: &ShowArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let manager = latchwork::connect(store).await?;
    let one = manager.inspect(&args.name).await?;
    let code = output.show(&one);
    super::close(&manager).await;
    Ok(code)
}

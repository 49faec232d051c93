//! `latchwork ls`: the locks that are held or waited for.

use latchwork::Error;

use crate::args::LsArgs;
use crate::output::Output;

/// Lists the locks.
pub(crate) async fn run(args: &LsArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let manager = latchwork::connect(store).await?;
    let all = manager.list(&args.prefix).await?;
    let code = output.list(&all);
    super::close(&manager).await;
    Ok(code)
}

//! `latchwork release --force`: takes a lock away from its holder.

use latchwork::Error;

use crate::args::ReleaseArgs;
use crate::output::Output;

/// Evicts the holders, and moves the token on so that they are fenced.
pub(crate) async fn run(args: &ReleaseArgs, store: &str, output: &Output) -> Result<u8, Error> {
    debug_assert!(args.force, "the command line asks for it");
    let manager = latchwork::connect(store).await?;
    let released = manager.force_release(&args.name).await?;
    let code = output.released(&args.name, &released.evicted, released.token);
    super::close(&manager).await;
    Ok(code)
}

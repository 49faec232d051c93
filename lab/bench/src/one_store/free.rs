//! Locks that nobody else wants, by tasks of this process.

use futures_util::future::try_join_all;
use latchwork::{Error, LockManager};
use latchwork_store::clock::boot_time;

use super::Plan;
use super::section::Measured;

/// Acquires and releases in `tasks` tasks, each a key of its own.
pub(super) async fn measure(
    plan: &Plan,
    locks: &LockManager,
    tasks: u32,
) -> Result<Measured, Error> {
    let start = boot_time();
    let end = start.plus(plan.length);
    let each = (0..tasks).map(|task| async move {
        let lock = locks.mutex(format!("free {task}"));
        let mut times = Vec::new();
        loop {
            let from = boot_time();
            if from >= end {
                return Ok::<_, Error>(times);
            }
            lock.acquire_within(plan.length).await?.release().await?;
            times.push(boot_time().since(from).as_nanos() as u64);
        }
    });
    let times = try_join_all(each).await?.concat();
    Ok(Measured::of_cycles(times, boot_time().since(start)))
}

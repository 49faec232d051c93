//! A process that holds one key again and again, whatever happens to the store.

use std::time::Duration;

use latchwork::{ErrorKind, LockManager};

use crate::roles::{Outcome, input, now};

/// After an error, as a service would.
const PAUSE: Duration = Duration::from_millis(20);

/// For the line `UNTIL MILLISECONDS` holds the key for so long each time, until then; in the end
/// prints a line for each hold, and how many acquires failed.
pub(crate) async fn run(locks: LockManager) -> Outcome {
    let mut lines = input();
    let mutex = locks.mutex("bench");
    println!("ready");
    let line = lines.recv().await.ok_or("no word to begin")?;
    let (until, length) = line.split_once(' ').ok_or("UNTIL MILLISECONDS")?;
    let (until, length) = (until.parse::<u64>()?, Duration::from_millis(length.parse()?));
    let mut failed = 0;
    while now() < until {
        let left = Duration::from_nanos(until.saturating_sub(now()));
        let guard = match mutex.acquire_within(left).await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::TimedOut => break,
            Err(error) => {
                eprintln!("latchwork: {error}");
                failed += 1;
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (acquired, token) = (now(), guard.token());
        let was_told = tokio::select! {
            _ = guard.lost() => true,
            () = tokio::time::sleep(length) => guard.ensure_held().is_err(),
        };
        // Whoever is told stops.
        let ended = now();
        // A release without an answer goes on by itself.
        let released = guard.release().await;
        let told = released.is_err_and(|e| e.kind() == ErrorKind::Lost) || was_told;
        println!("{acquired} {ended} {token} {}", u8::from(told));
    }
    println!("failed {failed}");
    Ok(())
}

//! Processes of one machine whose wall clocks differ: one is set wrong while it runs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use latchwork::once::{Begun, Skipped};
use latchwork::{LockManager, Period};
use latchwork_file::FileBackend;
use latchwork_store::*;

use crate::common::*;

const HOUR: i64 = 3_600;

/// A wall clock that is so many seconds ahead.
#[derive(Debug)]
struct Skewed {
    clock: Arc<dyn Clock>,
    ahead: AtomicI64,
}

impl Clock for Skewed {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn wall(&self) -> std::time::Duration {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let off = SEC * u32::try_from(ahead.unsigned_abs()).unwrap();
        if ahead < 0 { self.clock.wall() - off } else { self.clock.wall() + off }
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.clock.sleep_until(at)
    }
}

fn skewed(ahead: i64) -> Io {
    let spawner = io();
    let clock = Skewed { clock: io().clock().clone(), ahead: AtomicI64::new(ahead) };
    Io::new(move |task| spawner.spawn(task), Arc::new(clock))
}

fn locks(dir: &Path, ahead: i64) -> LockManager {
    let io = skewed(ahead);
    LockManager::on_io(FileBackend::connect(dir, io.clone()).unwrap(), io)
}

/// A key that is closed, or opened, by one clock is so for all of them, and for no longer.
#[tokio::test]
async fn h242_a_wall_clock_ahead_opens_no_key_and_closes_none() {
    let dir = tempfile::tempdir().unwrap();
    let right = connect(dir.path());
    let ahead = |ahead| FileBackend::connect(dir.path(), skewed(ahead)).unwrap();
    let once = || claim("k").with(|it| it.waits = false);
    let closed = once();
    granted(right.try_acquire(&closed).await);
    right.release(&closed, Linger::For(600 * SEC)).await.unwrap();
    for hours in [-3, 3, 24, 7 * 24] {
        let answer = blocked(ahead(hours * HOUR).try_acquire(&once()).await);
        assert_eq!(answer.cause, Cause::Linger, "{hours} h");
        let left = answer.retry_after.unwrap();
        assert!(left > 500 * SEC && left <= 600 * SEC, "{hours} h: {left:?}");
        let shown = ahead(hours * HOUR).inspect(&Query::Key(closed.key.clone())).await.unwrap();
        assert!(shown[0].linger.is_some_and(|left| left <= 600 * SEC), "{shown:?}");
    }
    // Opened by a clock that is ahead.
    let opened = ahead(24 * HOUR).release(&once(), Linger::End).await.unwrap();
    assert_eq!(opened, Released::Yes);
    let closed = once();
    granted(right.try_acquire(&closed).await);
    release(&right, &closed).await;
    // Closed by one.
    let wrong = ahead(7 * 24 * HOUR);
    let closed = once();
    granted(wrong.try_acquire(&closed).await);
    wrong.release(&closed, Linger::For(SEC)).await.unwrap();
    let answer = blocked(right.try_acquire(&once()).await);
    assert!(answer.retry_after.unwrap() <= SEC, "{answer:?}");
    io().sleep(answer.retry_after.unwrap()).await;
    granted(right.try_acquire(&once()).await);
}

/// A task that is done once a period, and a process whose clock is wrong by so many seconds: whatever the clocks
/// show, it is not done again.
async fn runs_once(period: impl Fn() -> Period, base: i64, ahead: i64, is_mismatch: bool) {
    let dir = tempfile::tempdir().unwrap();
    let (right, wrong) = (locks(dir.path(), base), locks(dir.path(), base + ahead));
    let is_not_done_again = async |locks: &LockManager, name: &str| {
        let tried = locks.once(name, period()).try_begin().await;
        match is_mismatch {
            true => assert_eq!(tried.expect_err("another time").kind(), ErrorKind::Mismatch),
            false => {
                assert!(matches!(tried, Ok(Begun::Skipped(Skipped::Done { .. }))), "{tried:?}");
            }
        }
    };
    let Begun::Run(run) = right.once("t", period()).try_begin().await.unwrap() else {
        panic!("it was not done");
    };
    run.succeed().await.unwrap();
    is_not_done_again(&wrong, "t").await;
    // Nobody else is shut out.
    let tried = right.once("t", period()).try_begin().await;
    assert!(matches!(tried, Ok(Begun::Skipped(Skipped::Done { .. }))), "{tried:?}");
    // It was done by the wrong one first.
    let Begun::Run(run) = wrong.once("u", period()).try_begin().await.unwrap() else {
        panic!("it was not done");
    };
    run.succeed().await.unwrap();
    is_not_done_again(&right, "u").await;
}

#[tokio::test]
async fn h243_a_task_runs_once_whatever_one_clock_shows() {
    for hours in [3, 24, 7 * 24] {
        // Another time of day is a mismatch.
        runs_once(|| Period::daily("UTC").unwrap(), 0, hours * HOUR, hours == 3).await;
    }
    // The period of the clock that is ahead is the next one. All clocks here are in the middle of one.
    let now = io().clock().wall().as_secs() % 600;
    let middle = 300 - i64::try_from(now).unwrap();
    runs_once(|| Period::every(600 * SEC).unwrap(), middle, 720, true).await;
}

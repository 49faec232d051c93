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

/// A task that is done once a day, and a process whose clock is wrong.
#[tokio::test]
async fn h243_a_task_runs_once_whatever_one_clock_shows() {
    for hours in [3, 24, 7 * 24] {
        let dir = tempfile::tempdir().unwrap();
        let day = || Period::daily("UTC").unwrap();
        let (right, wrong) = (locks(dir.path(), 0), locks(dir.path(), hours * HOUR));
        let Begun::Run(run) = right.once("t", day()).try_begin().await.unwrap() else {
            panic!("it was not done");
        };
        run.succeed().await.unwrap();
        let tried = wrong.once("t", day()).try_begin().await;
        match hours {
            3 => assert_eq!(tried.expect_err("another time of day").kind(), ErrorKind::Mismatch),
            _ => assert!(matches!(tried, Ok(Begun::Skipped(Skipped::Done { .. }))), "{tried:?}"),
        }
        // Nobody else is shut out.
        let tried = right.once("t", day()).try_begin().await;
        assert!(matches!(tried, Ok(Begun::Skipped(Skipped::Done { .. }))), "{tried:?}");
        // It was done by the wrong one first.
        let Begun::Run(run) = wrong.once("u", day()).try_begin().await.unwrap() else {
            panic!("it was not done");
        };
        run.succeed().await.unwrap();
        let tried = right.once("u", day()).try_begin().await;
        match hours {
            3 => assert_eq!(tried.expect_err("another time of day").kind(), ErrorKind::Mismatch),
            _ => assert!(matches!(tried, Ok(Begun::Skipped(Skipped::Done { .. }))), "{tried:?}"),
        }
    }
}

//! The thread of a store sleeps while nothing is to do, and ends with the store.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use latchwork::BlockOn;
use latchwork::testing::{Answer, Call, TestStore};
use latchwork_store::testing::stalls;

use super::SEC;

const ALONE: &str = "LATCHWORK_TESTING_ALONE";

/// The threads of this process that belong to Latchwork, and for how long they were on a processor.
fn threads() -> (usize, Duration) {
    let (mut count, mut busy) = (0, Duration::ZERO);
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").starts_with("latchwork") {
            count += 1;
            let nanos = read("schedstat").split(' ').next().and_then(|it| it.parse().ok());
            busy += Duration::from_nanos(nanos.unwrap_or(0));
        }
    }
    (count, busy)
}

/// In a process of its own, where no other test has threads.
#[test]
fn dropping_a_store_leaves_no_thread() {
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "testing::threads::dropping_a_store_leaves_no_thread"]);
        let output = alone.env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    stalls::start();
    let kept: Vec<_> = (0..10).map(|_| with_work_that_never_ends()).collect();
    assert_eq!(threads().0, 10);
    let before = threads().1;
    thread::sleep(Duration::from_millis(300));
    let busy = threads().1 - before;
    assert!(busy < Duration::from_millis(30), "busy for {busy:?} with nothing to do");
    drop(kept);
    let start = Instant::now();
    while threads().0 > 0 {
        assert!(start.elapsed() < stalls::widened(5 * SEC, start.elapsed()), "{:?}", threads());
        thread::sleep(Duration::from_millis(5));
    }
}

/// A store with a release that is repeated, one that is pending, a hold, and a waiter.
fn with_work_that_never_ends() -> impl Sized {
    let store = TestStore::new();
    let locks = store.locks();
    let guards = ["a", "b", "c"].map(|name| locks.mutex(name).acquire().block_on().unwrap());
    let [repeated, pending, held] = guards;
    store.script_of("a", Call::Release, u32::MAX, Answer::Unreachable);
    drop(repeated);
    store.script_of("b", Call::Release, 1, Answer::Pending);
    drop(pending);
    store.settle().block_on();
    let other = store.locks();
    let mut waiter = Box::pin(async move { other.mutex("c").acquire().await });
    assert!((&mut waiter).now_or_never().is_none());
    (waiter, held, locks, store)
}

//! The tasks that a backend runs: what they do when their runtime ends, and when they end.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use crate::verbs::dir;
use latchwork::{Driver, LockManager};
use latchwork_file::FileBackend;
use latchwork_store::*;

/// A runtime that is shut down tells the watch of a session an error; that is no death.
#[tokio::test]
async fn a_watch_that_fails_takes_nobody_for_dead() {
    let dir = tempfile::tempdir().unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = runtime.handle().clone();
    // The tasks go on where the shut-down of the runtime does not end them.
    let spawn = move |task| {
        let handle = handle.clone();
        std::thread::spawn(move || handle.block_on(task));
    };
    let a = connect(dir.path());
    let b = FileBackend::connect(dir.path(), Io::new(spawn, io().clock().clone())).unwrap();
    let (held, mine) = (claim("k"), claim("k"));
    granted(a.try_acquire(&held).await);
    let answer = blocked(b.try_acquire(&mine).await);
    assert!(still_pending(b.wait(&mine, &answer)).await);
    runtime.shutdown_background();
    for _ in 0..30 {
        blocked(b.try_acquire(&mine).await);
        io().sleep(Duration::from_millis(10)).await;
    }
    drop(a);
    soon("the takeover", acquire(&b, &mine)).await;
}

/// Whatever else is read from the wake file, and by whom: the task that reads it ends.
#[test]
fn the_reading_task_ends_whoever_reads_the_wake_file() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (handle, running) = (runtime.handle().clone(), Arc::new(AtomicUsize::new(0)));
    let count = running.clone();
    let spawn = move |task: Task| {
        count.fetch_add(1, Ordering::SeqCst);
        let count = count.clone();
        handle.spawn(async move {
            task.await;
            count.fetch_sub(1, Ordering::SeqCst);
        });
    };
    let b = FileBackend::connect(dir.path(), Io::new(spawn, io().clock().clone())).unwrap();
    let mut files = std::fs::read_dir(dir.path().join("sessions")).unwrap().flatten();
    let wake = files.find(|f| f.path().extension().is_some_and(|kind| kind == "wake")).unwrap();
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let mut reader =
        std::fs::File::options().read(true).custom_flags(nonblock).open(wake.path()).unwrap();
    let a = connect(dir.path());
    runtime.block_on(async {
        granted(a.try_acquire(&claim("k")).await);
        let mine = claim("k");
        let answer = blocked(b.try_acquire(&mine).await);
        assert!(still_pending(b.wait(&mine, &answer)).await);
    });
    assert_eq!(running.load(Ordering::SeqCst), 2, "one reads, one watches the holder");
    // The runtime stands still, so this reader is first.
    drop(b);
    let _ = reader.read(&mut [0; 64]);
    runtime.block_on(async {
        let ended = async {
            while running.load(Ordering::SeqCst) > 0 {
                io().sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(io().within(10 * SEC, ended).await.is_some(), "a task outlives its backend");
    });
}

#[tokio::test]
async fn tasks_on_many_threads_exclude_each_other() {
    let dir = dir();
    let backends = [connect(dir.path()), connect(dir.path())];
    let counter = dir.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let tasks = (0..8).map(|task| {
        let (backend, counter) = (backends[task % 2].clone(), counter.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async move {
                for _ in 0..100 {
                    let claim = claim("counter");
                    acquire(&backend, &claim).await;
                    let count: u32 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                    std::fs::write(&counter, (count + 1).to_string()).unwrap();
                    release(&backend, &claim).await;
                }
            });
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.join().unwrap();
    }
    assert_eq!(std::fs::read_to_string(&counter).unwrap(), "800");
}

#[tokio::test]
async fn the_core_runs_on_it() {
    let dir = dir();
    let managers = [0, 1].map(|_| {
        let driver = Driver::start().unwrap();
        let backend = FileBackend::connect(dir.path(), driver.io()).unwrap();
        LockManager::new(backend, driver)
    });
    let mut last = None;
    for round in 0..20 {
        let guard = managers[round % 2].mutex("k").acquire().await.unwrap();
        assert!(Some(guard.token()) > last);
        last = Some(guard.token());
        let other = managers[(round + 1) % 2].mutex("k").try_acquire().await.unwrap();
        assert!(other.is_none());
        guard.release().await.unwrap();
    }
}

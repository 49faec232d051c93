//! The tasks that a backend runs: what they do when their runtime ends, and when they end.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use crate::verbs::dir;
use futures_util::FutureExt;
use latchwork::{Driver, LockManager};
use latchwork_file::FileBackend;
use latchwork_store::*;
use tokio::runtime::{Builder, Runtime};

/// A runtime that is shut down tells the watch of a session an error; that is no death.
#[tokio::test]
async fn a_failed_watch_reports_no_death() {
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
fn the_reading_task_ends_with_its_backend() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = one_thread();
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
    let mine = claim("k");
    let answer = runtime.block_on(async {
        granted(a.try_acquire(&claim("k")).await);
        blocked(b.try_acquire(&mine).await)
    });
    // Not on the runtime, which would read itself.
    assert!(b.wait(&mine, &answer).now_or_never().is_none());
    runtime.block_on(io().sleep(Duration::from_millis(20)));
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

/// The caller's runtime reads for those that wait there, with one task, which ends with the backend.
#[test]
fn a_task_of_the_callers_runtime_ends_with_the_backend() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let runtime = one_thread();
    let tasks = || runtime.metrics().num_alive_tasks();
    runtime.block_on(async {
        granted(a.try_acquire(&claim("k")).await);
        for _ in 0..3 {
            let mine = claim("k");
            let answer = blocked(b.try_acquire(&mine).await);
            assert!(still_pending(b.wait(&mine, &answer)).await);
        }
        assert_eq!(tasks(), 1);
        drop(b);
        while tasks() > 0 {
            io().sleep(Duration::from_millis(2)).await;
        }
    });
}

/// A thread may be inside a runtime that nobody runs, or that somebody blocks.
#[test]
fn an_idle_runtime_loses_no_wake_up() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let idle = one_thread();
    let (held, mine) = (claim("k"), claim("k"));
    let answer = one_thread().block_on(async {
        granted(a.try_acquire(&held).await);
        blocked(b.try_acquire(&mine).await)
    });
    let inside = idle.enter();
    let mut waiting = pin!(b.wait(&mine, &answer));
    assert!(waiting.as_mut().now_or_never().is_none());
    let releasing = a.clone();
    std::thread::spawn(move || one_thread().block_on(release(&releasing, &held)));
    let start = std::time::Instant::now();
    while waiting.as_mut().now_or_never().is_none() {
        assert!(start.elapsed() < 30 * SEC, "nobody reads the poke");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((a, inside));
}

/// A waiter on a second runtime does not depend on the first.
#[test]
fn a_second_runtime_does_not_wait_for_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let (first, second) = (one_thread(), one_thread());
    let held = claim("k");
    first.block_on(async {
        granted(a.try_acquire(&held).await);
        let mine = claim("k");
        let answer = blocked(b.try_acquire(&mine).await);
        assert!(still_pending(b.wait(&mine, &answer)).await);
        b.release(&mine, Linger::None).await.unwrap();
    });
    // From here on the first runtime stands still.
    second.block_on(async {
        let mine = claim("k");
        let answer = blocked(b.try_acquire(&mine).await);
        let releasing = a.clone();
        let released = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            one_thread().block_on(release(&releasing, &held));
        });
        soon("the wake-up", b.wait(&mine, &answer)).await.unwrap();
        released.join().unwrap();
    });
    drop((a, first));
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
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

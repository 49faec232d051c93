//! The tasks that a backend runs: what they do when their runtime ends, and when they end.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod common;

use std::time::Duration;

use common::*;
use latchwork_core::*;
use latchwork_file::FileBackend;

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

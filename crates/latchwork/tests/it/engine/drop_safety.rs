//! Guards that are dropped where there is no runtime, and runtimes that do not run.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use latchwork::{Driver, HoldState, LockManager};
use latchwork_store::*;

fn locks() -> (LockManager, Arc<MemoryBackend>) {
    let driver = Driver::start().unwrap();
    let store = MemoryBackend::new(driver.io());
    (LockManager::new(store.clone(), driver), store)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// Waits, from outside any runtime, until nobody holds the key.
fn becomes_free(locks: &LockManager) -> bool {
    let runtime = runtime();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if runtime.block_on(locks.inspect("k")).unwrap().is_free() {
            return true;
        }
        thread::sleep(Duration::from_millis(2));
    }
    false
}

#[test]
fn h26_dropped_in_a_plain_thread() {
    let (locks, _) = locks();
    let guard = runtime().block_on(locks.mutex("k").acquire()).unwrap();
    thread::spawn(move || drop(guard)).join().unwrap();
    assert!(becomes_free(&locks));
}

#[test]
fn h26_dropped_inside_a_current_thread_runtime() {
    let (locks, _) = locks();
    runtime().block_on(async { drop(locks.mutex("k").acquire().await.unwrap()) });
    assert!(becomes_free(&locks));
}

#[test]
fn h26_dropped_while_unwinding() {
    let (locks, _) = locks();
    let inner = locks.clone();
    let panicked = thread::spawn(move || {
        let _guard = runtime().block_on(inner.mutex("k").acquire()).unwrap();
        std::panic::panic_any("on purpose");
    });
    assert!(panicked.join().is_err());
    assert!(becomes_free(&locks));
}

#[test]
fn h26_dropped_after_its_runtime_was_shut_down() {
    let (locks, _) = locks();
    let runtime = runtime();
    let guard = runtime.block_on(locks.mutex("k").acquire()).unwrap();
    runtime.shutdown_background();
    drop(guard);
    assert!(becomes_free(&locks));
}

#[test]
fn h26_dropped_after_its_manager() {
    let (locks, store) = locks();
    let guard = runtime().block_on(locks.mutex("k").acquire()).unwrap();
    drop(locks);
    guard.ensure_held().expect("a guard keeps alive what it needs");
    drop(guard);
    let driver = Driver::start().unwrap();
    let again = LockManager::new(store.beside(), driver);
    assert!(becomes_free(&again), "the thread finishes what is under way before it ends");
}

#[test]
fn h26_dropped_after_its_manager_was_closed() {
    let (locks, _) = locks();
    let guard = runtime().block_on(locks.mutex("k").acquire()).unwrap();
    runtime().block_on(locks.close());
    assert!(matches!(guard.state(), HoldState::Lost(_)));
    drop(guard);
}

#[test]
fn h07_a_blocked_user_runtime_starves_no_renewal() {
    let (locks, store) = locks();
    let other = LockManager::new(store.beside(), Driver::start().unwrap());
    let ttl = Duration::from_millis(1_500);
    runtime().block_on(async {
        let guard = locks.mutex("k").ttl(ttl).acquire().await.unwrap();
        // The only thread of this runtime does nothing else for three ttls.
        thread::sleep(ttl * 3);
        guard.ensure_held().expect("renewed by Latchwork's own thread");
        assert!(other.mutex("k").try_acquire().await.unwrap().is_none());
    });
}

#[test]
fn an_acquire_works_on_any_executor() {
    let (locks, store) = locks();
    let other = LockManager::new(store.beside(), Driver::start().unwrap());
    let held = runtime().block_on(other.mutex("k").acquire()).unwrap();
    // No tokio runtime here at all: timers and wake-ups come from the driver.
    let error = bare_block_on(locks.mutex("k").acquire_within(Duration::from_millis(50)));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::TimedOut);
    drop(held);
    drop(bare_block_on(locks.mutex("k").acquire()).unwrap());
}

fn bare_block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut cx = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => thread::park(),
        }
    }
}

//! Processes that are asked to end, and processes that are killed.

use std::time::{Duration, Instant};

use latchwork::BlockOn;
use latchwork_recipes::graceful_shutdown::serve;
use latchwork_services::{Direction, Proxy, RedisOptions, RedisServer};
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::common::{folder, program};

/// Far below the default ttl: a lock that is free by then was released, or its holder known to be dead.
const AT_ONCE: Duration = Duration::from_secs(15);

fn is_free_at_once(url: &str, job: &str) {
    let locks = latchwork::connect(url).block_on().unwrap();
    let guard = locks.mutex(format!("job/{job}")).acquire_within(AT_ONCE).block_on().unwrap();
    guard.release().block_on().unwrap();
}

#[test]
fn on_sigterm_the_job_is_finished_and_no_other_is_begun() {
    let (_folder, url) = folder();
    let worker = program(&url, &["serve", "500", "20000"]);
    worker.stdout.until("begun one");
    worker.signal(Signal::TERM);
    let done = worker.finish();
    assert_eq!((done.code(), &*done.stdout), (0, "done one\n"), "{done:?}");
    is_free_at_once(&url, "one");
}

#[test]
fn a_job_that_takes_too_long_is_given_up() {
    let (_folder, url) = folder();
    let worker = program(&url, &["serve", "600000", "200"]);
    worker.stdout.until("begun one");
    let asked = Instant::now();
    worker.signal(Signal::TERM);
    let done = worker.finish();
    assert_eq!((done.code(), &*done.stdout), (0, ""), "{done:?}");
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    is_free_at_once(&url, "one");
}

/// The second process waits for a lock, not for a job.
#[test]
fn a_wait_for_a_lock_ends_with_sigterm() {
    let (_folder, url) = folder();
    let locks = latchwork::connect(&url).block_on().unwrap();
    let held = locks.mutex("job/one").acquire().block_on().unwrap();
    let worker = program(&url, &["serve", "0", "20000"]);
    latchwork_services::program::eventually("the wait", || {
        let seen = locks.inspect("job/one").block_on().unwrap();
        (!seen.waiters.is_empty()).then_some(())
    });
    worker.signal(Signal::TERM);
    let done = worker.finish();
    assert_eq!((done.code(), &*done.stdout), (0, ""), "{done:?}");
    held.release().block_on().unwrap();
}

/// On files the kernel tells; on other stores the ttl ends first.
#[test]
fn after_sigkill_the_lock_is_free_without_the_process() {
    let (_folder, url) = folder();
    let mut worker = program(&url, &["serve", "600000", "20000"]);
    worker.stdout.until("begun one");
    worker.signal(Signal::KILL);
    worker.wait();
    is_free_at_once(&url, "one");
}

/// Neither the release nor the close is answered.
#[test]
fn a_store_that_is_silent_at_the_end_keeps_no_process_alive() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let proxy = Proxy::redis(server.port()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = latchwork::connect(&proxy.url()).await.unwrap();
        let (stop, (add, jobs)) = (CancellationToken::new(), mpsc::channel(1));
        add.send("one".to_owned()).await.unwrap();
        let work = async |_: &latchwork::Guard, _: &str| {
            proxy.freeze(Direction::ToClient);
            stop.cancel();
            Ok(())
        };
        let asked = Instant::now();
        serve(&locks, jobs, work, stop.clone(), AT_ONCE).await.unwrap();
        assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    });
}

//! Threads that block are woken by wakers and bells, and their checks are called in time.

#![allow(clippy::disallowed_methods, reason = "tests start threads")]

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use latchwork_store::Doorbell;

use super::*;

fn bell(fd: &Arc<OwnedFd>, rung: &Arc<AtomicU32>) -> Doorbell {
    let (door, rung) = (fd.clone(), rung.clone());
    Doorbell::new(fd.clone(), move || {
        if rustix::io::read(&door, &mut [0u8; 8]).is_ok() {
            rung.fetch_add(1, Ordering::SeqCst);
        }
    })
}

#[test]
fn a_blocked_thread_wakes_by_bell_and_waker() {
    let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
    let rung = Arc::new(AtomicU32::new(0));
    let bell = bell(&fd, &rung);
    assert!(!bell.is_attended());
    for by_waker in [false, true].repeat(200) {
        let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
        let (seen, door, before) = (waker.clone(), fd.clone(), rung.load(Ordering::SeqCst));
        let caller = thread::spawn(move || {
            loop {
                if let Some(waker) = seen.lock().unwrap().take() {
                    if by_waker {
                        waker.wake();
                    } else {
                        rustix::io::write(&door, &1u64.to_ne_bytes()).unwrap();
                    }
                    return;
                }
                thread::yield_now();
            }
        });
        let mut polls = 0;
        block_on(listening(
            Some(&bell),
            poll_fn(|cx| {
                assert!(bell.is_attended());
                polls += 1;
                if polls == 1 {
                    *waker.lock().unwrap() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                // Nothing else wakes it, so a second poll proves the wake-up.
                Poll::Ready(())
            }),
        ));
        caller.join().unwrap();
        let heard = rung.load(Ordering::SeqCst) - before;
        assert!(if by_waker { heard == 0 } else { heard <= 1 });
    }
    assert!(rung.load(Ordering::SeqCst) > 100);
    assert!(!bell.is_attended());
}

#[test]
fn a_thread_without_a_bell_waits_for_its_waker() {
    assert_eq!(block_on(async { 7 }), 7);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    thread::spawn(move || sender.send(8).unwrap());
    assert_eq!(block_on(receiver).unwrap(), 8);
}

#[test]
fn a_check_is_called_in_time_and_ends_the_wait() {
    let start = std::time::Instant::now();
    let mut checks = 0;
    let check = || {
        checks += 1;
        // A check may block by itself.
        assert_eq!(block_on(async { 7 }), 7);
        if checks < 3 { Ok(()) } else { Err("ended") }
    };
    let tick = Duration::from_millis(20);
    let ended = std::future::pending::<()>().block_on_interruptible(tick, check);
    assert_eq!((ended, checks), (Err("ended"), 3));
    assert!(start.elapsed() >= tick * 3);
}

#[test]
fn a_check_is_called_in_time_beside_a_busy_waker() {
    let start = std::time::Instant::now();
    let tick = Duration::from_millis(20);
    let longest = Duration::from_secs(10);
    // It wakes itself at each poll, as other threads' answers ring the bell of a busy connection.
    let busy = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if start.elapsed() < longest { Poll::Pending } else { Poll::Ready(()) }
    });
    let ended = busy.block_on_interruptible(tick, || Err("ended"));
    assert_eq!(ended, Err("ended"));
    assert!(start.elapsed() >= tick);
}

#[test]
fn a_wait_with_a_check_wakes_by_bell_and_waker() {
    let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
    let rung = Arc::new(AtomicU32::new(0));
    let bell = bell(&fd, &rung);
    for by_waker in [false, true] {
        let (door, mut polls) = (fd.clone(), 0);
        let future = poll_fn(|cx| {
            polls += 1;
            if polls > 1 {
                return Poll::Ready(());
            }
            let (waker, door) = (cx.waker().clone(), door.clone());
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(30));
                if by_waker {
                    waker.wake();
                } else {
                    rustix::io::write(&door, &1u64.to_ne_bytes()).unwrap();
                }
            });
            Poll::Pending
        });
        // It is never called: nothing but the wake-up ends the first sleep.
        let hour = Duration::from_secs(3_600);
        let check = || Err("not woken");
        let woken = listening(Some(&bell), future).block_on_interruptible(hour, check);
        assert_eq!(woken, Ok(()));
    }
    assert_eq!(rung.load(Ordering::SeqCst), 1);
}

#[test]
fn the_faster_way_to_wait_for_an_answer_is_used() {
    use imp::Pace;
    let micros = Duration::from_micros;
    let checks = |pace: &Pace| (0..320).filter(|_| pace.checks()).count();
    // Nothing is known: it sleeps. So it does where an answer is faster or slower than a processor that wakes.
    for slept in [None, Some(14), Some(500)] {
        let pace = Pace::default();
        slept.into_iter().for_each(|slept| pace.slept(micros(slept)));
        assert_eq!(checks(&pace), 0);
    }
    // The other way is tried from time to time.
    let pace = Pace::default();
    pace.slept(micros(80));
    pace.checked(micros(50));
    assert_eq!(checks(&pace), 310);
    (0..8).for_each(|_| pace.checked(Duration::from_secs(1)));
    assert_eq!(checks(&pace), 10);
    // A long wait, as for a lock that is held, is soon left behind.
    pace.slept(Duration::from_secs(9));
    assert_eq!(checks(&pace), 0);
    (0..8).for_each(|_| pace.slept(micros(80)));
    assert_eq!(checks(&pace), 10);
}

#[test]
fn a_thread_that_checks_is_woken_by_bell_and_waker() {
    let fd = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap());
    let rung = Arc::new(AtomicU32::new(0));
    let bell = bell(&fd, &rung);
    let (pace, event) = (imp::Pace::default(), eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    pace.slept(Duration::from_micros(80));
    let one = 1u64.to_ne_bytes();
    rustix::io::write(&fd, &one).unwrap();
    assert!(imp::listen(&event, Some(&bell), Some(Duration::from_secs(60)), &pace), "by the bell");
    bell.answer();
    rustix::io::write(&event, &one).unwrap();
    assert!(
        !imp::listen(&event, Some(&bell), Some(Duration::from_secs(60)), &pace),
        "by the waker"
    );
    // The wake-up was taken, and nobody comes: the sleep has its end.
    let begin = std::time::Instant::now();
    assert!(!imp::listen(&event, Some(&bell), Some(Duration::from_millis(5)), &pace));
    assert!(begin.elapsed() >= Duration::from_millis(5));
}

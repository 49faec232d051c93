//! Who reads an answer: the caller's runtime, a blocked thread, or the far side.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc as blocking;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use latchwork::block_on;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::echo::*;
use crate::executors::{other_executor, runtime};

#[test]
fn a_runtime_reads_its_answers_without_latchworks_thread() {
    let link = Link::echoed();
    for runtime in [runtime(), Builder::new_multi_thread().enable_all().build().unwrap()] {
        let blocked = runtime.block_on(async {
            link.ask().await;
            let blocked = link.block_driver();
            for _ in 0..100 {
                let asked = tokio::time::timeout(Duration::from_secs(5), link.ask());
                asked.await.expect("the runtime itself reads");
            }
            blocked
        });
        drop(blocked);
        drop(runtime);
    }
}

#[test]
fn a_blocked_thread_reads_its_answers_without_latchworks_thread() {
    let link = Link::echoed();
    block_on(link.ask());
    let blocked = link.block_driver();
    let (done, seen) = blocking::channel();
    let asking = link.clone();
    thread::spawn(move || {
        for _ in 0..100 {
            block_on(asking.ask());
        }
        done.send(()).unwrap();
    });
    seen.recv_timeout(Duration::from_secs(5)).expect("the thread itself reads");
    drop(blocked);
}

/// A blocked thread has watched, and does something else: the far side watches again soon.
#[test]
fn the_driver_reads_again_after_a_blocked_thread() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let mut stream = server.accept().unwrap().0;
    let mut echo = stream.try_clone().unwrap();
    thread::spawn(move || {
        for _ in 0..200 {
            echo.read_exact(&mut [0]).unwrap();
            echo.write_all(&[7]).unwrap();
        }
    });
    for _ in 0..200 {
        block_on(link.ask());
    }
    let (reply, answer) = oneshot::channel();
    let request = async {
        link.requests.send(Request { size: 1, reply }).unwrap();
        std::future::pending::<()>().await;
    };
    let mut sending = Box::pin(link.drive.send(request));
    // Polled by nobody who blocks or has a runtime, and given up at once.
    assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(sending);
    stream.read_exact(&mut [0]).unwrap();
    let start = Instant::now();
    stream.write_all(&[7]).unwrap();
    block_on(async { answer.await.expect("it is read") });
    in_time(start, Duration::from_millis(100));
}

/// A message that answers no request reaches those that listen, wherever they are.
#[test]
fn a_message_is_read_by_its_listener() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for kind in 0..3 {
        let link = Link::to(&server);
        let mut stream = server.accept().unwrap().0;
        let (reply, answer) = oneshot::channel();
        link.requests.send(Request { size: 1, reply }).unwrap();
        // The library writes it when it is polled next.
        let listening = async {
            link.drive.listen(answer).await.expect("the message is read");
        };
        let far = link.block_driver();
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            if kind == 2 {
                // Nobody near listens, so Latchwork's thread is needed.
                drop(far);
                stream.read_exact(&mut [0]).unwrap();
                stream.write_all(&[7]).unwrap();
                return;
            }
            stream.write_all(&[7]).unwrap();
            thread::sleep(Duration::from_secs(5));
            drop((far, stream));
        });
        let start = Instant::now();
        match kind {
            0 => block_on(listening),
            1 => runtime().block_on(listening),
            _ => other_executor(listening),
        }
        in_time(start, Duration::from_millis(100));
    }
}

/// A thread of a runtime may be blocked by a future that is not the runtime's.
#[test]
fn a_blocked_thread_of_a_runtime_reads_its_answers() {
    let link = Link::echoed();
    runtime().block_on(async {
        link.ask().await;
        let start = Instant::now();
        for _ in 0..100 {
            block_on(link.ask());
        }
        in_time(start, Duration::from_millis(200));
        // Another executor: nobody near can read, and the far side finds that out.
        let start = Instant::now();
        for _ in 0..10 {
            other_executor(link.ask());
        }
        in_time(start, Duration::from_millis(500));
        link.ask().await;
    });
}

#[test]
fn a_blocked_runtime_delays_nobody_else() {
    let link = Link::echoed();
    let blocked = blocked_runtime(&link);
    typically(&link, "beside a blocked runtime");
    let start = Instant::now();
    runtime().block_on(async {
        for _ in 0..20 {
            link.ask().await;
        }
    });
    in_time(start, Duration::from_millis(100));
    drop(blocked);
}

/// The near runtime is blocked for most of the time, and runs now and then.
#[test]
fn callers_elsewhere_do_not_wait_for_the_near_runtime() {
    let link = Link::echoed();
    let (stop, stopped) = blocking::channel::<()>();
    let (asking, (ready, begun)) = (link.clone(), blocking::channel());
    thread::spawn(move || {
        runtime().block_on(async {
            while stopped.try_recv() == Err(blocking::TryRecvError::Empty) {
                asking.ask().await;
                let _ = ready.send(());
                thread::sleep(Duration::from_millis(60));
            }
        });
    });
    begun.recv().unwrap();
    // Read by the far side, each takes up to its tick of 10 ms.
    let bound = Duration::from_millis(3);
    let typical = median(&link, bound, Duration::from_millis(70), 31);
    assert!(typical < bound, "{typical:?}");
    drop(stop);
}

/// An answer that the near runtime does not read is read by the far side, so that whatever hangs on
/// it goes on.
#[test]
fn an_answer_to_a_blocked_runtime_is_read_within_milliseconds() {
    let link = Link::echoed();
    let (stop, stopped) = blocking::channel::<()>();
    let (sent, sending) = blocking::channel();
    let asking = link.clone();
    thread::spawn(move || {
        runtime().block_on(async {
            asking.ask().await;
            let (reply, mut answer) = oneshot::channel();
            let request = async {
                asking.requests.send(Request { size: 1, reply }).unwrap();
                std::future::pending::<()>().await;
            };
            let mut sending = Box::pin(asking.drive.send(request));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(sending.as_mut().poll(&mut cx).is_pending());
            // The runtime is blocked from here on, with an answer on its way.
            let start = Instant::now();
            while answer.try_recv().is_err() && start.elapsed() < Duration::from_secs(10) {
                thread::sleep(Duration::from_millis(1));
            }
            sent.send(start).unwrap();
            let _ = stopped.recv();
        });
    });
    let start = sending.recv().unwrap();
    in_time(start, Duration::from_millis(100));
    drop(stop);
}

#[test]
fn a_request_survives_the_end_of_the_near_runtime() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let mut stream = server.accept().unwrap().0;
    let near = runtime();
    let (warm, one) = (link.clone(), stream.try_clone().unwrap());
    thread::spawn(move || {
        let mut one = one;
        one.read_exact(&mut [0]).unwrap();
        one.write_all(&[7]).unwrap();
    });
    near.block_on(warm.ask());
    let (asking, (done, seen)) = (link.clone(), blocking::channel());
    thread::spawn(move || {
        other_executor(asking.ask());
        done.send(()).unwrap();
    });
    stream.read_exact(&mut [0]).unwrap();
    drop(near);
    let start = Instant::now();
    stream.write_all(&[7]).unwrap();
    seen.recv_timeout(Duration::from_secs(10)).expect("it is answered");
    in_time(start, Duration::from_millis(10));
}

#[test]
fn a_runtime_takes_over_from_one_that_has_ended() {
    let link = Link::echoed();
    for _ in 0..20 {
        runtime().block_on(async {
            link.ask().await;
            let blocked = link.block_driver();
            tokio::time::timeout(Duration::from_secs(5), link.ask()).await.expect("it is near");
            drop(blocked);
        });
        typically(&link, "after the end of the runtime");
    }
}

#[test]
fn a_runtime_without_io_is_served() {
    let link = Link::echoed();
    let runtime = Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for _ in 0..20 {
            link.ask().await;
        }
    });
}

/// Callers of every kind at once: no request is lost, and none waits for a long time.
#[test]
fn callers_of_every_kind_at_once_are_served() {
    let link = Link::echoed();
    let threads: Vec<_> = (0..6)
        .map(|kind| {
            let link = link.clone();
            thread::spawn(move || match kind {
                0 => (0..2_000).for_each(|_| block_on(link.ask())),
                1 => (0..2_000).for_each(|_| other_executor(link.ask())),
                2 => (0..20).for_each(|_| {
                    runtime().block_on(async {
                        for _ in 0..100 {
                            link.ask().await;
                        }
                    });
                }),
                _ => {
                    let runtime =
                        Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
                    let tasks: Vec<_> = (0..8)
                        .map(|_| {
                            let link = link.clone();
                            runtime.spawn(async move {
                                for _ in 0..500 {
                                    link.ask().await;
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        other_executor(task).unwrap();
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no request is lost");
    }
}

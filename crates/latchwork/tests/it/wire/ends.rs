//! What is not read or written at once, and how a connection ends.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use latchwork::block_on;
use tokio::sync::oneshot;

use super::echo::*;
use crate::executors::runtime;

/// When the system takes no more bytes, the rest is written as soon as it does, though nothing comes back
/// before the server has everything.
#[test]
fn more_than_the_system_takes_at_once_is_written_later() {
    const SIZE: usize = 32 << 20;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for near in [true, false] {
        let link = Link::to(&server);
        let mut stream = server.accept().unwrap().0;
        let reads = thread::spawn(move || {
            let mut all = vec![0; SIZE];
            stream.read_exact(&mut all).unwrap();
            stream.write_all(&all).unwrap();
        });
        let asking = async {
            let asked = tokio::join!(link.ask_for(SIZE / 2), link.ask_for(SIZE / 2));
            assert_eq!(asked, (Some(()), Some(())));
        };
        if near {
            runtime().block_on(asking);
        } else {
            block_on(asking);
        }
        reads.join().unwrap();
    }
}

#[test]
fn a_connection_ends_with_its_senders() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    for near in [true, false] {
        let link = Link::to(&server);
        let mut stream = server.accept().unwrap().0;
        let runtime = runtime();
        if near {
            let mut writer = stream.try_clone().unwrap();
            thread::spawn(move || {
                writer.read_exact(&mut [0]).unwrap();
                writer.write_all(&[7]).unwrap();
            });
            runtime.block_on(link.ask());
        }
        let Link { drive, requests, driver } = Arc::into_inner(link).unwrap();
        drop((drive, requests));
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the socket is closed");
        drop(driver);
    }
}

#[test]
fn the_end_of_the_server_ends_all_that_is_under_way() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let stream = server.accept().unwrap().0;
    runtime().block_on(async {
        let ends = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(stream.shutdown(std::net::Shutdown::Write));
        };
        let asked = tokio::join!(link.ask_for(1), link.ask_for(1), ends);
        assert!(asked.0.is_none() && asked.1.is_none());
        assert!(link.ask_for(1).await.is_none());
    });
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut left = Vec::new();
    (&stream).read_to_end(&mut left).expect("this side is closed, too");
    drop(link);
}

/// The near runtime is blocked while the server closes the connection: the next request must not be
/// sent on it.
#[test]
fn a_closed_idle_connection_is_noticed_before_reuse() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let mut stream = server.accept().unwrap().0;
    runtime().block_on(async {
        let answers = thread::spawn(move || {
            for _ in 0..2 {
                stream.read_exact(&mut [0]).unwrap();
                stream.write_all(&[7]).unwrap();
            }
            stream
        });
        link.ask().await;
        link.ask().await;
        let stream = answers.join().unwrap();
        // The patrol of the far side ends when nothing was under way for a second.
        thread::sleep(Duration::from_secs(3));
        drop(stream);
        thread::sleep(Duration::from_millis(50));
        link.drive.refresh();
        assert!(link.drive.has_ended());
    });
}

/// H244: a thread that checks a connection may hold a lock that a task needs whose answer is read by that check.
#[test]
fn h244_a_check_of_a_connection_polls_no_task_under_a_lock() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let mut stream = server.accept().unwrap().0;
    let (ended, end) = std::sync::mpsc::channel();
    let checks = async move {
        let pool = Arc::new(Mutex::new(()));
        let (asks, needed) = (link.clone(), pool.clone());
        // As from a verb: this runtime is to read the answer, and the far side leaves it the time.
        latchwork_wire::finish(&link.driver.io(), async move {
            let answer = asks.ask_for(1).await;
            drop(needed.lock().unwrap());
            ended.send(answer.is_some()).unwrap();
        });
        stream.read_exact(&mut [0]).unwrap();
        let held = pool.lock().unwrap();
        stream.write_all(&[7]).unwrap();
        thread::sleep(Duration::from_millis(8));
        link.drive.refresh();
        drop(held);
    };
    thread::spawn(|| runtime().block_on(checks));
    let limit = Duration::from_secs(10);
    assert_eq!(end.recv_timeout(limit), Ok(true), "the thread waits for itself");
}

/// A blocked thread that goes on waiting for messages does not watch a descriptor that is always
/// readable.
#[test]
fn a_blocked_thread_sleeps_after_the_end() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    drop(server.accept().unwrap().0);
    let (over, mut waits) = oneshot::channel::<()>();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(over);
    });
    // Until the end is noticed, a thread may find bytes again and again that another one is reading.
    let mut polls = 0;
    let listening = std::future::poll_fn(|cx| {
        polls += u32::from(link.drive.has_ended());
        std::pin::Pin::new(&mut waits).poll(cx).map(drop)
    });
    block_on(link.drive.listen(listening));
    assert!(polls < 20, "polled {polls} times");
}

/// Without Latchwork's thread nothing would read for those that are not near.
#[test]
fn it_ends_with_the_driver() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let _stream = server.accept().unwrap().0;
    let Link { drive, requests, driver } = Arc::into_inner(link).unwrap();
    let (reply, answer) = oneshot::channel();
    let asking = async {
        requests.send(Request { size: 1, reply }).unwrap();
        std::future::pending::<()>().await;
    };
    let mut sending = Box::pin(drive.send(asking));
    assert!(sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(driver);
    let start = Instant::now();
    assert!(answer.blocking_recv().is_err(), "the request is dropped");
    in_time(start, Duration::from_secs(1));
}

/// The end overtakes a request: it is in the queue, and the library that would take it is gone.
#[test]
fn an_unsent_request_is_not_awaited() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    drop(server.accept().unwrap().0);
    runtime().block_on(async {
        let asked = link.drive.send(std::future::pending::<()>());
        let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
        assert!(asked.expect("it is not awaited").is_none());
    });
}

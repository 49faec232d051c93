//! What is not read or written at once, and how a connection ends.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use latchwork::block_on;
use tokio::sync::oneshot;

use super::echo::*;
use crate::executors::runtime;

/// The system takes no more: what is left is written as soon as it does, whoever sent it.
#[test]
fn more_than_the_system_takes_at_once_is_written_later() {
    const SIZE: usize = 8 << 20;
    let link = Link::echoed();
    let asking = link.clone();
    let asked = runtime().block_on(async move {
        let (one, other) = tokio::join!(asking.ask_for(SIZE), asking.ask_for(SIZE));
        one.and(other)
    });
    assert!(asked.is_some());
    assert!(block_on(link.ask_for(SIZE)).is_some());
}

#[test]
fn it_ends_with_its_senders() {
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
        let Link { drive, requests, gone, driver } = Arc::into_inner(link).unwrap();
        drop((drive, requests));
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The near task ends when its runtime runs next.
        runtime.block_on(async {
            tokio::time::timeout(
                Duration::from_secs(10),
                gone.unless(std::future::pending::<()>()),
            )
            .await
            .expect("it has ended");
            tokio::task::yield_now().await;
        });
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

/// Without Latchwork's thread nothing would read for those that are not near.
#[test]
fn it_ends_with_the_driver() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let _stream = server.accept().unwrap().0;
    let Link { drive, requests, driver, .. } = Arc::into_inner(link).unwrap();
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
fn a_request_that_nobody_took_is_not_awaited() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    drop(server.accept().unwrap().0);
    runtime().block_on(async {
        let asked = link.drive.send(std::future::pending::<()>());
        let asked = tokio::time::timeout(Duration::from_secs(5), asked).await;
        assert!(asked.expect("it is not awaited").is_none());
    });
}

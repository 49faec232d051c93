//! A connection is moved by those that wait for its answers, and never depends on one of them.
//!
//! The connection here is to an echo server, by a library of a few lines: what is sent is a byte, and
//! what comes back answers the oldest request.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use latchwork::{Driver, block_on};
use latchwork_store::testing::stalls;
use latchwork_store::wire::{Drive, Gone, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot};

/// What a machine may add to any time.
const SLACK: Duration = Duration::from_millis(500);

struct Request {
    size: usize,
    reply: oneshot::Sender<()>,
}

/// The connection as a store has it.
struct Link {
    drive: Arc<Drive>,
    requests: mpsc::UnboundedSender<Request>,
    gone: Arc<Gone>,
    driver: Driver,
}

/// The library: it writes requests, and each byte that comes back answers one byte of the oldest.
async fn library(socket: Socket, mut requests: mpsc::UnboundedReceiver<Request>) {
    let (mut reader, mut writer) = tokio::io::split(socket);
    let (asked, mut answered) = mpsc::unbounded_channel::<Request>();
    let write = async move {
        while let Some(request) = requests.recv().await {
            let bytes = vec![7; request.size];
            let _ = asked.send(request);
            if writer.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let read = async move {
        let (mut waiting, mut buffer) = (VecDeque::new(), vec![0; 4096]);
        loop {
            let count = reader.read(&mut buffer).await.unwrap_or(0);
            if count == 0 {
                return;
            }
            let mut left = count;
            while left > 0 {
                while let Ok(request) = answered.try_recv() {
                    waiting.push_back(request);
                }
                let oldest: &mut Request = waiting.front_mut().expect("an answer is asked for");
                let taken = left.min(oldest.size);
                (oldest.size, left) = (oldest.size - taken, left - taken);
                if oldest.size == 0 {
                    let _ = waiting.pop_front().unwrap().reply.send(());
                }
            }
        }
    };
    tokio::pin!(write, read);
    tokio::select! {
        () = &mut read => {}
        () = &mut write => {}
    }
}

impl Link {
    fn to(server: &TcpListener) -> Arc<Self> {
        stalls::start();
        let driver = Driver::start().unwrap();
        let (io, gone) = (driver.io(), Arc::new(Gone::default()));
        let (requests, taken) = mpsc::unbounded_channel();
        let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (sender, receiver) = blocking::channel();
        let (inner, ended) = (io.clone(), gone.clone());
        io.spawn(async move {
            let (socket, drive) = Drive::open(stream, &inner, ended).unwrap();
            drive.start(library(socket, taken));
            sender.send(drive).unwrap();
        });
        let drive = receiver.recv().unwrap();
        Arc::new(Self { drive, requests, gone, driver })
    }

    /// With a server that echoes.
    fn echoed() -> Arc<Self> {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Self::to(&server);
        let mut stream = server.accept().unwrap().0;
        thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        });
        link
    }

    async fn ask(&self) {
        self.ask_for(1).await.expect("the connection lives");
    }

    async fn ask_for(&self, size: usize) -> Option<()> {
        let asking = async {
            let (reply, answer) = oneshot::channel();
            self.requests.send(Request { size, reply }).ok()?;
            answer.await.ok()
        };
        self.drive.send(asking).await?
    }

    /// Blocks Latchwork's own thread until what is returned is dropped.
    fn block_driver(&self) -> blocking::Sender<()> {
        let (stop, stopped) = blocking::channel::<()>();
        let (stands, standing) = blocking::channel();
        self.driver.io().spawn(async move {
            stands.send(()).unwrap();
            let _ = stopped.recv();
        });
        standing.recv().unwrap();
        stop
    }
}

/// Blocks the thread with an executor that knows nothing of Latchwork.
fn other_executor<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A thread with a current-thread runtime that stays busy until what is returned is dropped. The
/// connection has been used there, so it is the near runtime.
fn blocked_runtime(link: &Arc<Link>) -> blocking::Sender<()> {
    let (stop, stopped) = blocking::channel::<()>();
    let (stands, standing) = blocking::channel();
    let link = link.clone();
    thread::spawn(move || {
        runtime().block_on(async {
            link.ask().await;
            link.ask().await;
            stands.send(()).unwrap();
            let _ = stopped.recv();
        });
    });
    standing.recv().unwrap();
    stop
}

#[track_caller]
fn in_time(start: Instant, limit: Duration) {
    let took = start.elapsed();
    assert!(took < stalls::widened(limit + SLACK, took), "took {took:?} of {limit:?}");
}

/// The median of some requests that a thread without a runtime makes.
fn median(link: &Link) -> Duration {
    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let start = Instant::now();
            other_executor(link.ask());
            start.elapsed()
        })
        .collect();
    times.sort();
    times[10]
}

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
fn the_far_side_watches_again_after_a_blocked_thread() {
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
    let typical = median(&link);
    assert!(typical < Duration::from_millis(10), "{typical:?} beside a blocked runtime");
    let start = Instant::now();
    runtime().block_on(async {
        for _ in 0..20 {
            link.ask().await;
        }
    });
    in_time(start, Duration::from_millis(100));
    drop(blocked);
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
        let typical = median(&link);
        assert!(typical < Duration::from_millis(10), "{typical:?} after the end of the runtime");
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

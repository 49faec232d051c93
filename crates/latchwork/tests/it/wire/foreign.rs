//! An event loop that is not tokio's lends its thread: it reads its answers itself, and nothing depends on it.

use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc as blocking;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use latchwork_store::Task;
use latchwork_wire::{EventLoop, ForeignLoop, Watched};
use rustix::event::{PollFd, PollFlags, poll};

use super::echo::*;
use crate::executors::runtime;

/// A loop of a few lines: it polls a future and the tasks of stores, and sleeps on descriptors.
struct Toy {
    tasks: Mutex<Vec<Task>>,
    watches: Mutex<Vec<Weak<Watch>>>,
    woken: AtomicBool,
    bell: (UnixStream, UnixStream),
    /// It watches nothing.
    refuses: bool,
    /// It has something else to do before it looks at its descriptors.
    pause: Duration,
    /// How often it has seen something to read.
    readable: AtomicU32,
}

struct Watch {
    stream: TcpStream,
    readable: AtomicBool,
    waker: Mutex<Option<Waker>>,
    refused: bool,
}

struct Watching(Arc<Watch>);

impl Watched for Watching {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if self.0.refused {
            return Poll::Ready(Err(std::io::ErrorKind::Unsupported.into()));
        }
        *self.0.waker.lock().unwrap() = Some(cx.waker().clone());
        if self.0.readable.swap(false, Ordering::SeqCst) {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }
}

/// The loop as stores see it.
struct Lent(Arc<Toy>);

impl ForeignLoop for Lent {
    fn spawn(&self, task: Task) {
        self.0.tasks.lock().unwrap().push(task);
        self.0.wake_by_ref();
    }

    fn watch(&self, stream: TcpStream) -> Box<dyn Watched> {
        let (readable, waker) = (AtomicBool::new(false), Mutex::default());
        let watch = Arc::new(Watch { stream, readable, waker, refused: self.0.refuses });
        self.0.watches.lock().unwrap().push(Arc::downgrade(&watch));
        Box::new(Watching(watch))
    }
}

impl Wake for Toy {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            (&self.bell.1).write_all(&[1]).unwrap();
        }
    }
}

impl Toy {
    fn new() -> Self {
        let bell = UnixStream::pair().unwrap();
        Self {
            tasks: Mutex::default(),
            watches: Mutex::default(),
            woken: AtomicBool::new(false),
            bell,
            refuses: false,
            pause: Duration::ZERO,
            readable: AtomicU32::new(0),
        }
    }

    /// Runs a new loop until the future ends.
    fn run_new<F: Future>(future: F) -> F::Output {
        Arc::new(Self::new()).run(future)
    }

    /// Runs the loop until the future ends.
    fn run<F: Future>(self: &Arc<Self>, future: F) -> F::Output {
        let here = EventLoop::foreign(Arc::new(Lent(self.clone())));
        let (mut future, mut tasks) = (pin!(future), FuturesUnordered::new());
        let waker = Waker::from(self.clone());
        let mut cx = Context::from_waker(&waker);
        self.wake_by_ref();
        loop {
            if self.woken.swap(false, Ordering::SeqCst) {
                (&self.bell.0).read_exact(&mut [0]).unwrap();
            }
            let entered = here.enter();
            if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                return output;
            }
            tasks.extend(self.tasks.lock().unwrap().drain(..));
            while let Poll::Ready(Some(())) = tasks.poll_next_unpin(&mut cx) {}
            drop(entered);
            self.sleep();
        }
    }

    fn sleep(&self) {
        thread::sleep(self.pause);
        let watches: Vec<_> =
            self.watches.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        let mut fds = vec![PollFd::new(&self.bell.0, PollFlags::IN)];
        fds.extend(watches.iter().map(|watch| PollFd::new(&watch.stream, PollFlags::IN)));
        poll(&mut fds, None).unwrap();
        for (watch, fd) in watches.iter().zip(&fds[1..]) {
            if !fd.revents().is_empty() && !watch.refused {
                self.readable.fetch_add(1, Ordering::SeqCst);
                watch.readable.store(true, Ordering::SeqCst);
                let waker = watch.waker.lock().unwrap().take();
                waker.into_iter().for_each(Waker::wake);
            }
        }
    }
}

/// The loop itself reads, while Latchwork's thread is blocked.
async fn is_near(link: &Link) {
    let blocked = link.block_driver();
    let start = Instant::now();
    for _ in 0..100 {
        link.ask().await;
    }
    in_time(start, Duration::from_secs(1));
    drop(blocked);
}

#[test]
fn a_foreign_loop_reads_its_answers_without_latchworks_thread() {
    let link = Link::echoed();
    let asking = link.clone();
    let (done, seen) = blocking::channel();
    thread::spawn(move || {
        let toy = Arc::new(Toy::new());
        toy.run(async {
            asking.ask().await;
            is_near(&asking).await;
        });
        done.send(toy.readable.load(Ordering::SeqCst)).unwrap();
    });
    let readable = seen.recv_timeout(Duration::from_secs(10)).expect("the loop itself reads");
    assert!(readable >= 100, "{readable} times readable");
}

/// It is blocked with an answer on its way, which the far side reads. Then it runs again, but looks at its
/// descriptors only when the far side, if it still watched, would have read what came.
#[test]
fn a_foreign_loop_that_was_blocked_is_near_again() {
    let link = Link::echoed();
    let toy = Arc::new(Toy { pause: Duration::from_millis(5), ..Toy::new() });
    toy.run(async {
        link.ask().await;
        let mut asked = pin!(link.ask());
        poll_fn(|cx| {
            assert!(asked.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        thread::sleep(Duration::from_millis(200));
        asked.await;
        // On a busy machine the pause itself may be so long that the far side reads again.
        let mut seen = Vec::new();
        while seen.len() < 20 && seen.last().is_none_or(|near| *near <= 10) {
            let before = toy.readable.load(Ordering::SeqCst);
            for _ in 0..20 {
                link.ask().await;
            }
            seen.push(toy.readable.load(Ordering::SeqCst) - before);
        }
        assert!(seen.last().is_some_and(|near| *near > 10), "{seen:?} of 20 answers each");
    });
}

#[test]
fn a_blocked_foreign_loop_delays_nobody_else() {
    let link = Link::echoed();
    let (stop, stopped) = blocking::channel::<()>();
    let (stands, standing) = blocking::channel();
    let asking = link.clone();
    thread::spawn(move || {
        Toy::run_new(async {
            asking.ask().await;
            asking.ask().await;
            stands.send(()).unwrap();
            let _ = stopped.recv();
        });
    });
    standing.recv().unwrap();
    typically(&link, "beside a blocked loop");
    drop(stop);
}

/// A loop ends, and the next one is near; so is a runtime after a loop.
#[test]
fn a_foreign_loop_takes_over_from_one_that_has_ended() {
    let link = Link::echoed();
    let (done, seen) = blocking::channel();
    let asking = link.clone();
    thread::spawn(move || {
        for _ in 0..20 {
            Toy::run_new(async {
                asking.ask().await;
                is_near(&asking).await;
            });
            runtime().block_on(async {
                asking.ask().await;
                is_near(&asking).await;
            });
        }
        done.send(()).unwrap();
    });
    seen.recv_timeout(Duration::from_secs(120)).expect("each of them is near");
}

/// A loop that cannot watch is served by the far side.
#[test]
fn a_foreign_loop_that_cannot_watch_is_served() {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let link = Link::to(&server);
    let mut stream = server.accept().unwrap().0;
    thread::spawn(move || {
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let toy = Arc::new(Toy { refuses: true, ..Toy::new() });
    toy.run(async {
        for _ in 0..20 {
            link.ask().await;
        }
    });
    assert_eq!(toy.watches.lock().unwrap().len(), 1, "it is asked once");
}

/// Two loops use one connection: the first one is near, and the other one is served as well.
#[test]
fn two_foreign_loops_share_a_connection() {
    let link = Link::echoed();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let link = link.clone();
            thread::spawn(move || {
                Toy::run_new(async {
                    for _ in 0..1_000 {
                        link.ask().await;
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no request is lost");
    }
}

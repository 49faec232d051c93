//! A connection to an echo server, by a library of a few lines: what is sent is a byte, and what comes
//! back answers the oldest request.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::{Duration, Instant};

use latchwork::Driver;
use latchwork_store::testing::stalls;
use latchwork_wire::{Drive, Socket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use crate::executors::{other_executor, runtime};

/// What a machine may add to any time.
const SLACK: Duration = Duration::from_millis(500);

pub(super) struct Request {
    pub(super) size: usize,
    pub(super) reply: oneshot::Sender<()>,
}

/// The connection as a store has it.
pub(super) struct Link {
    pub(super) drive: Arc<Drive>,
    pub(super) requests: mpsc::UnboundedSender<Request>,
    pub(super) driver: Driver,
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
    pub(super) fn to(server: &TcpListener) -> Arc<Self> {
        stalls::start();
        let driver = Driver::start().unwrap();
        let io = driver.io();
        let (requests, taken) = mpsc::unbounded_channel();
        let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let (sender, receiver) = blocking::channel();
        let inner = io.clone();
        io.spawn(async move {
            let (socket, drive) = Drive::open(stream, &inner).unwrap();
            drive.start(library(socket, taken));
            sender.send(drive).unwrap();
        });
        let drive = receiver.recv().unwrap();
        Arc::new(Self { drive, requests, driver })
    }

    /// With a server that echoes.
    pub(super) fn echoed() -> Arc<Self> {
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

    pub(super) async fn ask(&self) {
        self.ask_for(1).await.expect("the connection lives");
    }

    pub(super) async fn ask_for(&self, size: usize) -> Option<()> {
        let asking = async {
            let (reply, answer) = oneshot::channel();
            self.requests.send(Request { size, reply }).ok()?;
            answer.await.ok()
        };
        self.drive.send(asking).await?
    }

    /// Blocks Latchwork's own thread until what is returned is dropped.
    pub(super) fn block_driver(&self) -> blocking::Sender<()> {
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

/// A thread with a current-thread runtime that stays busy until what is returned is dropped. The
/// connection has been used there, so it is the near runtime.
pub(super) fn blocked_runtime(link: &Arc<Link>) -> blocking::Sender<()> {
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
pub(super) fn in_time(start: Instant, limit: Duration) {
    stalls::in_time(start, limit + SLACK);
}

/// The median of some requests that a thread without a runtime makes, each after a pause. A busy machine adds to it, so
/// the least of up to eight counts, or the first below the bound.
pub(super) fn median(link: &Link, bound: Duration, pause: Duration, requests: usize) -> Duration {
    let once = |_| {
        let request = |_| {
            thread::sleep(pause);
            let start = Instant::now();
            other_executor(link.ask());
            start.elapsed()
        };
        let mut times: Vec<_> = (0..requests).map(request).collect();
        times.sort();
        times[requests / 2]
    };
    let mut least = Duration::MAX;
    (0..8).map(once).find(|median| {
        least = least.min(*median);
        *median < bound
    });
    least
}

/// Requests of a thread without a runtime take a few milliseconds at the most.
pub(super) fn typically(link: &Link, when: &str) {
    let bound = Duration::from_millis(10);
    let typical = median(link, bound, Duration::ZERO, 21);
    assert!(typical < bound, "{typical:?} {when}");
}

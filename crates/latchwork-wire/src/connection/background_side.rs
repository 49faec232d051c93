//! The task on the `Io` that watches a connection while no caller does.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::TcpStream;

use latchwork_store::{Io, Moment, Origin, Sleep};

use crate::event_loop::{EventLoop, LoopId};

use super::caller_side::{clear, read};
use super::drive::{Drive, Moved};
use super::remember;

/// How often the background side checks for bytes that nobody reads while a request is under way.
const TICK: Duration = Duration::from_millis(10);
/// The same while only messages are expected.
const SLOW_TICK: Duration = Duration::from_millis(100);
/// After so many checks that found nothing expected it stops, until the next request.
const IDLE: u32 = 10;
/// A blocked thread that has watched for its answer will watch for the next one, if that is asked for
/// within this time.
const ATTENDED: Duration = Duration::from_millis(50);

/// The background side of a connection.
#[derive(Debug)]
pub(super) struct BackgroundSide {
    waker: Mutex<Option<Waker>>,
    runtime: OnceLock<Option<LoopId>>,
    /// Its task has the connection in its reactor.
    watches: AtomicBool,
    /// Requests whose answers it has to read.
    guests: AtomicU32,
    /// When a blocked thread watched last, in nanoseconds of the boot clock.
    attended_at: AtomicU64,
    /// It checks now and then whether the caller's runtime is blocked.
    patrols: AtomicBool,
}

impl BackgroundSide {
    pub(super) fn new() -> Self {
        Self {
            waker: Mutex::default(),
            runtime: OnceLock::new(),
            watches: AtomicBool::new(true),
            guests: AtomicU32::new(0),
            attended_at: AtomicU64::new(0),
            patrols: AtomicBool::new(false),
        }
    }

    /// Starts the task.
    pub(super) fn start(drive: &Arc<Drive>, stream: std::net::TcpStream) {
        let mut watcher = Watcher {
            drive: Arc::downgrade(drive),
            stream: None,
            spare: Some(stream),
            patrol: None,
            origin: Origin::here(),
        };
        drive.io.spawn(async move { poll_fn(|cx| watcher.poll(cx)).await });
    }

    pub(super) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Whether its task runs on this runtime.
    pub(super) fn runs_on(&self, id: LoopId) -> bool {
        self.runtime.get().is_none_or(|runtime| *runtime == Some(id))
    }

    /// One more request whose answer it has to read.
    pub(super) fn admit(&self) {
        self.guests.fetch_add(1, Ordering::SeqCst);
        if !self.watches.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    pub(super) fn dismiss(&self) {
        // It goes on watching until it is woken next.
        self.guests.fetch_sub(1, Ordering::SeqCst);
    }

    /// A blocked thread watches by itself.
    pub(super) fn is_attended(&self, io: &Io) {
        self.attended_at.store(io.now().as_nanos(), Ordering::Relaxed);
    }

    fn was_attended(&self, io: &Io) -> bool {
        let at = Moment::from_nanos(self.attended_at.load(Ordering::Relaxed));
        io.now().since(at) < ATTENDED
    }

    /// Sees to it that bytes do not lie unread for long.
    pub(super) fn patrol(&self) {
        // After the request was counted: who ends a patrol looks for requests then.
        if !self.watches.load(Ordering::SeqCst)
            && !self.patrols.load(Ordering::SeqCst)
            && !self.patrols.swap(true, Ordering::SeqCst)
        {
            self.wake();
        }
    }
}

/// Watches a connection on the `Io`.
struct Watcher {
    drive: Weak<Drive>,
    /// In the reactor only while it has to watch: an entry there costs a wake-up for each packet.
    stream: Option<TcpStream>,
    /// Its descriptor meanwhile: there may be no other one left when it has to watch again.
    spare: Option<std::net::TcpStream>,
    patrol: Option<Patrol>,
    origin: Origin,
}

struct Patrol {
    sleep: Sleep,
    /// How many checks in a row found nothing expected.
    idle: u32,
    /// Bytes were unread at the last check, when so many looks had been made.
    unread_at: Option<u64>,
}

impl Watcher {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(drive) = self.drive.upgrade() else { return Poll::Ready(()) };
        {
            let mut waker = drive.background.waker.lock().unwrap_or_else(PoisonError::into_inner);
            remember(&mut waker, cx);
        }
        drive.background.runtime.get_or_init(|| EventLoop::current().map(|here| here.id()));
        // Somebody has something to move, or it would not have been woken.
        if drive.pump() == Moved::Ended {
            return Poll::Ready(());
        }
        self.check_unread(&drive, cx);
        if !Self::has_to_watch(&drive) {
            let watched = self.stream.take();
            // Those that asked while it still watched, or while a patrol ended, have not started one;
            // and a thread that was here may be gone for good.
            let patrols = watched.is_some() || drive.expects() || !drive.caller.watches();
            if let Some(stream) = watched {
                self.spare = stream.into_std().ok();
            }
            if patrols && !drive.background.patrols.swap(true, Ordering::SeqCst) {
                self.check_unread(&drive, cx);
            }
            return Poll::Pending;
        }
        if let Some(spare) = self.spare.take() {
            self.stream = TcpStream::from_std(spare).ok();
        }
        let Some(stream) = &self.stream else {
            // The system refuses to watch it.
            drive.abandon();
            return Poll::Ready(());
        };
        while drive.door.is_full() && stream.poll_write_ready(cx).is_ready() {
            clear(stream, Interest::WRITABLE);
            drive.door.has_room();
            if drive.pump() == Moved::Ended {
                return Poll::Ready(());
            }
        }
        read(&drive, stream, cx)
    }

    fn has_to_watch(drive: &Drive) -> bool {
        let background = &drive.background;
        let alone = || !drive.caller.watches() && !background.was_attended(&drive.io);
        // Said before looking: a guest either sees this and wakes the task, or is seen.
        background.watches.store(false, Ordering::SeqCst);
        let needed =
            background.guests.load(Ordering::SeqCst) > 0 || drive.door.is_full() || alone();
        if needed {
            background.watches.store(true, Ordering::SeqCst);
        }
        needed
    }

    /// Checks whether bytes lie unread that somebody nearer should have read.
    fn check_unread(&mut self, drive: &Arc<Drive>, cx: &mut Context<'_>) {
        if !drive.background.patrols.load(Ordering::SeqCst) {
            return;
        }
        if self.stream.is_some() && Self::has_to_watch(drive) {
            // It reads everything itself.
            self.patrol = None;
            drive.background.patrols.store(false, Ordering::SeqCst);
            return;
        }
        let sleep = |length| drive.io.sleep(length);
        let patrol = self.patrol.get_or_insert_with(|| Patrol {
            sleep: sleep(TICK),
            idle: 0,
            unread_at: None,
        });
        while patrol.sleep.as_mut().poll(cx).is_ready() {
            let looks = drive.door.looks();
            if !drive.door.has_unread() {
                patrol.unread_at = None;
            } else if patrol.unread_at == Some(looks) {
                drive.caller.depose();
                drive.background.attended_at.store(0, Ordering::Relaxed);
                drive.door.open();
                drive.pump();
                self.patrol = None;
                drive.background.patrols.store(false, Ordering::SeqCst);
                return;
            } else {
                patrol.unread_at = Some(looks);
            }
            patrol.idle = if drive.expects() { 0 } else { patrol.idle + 1 };
            if patrol.idle > IDLE && drive.caller.watches() {
                self.patrol = None;
                drive.background.patrols.store(false, Ordering::SeqCst);
                return;
            }
            let fast = drive.is_asked() || patrol.unread_at.is_some() || !drive.caller.watches();
            patrol.sleep = sleep(if fast { TICK } else { SLOW_TICK });
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // The reactor is shared with the parent, which would lose its registration.
            std::mem::forget(self.stream.take());
            return;
        }
        if let Some(drive) = self.drive.upgrade() {
            drive.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::Mutex;

    use tokio::io::{AsyncRead, ReadBuf};

    use super::*;
    use latchwork_store::testing::paused_io;

    async fn until_read(io: &Io, read: &Mutex<usize>, count: usize) {
        let limit = io.now().plus(Duration::from_secs(1));
        while *read.lock().unwrap() < count {
            assert!(io.now() < limit, "byte {count} is read");
            io.sleep(Duration::from_millis(3)).await;
        }
    }

    /// A blocked thread that waits for several answers listens for one of them at a time. It comes just
    /// when the patrol has read for it, takes the patrol for being under way, and is gone again.
    #[tokio::test(start_paused = true)]
    async fn a_request_at_the_end_of_a_patrol_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let io = paused_io().0;
        let (mut socket, drive) = Drive::open(stream, &io).unwrap();
        let (read, visitor) = (Arc::new(Mutex::new(0)), Arc::downgrade(&drive));
        let (count, visits) = (read.clone(), io.clone());
        drive.start(poll_fn(move |cx| {
            let mut buffer = [0; 8];
            let mut bytes = ReadBuf::new(&mut buffer);
            while std::pin::Pin::new(&mut socket).poll_read(cx, &mut bytes).is_ready() {
                *count.lock().unwrap() += bytes.filled().len();
                bytes.clear();
                if let Some(drive) = visitor.upgrade() {
                    drive.background.is_attended(&visits);
                    drive.background.patrol();
                }
            }
            Poll::<()>::Pending
        }));
        drive.under_way.fetch_add(1, Ordering::SeqCst);
        for expected in 1..=20 {
            // The background side leaves the reading to the thread.
            drive.background.is_attended(&io);
            drive.background.wake();
            io.sleep(Duration::from_millis(3)).await;
            assert!(!drive.background.watches.load(Ordering::SeqCst));
            server.write_all(b"x").unwrap();
            until_read(&io, &read, 2 * expected - 1).await;
            // The thread has just been here, and is gone for good.
            server.write_all(b"x").unwrap();
            until_read(&io, &read, 2 * expected).await;
        }
    }
}

//! Notifies an observer of a changed record, by inotify.
//!
//! The directory of the stripe is watched, for a record is replaced when it grows. Waiters have their
//! pipes instead (ADR 0002): the kernel grants each user only a few instances of inotify. An observer
//! that gets none looks by its timer.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Key, Verb, Watch};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc;

use crate::protocol::pokes::register;
use crate::records::layout::{Layout, Place};

/// Several events, each with a name of 40 bytes.
const PIECE: usize = 4096;

/// A watch on a record. Its task ends when it is dropped.
#[derive(Debug)]
struct RecordWatch(mpsc::Receiver<()>);

/// The watch is set when this answers; `None` if the kernel grants none.
pub(crate) fn watch(layout: &Layout, io: &Io, key: &Key) -> Option<Box<dyn Watch>> {
    let place = Place::of(key);
    let inotify = set(layout, &place).ok()?;
    let (hints, changed) = mpsc::channel(1);
    io.spawn(run(inotify, place.file_name(), hints));
    Some(Box::new(RecordWatch(changed)))
}

fn set(layout: &Layout, place: &Place) -> Result<OwnedFd, Errno> {
    let directory = layout.records(place.stripe).open_place()?;
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    // What was opened, wherever its path leads to by now.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    let written = WatchFlags::MODIFY | WatchFlags::MOVED_TO;
    let named = WatchFlags::CREATE | WatchFlags::DELETE;
    inotify::add_watch(&inotify, path, written | named)?;
    Ok(inotify)
}

/// Hints at changes of this record until nobody listens any more, or the directory is gone.
async fn run(inotify: OwnedFd, record: String, hints: mpsc::Sender<()>) {
    let Some(inotify) = register(inotify) else { return };
    loop {
        let ready = tokio::select! {
            ready = inotify.readable() => ready,
            () = hints.closed() => return,
        };
        let Ok(mut ready) = ready else { return };
        match read(inotify.get_ref(), &record) {
            // One hint that waits is enough.
            Ok(true) => drop(hints.try_send(())),
            Ok(false) => {}
            Err(Errno::WOULDBLOCK) => ready.clear_ready(),
            Err(_) => return,
        }
    }
}

/// Reads some events; tells whether one is about this record. Where events were lost it may be.
fn read(inotify: &OwnedFd, record: &str) -> Result<bool, Errno> {
    let mut piece = [MaybeUninit::uninit(); PIECE];
    let mut events = inotify::Reader::new(inotify, &mut piece);
    let mut is_ours = false;
    loop {
        let event = events.next()?;
        if event.events().contains(inotify::ReadFlags::IGNORED) {
            return Err(Errno::NOENT);
        }
        is_ours |= event.file_name().is_none_or(|name| name.to_bytes() == record.as_bytes());
        if events.is_buffer_empty() {
            return Ok(is_ours);
        }
    }
}

impl Watch for RecordWatch {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            self.0.recv().await.ok_or_else(|| {
                let message = "the watch on the record has ended";
                BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
            })
        })
    }
}

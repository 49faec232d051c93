//! The outgoing side of a connection: a sender queues its requests here, and writes them on its own
//! thread.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use latchwork_store::Moment;
use latchwork_wire::Drive;

use super::link::Link;

/// As much may wait to be written before requests are taken.
const MOST_WAITING: usize = 1 << 20;

pub(super) struct Outlet {
    pub(super) link: Link,
    /// Moves the connection.
    pub(super) drive: Arc<Drive>,
    /// When something came last.
    pub(super) heard_at: Moment,
    /// Is told when there is room again.
    waker: Option<Waker>,
}

impl Outlet {
    pub(super) fn new(drive: Arc<Drive>, now: Moment) -> Self {
        Self { link: Link::new(), drive, heard_at: now, waker: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.link.out.len() < MOST_WAITING
    }

    /// The same, to wait for.
    pub(super) fn poll_open(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.is_open() {
            return Poll::Ready(());
        }
        self.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Exchanges what waits to be written for what has been.
    pub(super) fn hand_over(&mut self, written: &mut Vec<u8>) {
        written.clear();
        mem::swap(&mut self.link.out, written);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

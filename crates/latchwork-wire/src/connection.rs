//! A connection whose bytes are moved by the thread that waits for them.
//!
//! A protocol library gives a future that reads and writes. If one thread alone polled it, each
//! answer would wake that thread, and that thread would wake the caller: one hop too many. So the
//! future is shared ([`Drive`]), and it reads from a [`Socket`] that belongs to no reactor:
//!
//! - The thread that sends a request polls the future once itself, so the bytes are written there.
//! - The answer is read on the **caller side**: a task on the caller's tokio runtime watches the socket,
//!   and the answer wakes the caller on the same runtime. The first runtime that sends does so,
//!   until it ends. A loop that is not tokio's can do it too ([`ForeignLoop`](crate::ForeignLoop)).
//!   A thread blocked in `latchwork::block_on` watches the socket itself.
//! - Everything else is read on the **background side**, by the `Io` of the backend: answers to renewals and to other
//!   background work, answers to callers of other runtimes, and everything while no runtime of a caller watches.
//!
//! What keeps a hold alive never depends on the caller's runtime. If that runtime is blocked, the background
//! side notices bytes that nobody reads, within about 20 ms while a request is under way, and reads
//! them. If the runtime ends, the background side takes over at once. Nothing under way is lost, because
//! there is only one connection, and one order of what is sent on it.

mod background_side;
mod caller_side;
mod drive;
mod gone;
mod moving;
mod socket;

use std::task::{Context, Waker};

pub use drive::{Drive, Expectation};
pub(crate) use moving::is_moving_here;
pub use socket::Socket;

/// Keeps the waker of the task that polls.
fn remember(kept: &mut Option<Waker>, cx: &Context<'_>) {
    if !kept.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *kept = Some(cx.waker().clone());
    }
}

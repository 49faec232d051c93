//! A turn for other tasks of the same thread.

use std::future::poll_fn;
use std::task::Poll;

/// Lets other tasks have their turn.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| match std::mem::replace(&mut has_yielded, true) {
        true => Poll::Ready(()),
        false => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

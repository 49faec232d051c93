//! The report that a connection has ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::sync::SetOnce;

/// Tells those that wait for answers on a connection that no more answers come.
///
/// A library answers, with an error, what it has taken from its queue. A request that enters the
/// queue at the moment at which the library drops the queue is neither taken nor dropped: its answer
/// would be awaited for as long as a handle of the connection exists
/// (<https://github.com/tokio-rs/tokio/issues/7714>).
#[derive(Debug, Default)]
pub(super) struct Gone(SetOnce<()>);

impl Gone {
    /// Everything that will ever be answered has been answered.
    pub(super) fn set(&self) {
        let _ = self.0.set(());
    }

    /// Whether the connection has ended.
    pub(super) fn is_set(&self) -> bool {
        self.0.initialized()
    }

    /// The answer, or `None` if the connection has ended without one. Dropping the future drops the
    /// answer.
    pub(super) async fn unless<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let (mut answer, mut ended) = (pin!(answer), pin!(self.0.wait()));
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            if ended.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // It may have been answered before the end.
            let mut last = Context::from_waker(Waker::noop());
            Poll::Ready(match answer.as_mut().poll(&mut last) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            })
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_counts_after_the_end_and_none_is_awaited_then() {
        let gone = Gone::default();
        assert_eq!(gone.unless(std::future::ready(1)).await, Some(1));
        let ends = async { gone.set() };
        assert_eq!(tokio::join!(gone.unless(std::future::pending::<u8>()), ends).0, None);
        assert_eq!(gone.unless(std::future::ready(2)).await, Some(2));
        assert_eq!(gone.unless(std::future::pending::<u8>()).await, None);
    }
}

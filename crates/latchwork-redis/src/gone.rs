//! The word that a connection has ended.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use tokio::sync::Notify;

/// Tells those who wait for answers on a connection that none will come any more.
///
/// The library answers, with an error, what it has taken from its queue. A request that enters the
/// queue at the moment at which the library lets go of it is neither taken nor dropped: its answer
/// would be waited for as long as anybody has the connection
/// (<https://github.com/tokio-rs/tokio/issues/7714>).
#[derive(Debug, Default)]
pub(crate) struct Gone {
    by_now: AtomicBool,
    news: Notify,
}

impl Gone {
    /// All that will ever be answered has been.
    pub(crate) fn set(&self) {
        self.by_now.store(true, Ordering::SeqCst);
        self.news.notify_waiters();
    }

    /// The answer, or `None` if the connection has ended without one.
    pub(crate) async fn unless<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        let mut answer = std::pin::pin!(answer);
        {
            let mut told = std::pin::pin!(self.news.notified());
            // Enlist before looking, or word in between would go unnoticed.
            told.as_mut().enable();
            if !self.by_now.load(Ordering::SeqCst) {
                tokio::select! {
                    biased;
                    answer = answer.as_mut() => return Some(answer),
                    () = told => {}
                }
            }
        }
        // It may have been answered before the end.
        answer.as_mut().now_or_never()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test]
    async fn an_answer_counts_also_after_the_end_and_none_is_waited_for_then() {
        let gone = Gone::default();
        assert_eq!(gone.unless(ready(1)).await, Some(1));
        let ends = async { gone.set() };
        assert_eq!(tokio::join!(gone.unless(pending::<u8>()), ends).0, None);
        assert_eq!(gone.unless(ready(2)).await, Some(2));
        assert_eq!(gone.unless(pending::<u8>()).await, None);
    }
}

//! Futures with a time limit.
//!
//! Written by hand: an `async fn` that takes a future keeps it twice, where it was given and where it is
//! pinned, and futures in futures grow by that at each level.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::clock::{Clock, Moment, Sleep};
use crate::error::BackendError;

pin_project! {
    /// See [`Io::within`](crate::Io::within).
    pub(crate) struct Within<'a, F> {
        #[pin]
        future: F,
        clock: &'a Arc<dyn Clock>,
        limit: Duration,
        ends_at: Option<Moment>,
        timer: Option<Sleep>,
    }
}

impl<'a, F> Within<'a, F> {
    pub(crate) fn new(clock: &'a Arc<dyn Clock>, limit: Duration, future: F) -> Self {
        Self { future, clock, limit, ends_at: None, timer: None }
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let ends_at = *this.ends_at.get_or_insert_with(|| this.clock.now().plus(*this.limit));
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Some(output));
        }
        let timer = this.timer.get_or_insert_with(|| this.clock.sleep_until(ends_at));
        timer.as_mut().poll(cx).map(|()| None)
    }
}

pin_project! {
    /// See [`Io::answer`](crate::Io::answer).
    pub(crate) struct Answer<'a, F> {
        #[pin]
        within: Within<'a, F>,
    }
}

impl<'a, F> Answer<'a, F> {
    pub(crate) fn new(within: Within<'a, F>) -> Self {
        Self { within }
    }
}

impl<T, F> Future for Answer<'_, F>
where
    F: Future<Output = Result<T, BackendError>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let limit = self.within.limit;
        let answer = ready!(self.project().within.poll(cx));
        Poll::Ready(answer.unwrap_or_else(|| Err(BackendError::no_answer(limit))))
    }
}

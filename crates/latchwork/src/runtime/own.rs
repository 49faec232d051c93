//! Values that a forked child neither uses nor drops, because they belong to its parent.

use std::future::Future;
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};

use latchwork_store::Origin;

/// This process was forked from the one in which the value was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forked;

/// A value that only its own process drops: in a child it is left as it is.
#[derive(Debug)]
pub(crate) struct Own<T> {
    origin: Origin,
    value: Option<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(origin: Origin, value: T) -> Self {
        Self { origin, value: Some(value) }
    }

    /// Where it was made.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken by the drop alone")
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            // Its locks may be held by threads that do not exist here.
            mem::forget(self.value.take());
        }
    }
}

/// A future that ends with [`Forked`] outside of its process, where it is neither polled nor dropped.
///
/// It is boxed, since what is not dropped must stay where it is.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Native<F> {
    origin: Origin,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Native<F> {
    pub(crate) fn new(origin: Origin, future: F) -> Self {
        Self { origin, future: Some(Box::pin(future)) }
    }
}

impl<F: Future> Future for Native<F> {
    type Output = Result<F::Output, Forked>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.origin.is_here() {
            return Poll::Ready(Err(Forked));
        }
        self.future.as_mut().expect("taken by the drop alone").as_mut().poll(cx).map(Ok)
    }
}

impl<F> Drop for Native<F> {
    fn drop(&mut self) {
        if !self.origin.is_here() {
            mem::forget(self.future.take());
        }
    }
}

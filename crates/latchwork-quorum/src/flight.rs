//! Requests to several nodes that are in flight at the same time.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::gather::Tray;

/// A question to one node; it owns what it needs, so that it can go on in the background.
pub(super) type Ask<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The questions whose answers have not come yet, each with the number of its node.
pub(super) struct Flight<T> {
    pending: Vec<(usize, Ask<T>)>,
    /// Where the answers to those land that were sent with others.
    tray: Option<Arc<Tray<T>>>,
}

impl<T> Flight<T> {
    pub(super) fn new(asks: impl Iterator<Item = (usize, Ask<T>)>) -> Self {
        Self { pending: asks.collect(), tray: None }
    }

    /// A question to all nodes that was sent with others, or will be.
    pub(super) fn to_all(tray: Arc<Tray<T>>) -> Self {
        Self { pending: Vec::new(), tray: Some(tray) }
    }

    /// Asks more, with the next look at the answers.
    pub(super) fn join(&mut self, asks: impl Iterator<Item = (usize, Ask<T>)>) {
        self.pending.extend(asks);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.tray.as_ref().is_none_or(|tray| tray.is_empty())
    }

    /// All answers that have come since, at least one; `None` if no question is left. Of a question
    /// that was sent with others, so many at least that they may decide.
    ///
    /// Every question is sent before the first answer is returned. Nothing is lost if this is
    /// dropped.
    pub(super) async fn land(&mut self) -> Option<Vec<(usize, T)>> {
        if self.is_empty() {
            return None;
        }
        let landed = poll_fn(|cx| {
            let mut landed = Vec::new();
            self.pending.retain_mut(|(node, ask)| match ask.as_mut().poll(cx) {
                Poll::Ready(answer) => {
                    landed.push((*node, answer));
                    false
                }
                Poll::Pending => true,
            });
            if let Some(tray) = &self.tray
                && let Poll::Ready(more) = tray.poll_take(cx)
            {
                if landed.is_empty() {
                    landed = more;
                } else {
                    landed.extend(more);
                }
            }
            if landed.is_empty() { Poll::Pending } else { Poll::Ready(landed) }
        });
        Some(landed.await)
    }

    /// The answers that have come to a question to all nodes.
    pub(super) fn landed(&self) -> Vec<(usize, T)> {
        self.tray.as_ref().map_or_else(Vec::new, |tray| tray.landed())
    }

    /// Takes the questions that have no answer yet.
    pub(super) fn take_pending(&mut self) -> Vec<(usize, Ask<T>)> {
        std::mem::take(&mut self.pending)
    }

    /// Takes the tray, for one who sees to the answers that were not taken.
    pub(super) fn take_tray(&mut self) -> Option<Arc<Tray<T>>> {
        self.tray.take()
    }
}

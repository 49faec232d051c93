//! Questions to several nodes that are under way at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// A question to one node; it owns what it needs, so that it can go on in the background.
pub(super) type Ask<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The questions whose answers have not come yet, each with the number of its node.
pub(super) struct Flight<T> {
    pending: Vec<(usize, Ask<T>)>,
}

impl<T> Flight<T> {
    pub(super) fn new(asks: impl Iterator<Item = (usize, Ask<T>)>) -> Self {
        Self { pending: asks.collect() }
    }

    /// Asks more, with the next look at the answers.
    pub(super) fn join(&mut self, asks: impl Iterator<Item = (usize, Ask<T>)>) {
        self.pending.extend(asks);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// All answers that have come since, at least one; `None` if no question is left.
    ///
    /// Every question is sent before the first answer is returned. Nothing is lost if this is
    /// dropped.
    pub(super) async fn land(&mut self) -> Option<Vec<(usize, T)>> {
        if self.pending.is_empty() {
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
            if landed.is_empty() { Poll::Pending } else { Poll::Ready(landed) }
        });
        Some(landed.await)
    }

    /// Takes the questions that have no answer yet.
    pub(super) fn take_pending(&mut self) -> Vec<(usize, Ask<T>)> {
        std::mem::take(&mut self.pending)
    }
}

//! Several futures as one.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// Runs futures at the same time; their outputs in the same order.
pub(crate) async fn join_all<F: Future + Unpin>(futures: Vec<F>) -> Vec<F::Output> {
    let mut outputs = Vec::with_capacity(futures.len());
    let mut futures: Vec<_> = futures.into_iter().map(|f| (f, None)).collect();
    poll_fn(|cx| {
        let mut pending = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match Pin::new(future).poll(cx) {
                    Poll::Ready(ready) => *output = Some(ready),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    outputs.extend(futures.into_iter().filter_map(|(_, output)| output));
    outputs
}

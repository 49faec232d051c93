//! Reports the begin and the end of each wait to the observer, however the wait ends.

use std::future::{Future, poll_fn};
use std::pin::pin;

use crate::hold::engine::Engine;
use crate::rules::observe::Event;
use crate::wait::acquire::Request;
use latchwork_store::Moment;

/// An acquire, which waits from the first thing in its way until this value is dropped.
pub(crate) struct Waiter<'a> {
    engine: &'a Engine,
    request: &'a Request,
    /// Since when it waits; nothing while nothing is in its way.
    since: Option<Moment>,
    /// A single try does not wait.
    waits: bool,
    admitted: bool,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(engine: &'a Engine, request: &'a Request, waits: bool) -> Self {
        Self { engine, request, since: None, waits, admitted: false }
    }

    /// Something is in the way. Told once.
    pub(crate) fn begin(&mut self) {
        if self.waits && self.since.is_none() {
            self.since = Some(self.engine.io.now());
            self.request.plan.rules.tell(&Event::WaitBegan { key: &self.request.key });
        }
    }

    /// Awaits what is in the way, unless it is done at once.
    pub(crate) async fn during<F: Future>(&mut self, obstacle: F) -> F::Output {
        let mut obstacle = pin!(obstacle);
        poll_fn(|cx| {
            let poll = obstacle.as_mut().poll(cx);
            if poll.is_pending() {
                self.begin();
            }
            poll
        })
        .await
    }

    /// The wait was not in vain.
    pub(crate) fn admit(&mut self) {
        self.admitted = true;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let (key, waited) = (&self.request.key, self.engine.io.now().since(since));
            let admitted = self.admitted;
            self.request.plan.rules.tell(&Event::WaitEnded { key, waited, admitted });
        }
    }
}

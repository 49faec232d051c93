//! The responses of servers that are asked all at once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment};
use latchwork_wire::is_silent;
use tokio::sync::mpsc;

use crate::config::Endpoint;
use crate::server::access::Access;

/// How often to check whether the missing answers may still come.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// The answers of several servers, in the order in which they come.
pub(crate) struct Responses<T> {
    answers: mpsc::UnboundedReceiver<(usize, Result<T, BackendError>)>,
    /// The servers that have not answered yet.
    open: Vec<Option<Endpoint>>,
    /// Until when an answer is waited for beside one that is there.
    until: Moment,
    io: Io,
}

impl<T: Send + 'static> Responses<T> {
    /// Asks each server, and waits no longer than `limit` once its name is looked up.
    pub(crate) fn new<F>(
        servers: &[Endpoint],
        limit: Duration,
        access: &Arc<Access>,
        io: &Io,
        ask: impl Fn(&Endpoint) -> F,
    ) -> Self
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'static,
    {
        let (sender, answers) = mpsc::unbounded_channel();
        for (place, server) in servers.iter().enumerate() {
            let (asking, sender, io) = (ask(server), sender.clone(), io.clone());
            let (access, server) = (access.clone(), server.clone());
            io.clone().spawn(async move {
                let answer = match access.resolve(&server, &io).await {
                    Ok(()) => io.within(limit, asking).await,
                    Err(error) => Some(Err(error)),
                };
                let _ = sender.send((place, answer.unwrap_or_else(|| Err(late(&server, limit)))));
            });
        }
        let (open, until) = (servers.iter().cloned().map(Some).collect(), io.now().plus(limit));
        Self { answers, open, until, io: io.clone() }
    }

    /// The next answer. A caller that `has_one` does not wait for servers that take no connection.
    pub(crate) async fn next(&mut self, has_one: bool) -> Option<Result<T, BackendError>> {
        loop {
            let answer = match has_one {
                false => self.answers.recv().await,
                true => match self.io.within(CHECK_EVERY, self.answers.recv()).await {
                    Some(answer) => answer,
                    None if self.io.now() >= self.until => None,
                    None if self.open.iter().flatten().all(|at| is_silent(at, &self.io)) => None,
                    None => continue,
                },
            };
            let (place, answer) = answer?;
            self.open[place] = None;
            return Some(answer);
        }
    }
}

fn late(server: &Endpoint, limit: Duration) -> BackendError {
    let message = format!("{server}: no answer within {limit:?}");
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step("check that the server is running and not stopped")
}

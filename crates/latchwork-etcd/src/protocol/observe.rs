//! Notifies an observer of a changed queue, by a watch on the stream of the member.

use std::sync::Arc;

use latchwork_store::{BackendError, Key, Verb, Watch};

use crate::config::Endpoint;
use crate::protocol::names;
use crate::protocol::shared::Shared;
use crate::server::errors::{Failure, error};
use crate::server::link::Link;
use crate::server::watch::Observation;

/// A watch on a queue.
#[derive(Debug)]
struct QueueWatch {
    observation: Observation,
    at: Endpoint,
}

impl Shared {
    /// The watch is open when this answers. A look that follows asks a majority, so it sees what came
    /// before the watch was opened.
    pub(crate) async fn observe(&self, key: &Key) -> Result<Option<Box<dyn Watch>>, BackendError> {
        let queue = names::queue(key);
        let end = names::end_of(&queue);
        let (queue, end) = (&queue, &end);
        let open = |link: Arc<Link>| async move {
            let mut observation = link.watches().observe(queue.clone(), end.clone());
            let at = link.endpoint.clone();
            match observation.hint().await {
                Some(_) => Ok(QueueWatch { observation, at }),
                None => Err(over(&at)),
            }
        };
        let watch = self.members.ask(open).await.map_err(error)?;
        Ok(Some(Box::new(watch)))
    }
}

impl Watch for QueueWatch {
    fn changed(&mut self) -> Verb<'_, Result<(), BackendError>> {
        Box::pin(async {
            let hint = self.observation.hint().await;
            hint.map(drop).ok_or_else(|| over(&self.at).error)
        })
    }
}

fn over(at: &Endpoint) -> Failure {
    Failure::broken(at, "watches").of_a_read()
}

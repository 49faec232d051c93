//! A release under way: its progress, which the first request and its repeats share.

use tokio::sync::watch;

use crate::domain::refusal::Refusal;

/// How a client ends a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseKind {
    /// A release; a task is open for others then.
    Release,
    /// The success of a task: it is closed for its period.
    Succeed,
}

/// The store's answer to a release, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// The store has not answered yet.
    Pending,
    /// The lock was held until its release.
    Held,
    /// The lock was lost before.
    Lost(&'static str),
    /// The store has not answered until the end of the lease, or an answer was lost.
    Unknown,
}

/// The progress of a release.
#[derive(Default)]
pub(crate) struct Progress {
    /// The number of requests to the store without an answer.
    failed: u32,
    /// The error of the last of them.
    error: Option<Refusal>,
    /// The final answer of the store.
    outcome: Option<ReleaseOutcome>,
}

/// Reports the progress of a release.
pub(crate) struct ProgressSender(watch::Sender<Progress>);

/// Receives the progress of a release.
#[derive(Clone)]
pub(crate) struct ProgressReceiver(watch::Receiver<Progress>);

/// Creates the two ends for a new release.
pub(crate) fn progress() -> (ProgressSender, ProgressReceiver) {
    let (sender, receiver) = watch::channel(Progress::default());
    (ProgressSender(sender), ProgressReceiver(receiver))
}

impl ProgressSender {
    /// A request to the store had no answer, and the next one follows.
    pub(crate) fn failed(&self, error: Refusal) {
        self.0.send_modify(|progress| {
            progress.failed = progress.failed.wrapping_add(1);
            progress.error = Some(error);
        });
    }

    /// The store has answered, or its answer no longer matters.
    pub(crate) fn done(self, outcome: ReleaseOutcome) {
        self.0.send_modify(|progress| progress.outcome = Some(outcome));
    }
}

impl ProgressReceiver {
    /// Waits for the outcome, or for the next failure before it.
    ///
    /// # Errors
    ///
    /// That failure; `Closed` if the service has ended.
    pub(crate) async fn outcome(mut self) -> Result<ReleaseOutcome, Refusal> {
        let before = self.0.borrow().failed;
        let is_news = |progress: &Progress| progress.outcome.is_some() || progress.failed != before;
        let progress = self.0.wait_for(is_news).await.map_err(|_| Refusal::closed())?;
        match (progress.outcome, &progress.error) {
            (Some(outcome), _) => Ok(outcome),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(Refusal::closed()),
        }
    }
}

/// The confirmation that a hold lasted until its client ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmation {
    /// Whether its task is closed for the period.
    pub(crate) is_closed: bool,
}

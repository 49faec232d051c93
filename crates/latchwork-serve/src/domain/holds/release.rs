//! What becomes of a hold that its client gives up. The first request and its repeats are told the same.

use axum::http::StatusCode;
use tokio::sync::watch;

use super::ended::Ending;
use crate::http::error::ApiError;

/// How a client gives a hold up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// By `DELETE`; a task is open for others then.
    Release,
    /// By `succeed`: a task is closed for its period.
    Succeed,
}

/// What is known of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The store has not answered yet.
    Nothing,
    /// The lock was held until its release.
    Held,
    /// It was lost before.
    Lost(&'static str),
    /// The store has not answered until the end of the lease, or an answer was lost.
    Unknown,
}

/// A release under way.
#[derive(Default)]
pub(crate) struct Course {
    /// How many requests to the store had no answer.
    failed: u32,
    /// Why the last one had none.
    error: Option<ApiError>,
    /// What the store has said at last.
    said: Option<Said>,
}

/// Tells how a release goes.
pub(crate) struct Teller(watch::Sender<Course>);

/// Is told how a release goes.
#[derive(Clone)]
pub(crate) struct Told(watch::Receiver<Course>);

/// A new release.
pub(crate) fn course() -> (Teller, Told) {
    let (teller, told) = watch::channel(Course::default());
    (Teller(teller), Told(told))
}

impl Teller {
    /// A request to the store had no answer, and the next one follows.
    pub(crate) fn failed(&self, error: ApiError) {
        self.0.send_modify(|course| {
            course.failed = course.failed.wrapping_add(1);
            course.error = Some(error);
        });
    }

    /// The store has answered, or its answer does not matter any more.
    pub(crate) fn done(self, said: Said) {
        self.0.send_modify(|course| course.said = Some(said));
    }
}

impl Told {
    /// Waits for the outcome, or for the next failure on the way to it.
    ///
    /// # Errors
    ///
    /// That failure; `Closed` if the service has ended.
    pub(crate) async fn said(mut self) -> Result<Said, ApiError> {
        let seen = self.0.borrow().failed;
        let is_news = |course: &Course| course.said.is_some() || course.failed != seen;
        let course = self.0.wait_for(is_news).await.map_err(|_| ApiError::closed())?;
        match (course.said, &course.error) {
            (Some(said), _) => Ok(said),
            (None, Some(error)) => Err(error.clone()),
            (None, None) => Err(ApiError::closed()),
        }
    }
}

/// What was confirmed of a hold that its client has given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Confirmed {
    /// Whether its task is closed for the period.
    pub(crate) is_closed: bool,
}

/// The answer to a client that asks for `asked`, of a hold that was given up by `how`.
///
/// # Errors
///
/// `Lost`, `Unconfirmed`; and `Released` for a success after a release.
pub(crate) fn answer(asked: How, how: How, said: Said, name: &str) -> Result<Confirmed, ApiError> {
    match (asked, how, said) {
        (How::Succeed, How::Release, Said::Nothing | Said::Held | Said::Unknown) => {
            let message = "hold: it was released before, so the task is not closed for its period";
            Err(ApiError::new(StatusCode::GONE, "Released", message)
                .key(name)
                .next_step("to run the task again, begin it; succeed before any DELETE"))
        }
        (_, _, Said::Held) => Ok(Confirmed { is_closed: how == How::Succeed }),
        (_, _, Said::Nothing | Said::Lost(_) | Said::Unknown) => {
            Err(Ending::Left(how, said).error(name))
        }
    }
}

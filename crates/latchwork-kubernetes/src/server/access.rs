//! The client that the present credentials give, and its replacement when they change.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::Client;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment};
use latchwork_wire::program;
use tokio::sync::Notify;

use crate::config::KubernetesConfig;
use crate::lock;
use crate::server::connector;
use crate::server::login::{self, Settings};

/// Credentials are read again at most so often.
const REREAD: Duration = Duration::from_secs(1);
/// A refused request waits so long for new credentials, less than the engine waits for it.
const WAIT: Duration = Duration::from_millis(1_500);
/// A login is renewed so long before its end, or a third of its lifetime before.
const AHEAD: Duration = Duration::from_secs(60);
/// A login that lasts shorter is renewed as if it lasted so long.
const SHORTEST: Duration = Duration::from_secs(10);

/// The credentials of a store.
pub(super) struct Access {
    config: KubernetesConfig,
    io: Io,
    state: Mutex<State>,
    /// Tells that a reading has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    current: Option<Numbered>,
    is_reading: bool,
    /// The plugin that is being run.
    plugin: Option<String>,
    /// The end of the last reading after the first one, and why it brought nothing.
    last: Option<(Moment, Option<BackendError>)>,
    /// When the login of a plugin is to be renewed.
    due: Option<Moment>,
}

/// A client, and how many there were before it.
#[derive(Clone)]
pub(super) struct Numbered {
    pub(super) client: Client,
    pub(super) number: u64,
}

impl Access {
    pub(super) async fn open(config: KubernetesConfig, io: Io) -> Result<Arc<Self>, BackendError> {
        let (state, ended) = (Mutex::default(), Notify::new());
        let access = Arc::new(Self { config, io, state, ended });
        access.newer_than(None, program::LIMIT + REREAD).await?;
        // What is refused at once may have been replaced since.
        lock(&access.state).last = None;
        Ok(access)
    }

    /// The client to use now. A login that ends soon is renewed meanwhile.
    pub(super) fn current(self: &Arc<Self>) -> Option<Numbered> {
        let now = self.io.now();
        let mut state = lock(&self.state);
        let is_due = !state.is_reading && state.due.is_some_and(|due| now >= due);
        state.is_reading |= is_due;
        let current = state.current.clone();
        drop(state);
        if is_due {
            self.read();
        }
        current
    }

    /// The client that follows the one with this number, which was refused; `None` if there is none.
    pub(super) async fn after_refusal(
        self: &Arc<Self>,
        number: u64,
    ) -> Result<Option<Numbered>, BackendError> {
        self.newer_than(Some(number), WAIT).await
    }

    async fn newer_than(
        self: &Arc<Self>,
        seen: Option<u64>,
        limit: Duration,
    ) -> Result<Option<Numbered>, BackendError> {
        let asked_at = self.io.now();
        let newer = async {
            loop {
                let ended = self.ended.notified();
                let begins = {
                    let mut state = lock(&self.state);
                    match &state.current {
                        Some(current) if Some(current.number) > seen => {
                            return Ok(Some(current.clone()));
                        }
                        _ => {}
                    }
                    let fresh = |at: Moment| at >= asked_at || asked_at.since(at) < REREAD;
                    match &state.last {
                        _ if state.is_reading => false,
                        Some((at, problem)) if fresh(*at) => {
                            return problem.clone().map_or(Ok(None), Err);
                        }
                        _ => {
                            state.is_reading = true;
                            true
                        }
                    }
                };
                if begins {
                    self.read();
                }
                ended.await;
            }
        };
        match self.io.within(limit, newer).await {
            Some(newer) => newer,
            None => {
                let what = lock(&self.state).plugin.clone();
                let what = what.unwrap_or_else(|| "reading the kubeconfig".into());
                Err(unread(format!("{what} has not ended within {limit:?}")))
            }
        }
    }

    /// Reads the credentials where that may block, and makes a client on the driver.
    fn read(self: &Arc<Self>) {
        let (access, reading) = (self.clone(), Reading(Some(self.clone())));
        self.io.clone().for_blocking().spawn(async move {
            let wall = access.io.clock().wall();
            let tell = |plugin| lock(&access.state).plugin = Some(plugin);
            let settings = login::read(&access.config, wall, tell);
            access.io.clone().spawn(async move {
                let made = settings.and_then(|settings| access.make(settings));
                reading.end(made);
            });
        });
    }

    fn make(&self, settings: Settings) -> Made {
        let client = connector::client(settings.config, &self.io);
        Ok((client.map_err(|error| login::of_client(&error))?, settings.lifetime))
    }

    fn note(&self, made: Made) {
        let now = self.io.now();
        let mut state = lock(&self.state);
        state.is_reading = false;
        state.plugin = None;
        let problem = match made {
            Ok((client, lifetime)) => {
                let number = state.current.as_ref().map_or(0, |before| before.number + 1);
                state.current = Some(Numbered { client, number });
                state.due = lifetime.map(|lifetime| now.plus(rest(lifetime)));
                None
            }
            Err(problem) => {
                // The old login counts until it is refused.
                state.due = state.due.map(|_| now.plus(SHORTEST));
                Some(problem)
            }
        };
        state.last = Some((now, problem));
        drop(state);
        self.ended.notify_waiters();
    }
}

/// How long a login with this lifetime is left alone.
fn rest(lifetime: Duration) -> Duration {
    (lifetime - AHEAD.min(lifetime / 3)).max(SHORTEST)
}

/// A client, and how long its login is good.
type Made = Result<(Client, Option<Duration>), BackendError>;

/// A reading that ends, also if it is never run.
struct Reading(Option<Arc<Access>>);

impl Reading {
    fn end(mut self, made: Made) {
        if let Some(access) = self.0.take() {
            access.note(made);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(access) = self.0.take() {
            access.note(Err(unread("reading the kubeconfig was stopped".into())));
        }
    }
}

fn unread(problem: String) -> BackendError {
    let message = format!("cannot log in to the API server: {problem}");
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step("check that the kubeconfig can be read, and how long its exec plugin takes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_login_is_not_renewed_for_each_request() {
        for (lifetime, left_alone) in [(3_600, 3_540), (90, 60), (30, 20), (3, 10), (0, 10)] {
            assert_eq!(rest(Duration::from_secs(lifetime)), Duration::from_secs(left_alone));
        }
    }
}

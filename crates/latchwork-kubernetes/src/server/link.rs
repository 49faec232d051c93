//! Requests to the API server, each a task on the driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use kube::Client;
use kube::client::{AuthError, Body};
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment};
use latchwork_wire::tls;
use tokio::sync::{oneshot, watch};

use crate::config::KubernetesConfig;
use crate::lock;
use crate::server::access::{Access, Numbered};
use crate::server::login;
use crate::server::server_time::ServerTime;

/// A request that is not answered for so long is given up. The engine has its own limit, which is shorter.
const LIMIT: Duration = Duration::from_secs(10);

/// The way to an API server.
pub(crate) struct Link {
    config: KubernetesConfig,
    pub(crate) io: Io,
    access: Arc<Access>,
    pub(crate) time: Mutex<ServerTime>,
    /// True when the backend is dropped: all tasks end.
    shut: watch::Sender<bool>,
}

/// An answer of the API server, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    /// When it had arrived.
    pub(crate) at: Moment,
    /// What a server that is overloaded asks for.
    pub(crate) retry_after: Option<Duration>,
}

impl Answer {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl Link {
    pub(crate) async fn open(config: KubernetesConfig, io: Io) -> Result<Self, BackendError> {
        let access = Access::open(config.clone(), io.clone()).await?;
        let (shut, _) = watch::channel(false);
        Ok(Self { config, io, access, time: Mutex::default(), shut })
    }

    pub(crate) fn shut(&self) {
        self.shut.send_replace(true);
    }

    pub(crate) fn is_shut(&self) -> watch::Receiver<bool> {
        self.shut.subscribe()
    }

    /// The client that the present credentials give.
    pub(crate) fn client(&self) -> Result<Client, BackendError> {
        Ok(self.numbered()?.client)
    }

    fn numbered(&self) -> Result<Numbered, BackendError> {
        let closed = || unreachable("the store was closed".into(), Effect::NotApplied);
        self.access.current().ok_or_else(closed)
    }

    /// The path of all leases of the namespace.
    pub(crate) fn leases(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.config.namespace)
    }

    /// Sends a request and waits for its answer. If the credentials are refused, they are read again, once: a token
    /// may have been replaced.
    ///
    /// Dropping the future does not take the request back.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Answer, BackendError> {
        self.ask_on(method, path, body, None).await
    }

    /// As [`ask`](Self::ask). `under_way` is kept until the request has ended, also if nobody waits for it any more.
    pub(crate) async fn ask_on(
        self: &Arc<Self>,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        under_way: Option<UnderWay>,
    ) -> Result<Answer, BackendError> {
        let writes = method != Method::GET;
        let with = self.numbered()?;
        let number = with.number;
        let first = self.send(with, method.clone(), path, body.clone(), writes, under_way.clone());
        let answer = first.await;
        // A token, a certificate of the client or the authority may have been replaced.
        let is_stale = match &answer {
            Ok(answer) => answer.status == 401,
            Err(unanswered) => unanswered.is_of_tls,
        };
        if !is_stale {
            return Ok(answer?);
        }
        match (self.access.after_refusal(number).await, answer) {
            (Ok(Some(newer)), _) => {
                let second = self.send(newer, method, path, body, writes, under_way).await;
                Ok(second?)
            }
            (Err(problem), Ok(_)) => Err(unrenewed(problem)),
            (_, answer) => Ok(answer?),
        }
    }

    async fn send(
        self: &Arc<Self>,
        with: Numbered,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        writes: bool,
        under_way: Option<UnderWay>,
    ) -> Result<Answer, Unanswered> {
        let request = request(method, path, body)?;
        let (answer, arrived) = oneshot::channel();
        let (link, client, mut shut) = (self.clone(), with.client, self.is_shut());
        self.io.spawn(async move {
            let io = link.io.clone();
            let whole = io.within(LIMIT, link.exchange(client, request));
            tokio::select! {
                ended = whole => {
                    // Nobody waits for the answer if the verb was dropped.
                    let _ = answer.send(ended);
                }
                _ = shut.wait_for(|is_shut| *is_shut) => {}
            }
            drop(under_way);
        });
        let effect = if writes { Effect::Unknown } else { Effect::NotApplied };
        match arrived.await {
            Ok(Some(Ok(answer))) => Ok(answer),
            Ok(Some(Err(error))) => {
                let is_of_tls = tls::refusal(&error, &WORDS).is_some();
                Err(Unanswered { error: failed(&error, effect), is_of_tls })
            }
            Ok(None) => Err(BackendError::no_answer(LIMIT).with_effect(effect).into()),
            Err(_) => Err(unreachable("the store was closed".into(), effect).into()),
        }
    }

    async fn exchange(
        &self,
        client: Client,
        request: Request<Body>,
    ) -> Result<Answer, kube::Error> {
        let sent = self.io.now();
        let response = client.send(request).await?;
        let received = self.io.now();
        let (second, retry_after) = headers(response.headers());
        if let Some(second) = second {
            lock(&self.time).told(second, sent, received);
        }
        let status = response.status().as_u16();
        let body = response.into_body().collect_bytes().await?.to_vec();
        Ok(Answer { status, body, at: self.io.now(), retry_after })
    }
}

/// Tells by its end that a request has ended.
pub(crate) type UnderWay = Arc<oneshot::Sender<()>>;

/// A request without an answer.
struct Unanswered {
    error: BackendError,
    /// There was no connection, for a reason that other files may end.
    is_of_tls: bool,
}

impl From<BackendError> for Unanswered {
    fn from(error: BackendError) -> Self {
        Self { error, is_of_tls: false }
    }
}

impl From<Unanswered> for BackendError {
    fn from(unanswered: Unanswered) -> Self {
        unanswered.error
    }
}

/// What a kubeconfig calls the parts of TLS.
const WORDS: tls::OptionNames = tls::OptionNames {
    authority: "certificate-authority in the kubeconfig",
    client: "client-certificate and client-key in the kubeconfig",
    plain: "http://",
    secure: "https://",
};

/// The second that the server's clock shows, and how long it asks to be left alone.
fn headers(headers: &http::HeaderMap) -> (Option<i64>, Option<Duration>) {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let date = text("date").and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
    let after = text("retry-after").and_then(|value| value.parse().ok());
    (date.map(|date| date.timestamp().as_second()), after.map(Duration::from_secs))
}

pub(crate) fn request(
    method: Method,
    path: &str,
    body: Option<Vec<u8>>,
) -> Result<Request<Body>, BackendError> {
    let request = Request::builder().method(method).uri(path).header("accept", "application/json");
    let request = match body {
        Some(body) => request.header("content-type", "application/json").body(body.into()),
        None => request.body(Body::empty()),
    };
    request.map_err(|error| {
        let message = format!("the request for {path} cannot be made: {error}");
        BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
    })
}

/// A refusal of credentials that cannot be read again: a file may be in the middle of a change.
fn unrenewed(problem: BackendError) -> BackendError {
    let message =
        format!("the API server refused the credentials (status 401): {}", problem.message);
    let step = problem.next_step.unwrap_or_default();
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .with_next_step(step)
}

fn unreachable(message: String, effect: Effect) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, effect, message)
        .with_next_step("check that the API server is running and the address is correct")
}

/// A request without an answer.
pub(crate) fn failed(error: &kube::Error, effect: Effect) -> BackendError {
    // Credentials that cannot be made are no matter of the server.
    if let Some(why) = of_login(error) {
        let message = format!("cannot log in to the API server: {why}");
        return BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, message)
            .with_next_step("check the credentials in the kubeconfig");
    }
    let said = chain(error);
    if let Some(refusal) = tls::refusal(error, &WORDS) {
        let message = format!("cannot connect to the API server: {refusal}");
        return unreachable(message, Effect::NotApplied).with_next_step(refusal.step);
    }
    let is_sent = !said.contains("client error (Connect)");
    unreachable(said, if is_sent { effect } else { Effect::NotApplied })
}

/// Why a client had no login to send.
fn of_login(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<AuthError>()).next().map(login::of_login)
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("config", &self.config).finish_non_exhaustive()
    }
}

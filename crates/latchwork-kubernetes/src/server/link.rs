//! Requests to the API server, each a task on the driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment};
use latchwork_wire::tls;
use tokio::sync::{oneshot, watch};

use crate::config::KubernetesConfig;
use crate::lock;
use crate::server::connector;
use crate::server::server_time::ServerTime;

/// A request that is not answered for so long is given up. The engine has its own limit, which is shorter.
const LIMIT: Duration = Duration::from_secs(10);
/// Credentials are read again at most so often.
const REREAD: Duration = Duration::from_secs(1);

/// The way to an API server.
pub(crate) struct Link {
    config: KubernetesConfig,
    pub(crate) io: Io,
    client: Mutex<(Client, Moment)>,
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
        let client = on_driver(&io, client(config.clone(), io.clone())).await?;
        let client = Mutex::new((client, io.now()));
        let (shut, _) = watch::channel(false);
        Ok(Self { config, io, client, time: Mutex::default(), shut })
    }

    pub(crate) fn shut(&self) {
        self.shut.send_replace(true);
    }

    pub(crate) fn is_shut(&self) -> watch::Receiver<bool> {
        self.shut.subscribe()
    }

    pub(crate) fn client(&self) -> Client {
        lock(&self.client).0.clone()
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
        let first = self.send(method.clone(), path, body.clone(), writes, under_way.clone());
        let answer = first.await;
        // A token, a certificate of the client or the authority may have been replaced.
        let is_stale = match &answer {
            Ok(answer) => answer.status == 401,
            Err(unanswered) => unanswered.is_of_tls,
        };
        if is_stale && self.reread().await? {
            let second = self.send(method, path, body, writes, under_way).await;
            return second.map_err(BackendError::from);
        }
        Ok(answer?)
    }

    async fn send(
        self: &Arc<Self>,
        method: Method,
        path: &str,
        body: Option<Vec<u8>>,
        writes: bool,
        under_way: Option<UnderWay>,
    ) -> Result<Answer, Unanswered> {
        let request = request(method, path, body)?;
        let (answer, arrived) = oneshot::channel();
        let (link, client, mut shut) = (self.clone(), self.client(), self.is_shut());
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

    /// Builds the client again from the configuration; false if that was done a moment ago.
    async fn reread(&self) -> Result<bool, BackendError> {
        let now = self.io.now();
        {
            let mut client = lock(&self.client);
            if now.since(client.1) < REREAD {
                return Ok(false);
            }
            client.1 = now;
        }
        let fresh = on_driver(&self.io, client(self.config.clone(), self.io.clone())).await?;
        lock(&self.client).0 = fresh;
        Ok(true)
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

/// Runs what needs the driver's runtime there.
async fn on_driver<T: Send + 'static>(
    io: &Io,
    work: impl Future<Output = Result<T, BackendError>> + Send + 'static,
) -> Result<T, BackendError> {
    let (answer, arrived) = oneshot::channel();
    io.spawn(async move {
        let _ = answer.send(work.await);
    });
    arrived
        .await
        .unwrap_or_else(|_| Err(unreachable("the driver was shut down".into(), Effect::NotApplied)))
}

async fn client(config: KubernetesConfig, io: Io) -> Result<Client, BackendError> {
    let mut settings = settings(&config).await?;
    // A watch says nothing for long; each request has its own limit.
    settings.read_timeout = None;
    // Only a verb knows whether its request may be sent again.
    settings.default_retry = false;
    settings.connect_timeout = Some(Duration::from_secs(5));
    connector::client(settings, &io)
        .map_err(|error| invalid(&format!("the client: {}", chain(&error))))
}

async fn settings(config: &KubernetesConfig) -> Result<Config, BackendError> {
    let inside = config.kubeconfig.is_none() && config.context.is_none();
    if inside && std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster()
            .map_err(|error| invalid(&format!("the pod's service account: {}", chain(&error))));
    }
    let options =
        KubeConfigOptions { context: config.context.clone(), ..KubeConfigOptions::default() };
    let read = match &config.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let wrong = |error: &dyn std::error::Error| invalid(&format!("kubeconfig: {}", chain(error)));
    let read = read.map_err(|error| wrong(&error))?;
    Config::from_custom_kubeconfig(read, &options).await.map_err(|error| wrong(&error))
}

fn invalid(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message).with_next_step(
        "check the context in the address and the kubeconfig, with: kubectl config get-contexts",
    )
}

fn unreachable(message: String, effect: Effect) -> BackendError {
    BackendError::new(BackendErrorKind::Unreachable, effect, message)
        .with_next_step("check that the API server is running and the address is correct")
}

/// A request without an answer.
pub(crate) fn failed(error: &kube::Error, effect: Effect) -> BackendError {
    let said = chain(error);
    if let Some(refusal) = tls::refusal(error, &WORDS) {
        let message = format!("cannot connect to the API server: {refusal}");
        return unreachable(message, Effect::NotApplied).with_next_step(refusal.step);
    }
    // Credentials that cannot be made are no matter of the server.
    match error {
        kube::Error::Auth(_) => {
            BackendError::new(BackendErrorKind::Denied, Effect::NotApplied, said)
                .with_next_step("check the credentials in the kubeconfig")
        }
        _ if said.contains("client error (Connect)") => unreachable(said, Effect::NotApplied),
        _ => unreachable(said, effect),
    }
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

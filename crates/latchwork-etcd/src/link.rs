//! The way to one member: a connection that is made when it is first used, and its streams.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use latchwork_core::{BackendError, BackendErrorKind, Effect, Error, ErrorKind, Io};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint as Target};
use tonic::{Request, Response, Status};
use tower::service_fn;

use crate::config::Endpoint;
use crate::cork::Cork;
use crate::errors::{Failure, Reaction, failure, root_cause};
use crate::identity::{Headed, Identity};
use crate::keep_alive::{KeepAlives, Lane};
use crate::pages::LARGEST_PAGE;
use crate::proof::{Proof, Turn};
use crate::proto::auth_client::AuthClient;
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{
    AuthenticateRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use crate::watch::{Watches, Words};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A connection that is silent for so long is asked whether it lives, and has as long to answer.
const PING_AFTER: Duration = Duration::from_secs(2);
/// Lines may be long, and names up to 64 KiB; the server limits what it sends.
const LONGEST_ANSWER: usize = 256 << 20;

/// One member.
pub(crate) struct Link {
    pub(crate) endpoint: Endpoint,
    member: usize,
    identity: Arc<Identity>,
    channel: Channel,
    proof: Arc<Proof>,
    keep_alives: KeepAlives,
    watches: Watches,
    io: Io,
    /// How many requests are under way.
    asking: AtomicUsize,
}

/// Runs what tonic spawns on Latchwork's own thread.
#[derive(Clone)]
struct OnIo(Io);

impl hyper::rt::Executor<Pin<Box<dyn Future<Output = ()> + Send>>> for OnIo {
    fn execute(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }
}

impl Link {
    pub(crate) fn new(
        endpoint: Endpoint,
        tls: Option<&ClientTlsConfig>,
        proof: Arc<Proof>,
        io: &Io,
        (member, words, identity): (usize, &Words, &Arc<Identity>),
    ) -> Result<Self, Error> {
        let invalid = |message: String| Error::new(ErrorKind::Invalid, message);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut target = Target::from_shared(format!("{scheme}://{endpoint}"))
            .map_err(|_| invalid(format!("store: {endpoint} is not an address")))?;
        if let Some(tls) = tls {
            target = target.tls_config(tls.clone()).map_err(|error| {
                let why = root_cause(&error).to_string();
                invalid(format!("store: ca, cert, key and server_name cannot be used: {why}"))
                    .next_step("name files in the PEM format, and a host name")
            })?;
        }
        let (host, port) = (endpoint.host.clone(), endpoint.port);
        let connects = move |_| {
            let host = host.clone();
            async move {
                let stream = TcpStream::connect((&*host, port)).await?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(Cork::new(stream)))
            }
        };
        let channel = target
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_AFTER)
            .keep_alive_while_idle(true)
            .executor(OnIo(io.clone()))
            .connect_with_connector_lazy(service_fn(connects));
        let keep_alives = KeepAlives::start(&channel, &endpoint, &proof, io);
        let watches = Watches::start(&channel, &proof, io, (member, words, identity));
        Ok(Self {
            endpoint,
            member,
            identity: identity.clone(),
            channel,
            proof,
            keep_alives,
            watches,
            io: io.clone(),
            asking: AtomicUsize::new(0),
        })
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Asks for a token if there must be one and is none; one asks for all.
    pub(crate) async fn log_in(&self) -> Result<(), Failure> {
        match self.proof.turn().await {
            // It is large, and every request has room for it.
            Some(turn) => Box::pin(self.log_in_with(turn)).await,
            None => Ok(()),
        }
    }

    async fn log_in_with(&self, turn: Turn<'_>) -> Result<(), Failure> {
        let (name, password) = (turn.login.user.clone(), turn.login.password.clone());
        let request = Request::new(AuthenticateRequest { name, password });
        let mut client = AuthClient::new(self.channel.clone());
        let answer = self.answer(async move { client.authenticate(request).await }).await;
        let token = answer.map_err(Failure::of_a_read)?.token.parse().map_err(|_| Failure {
            error: BackendError::new(
                BackendErrorKind::Corrupt,
                Effect::NotApplied,
                format!("{} gave a token that cannot be sent", self.endpoint),
            ),
            reaction: Reaction::None,
        })?;
        turn.done(token);
        Ok(())
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let (mut client, request) = (self.kv(), self.proof.request(request));
        let answer = self.answer(async move { client.range(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    /// As [`Self::range`], with an answer that is not large.
    pub(crate) async fn page(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let mut client = self.kv().max_decoding_message_size(LARGEST_PAGE);
        let request = self.proof.request(request);
        let answer = self.answer(async move { client.range(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    /// As [`Self::txn`], with an answer that is not large.
    pub(crate) async fn page_of(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let mut client = self.kv().max_decoding_message_size(LARGEST_PAGE);
        let request = self.proof.request(request);
        self.answer(async move { client.txn(request).await }).await
    }

    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let (mut client, request) = (self.kv(), self.proof.request(request));
        self.answer(async move { client.txn(request).await }).await
    }

    /// A lease that nobody has heard of holds nothing, and ends by itself.
    pub(crate) async fn grant(&self, seconds: i64) -> Result<LeaseGrantResponse, Failure> {
        let request = self.proof.request(LeaseGrantRequest { ttl: seconds, id: 0 });
        let mut client = self.leases();
        let answer = self.answer(async move { client.lease_grant(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), Failure> {
        let request = self.proof.request(LeaseRevokeRequest { id: lease });
        let mut client = self.leases();
        self.answer(async move { client.lease_revoke(request).await }).await.map(drop)
    }

    pub(crate) async fn time_to_live(
        &self,
        lease: i64,
    ) -> Result<LeaseTimeToLiveResponse, Failure> {
        let request = self.proof.request(LeaseTimeToLiveRequest { id: lease });
        let mut client = self.leases();
        let answer = self.answer(async move { client.lease_time_to_live(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    pub(crate) async fn status(&self) -> Result<StatusResponse, Failure> {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let request = self.proof.request(StatusRequest {});
        let answer = self.answer(async move { client.status(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    /// Starts the ttl of a lease anew; its length, or `None` if there is no such lease.
    pub(crate) async fn keep_alive(
        &self,
        lane: Lane,
        lease: i64,
    ) -> Result<Option<Duration>, Failure> {
        let answer = self.keep_alives.ask(lane, lease, &self.endpoint).await;
        match answer {
            // The stream was opened with a token that has ended; the next one takes another.
            Err(failure) if failure.reaction == Reaction::LogIn && self.proof.can_log_in() => {
                self.log_in().await?;
                self.keep_alives.ask(lane, lease, &self.endpoint).await
            }
            answer => answer,
        }
    }

    fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(LONGEST_ANSWER)
    }

    pub(crate) fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// A request with what goes along with each.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        self.proof.request(message)
    }

    /// Whether an answer comes from the cluster that the first one came from.
    pub(crate) fn check(&self, header: Option<&ResponseHeader>) -> Result<(), Failure> {
        self.identity.check(self.member, header)
    }

    pub(crate) fn failure(&self, status: &Status) -> Failure {
        failure(status, &self.endpoint)
    }

    /// The answer to a request.
    ///
    /// One that is alone is made on Latchwork's own thread, where the connection is: each of the
    /// steps that the library takes for it would have to wake that thread, and then the caller's. Of
    /// many at a time each would be sent alone there, so these are made where they are asked for.
    /// A request whose asker has gone is cut off; it may have been sent.
    async fn answer<T: Headed + Send + 'static>(
        &self,
        request: impl Future<Output = Result<Response<T>, Status>> + Send + 'static,
    ) -> Result<T, Failure> {
        let asking = Asking::new(&self.asking);
        let answer = if asking.alone { self.there(request).await } else { request.await };
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        self.check(answer.header())?;
        Ok(answer)
    }

    async fn there<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let (mut reply, answer) = oneshot::channel();
        self.io.spawn(async move {
            let answer = tokio::select! {
                biased;
                answer = request => answer,
                () = reply.closed() => return,
            };
            let _ = reply.send(answer); // gone at this moment
        });
        answer.await.unwrap_or_else(|_| Err(Status::unavailable("the client ended")))
    }
}

/// A request under way, whatever becomes of it.
struct Asking<'a> {
    count: &'a AtomicUsize,
    /// When it began.
    alone: bool,
}

impl<'a> Asking<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        Self { count, alone: count.fetch_add(1, Ordering::Relaxed) == 0 }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

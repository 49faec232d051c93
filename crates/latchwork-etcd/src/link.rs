//! The way to one member: a connection that is made when it is first used, and its streams.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, ErrorKind, Io, Moment};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint as Target};
use tonic::{Request, Response, Status};
use tower::service_fn;

use crate::config::Endpoint;
use crate::cork::{Cork, Pulse};
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
use crate::requests;
use crate::watch::{Watches, Words};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// A connection on which something is asked or watched for, and that is silent for so long, is asked
/// whether it lives. A server ends it when that comes more often than every five seconds, unless it
/// was told otherwise, or while nothing is asked or watched for.
const PING_AFTER: Duration = Duration::from_secs(6);
/// How long the answer to that may take.
const PING_LIMIT: Duration = Duration::from_secs(2);
/// If a request is given up after that long, and nothing has come since it was sent, the connection is
/// asked for something that no member needs another one for.
const SILENCE: Duration = Duration::from_millis(300);
/// How long it may then stay silent.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
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
    pulse: Arc<Pulse>,
    /// How many requests are under way.
    asking: AtomicUsize,
    /// Whether the connection is being asked for a sign of life.
    looking: Arc<AtomicBool>,
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
        let pulse = Arc::<Pulse>::default();
        let of_connections = pulse.clone();
        let connects = move |_| {
            let (host, pulse) = (host.clone(), of_connections.clone());
            async move {
                let stream = TcpStream::connect((&*host, port)).await?;
                stream.set_nodelay(true)?;
                Ok::<_, std::io::Error>(TokioIo::new(Cork::new(stream, pulse)))
            }
        };
        let channel = target
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_LIMIT)
            .keep_alive_while_idle(false)
            .executor(OnIo(io.clone()))
            .connect_with_connector_lazy(service_fn(connects));
        let keep_alives = KeepAlives::new(&channel, &endpoint, &proof, io);
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
            pulse,
            asking: AtomicUsize::new(0),
            looking: Arc::default(),
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
        let hope = Hope::new(self);
        let answer = self.keep_alives.ask(lane, lease).await;
        hope.met();
        match answer {
            // The stream was opened with a token that has ended; the next one takes another.
            Err(failure) if failure.reaction == Reaction::LogIn && self.proof.can_log_in() => {
                self.log_in().await?;
                self.keep_alives.ask(lane, lease).await
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
        let (asking, hope) = (Asking::new(&self.asking), Hope::new(self));
        let answer = if asking.alone { self.there(request).await } else { request.await };
        hope.met();
        let answer = answer.map_err(|status| self.failure(&status))?.into_inner();
        self.check(answer.header())?;
        Ok(answer)
    }

    /// Ends the connection if nothing comes any more, whatever it is asked for: the way may have been
    /// closed in silence, and a ping comes late.
    fn look_for_life(&self) {
        if self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pulse, io, looking) = (self.pulse.clone(), self.io.clone(), self.looking.clone());
        let request = self.proof.request(requests::local(requests::one(b"latchwork")));
        let mut client = self.kv();
        let heard = pulse.heard();
        self.io.spawn(async move {
            // A refusal is a sign of life, too.
            let _ = io.within(LOOK_LIMIT, client.range(request)).await;
            if pulse.heard() == heard {
                pulse.end();
            }
            looking.store(false, Ordering::Relaxed);
        });
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

/// Notices that whoever asked has given up, and that nothing has come meanwhile.
struct Hope<'a> {
    link: &'a Link,
    since: Moment,
    heard: u64,
    is_met: bool,
}

impl<'a> Hope<'a> {
    fn new(link: &'a Link) -> Self {
        Self { link, since: link.io.now(), heard: link.pulse.heard(), is_met: false }
    }

    fn met(mut self) {
        self.is_met = true;
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        let link = self.link;
        let is_silent =
            || link.pulse.heard() == self.heard && link.io.now().since(self.since) >= SILENCE;
        if !self.is_met && is_silent() {
            link.look_for_life();
        }
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

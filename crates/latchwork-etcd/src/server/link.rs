//! The requests to one member, and its streams.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, Io, Moment};
use latchwork_wire::tls;
use tonic::{Request, Response, Status};

use crate::config::{Endpoint, Login, Tls};
use crate::proto::auth_client::AuthClient;
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::maintenance_client::MaintenanceClient;
use crate::proto::{
    AuthRoleGetRequest, AuthUserGetRequest, AuthenticateRequest, AuthenticateResponse,
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseTimeToLiveRequest,
    LeaseTimeToLiveResponse, Permission, RangeRequest, RangeResponse, ResponseHeader,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use crate::server::channel::{Channel, Connection};
use crate::server::errors::{Failure, LEAST_STREAMS, Reaction, WORDS, failure};
use crate::server::identity::{Headed, Identity};
use crate::server::keep_alive::{KeepAlives, Purpose};
use crate::server::login::{LoginAttempt, Proof};
use crate::server::watch::{WatchReports, Watches};

/// How many bytes one answer may have. If it has more, fewer keys are asked for.
const LARGEST_PAGE: usize = 16 << 20;
/// If a request is given up after that long, and nothing has come since it was sent, the connection is
/// asked for something that no member needs another one for.
const SILENCE: Duration = Duration::from_millis(300);
/// How long it may then stay silent.
const LOOK_LIMIT: Duration = Duration::from_secs(1);
/// Queues may be long, and names up to 64 KiB; the server limits what it sends.
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
    /// Whether the connection is being asked for a sign of life.
    looking: Arc<AtomicBool>,
}

impl Link {
    pub(crate) fn new(
        endpoint: Endpoint,
        tls: Option<&Tls>,
        proof: Arc<Proof>,
        io: &Io,
        (member, words, identity): (usize, &WatchReports, &Arc<Identity>),
    ) -> Result<Self, Error> {
        let channel = Channel::new(&endpoint, tls, io)?;
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
            looking: Arc::default(),
        })
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    /// Asks for a token if there must be one and is none; one asks for all. Servers that check nobody
    /// give none, and need none.
    pub(crate) async fn log_in(&self) -> Result<(), Failure> {
        match self.proof.login_attempt().await {
            // It is large, and every request has room for it.
            Some(attempt) => Box::pin(self.log_in_with(attempt)).await,
            None => Ok(()),
        }
    }

    async fn log_in_with(&self, mut attempt: LoginAttempt<'_>) -> Result<(), Failure> {
        let mut answer = self.authenticate(&attempt.login).await;
        if let Err(failure) = &mut answer
            && failure.error.kind == BackendErrorKind::Denied
            && failure.reaction == Reaction::None
        {
            match attempt.renew(&self.io).await {
                Ok(true) => answer = self.authenticate(&attempt.login).await,
                Ok(false) => {}
                Err(problem) => failure.error = failure.error.clone().unrenewed(&problem),
            }
        }
        let token = match answer {
            Ok(answer) => answer.token.parse(),
            Err(failure) if failure.reaction == Reaction::NoLogin => {
                attempt.not_needed();
                return Ok(());
            }
            Err(failure) => return Err(failure.of_a_read()),
        };
        let token = token.map_err(|_| Failure {
            error: BackendError::new(
                BackendErrorKind::Corrupt,
                Effect::NotApplied,
                format!("{} gave a token that cannot be sent", self.endpoint),
            ),
            reaction: Reaction::None,
        })?;
        attempt.done(token);
        Ok(())
    }

    async fn authenticate(&self, login: &Login) -> Result<AuthenticateResponse, Failure> {
        let (name, password) = (login.user.clone(), login.password.clone());
        let request = Request::new(AuthenticateRequest { name, password });
        let answer = self.answer(|connection| async move {
            let origin = connection.origin();
            AuthClient::with_origin(connection, origin).authenticate(request).await
        });
        answer.await
    }

    pub(crate) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let request = self.proof.request(request);
        let answer = self.answer(|it| async move { kv(it).range(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    /// As [`Self::range`], with an answer that is not large.
    pub(crate) async fn page(&self, request: RangeRequest) -> Result<RangeResponse, Failure> {
        let request = self.proof.request(request);
        let answer = self.answer(|it| async move {
            kv(it).max_decoding_message_size(LARGEST_PAGE).range(request).await
        });
        answer.await.map_err(Failure::of_a_read)
    }

    /// As [`Self::txn`], with an answer that is not large.
    pub(crate) async fn page_of(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let request = self.proof.request(request);
        let answer = self.answer(|it| async move {
            kv(it).max_decoding_message_size(LARGEST_PAGE).txn(request).await
        });
        answer.await
    }

    pub(crate) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Failure> {
        let request = self.proof.request(request);
        self.answer(|it| async move { kv(it).txn(request).await }).await
    }

    /// A lease that nobody has heard of holds nothing, and ends by itself.
    pub(crate) async fn grant(&self, seconds: i64) -> Result<LeaseGrantResponse, Failure> {
        let request = self.proof.request(LeaseGrantRequest { ttl: seconds, id: 0 });
        let answer = self.answer(|it| async move { leases(it).lease_grant(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), Failure> {
        let request = self.proof.request(LeaseRevokeRequest { id: lease });
        let answer = self.answer(|it| async move { leases(it).lease_revoke(request).await }).await;
        answer.map(drop)
    }

    pub(crate) async fn time_to_live(
        &self,
        lease: i64,
    ) -> Result<LeaseTimeToLiveResponse, Failure> {
        let request = self.proof.request(LeaseTimeToLiveRequest { id: lease });
        let answer =
            self.answer(|it| async move { leases(it).lease_time_to_live(request).await }).await;
        answer.map_err(Failure::of_a_read)
    }

    /// The roles of a user, which may ask for its own.
    pub(crate) async fn roles(&self, name: String) -> Result<Vec<String>, Failure> {
        let request = self.proof.request(AuthUserGetRequest { name });
        let answer = self.answer(|connection| async move {
            let origin = connection.origin();
            AuthClient::with_origin(connection, origin).user_get(request).await
        });
        Ok(answer.await.map_err(Failure::of_a_read)?.roles)
    }

    /// What a role of the user allows.
    pub(crate) async fn permissions(&self, role: String) -> Result<Vec<Permission>, Failure> {
        let request = self.proof.request(AuthRoleGetRequest { role });
        let answer = self.answer(|connection| async move {
            let origin = connection.origin();
            AuthClient::with_origin(connection, origin).role_get(request).await
        });
        Ok(answer.await.map_err(Failure::of_a_read)?.perm)
    }

    pub(crate) async fn status(&self) -> Result<StatusResponse, Failure> {
        let mut request = self.proof.request(StatusRequest {});
        // A member without a leader answers, and says that it has none.
        request.metadata_mut().remove("hasleader");
        let answer = self.answer(|connection| async move {
            let origin = connection.origin();
            MaintenanceClient::with_origin(connection, origin).status(request).await
        });
        answer.await.map_err(Failure::of_a_read)
    }

    /// Whether there is a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.present().is_some()
    }

    /// Makes sure that there is a connection.
    pub(crate) async fn connect(&self) -> Result<(), Status> {
        self.channel.connection().await.map(drop)
    }

    /// Waits for news of this member near the caller.
    pub(crate) async fn listen<F: Future>(&self, waiting: F) -> F::Output {
        match self.channel.present() {
            Some(connection) => connection.drive().clone().listen(waiting).await,
            None => waiting.await,
        }
    }

    /// Restarts the ttl of a lease; returns its length, or `None` if there is no such lease.
    pub(crate) async fn keep_alive(
        &self,
        purpose: Purpose,
        lease: i64,
    ) -> Result<Option<Duration>, Failure> {
        let hope = Hope::new(self, self.channel.present());
        let token = self.proof.token();
        let answer = self.keep_alives.ask(purpose, lease).await;
        hope.met();
        match answer {
            // The stream was opened with a token that has ended; the next one takes another. Boxed: an acquire that is
            // under way would be larger by it.
            Err(failure)
                if Box::pin(self.proof.mends(&failure, token.as_ref(), &self.io)).await =>
            {
                self.log_in().await?;
                self.keep_alives.ask(purpose, lease).await
            }
            answer => answer,
        }
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

    /// The answer to a request. A request whose asker has gone is cut off; it may have been sent.
    async fn answer<T: Headed, F>(
        &self,
        request: impl FnOnce(Connection) -> F,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let failure = |status: Status| self.failure(&status);
        let connection = self.channel.connection().await.map_err(failure)?;
        let hope = Hope::new(self, Some(connection.clone()));
        let answer = ask(connection.clone(), request).await;
        hope.met();
        let answer = match answer {
            Ok(answer) => answer.into_inner(),
            // Boxed: an acquire that is under way would be larger by it.
            Err(status) => return Err(Box::pin(self.explained(&status, &connection)).await),
        };
        self.check(answer.header())?;
        match connection.streams() {
            streams if streams < LEAST_STREAMS => {
                Err(Failure::few_streams(&self.endpoint, streams))
            }
            _ => Ok(answer),
        }
    }

    /// The failure of a request: TLS may have refused it, or the member may speak TLS and this client does not.
    async fn explained(&self, status: &Status, connection: &Connection) -> Failure {
        let mut failure = self.failure(status);
        if failure.reaction != Reaction::Elsewhere {
            return failure;
        }
        let pulse = connection.pulse();
        // A member that has said anything may have carried out the request.
        let refusal = match pulse.refusal() {
            Some(refusal) => (pulse.heard() == 0).then(|| refusal.clone()),
            // Nothing, or an alert of TLS.
            None if pulse.heard() > 1 || !self.channel.is_plain() => None,
            None => tls::is_tls(&self.endpoint, &self.io).await.then(|| tls::speaks_tls(&WORDS)),
        };
        if let Some(refusal) = refusal {
            let message = format!("cannot connect to {}: {refusal}", self.endpoint);
            let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
            failure.error = BackendError::new(kind, effect, message).with_next_step(refusal.step);
        }
        failure
    }

    /// Makes a request on the connection and returns its result.
    pub(crate) async fn on<T, F>(&self, request: impl FnOnce(Connection) -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>>,
    {
        ask(self.channel.connection().await?, request).await
    }

    /// Ends a connection if nothing comes any more, whatever it is asked for: the way may have been
    /// closed in silence, and a ping comes late.
    fn look_for_life(&self, connection: Connection) {
        if self.looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (io, looking) = (self.io.clone(), self.looking.clone());
        // Read at this member alone: it needs no majority to be alive.
        let read = RangeRequest {
            key: b"latchwork".to_vec(),
            serializable: true,
            ..RangeRequest::default()
        };
        let request = self.proof.request(read);
        self.io.spawn(async move {
            let heard = connection.pulse().heard();
            // A refusal is a sign of life, too.
            let asked = async { kv(connection.clone()).range(request).await };
            let _ = io.within(LOOK_LIMIT, connection.drive().send(asked)).await;
            if connection.pulse().heard() == heard {
                connection.end();
            }
            looking.store(false, Ordering::Relaxed);
        });
    }
}

/// Gives a connection a request, and moves it for the answer.
async fn ask<T, F>(
    connection: Connection,
    request: impl FnOnce(Connection) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let drive = connection.drive().clone();
    let ended = || Err(Status::unavailable("the connection has ended"));
    drive.send(request(connection)).await.unwrap_or_else(ended)
}

fn kv(connection: Connection) -> KvClient<Connection> {
    let origin = connection.origin();
    KvClient::with_origin(connection, origin).max_decoding_message_size(LONGEST_ANSWER)
}

pub(crate) fn leases(connection: Connection) -> LeaseClient<Connection> {
    let origin = connection.origin();
    LeaseClient::with_origin(connection, origin)
}

/// Notices that the caller has given up and that nothing has arrived since it asked.
struct Hope<'a> {
    link: &'a Link,
    since: Moment,
    /// How often something had come, on the connection that there was.
    heard: Option<(Connection, u64)>,
}

impl<'a> Hope<'a> {
    fn new(link: &'a Link, connection: Option<Connection>) -> Self {
        let heard = connection.map(|connection| {
            let heard = connection.pulse().heard();
            (connection, heard)
        });
        Self { link, since: link.io.now(), heard }
    }

    fn met(mut self) {
        self.heard = None;
    }
}

impl Drop for Hope<'_> {
    fn drop(&mut self) {
        if let Some((connection, heard)) = self.heard.take()
            && connection.pulse().heard() == heard
            && self.link.io.now().since(self.since) >= SILENCE
        {
            self.link.look_for_life(connection);
        }
    }
}

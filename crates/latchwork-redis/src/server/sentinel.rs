//! Finds the master through the Sentinels.
//!
//! All Sentinels are asked at once, and the newest answer of a majority counts: a Sentinel that was cut
//! off may name a replaced master. The named server must report itself that it is a master. Between the
//! questions the client subscribes to `+switch-master`, so that it follows a failover at once and not at
//! the next error.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{BackendError, BackendErrorKind, Backoff, Effect, Io};
use redis::{PushInfo, PushKind, Value, cmd};
use tokio::sync::mpsc;

use crate::config::Endpoint;
use crate::server::access::Access;
use crate::server::hosts::Host;
use crate::server::link::Link;
use crate::server::reply::{pairs, text};
use crate::server::responses::Responses;

/// While a master is replaced.
const FAILOVER_STEP: &str = "wait until the failover has ended";

/// How long to wait for the Sentinels.
const LIMIT: Duration = Duration::from_secs(1);

/// Takes the address of the new master.
type MovedTo<'a> = dyn Fn(&Endpoint) + Send + Sync + 'a;

/// The Sentinels of one master.
#[derive(Debug)]
pub(crate) struct Sentinels {
    endpoints: Vec<Endpoint>,
    service: String,
    access: Arc<Access>,
    io: Io,
}

/// The master as one Sentinel sees it.
struct View {
    epoch: u64,
    master: Endpoint,
}

impl Sentinels {
    pub(crate) fn new(
        endpoints: Vec<Endpoint>,
        service: String,
        access: Arc<Access>,
        io: Io,
    ) -> Arc<Self> {
        Arc::new(Self { endpoints, service, access, io })
    }

    /// Where the master is.
    pub(crate) async fn master(self: &Arc<Self>) -> Result<Endpoint, BackendError> {
        let mut views =
            Responses::new(&self.endpoints, LIMIT, &self.access, &self.io, |endpoint| {
                let (this, endpoint) = (self.clone(), endpoint.clone());
                async move { this.ask(&endpoint).await }
            });
        let majority = self.endpoints.len() / 2 + 1;
        let (mut best, mut answers, mut problems) = (None::<View>, 0, Vec::new());
        while let Some(view) = views.next(best.is_some()).await {
            match view {
                Ok(view) => {
                    answers += 1;
                    if best.as_ref().is_none_or(|best| best.epoch < view.epoch) {
                        best = Some(view);
                    }
                    if answers >= majority {
                        break;
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        best.map(|view| view.master).ok_or_else(|| {
            let denied = |problem: &BackendError| problem.kind == BackendErrorKind::Denied;
            let is_no_sentinel =
                |problem: &BackendError| problem.kind == BackendErrorKind::Unsupported;
            let (kind, step) = match problems.iter().any(denied) {
                true => (
                    BackendErrorKind::Denied,
                    "check sentinel_user and sentinel_password in the address",
                ),
                false if problems.iter().any(is_no_sentinel) => (
                    BackendErrorKind::Unsupported,
                    "name the Sentinels and not the servers that they monitor, or use redis:// or \
                     valkey://",
                ),
                false => (
                    BackendErrorKind::Unreachable,
                    "check that the Sentinels are running and monitor a master of this name",
                ),
            };
            let said: Vec<_> = problems.iter().map(BackendError::to_string).collect();
            let message =
                format!("no Sentinel names the master {:?}: {}", self.service, said.join("; "));
            BackendError::new(kind, Effect::NotApplied, message).with_next_step(step)
        })
    }

    async fn ask(&self, endpoint: &Endpoint) -> Result<View, BackendError> {
        let ignore = Arc::new(|_: PushInfo| {});
        let link =
            Link::open(endpoint.clone(), &self.access, self.io.clone(), ignore, None).await?;
        self.ask_on(&link).await
    }

    async fn ask_on(&self, link: &Link) -> Result<View, BackendError> {
        let mut epoch = cmd("SENTINEL");
        epoch.arg("MASTER").arg(&self.service);
        // Towards the end of a failover, the Sentinel that leads it has the new epoch and still the old
        // address there.
        let mut address = cmd("SENTINEL");
        address.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let (epoch, address) = tokio::join!(link.send(&epoch), link.send(&address));
        let epoch = epoch.map_err(|failure| failure.error)?;
        let address = address.map_err(|failure| failure.error)?;
        let view = || {
            let is_epoch = |name| text(name).as_deref() == Some("config-epoch");
            let (_, epoch) = pairs(&epoch)?.into_iter().find(|(name, _)| is_epoch(name))?;
            let Value::Array(parts) = &address else { return None };
            let [host, port] = &parts[..] else { return None };
            let host = Host::read(text(host).as_deref()).name()?;
            Some(View {
                epoch: text(epoch)?.parse().ok()?,
                master: Endpoint { host, port: text(port)?.parse().ok()? },
            })
        };
        view().ok_or_else(|| {
            let message =
                format!("{} does not know the master {:?}", link.endpoint(), self.service);
            BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        })
    }

    /// Refuses a server that is not the master itself.
    pub(crate) fn check(&self, link: &Link) -> Result<(), BackendError> {
        if link.facts.role.is_empty() || link.facts.role == "master" {
            return Ok(());
        }
        Err(BackendError::new(
            BackendErrorKind::Unreachable,
            Effect::NotApplied,
            format!(
                "the Sentinels name {} as the master {:?}, but it reports that it is a {}",
                link.endpoint(),
                self.service,
                link.facts.role
            ),
        )
        .with_next_step(FAILOVER_STEP))
    }

    /// Another master was named while a connection to this one was made.
    pub(crate) fn overtaken(&self, old: &Endpoint, new: &Endpoint) -> BackendError {
        BackendError::new(
            BackendErrorKind::Unreachable,
            Effect::NotApplied,
            format!("the master {:?} has moved from {old} to {new}", self.service),
        )
        .with_next_step(FAILOVER_STEP)
    }

    /// Reports each failover until `life` ends. It listens at every Sentinel, because one that is stopped
    /// or cut off reports nothing.
    pub(crate) fn follow(
        self: &Arc<Self>,
        life: impl Future<Output = ()> + Send + 'static,
        moved_to: impl Fn(&Endpoint) + Send + Sync + 'static,
    ) {
        let this = self.clone();
        self.io.spawn(async move {
            let listening = this.endpoints.iter().map(|at| Box::pin(this.listen(at, &moved_to)));
            tokio::select! {
                () = life => {}
                _ = join_all(listening) => {}
            }
        });
    }

    async fn listen(self: &Arc<Self>, endpoint: &Endpoint, moved_to: &MovedTo<'_>) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let mut has_listened = false;
        loop {
            let (sender, mut pushes) = mpsc::unbounded_channel();
            let on_push = Arc::new(move |push: PushInfo| drop(sender.send(push)));
            let open = Link::open(endpoint.clone(), &self.access, self.io.clone(), on_push, None);
            if let Ok(link) = open.await {
                if !link.facts.pushes {
                    self.poll(&link, moved_to).await;
                } else if link.subscribe("+switch-master", false).await.is_ok() {
                    backoff.reset();
                    // A failover may have happened while the connection was down: ask all Sentinels.
                    if std::mem::replace(&mut has_listened, true)
                        && let Ok(master) = self.master().await
                    {
                        moved_to(&master);
                    }
                    while let Some(push) = pushes.recv().await {
                        if push.kind == PushKind::Disconnection {
                            break;
                        }
                        if let Some(master) = self.switched_to(&push) {
                            moved_to(&master);
                        }
                    }
                }
            }
            self.io.sleep(backoff.pause()).await;
        }
    }

    /// Polls a Sentinel that speaks only RESP2, where a subscribed connection can do nothing else.
    async fn poll(&self, link: &Link, moved_to: &MovedTo<'_>) {
        let mut known = None;
        while let Ok(view) = self.ask_on(link).await {
            if known.as_ref().is_some_and(|known| *known != view.master) {
                moved_to(&view.master);
            }
            known = Some(view.master);
            self.io.sleep(LIMIT).await;
        }
    }

    /// The new master in `<name> <old ip> <old port> <new ip> <new port>`.
    fn switched_to(&self, push: &PushInfo) -> Option<Endpoint> {
        let Some(Value::BulkString(text)) = push.data.last() else { return None };
        let text = std::str::from_utf8(text).ok()?;
        let told = text.strip_prefix(&self.service)?.strip_prefix(' ')?;
        let words: Vec<&str> = told.split(' ').collect();
        let [_, _, host, port] = words[..] else { return None };
        let host = Host::read(Some(host)).name()?;
        let master = Endpoint { host, port: port.parse().ok()? };
        (push.kind == PushKind::Message).then_some(master)
    }
}

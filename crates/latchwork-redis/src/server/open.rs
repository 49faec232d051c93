//! Opens a connection, and asks the server for the facts that matter later.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io};
use redis::{PushInfo, PushKind, Value, cmd};

use crate::config::Endpoint;
use crate::server::access::{Access, Probe};
use crate::server::connect::{
    CONNECT_LIMIT, NotConnected, Protocol, connect, explained, refuses_hello, unreachable,
};
use crate::server::connection::{OnPush, command};
use crate::server::errors::Reaction;
use crate::server::facts::{Facts, ScriptSupport};
use crate::server::link::{Link, Predecessor};
use crate::server::probe::probe;
use crate::server::reply::text;

impl Link {
    /// Makes a connection. Must run inside the runtime of the `Io`.
    pub(crate) async fn open(
        endpoint: Endpoint,
        access: &Arc<Access>,
        io: Io,
        on_push: OnPush,
        replaces: Option<&Predecessor>,
    ) -> Result<Self, BackendError> {
        // A server that is stopped takes connections and says nothing.
        let limit = 2 * CONNECT_LIMIT;
        if let Some(seat) = &access.seat {
            seat.check(io.now())?;
        }
        access.resolve(&endpoint, &io).await?;
        let opened = Self::open_slowly(endpoint.clone(), access, io.clone(), on_push, replaces);
        io.within(limit, opened).await.unwrap_or_else(|| {
            let message = format!("cannot connect to {endpoint}: no answer within {limit:?}");
            Err(BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
                .with_next_step("check that the server is running and not stopped"))
        })
    }

    async fn open_slowly(
        endpoint: Endpoint,
        access: &Arc<Access>,
        io: Io,
        on_push: OnPush,
        replaces: Option<&Predecessor>,
    ) -> Result<Self, BackendError> {
        let mut last = None;
        for protocol in [Protocol::Resp3, Protocol::Resp2] {
            let broken = Arc::new(AtomicBool::new(false));
            let noted = {
                let (on_push, broken) = (on_push.clone(), broken.clone());
                Arc::new(move |push: PushInfo| {
                    let given_up = broken.load(Ordering::SeqCst);
                    if push.kind == PushKind::Disconnection {
                        broken.store(true, Ordering::SeqCst);
                    } else if given_up {
                        // It may be a grant by a master that was replaced.
                        return;
                    }
                    on_push(push);
                })
            };
            match connect(&endpoint, access, protocol, noted, &io).await {
                Ok((conn, drive, login)) => {
                    let mut link = Self::new(conn, drive, endpoint, access, broken, io);
                    link.login = login;
                    link.facts.pushes = protocol == Protocol::Resp3;
                    link.introduce(replaces, access).await?;
                    return Ok(link);
                }
                // A server or proxy that does not know HELLO gets the commands of the older protocol.
                Err(NotConnected::By(error))
                    if protocol == Protocol::Resp3 && refuses_hello(&error) =>
                {
                    last = Some(error);
                }
                Err(NotConnected::By(error)) => {
                    return Err(explained(&endpoint, access, &error, &io).await);
                }
                Err(NotConnected::Stale(error, problem)) => {
                    return Err(unreachable(&endpoint, access, &error).unrenewed(&problem));
                }
                Err(NotConnected::Refused(error)) => return Err(error),
            }
        }
        let error = last.expect("the loop ends with an error or a connection");
        Err(unreachable(&endpoint, access, &error))
    }

    /// Asks the server for the facts that matter later, all at once.
    async fn introduce(
        &mut self,
        replaces: Option<&Predecessor>,
        access: &Access,
    ) -> Result<(), BackendError> {
        let ask = access.probe.as_ref();
        let mut id = cmd("CLIENT");
        id.arg("ID");
        let info = cmd("INFO");
        let probe = async {
            match ask {
                Some(ask) => probe(self, ask).await.map(Some),
                None => Ok(None),
            }
        };
        let listeners = async {
            let count = match ask {
                None => return false,
                Some(Probe { sharded: false, .. }) => "NUMSUB",
                Some(Probe { sharded: true, .. }) => "SHARDNUMSUB",
            };
            self.send(&command(&["PUBSUB", count])).await.is_ok()
        };
        let (id, info, probed, counts_listeners) =
            tokio::join!(self.send(&id), self.send(&info), probe, listeners);
        let probed = probed?;
        let facts = match info {
            Ok(info) => Facts::read(&text(&info).unwrap_or_default()),
            Err(failure) if failure.reaction == Reaction::Reconnect => return Err(failure.error),
            Err(_) => Facts::default(),
        };
        if let Some(seat) = &access.seat {
            seat.take(&facts.run_id, self.io().now())?;
        }
        let pushes = self.facts.pushes && probed.as_ref().is_none_or(|probed| probed.channels);
        let scripts = probed.as_ref().map_or(ScriptSupport::Whole, |probed| probed.scripts);
        let refused = probed.and_then(|probed| probed.refused);
        self.facts = Facts { pushes, scripts, refused, counts_listeners, ..facts };
        self.client_id = match id {
            // A proxy shares its connections among clients, so this client must not end one.
            Ok(Value::Int(id)) if scripts == ScriptSupport::Whole => Some(id),
            _ => None,
        };
        // A request that the old connection has sent and the server has not read yet must not run after
        // the requests of this one. Without the right to end it, the ttl bounds the effect. In another
        // process of the server, or at another server, the number would be that of another client.
        if let Some(old) = replaces.filter(|old| old.run_id == self.facts.run_id) {
            let mut kill = cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(old.client_id);
            let _ = self.send(&kill).await;
        }
        Ok(())
    }
}

//! The release: of the known node, or of all nodes that have the claim's id.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::lineup::Admission;
use latchwork_store::{BackendError, Claim, Key, Released};

use crate::protocol::answers::{ANY, pulse_in, queue_of, reads};
use crate::protocol::claims::OwnClaim;
use crate::protocol::lingers::Linger;
use crate::protocol::queue::{Queue, closed_name};
use crate::protocol::shared::Shared;
use crate::server::errors::{refused, strange};
use crate::server::session::messages::{self, Kind, Refusal, Request};
use crate::server::session::{Session, Up};

impl Shared {
    pub(crate) async fn release_claim(&self, claim: &Claim) -> Result<Released, BackendError> {
        let lock = self.names.lock(&claim.key);
        match self.claims.get(claim.id) {
            Some(OwnClaim { node: Some(node), session, .. }) => {
                // The name is of no other node, ever: it may be sent again.
                let released = delete(&session, vec![format!("{lock}/{}", node.name)]).await?;
                self.claims.forget(claim.id);
                Ok(released)
            }
            // It was made before what is asked now, or never will be.
            Some(own) => self.release_by_id(claim, &own.session).await,
            None => self.release_by_id(claim, &self.sessions.any()).await,
        }
    }

    /// Forgets a claim whose node the session's server does not have, and has the node deleted all the same.
    ///
    /// Servers have been seen to disagree after their leader had died (ZOOKEEPER-4785). A node that the leader still has
    /// would block the key for as long as the session lives.
    pub(crate) fn forget_missing(&self, claim: &Claim, session: &Session, path: &str) {
        self.claims.forget(claim.id);
        session.send(vec![Request::delete(path)]);
    }

    /// Ends a claim by its id, as any client that knows it may.
    async fn release_by_id(
        &self,
        claim: &Claim,
        session: &Arc<Session>,
    ) -> Result<Released, BackendError> {
        let lock = self.names.lock(&claim.key);
        let up = session.up().await?;
        let (queue, _) = read(session, &up, &lock).await?;
        let named = queue.places.iter().filter(|place| place.id() == Some(claim.id));
        let paths: Vec<_> = named.map(|place| format!("{lock}/{}", place.name)).collect();
        let released = match paths.is_empty() {
            true => Released::NotHeld,
            false => delete(session, paths).await?,
        };
        self.claims.forget(claim.id);
        Ok(released)
    }

    /// Ends a claim and keeps the key closed, if the claim held it: by a node that outlives every
    /// session, made in the same transaction.
    pub(crate) async fn close(
        &self,
        claim: &Claim,
        length: Duration,
    ) -> Result<Released, BackendError> {
        let lock = self.names.lock(&claim.key);
        let known = self.claims.get(claim.id);
        let session = match &known {
            Some(own) => own.session.clone(),
            None => self.sessions.any(),
        };
        let up = session.up().await?;
        let (queue, now_ms) = read(&session, &up, &lock).await?;
        if queue.closed.iter().any(|closed| closed.name.ends_with(&closed_name(0, claim.id)[8..])) {
            // It was done, and the answer was lost.
            self.claims.forget(claim.id);
            return Ok(Released::Yes);
        }
        let me = match known.as_ref().and_then(|own| own.node.as_ref()) {
            Some(node) => queue.find(&node.name),
            None => queue.places.iter().position(|place| place.id() == Some(claim.id)),
        };
        let Some(me) = me else {
            self.claims.forget(claim.id);
            return Ok(Released::NotHeld);
        };
        let holds = match &known {
            Some(own) => own.granted,
            None => queue.admission(me) == Admission::Granted,
        };
        if !holds {
            return self.release_claim(claim).await;
        }
        // The clock counts whole milliseconds.
        let until_ms = now_ms.saturating_add(length.as_millis().min(1 << 50) as i64 + 1);
        let closed = format!("{lock}/{}", closed_name(until_ms, claim.id));
        let access = self.access();
        let requests = [
            Request::delete(&format!("{lock}/{}", queue.places[me].name)),
            Request::create(Kind::Persistent, &closed, claim.holder.stored().as_bytes(), access),
        ];
        let body = match session.fly(vec![Request::together(&requests)]).await.next()? {
            Ok(body) => body,
            Err(refusal) => return Err(refused(refusal, &closed)),
        };
        match messages::together(&body).ok_or_else(|| strange("a transaction"))? {
            Ok(()) => {
                self.claims.forget(claim.id);
                let due = self.io.now().plus(length);
                self.lingers.add(Linger { path: closed, until_ms, due });
                self.sooner.notify_one();
                Ok(Released::Yes)
            }
            Err(Refusal::NO_NODE) => {
                self.claims.forget(claim.id);
                Ok(Released::NotHeld)
            }
            Err(refusal) => Err(refused(refusal, &closed)),
        }
    }

    /// Opens a key that nobody holds: deletes the nodes that keep it closed. Their names are of no
    /// other closing, ever, so a late request opens nothing that was closed after it.
    pub(crate) async fn open(&self, key: &Key) -> Result<Released, BackendError> {
        let lock = self.names.lock(key);
        let session = self.sessions.any();
        let up = session.up().await?;
        let (queue, now_ms) = read(&session, &up, &lock).await?;
        let closed = queue.closed.iter().filter(|closed| closed.until_ms > now_ms);
        let paths: Vec<_> = closed.map(|closed| format!("{lock}/{}", closed.name)).collect();
        if paths.is_empty() || queue.holding_at(now_ms).contains(&true) {
            return Ok(Released::NotHeld);
        }
        delete(&session, paths).await
    }
}

/// The queue as a majority has it, with the limit, and when that was, by the leader's clock, in ms.
pub(crate) async fn read(
    session: &Arc<Session>,
    up: &Up,
    lock: &str,
) -> Result<(Queue, i64), BackendError> {
    let requests = [Request::set(&up.pulse)].into_iter().chain(reads(lock, ANY));
    let mut landed = session.fly(requests.collect()).await;
    let now_ms = pulse_in(&mut landed, &up.pulse)?;
    Ok((queue_of(&mut landed, lock, ANY, None)?, now_ms))
}

async fn delete(session: &Arc<Session>, paths: Vec<String>) -> Result<Released, BackendError> {
    let mut landed = session.fly(paths.iter().map(|path| Request::delete(path)).collect()).await;
    let mut released = Released::NotHeld;
    for path in &paths {
        match landed.next()? {
            Ok(_) => released = Released::Yes,
            Err(Refusal::NO_NODE) => {}
            Err(refusal) => return Err(refused(refusal, path)),
        }
    }
    Ok(released)
}

//! A stand-in for the stores that keep a line of nodes: ZooKeeper and etcd.
//!
//! Use it to test what is above a backend against that family without a server, and to see how
//! [`kit::lineup`](latchwork_store::kit::lineup) becomes a [`Backend`]. It is a model in this
//! process and no store for work: every request is a function call, but it travels, so that a
//! dropped future leaves a request without answer.
//!
//! What a claim becomes: one node with a lease of its own, whose place in line is the store's
//! revision when it was made. The nodes at the front hold the key; the revision is the token. A
//! blocked claim watches the nodes that [`admission`] names. Who takes no place in line (barging,
//! or not waiting) deletes its node again before it answers.

mod server;

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchwork_store::kit::lineup::{Admission, Node, admission};
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Capabilities, Cause, Claim, ClaimId,
    Effect, Grant, Io, Key, Linger, Order, Party, Query, Released, Renewal, Resize, Snapshot, Verb,
    Wake,
};
use tokio::sync::Notify;

use self::server::{Server, StoredNode};
use crate::harness::Fault;

/// One client of a line store.
pub struct LineBackend {
    server: Arc<Server>,
    io: Io,
    fault: AtomicU8,
    capabilities: OnceLock<Capabilities>,
}

impl LineBackend {
    /// Makes an empty store and a client of it.
    pub fn new(io: Io) -> Arc<Self> {
        Self::open(Server::new(io.clone()), io)
    }

    /// One more client of the same store, as another process would open it.
    pub fn beside(&self, io: Io) -> Arc<Self> {
        Self::open(self.server.clone(), io)
    }

    fn open(server: Arc<Server>, io: Io) -> Arc<Self> {
        Arc::new(Self { server, io, fault: AtomicU8::new(0), capabilities: OnceLock::new() })
    }

    /// Disturbs the way between this client and its store.
    pub fn set_fault(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
    }

    /// Sends one request: it travels, is served, and its answer travels.
    async fn ask<T>(&self, serve: impl FnOnce(&Server) -> T) -> Result<T, BackendError> {
        let fails_with = |fault: Fault| self.fault.load(Ordering::SeqCst) == fault as u8;
        tokio::task::yield_now().await;
        if fails_with(Fault::LoseRequests) {
            return Err(no_answer());
        }
        let answer = serve(&self.server);
        tokio::task::yield_now().await;
        if fails_with(Fault::LoseAnswers) {
            return Err(no_answer());
        }
        Ok(answer)
    }

    async fn try_claim(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if claim.floor > 0 {
            return Err(unsupported("the store cannot lift its revision to a floor"));
        }
        if claim.beside.is_some() {
            return Err(unsupported("the store cannot replace a hold"));
        }
        let Claim { key, id, holder, ttl, .. } = claim;
        let used = self.ask(|server| server.list(key)).await?;
        let place = used.iter().find(|node| node.id == *id).map(|node| node.mode);
        let followed = claim.following(used.first().map(|node| node.mode.shape()));
        let claim = if claim.resize == Resize::Follow { &followed } else { claim };
        self.ask(|server| server.create(key, *id, claim.mode, holder, *ttl)).await?;
        let nodes = self.ask(|server| server.list(key)).await?;
        let Some(me) = nodes.iter().position(|node| node.id == *id) else {
            return Err(no_answer().with_next_step("the lease ended on the way: use a longer ttl"));
        };
        let first = nodes[0].mode.shape();
        if let Err(mismatch) = claim.judged_mode(Some(first).filter(|_| me > 0), place) {
            self.ask(|server| server.delete(key, *id)).await?;
            return Err(mismatch);
        }
        let line = line(&nodes);
        let watch = match admission(&line, me) {
            Admission::Granted => {
                let token = nodes[me].revision;
                return Ok(Attempt::Granted(Grant::new(token, *ttl)));
            }
            Admission::Behind(place) => vec![nodes[place].revision],
            Admission::BehindAny(places) => places.iter().map(|p| nodes[*p].revision).collect(),
        };
        if !claim.waits || claim.order == Order::Barging {
            self.ask(|server| server.delete(key, *id)).await?;
        }
        let waiters = (0..me).filter(|place| admission(&line, *place) != Admission::Granted);
        Ok(Attempt::Blocked(Blocked::by(Cause::Held).with(|it| {
            it.ahead = Some(waiters.count() as u32);
            it.holder = Some(nodes[0].holder.clone());
            it.resume = Some(to_text(&watch));
        })))
    }

    async fn watch(&self, claim: &Claim, blocked: &Blocked) -> Result<Wake, BackendError> {
        let revisions = blocked.resume.as_deref().map(to_revisions).unwrap_or_default();
        if revisions.is_empty() {
            return std::future::pending().await;
        }
        let watch = Watch { server: &self.server, bell: Arc::default() };
        // Subscribe first, then look: a node that goes in between rings the bell.
        self.ask(|server| server.subscribe(&revisions, &watch.bell)).await?;
        while let Some(end) = self.ask(|server| server.first_end(&claim.key, &revisions)).await? {
            // The model has no task of its own that ends leases, so the watcher minds the time.
            let expiry = self.io.clock().sleep_until(end);
            tokio::select! {
                () = watch.bell.notified() => break,
                () = expiry => {}
            }
        }
        Ok(Wake::Look)
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        let nodes = self.ask(|server| server.list(&claim.key)).await?;
        let Some(me) = nodes.iter().position(|node| node.id == claim.id) else {
            return Ok(Renewal::Lost);
        };
        if admission(&line(&nodes), me) != Admission::Granted {
            return Ok(Renewal::Lost);
        }
        let token = nodes[me].revision;
        if claim.floor > token {
            return Err(unsupported("the store cannot lift its revision to a floor"));
        }
        let kept = self.ask(|server| server.keep_alive(&claim.key, claim.id, claim.ttl)).await?;
        let held = Renewal::held(claim.ttl, token, None);
        Ok(if kept { held } else { Renewal::Lost })
    }

    fn snapshot(&self, key: Key, nodes: &[StoredNode]) -> Snapshot {
        let line = line(nodes);
        let mut snapshot = Snapshot::free(key);
        snapshot.shape = nodes.first().map(|node| node.mode.shape());
        for (place, node) in nodes.iter().enumerate() {
            let holds = admission(&line, place) == Admission::Granted;
            let party = Party::new(node.mode, node.holder.clone()).with(|it| {
                it.id = Some(node.id);
                it.token = holds.then_some(node.revision);
                it.remaining = Some(node.ends.since(self.io.now()));
            });
            if holds {
                snapshot.token = node.revision;
                snapshot.holders.push(party);
            } else {
                snapshot.waiters.push(party);
            }
        }
        snapshot
    }
}

impl Backend for LineBackend {
    fn capabilities(&self) -> Capabilities {
        let made = || {
            let ttl = Duration::from_millis(1)..=Duration::from_secs(24 * 60 * 60);
            let mut can = Capabilities::full("line:").with_ttl(ttl, Duration::from_secs(30));
            can.mixed_limits = true;
            (can.linger, can.upgrade) = (false, false);
            can
        };
        self.capabilities.get_or_init(made).clone()
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.try_claim(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.watch(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(claims.len());
            for claim in claims {
                answers.push(self.renew(claim).await);
            }
            answers
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            if linger != Linger::None {
                return Err(unsupported("the store cannot keep a key closed"));
            }
            let gone = self.ask(|server| server.delete(&claim.key, claim.id)).await?;
            Ok(if gone { Released::Yes } else { Released::NotHeld })
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(async move {
            let lines = match query {
                Query::Key(key) => {
                    vec![(key.clone(), self.ask(|server| server.list(key)).await?)]
                }
                Query::Prefix(prefix) => self.ask(|server| server.list_all(prefix)).await?,
            };
            Ok(lines.into_iter().map(|(key, nodes)| self.snapshot(key, &nodes)).collect())
        })
    }
}

impl fmt::Debug for LineBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineBackend").finish_non_exhaustive()
    }
}

/// A watch that is taken back when nobody waits any more.
struct Watch<'a> {
    server: &'a Server,
    bell: Arc<Notify>,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.server.unsubscribe(&self.bell);
    }
}

fn line(nodes: &[StoredNode]) -> Vec<Node<ClaimId>> {
    nodes.iter().map(|node| Node { id: node.id, mode: node.mode }).collect()
}

fn to_text(revisions: &[u64]) -> Arc<str> {
    let texts: Vec<String> = revisions.iter().map(u64::to_string).collect();
    texts.join(" ").into()
}

fn to_revisions(text: &str) -> Vec<u64> {
    text.split(' ').filter_map(|revision| revision.parse().ok()).collect()
}

fn no_answer() -> BackendError {
    let message = "the store did not answer";
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
}

fn unsupported(message: &str) -> BackendError {
    BackendError::new(BackendErrorKind::Unsupported, Effect::NotApplied, message)
}

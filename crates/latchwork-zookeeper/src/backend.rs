//! The verbs, and the try. The others have files of their own.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork_core::kit::lineup::Admission;
use latchwork_core::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Capabilities, Cause, Claim, Effect,
    Error, Fencing, Grant, Io, Linger, Moment, Order, Query, Released, Renewal, Snapshot, Verb,
    Wake,
};
use tokio::sync::{Notify, mpsc};

use crate::claims::{Claims, Node, Own};
use crate::config::ZooKeeperConfig;
use crate::errors::{refused, strange, unsupported};
use crate::janitor;
use crate::line::{Line, Told, behind, data_of, name_of};
use crate::names::{Names, parents};
use crate::session::messages::{self, Access, Kind, Refusal, Request};
use crate::session::{Landed, Session, access};
use crate::sessions::Sessions;

const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How often a try begins again because its session ended, or its node went, on the way.
const ROUNDS: u32 = 4;
/// As many locks are remembered as having a node.
const MOST_KNOWN: usize = 100_000;

/// A [`Backend`] over ZooKeeper.
pub struct ZooKeeperBackend {
    pub(crate) shared: Arc<Shared>,
    /// What runs in the background ends with this.
    _alive: mpsc::Sender<()>,
}

pub(crate) struct Shared {
    pub(crate) store: Arc<str>,
    pub(crate) names: Names,
    pub(crate) sessions: Sessions,
    pub(crate) claims: Claims,
    pub(crate) io: Io,
    /// A claim may end earlier than was known.
    sooner: Arc<Notify>,
    access: Access,
    /// Locks whose nodes were there when they were last used.
    known: Mutex<HashSet<String>>,
    default_ttl: Duration,
}

impl ZooKeeperBackend {
    /// Connects, and finds out which sessions the servers grant.
    ///
    /// # Errors
    ///
    /// `Unreachable`, `Denied` or `Unsupported`, with the server and the next step.
    pub async fn connect(config: ZooKeeperConfig, io: Io) -> Result<Arc<Self>, Error> {
        let store: Arc<str> = config.shown().into();
        let config = Arc::new(config);
        let connected = async {
            let sessions = Sessions::find_out(config.clone(), io.clone()).await?;
            let default_ttl = DEFAULT_TTL.clamp(sessions.ttls().0, sessions.ttls().1);
            // Most will use this one.
            sessions.of(default_ttl).up().await?;
            Ok((sessions, default_ttl))
        };
        let (sessions, default_ttl) =
            connected.await.map_err(|error| Error::from_backend(error, None, &store))?;
        let shared = Arc::new(Shared {
            store,
            names: Names::new(&config.chroot),
            sessions,
            claims: Claims::default(),
            io: io.clone(),
            sooner: Arc::default(),
            access: access(&config),
            known: Mutex::default(),
            default_ttl,
        });
        let (alive, ended) = mpsc::channel(1);
        io.spawn(janitor::run(Arc::downgrade(&shared), shared.sooner.clone(), ended));
        Ok(Arc::new(Self { shared, _alive: alive }))
    }
}

/// What became of a round of a try.
enum Round {
    Done(Attempt),
    /// The node or the session is gone: again.
    Gone,
}

/// The line as a claim finds it that has a node in it.
struct Found<'a> {
    session: &'a Arc<Session>,
    lock: &'a str,
    node: &'a Node,
    line: Line,
    /// By the leader's clock, in ms.
    now_ms: i64,
    sent_at: Moment,
}

impl Shared {
    async fn try_claim(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if claim.floor > 0 {
            return Err(unsupported("ZooKeeper cannot lift its transaction number to a floor"));
        }
        let lock = self.names.lock(&claim.key);
        let mut rounds = ROUNDS;
        loop {
            rounds -= 1;
            let (session, round) = match self.claims.get(claim.id) {
                Some(own) if own.ends => {
                    // It came too late: it begins anew when all of it is gone.
                    self.release_claim(claim).await?;
                    (own.session, Ok(Round::Gone))
                }
                Some(own) => {
                    self.claims.asked(claim.id, self.io.now());
                    let session = own.session.clone();
                    (session, self.look_again(claim, &lock, own).await)
                }
                None => {
                    let session = self.sessions.of(claim.ttl);
                    let round = self.enter(claim, &lock, &session).await;
                    (session, round)
                }
            };
            match round {
                Ok(Round::Done(attempt)) => return Ok(attempt),
                Ok(Round::Gone) if rounds > 0 => {}
                Ok(Round::Gone) => return Err(restless()),
                // The servers have said that it is over, so nothing of it is left.
                Err(error) if session.is_over() && rounds > 0 && is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a node for the claim, and reads the line, in one flight.
    async fn enter(
        &self,
        claim: &Claim,
        lock: &str,
        session: &Arc<Session>,
    ) -> Result<Round, BackendError> {
        let path = format!("{lock}/{}", name_of(claim));
        let data = data_of(claim, self.io.clock().wall());
        let node = Request::create(Kind::EphemeralSequential, &path, &data, self.access);
        let above = |path: &str| Request::create(Kind::Container, path, b"", self.access);
        // The nodes above it: none, if it is known that they are there, or the last, or all.
        let mut parents: Vec<Request> = match self.is_known(lock) {
            true => Vec::new(),
            false => vec![above(lock)],
        };
        for is_last in [false, false, true] {
            let sent_at = self.io.now();
            self.claims.begin(claim, session, sent_at);
            self.sooner.notify_one();
            let made = parents.len();
            let requests = parents.into_iter().chain([node.clone(), Request::children(lock)]);
            let mut landed = session.fly(requests.collect()).await;
            let mut denied = None;
            let mut reply = landed.next();
            for _ in 0..made {
                match reply {
                    Ok(Ok(_) | Err(Refusal::NODE_EXISTS | Refusal::NO_NODE)) => {}
                    Ok(Err(refusal)) => denied = denied.or(Some(refused(refusal, lock))),
                    Err(_) => break,
                }
                reply = landed.next();
            }
            let body = match reply {
                Ok(Ok(body)) => body,
                Ok(Err(Refusal::NO_NODE)) if !is_last && denied.is_none() => {
                    self.set_known(lock, false);
                    parents = self::parents(&path).map(above).collect();
                    continue;
                }
                Ok(Err(refusal)) => {
                    self.claims.forget(claim.id);
                    return Err(denied.unwrap_or_else(|| refused(refusal, lock)));
                }
                Err(error) => {
                    if error.effect == Effect::NotApplied {
                        self.claims.forget(claim.id);
                    }
                    return Err(error);
                }
            };
            self.set_known(lock, true);
            let (path, stat) = messages::created(&body).ok_or_else(|| strange("a create"))?;
            let name = path.rsplit('/').next().unwrap_or_default().into();
            let node = Node { name, created: stat.created };
            self.claims.change(claim.id, |own| own.node = Some(node.clone()));
            let line = line_in(&mut landed, lock)?;
            let found =
                Found { session, lock, node: &node, line, now_ms: stat.created_ms, sent_at };
            return self.judge(claim, found).await;
        }
        Err(strange("a create"))
    }

    /// Reads the line again for a claim that has a node, or may have one: first a write, so that it
    /// is known that the session lives, and what is read is no older than that.
    async fn look_again(&self, claim: &Claim, lock: &str, own: Own) -> Result<Round, BackendError> {
        let session = &own.session;
        let up = session.up().await?;
        let sent_at = self.io.now();
        let requests = vec![Request::set(&up.pulse), Request::children(lock)];
        let mut landed = match own.node.as_ref().filter(|_| own.watched) {
            // Or its own release would be news to the one who holds it.
            Some(node) => {
                self.claims.change(claim.id, |own| own.watched = false);
                session.fly_unwatching(requests, &format!("{lock}/{}", node.name)).await
            }
            None => session.fly(requests).await,
        };
        let now_ms = pulse_in(&mut landed, &up.pulse)?;
        let line = line_in(&mut landed, lock)?;
        let node = match own.node {
            Some(node) => Some(node),
            None => self.find(claim, &up.id, lock, session, &line).await?,
        };
        let Some(node) = node.filter(|node| line.find(&node.name).is_some()) else {
            self.claims.forget(claim.id);
            return Ok(Round::Gone);
        };
        self.judge(claim, Found { session, lock, node: &node, line, now_ms, sent_at }).await
    }

    /// Finds the node of a claim whose making was not answered. It was made, or never will be: what
    /// the session wrote after it has been answered.
    async fn find(
        &self,
        claim: &Claim,
        session_id: &i64,
        lock: &str,
        session: &Arc<Session>,
        line: &Line,
    ) -> Result<Option<Node>, BackendError> {
        for place in line.places.iter().filter(|place| place.id == Some(claim.id)) {
            let path = format!("{lock}/{}", place.name);
            let body = match session.fly(vec![Request::exists(&path)]).await.next()? {
                Ok(body) => body,
                Err(Refusal::NO_NODE) => continue,
                Err(refusal) => return Err(refused(refusal, &path)),
            };
            let stat = messages::Stat::read(&body).ok_or_else(|| strange("an exists"))?;
            // One of an ended session is on its way out.
            if stat.owner == *session_id {
                let node = Node { name: place.name.clone(), created: stat.created };
                self.claims.change(claim.id, |own| own.node = Some(node.clone()));
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    async fn judge(&self, claim: &Claim, found: Found<'_>) -> Result<Round, BackendError> {
        let Found { session, lock, node, line, now_ms, sent_at } = found;
        let Some(me) = line.find(&node.name) else {
            self.claims.forget(claim.id);
            return Ok(Round::Gone);
        };
        let own_path = format!("{lock}/{}", node.name);
        if let Some(mismatch) = line.clash(claim.mode, me) {
            let requests = vec![Request::delete(&own_path), Request::children(lock)];
            let mut landed = self.withdraw(claim, session, requests).await?;
            // It may have been another who came in vain, and is gone by now.
            let line = line_in(&mut landed, lock)?;
            return match line.clash(claim.mode, line.places.len()) {
                Some(_) => Err(mismatch),
                None => Ok(Round::Gone),
            };
        }
        let over = line.closed.iter().filter(|closed| closed.until_ms <= now_ms);
        let over: Vec<_> =
            over.map(|closed| Request::delete(&format!("{lock}/{}", closed.name))).collect();
        if !over.is_empty() {
            session.send(over);
        }
        let is_held = self.claims.get(claim.id).is_some_and(|own| own.granted);
        let closed_until = line.closed_until(now_ms).filter(|_| !is_held);
        let admission = line.admission(me);
        if admission == Admission::Granted && closed_until.is_none() {
            let ttl = lives_for(session, claim, sent_at)?;
            let token = token_of(node)?;
            if !self.claims.grant(claim.id) {
                return Err(taken_back());
            }
            let grant = Grant { token, ttl, store_time: None };
            return Ok(Round::Done(Attempt::Granted(grant)));
        }
        let first = line.places.first().map(|place| format!("{lock}/{}", place.name));
        // What people are told of it is read when it is known that there is time.
        let mut requests = Vec::new();
        let takes_place = claim.waits && claim.order == Order::Fifo;
        if !takes_place {
            requests.push(Request::delete(&own_path));
        }
        requests.extend(first.as_ref().map(|path| Request::get(path)));
        let told = match takes_place {
            true => session.fly(requests).await,
            false => self.withdraw(claim, session, requests).await?,
        };
        let told = first_told(told);
        let targets: Vec<&str> = match closed_until {
            Some(_) => line.closed.iter().map(|closed| &*closed.name).collect(),
            None => behind(&admission).iter().map(|place| &*line.places[*place].name).collect(),
        };
        let wait_ms = closed_until.map(|until| (until - now_ms).max(1) as u64);
        let cause = match &told {
            _ if closed_until.is_some() => Cause::Linger,
            Some(told) if !told.is_ours() => Cause::Foreign,
            _ => Cause::Held,
        };
        let is_holder = admission != Admission::Granted;
        Ok(Round::Done(Attempt::Blocked(Blocked {
            retry_after: wait_ms.map(Duration::from_millis),
            ahead: Some(line.waiting_before(me)),
            cause,
            holder: told.filter(|_| is_holder).map(|told| told.holder),
            resume: Some(targets.join("\n").into()),
            store_time: None,
        })))
    }

    /// Takes the place of a claim back, by the first of these requests.
    async fn withdraw(
        &self,
        claim: &Claim,
        session: &Arc<Session>,
        requests: Vec<Request>,
    ) -> Result<Landed, BackendError> {
        let mut landed = session.fly(requests).await;
        match landed.next()? {
            Ok(_) | Err(Refusal::NO_NODE) => {
                self.claims.forget(claim.id);
                Ok(landed)
            }
            Err(refusal) => Err(refused(refusal, claim.key.as_str())),
        }
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn default_ttl(&self) -> Duration {
        self.default_ttl
    }

    fn is_known(&self, lock: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(lock)
    }

    fn set_known(&self, lock: &str, is_known: bool) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_known {
            known.remove(lock);
        } else if !known.contains(lock) {
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(lock.to_owned());
        }
    }
}

/// The line that the next reply has; a lock without a node has nobody in line.
pub(crate) fn line_in(landed: &mut Landed, lock: &str) -> Result<Line, BackendError> {
    match landed.next()? {
        Ok(body) => {
            let children = messages::children(&body).ok_or_else(|| strange("a list"))?;
            Ok(Line::read(&children))
        }
        Err(Refusal::NO_NODE) => Ok(Line::default()),
        Err(refusal) => Err(refused(refusal, lock)),
    }
}

/// When a pulse was written, by the leader's clock, in ms.
pub(crate) fn pulse_in(landed: &mut Landed, pulse: &str) -> Result<i64, BackendError> {
    match landed.next()? {
        Ok(body) => {
            let stat = messages::Stat::read(&body).ok_or_else(|| strange("a write"))?;
            Ok(stat.changed_ms)
        }
        Err(refusal) => Err(refused(refusal, pulse)),
    }
}

/// What the node says that was read last.
fn first_told(mut landed: Landed) -> Option<Told> {
    let mut told = None;
    while let Ok(reply) = landed.next() {
        told = reply.ok();
    }
    messages::data(&told?).map(|(data, _)| Told::read(&data))
}

/// How long the session surely lives, as much of it as the claim asks for.
pub(crate) fn lives_for(
    session: &Session,
    claim: &Claim,
    sent_at: Moment,
) -> Result<Duration, BackendError> {
    let ttl = session.lives_for(sent_at).min(claim.ttl);
    if ttl >= claim.ttl / 2 {
        return Ok(ttl);
    }
    let message = "the session was not heard of for so long that it may end soon";
    Err(BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .next_step("look whether the servers run and this process is not stopped"))
}

pub(crate) fn token_of(node: &Node) -> Result<u64, BackendError> {
    let token = u64::try_from(node.created).ok().filter(|token| *token < 1 << 53);
    token.ok_or_else(|| {
        let message = format!("the transaction {:#x} is past what a token can be", node.created);
        BackendError::new(BackendErrorKind::Corrupt, Effect::Unknown, message)
    })
}

fn taken_back() -> BackendError {
    let message = "the claim was not heard of within its ttl, and is being taken back";
    BackendError::new(BackendErrorKind::Unreachable, Effect::Unknown, message)
        .next_step("try again")
}

fn restless() -> BackendError {
    let message = "the claim's node was gone each time when the line was read";
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message)
        .next_step("look who deletes nodes of this lock")
}

/// Whether it was the end of the session, and not something that a new one would meet as well.
fn is_passing(error: &BackendError) -> bool {
    error.kind == BackendErrorKind::Unreachable
}

impl Backend for ZooKeeperBackend {
    fn capabilities(&self) -> Capabilities {
        let (shortest, longest) = self.shared.sessions.ttls();
        Capabilities {
            store: self.shared.store.clone(),
            shared: true,
            permits: true,
            fifo: true,
            linger: true,
            push: true,
            fencing: Fencing::Linearizable,
            ttl: shortest..=longest,
            default_ttl: self.shared.default_ttl,
            lifeline: None,
            doorbell: None,
        }
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(self.shared.try_claim(claim))
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        Box::pin(self.shared.wait_for(claim, blocked))
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(self.shared.renew(claims))
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            match linger {
                Linger::None => self.shared.release_claim(claim).await,
                Linger::For(length) => self.shared.close(claim, length).await,
            }
        })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        Box::pin(self.shared.look(query))
    }
}

impl fmt::Debug for ZooKeeperBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperBackend")
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

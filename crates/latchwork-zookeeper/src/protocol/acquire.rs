//! The try: a node and the queue in one round trip; later the queue again.

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::lineup::Admission;
use latchwork_store::kit::record::cannot_replace;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Cause, Claim, Effect, Grant, Mode, Order,
    Resize, Shape,
};

use crate::protocol::answers::{lives_for, pulse_in, queue_of, reads, token_of};
use crate::protocol::claims::{Entry, LastAnswer, Node, OwnClaim};
use crate::protocol::lingers::closed_by;
use crate::protocol::queue::{Place, Queue, Told, behind, data_of, name_of};
use crate::protocol::release::read;
use crate::protocol::replace::beside;
use crate::protocol::shared::Shared;
use crate::server::ancestors::Ancestors;
use crate::server::errors::{not_created, refused, restless, strange, taken_back, unsupported};
use crate::server::session::messages::{self, Kind, Refusal, Request};
use crate::server::session::{Landed, Reading, Room, Session, Up};

/// How often a try begins again because its session ended, or its node went, on the way.
const ROUNDS: u32 = 4;
/// After this, a waiter checks again to learn which claim holds the key. A waiter that gets the key
/// sooner did not need to know, and has spared the server a request.
const NAMED_AFTER: Duration = Duration::from_secs(1);

/// Stands before the version of the limit that a claim for permits has seen, behind the names of the nodes
/// that it waits for.
pub(super) const LIMIT: &str = "limit=";

/// A claim behind more claims than this does not read the whole queue at each further check.
const FAR: u32 = 64;

/// The result of a round of a try.
pub(super) enum Round {
    Done(Attempt),
    /// The node or the session is gone: again.
    Gone,
}

/// A round of a try, or why there is none.
type Ended = Result<Round, BackendError>;

/// The queue as a claim finds it that has a node in it.
pub(super) struct Found<'a> {
    pub(super) session: &'a Arc<Session>,
    pub(super) lock: &'a str,
    pub(super) node: &'a Node,
    pub(super) queue: Queue,
    /// By the leader's clock, in ms.
    pub(super) now_ms: i64,
    sent: Reading,
    /// The claim has just taken its place. Where that is further behind, it is not told yet who
    /// holds the key, and of which kind that one is.
    is_new: bool,
}

/// The bytes of a node's path in a list of the servers: each has its length before it, and a number of ten digits behind it.
const fn length_of(lock: &str, name: &str) -> usize {
    4 + lock.len() + 1 + name.len() + 10
}

impl Shared {
    pub(crate) async fn try_claim(&self, asked: &Claim) -> Result<Attempt, BackendError> {
        let claim = asked;
        if claim.floor > 0 {
            return Err(unsupported("ZooKeeper cannot lift its transaction number to a floor"));
        }
        if claim.beside.is_some() && claim.mode.shape() != Shape::ReadWrite {
            return Err(cannot_replace(claim.mode.word(), claim.mode));
        }
        let lock = self.names.lock(&claim.key);
        let mut rounds = ROUNDS;
        let mut followed = None;
        // Of a claim whose node an upgrade has removed.
        let mut rank = None;
        loop {
            rounds -= 1;
            if asked.resize == Resize::Follow && self.claims.get(asked.id).is_none() {
                followed = Some(self.follow(asked, &lock).await?);
            }
            let (claim, seen) = match &followed {
                Some((claim, version)) => (claim, Some(*version)),
                None => (asked, None),
            };
            let (session, round) = match self.claims.get(claim.id) {
                Some(own) if own.ends => {
                    // It came too late: it restarts when all of it is gone.
                    self.release_claim(claim).await?;
                    (own.session, Ok(Round::Gone))
                }
                Some(own) => {
                    rank = rank_of(&own, claim.mode);
                    self.claims.asked(claim.id, self.io.now());
                    let session = own.session.clone();
                    let round = match &own.entry {
                        Some(entry) => self.join(claim, &lock, &own, entry).await,
                        None => self.look_again(claim, &lock, own).await,
                    };
                    (session, round)
                }
                None => {
                    let hold = claim.beside.and_then(|hold| self.claims.get(hold));
                    let rank = hold.map_or(rank, |hold| rank_of(&hold, claim.mode));
                    let name = name_of(claim, rank);
                    let room = self.sessions.room(claim.ttl, length_of(&lock, &name));
                    let round = self.enter(claim, &lock, &name, &room).await;
                    (room.session().clone(), round)
                }
            };
            // The limit that it follows was changed before it took its place.
            let is_outdated = |seen: Option<i32>| {
                self.claims.get(claim.id).is_some_and(|own| own.limit_version != seen)
            };
            match round {
                Ok(Round::Done(_)) if rounds > 0 && seen.is_some_and(is_outdated) => {
                    self.release_claim(claim).await?;
                }
                Ok(Round::Done(attempt)) => return Ok(attempt),
                Ok(Round::Gone) if rounds > 0 => {}
                Ok(Round::Gone) => return Err(restless()),
                // The servers have said that it is over, so nothing of it is left.
                Err(error) if session.is_over() && rounds > 0 && is_passing(&error) => rank = None,
                Err(error) => return Err(error),
            }
        }
    }

    /// A follower that has no node yet as a claim of the limit that it finds, and the version of that. The limit is
    /// in the name of its node; a later change applies to it.
    async fn follow(
        &self,
        claim: &Claim,
        lock: &str,
    ) -> Result<(Claim, Option<i32>), BackendError> {
        let session = self.sessions.of(claim.ttl);
        let (queue, _) = read(&session, &session.up().await?, lock).await?;
        let followed = claim.following(queue.used_as(queue.places.len()));
        Ok((followed, queue.limit_version.or(Some(0))))
    }

    /// Makes a node for the claim, and reads the queue, in one flight.
    async fn enter(
        &self,
        claim: &Claim,
        lock: &str,
        name: &str,
        room: &Arc<Room>,
    ) -> Result<Round, BackendError> {
        let session = room.session();
        let path = format!("{lock}/{name}");
        let data = data_of(claim, self.io.clock().wall());
        let node = Request::create(Kind::EphemeralSequential, &path, &data, self.access());
        // None, if it is known that they are there, or the last, or all.
        let mut above = match self.is_known(lock) {
            true => Ancestors::default(),
            false => Ancestors::only(lock),
        };
        for _ in 0..3 {
            let sent = Reading::now(&self.io);
            if self.claims.begin(claim, room, sent.at) {
                self.sooner.notify_one();
            }
            let entering = [node.clone()].into_iter().chain(reads(lock, claim.mode));
            let requests = above.requests(self.access()).chain(entering);
            let departed = (session.depart(requests.collect()), above);
            let departed = tokio::sync::Mutex::new(Some(departed));
            let entry = Arc::new(Entry { departed });
            self.claims.change(claim.id, |own| own.entry = Some(entry.clone()));
            match self.entered(claim, lock, session, &entry).await? {
                Some((node, queue, now_ms)) => {
                    let found =
                        Found { session, lock, node: &node, queue, now_ms, sent, is_new: true };
                    return self.judge(claim, found).await;
                }
                None => above = Ancestors::of(&path),
            }
        }
        self.claims.forget(claim.id);
        Err(refused(Refusal::NO_NODE, lock))
    }

    /// Waits for the node that an earlier try has asked for, and that was not answered yet.
    async fn join(&self, claim: &Claim, lock: &str, own: &OwnClaim, entry: &Entry) -> Ended {
        let session = &own.session;
        let entered = self.entered(claim, lock, session, entry).await?;
        let Some((node, queue, now_ms)) = entered else {
            self.claims.forget(claim.id);
            return Ok(Round::Gone);
        };
        let me = queue.find(&node.name);
        if me.is_some_and(|me| queue.admission_of_waiter(me) == Admission::Granted) {
            // Its ttl begins with this try: what was asked before it proves less.
            let mut own = own.clone();
            own.node = Some(node);
            return self.look_again(claim, lock, own).await;
        }
        let sent = Reading::now(&self.io);
        let found = Found { session, lock, node: &node, queue, now_ms, sent, is_new: true };
        self.judge(claim, found).await
    }

    /// The node that was made, the queue with it, and when that was; `None` if there are no nodes
    /// above it.
    async fn entered(
        &self,
        claim: &Claim,
        lock: &str,
        session: &Session,
        entry: &Entry,
    ) -> Result<Option<(Node, Queue, i64)>, BackendError> {
        let (mut landed, mut above) = {
            let mut departed = entry.departed.lock().await;
            let Some((under_way, _)) = departed.as_mut() else { return Err(strange("a create")) };
            let landed = session.landed(under_way).await;
            (landed, departed.take().map(|(_, above)| above).unwrap_or_default())
        };
        self.claims.change(claim.id, |own| own.entry = None);
        let mut reply = landed.next();
        while above.left() > 0
            && let Ok(answer) = &reply
        {
            above.answer(answer);
            reply = landed.next();
        }
        let body = match reply {
            Ok(Ok(body)) => body,
            Ok(Err(Refusal::NO_NODE)) => {
                self.set_known(lock, false);
                let Some(missing) = above.missing() else { return Ok(None) };
                self.claims.forget(claim.id);
                return Err(missing);
            }
            Ok(Err(refusal)) => {
                self.claims.forget(claim.id);
                return Err(not_created(refusal, &format!("{lock}/{}", name_of(claim, None))));
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
        let queue = queue_of(&mut landed, lock, claim.mode, Some(&node.name))?;
        self.claims.change(claim.id, |own| own.limit_version = queue.limit_version);
        Ok(Some((node, queue, stat.created_ms)))
    }

    /// Reads the queue again for a claim that has a node, or may have one: first a write, so that it
    /// is known that the session lives, and what is read is no older than that.
    async fn look_again(
        &self,
        claim: &Claim,
        lock: &str,
        own: OwnClaim,
    ) -> Result<Round, BackendError> {
        let session = &own.session;
        let up = session.up().await?;
        if let (Some(node), Some(far)) = (&own.node, &own.far)
            && far.behind.iter().all(|path| session.watches(path))
        {
            return self.look_far_behind(claim, lock, &node.name, &own, &up, far).await;
        }
        let sent = Reading::now(&self.io);
        let requests = [Request::set(&up.pulse)].into_iter().chain(reads(lock, claim.mode));
        let mut landed = session.fly(requests.collect()).await;
        let now_ms = pulse_in(&mut landed, &up.pulse)?;
        let known = own.node.as_ref().map(|node| &*node.name);
        let queue = queue_of(&mut landed, lock, claim.mode, known)?;
        let node = match own.node {
            Some(node) => Some(node),
            None => self.find(claim, &up.id, lock, session, &queue).await?,
        };
        let Some(node) = node else {
            self.claims.forget(claim.id);
            return Ok(Round::Gone);
        };
        let found = Found { session, lock, node: &node, queue, now_ms, sent, is_new: false };
        self.judge(claim, found).await
    }

    /// For a claim far behind: its own node is enough, for those that it waits for are watched.
    async fn look_far_behind(
        &self,
        claim: &Claim,
        lock: &str,
        name: &str,
        own: &OwnClaim,
        up: &Up,
        far: &LastAnswer,
    ) -> Result<Round, BackendError> {
        let own_path = &format!("{lock}/{name}");
        let limit = far.limit_version.map(|_| Request::get(lock));
        let looks = [Request::exists(own_path), Request::get(&far.first)];
        let requests = [Request::set(&up.pulse)].into_iter().chain(limit).chain(looks);
        let mut landed = own.session.fly(requests.collect()).await;
        pulse_in(&mut landed, &up.pulse)?;
        if let Some(version) = far.limit_version {
            let found = landed.next()?.ok().and_then(|body| messages::data(&body));
            if found.is_none_or(|(_, stat)| stat.version != version) {
                // It reads the queue.
                self.claims.change(claim.id, |own| own.far = None);
                return Ok(Round::Gone);
            }
        }
        match landed.next()? {
            Ok(_) => {}
            Err(Refusal::NO_NODE) => {
                self.forget_missing(claim, &own.session, own_path);
                return Ok(Round::Gone);
            }
            Err(refusal) => return Err(refused(refusal, own_path)),
        }
        let told = data_in(&mut landed).map(|data| Told::read(&data));
        let is_foreign = told.as_ref().is_some_and(|told| !told.is_ours());
        Ok(Round::Done(Attempt::Blocked(far.blocked.clone().with(|it| {
            it.retry_after = None;
            it.cause = if is_foreign { Cause::Foreign } else { Cause::Held };
            it.holder = told.map(|told| told.holder);
        }))))
    }

    /// Finds the node of a claim whose making was not answered. It was made, or never will be: what
    /// the session wrote after it has been answered.
    async fn find(
        &self,
        claim: &Claim,
        session_id: &i64,
        lock: &str,
        session: &Arc<Session>,
        queue: &Queue,
    ) -> Result<Option<Node>, BackendError> {
        for place in queue.places.iter().filter(|place| place.id() == Some(claim.id)) {
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
        let mut found = found;
        let own = self.claims.get(claim.id);
        let is_held = own.as_ref().is_some_and(|own| own.granted);
        let matches = own.is_some_and(|own| own.matches);
        let is_replacing = claim.beside.is_some() && !is_held;
        let clashes = |me| found.queue.clash(claim, me, matches).is_some();
        let clashes = found.queue.find(&found.node.name).is_some_and(clashes);
        if is_replacing
            && !clashes
            && let Some(refusal) = self.overtake(claim, &mut found).await?
        {
            return refusal.map(|blocked| Round::Done(Attempt::Blocked(blocked)));
        }
        let Found { session, lock, node, queue, now_ms, sent, is_new } = found;
        let own_path = format!("{lock}/{}", node.name);
        let Some(me) = queue.find(&node.name) else {
            self.forget_missing(claim, session, &own_path);
            return Ok(Round::Gone);
        };
        if let Some(mismatch) = queue.clash(claim, me, matches) {
            let requests = [Request::delete(&own_path)].into_iter().chain(reads(lock, claim.mode));
            let mut landed = self.withdraw(claim, session, requests.collect()).await?;
            // It may have been another who came in vain, and is gone by now.
            let queue = queue_of(&mut landed, lock, claim.mode, None)?;
            return match queue.clash(claim, queue.places.len(), false) {
                Some(_) => Err(mismatch),
                None => Ok(Round::Gone),
            };
        }
        self.claims.change(claim.id, |own| own.matches = true);
        let over = queue.closed.iter().filter(|closed| closed.until_ms <= now_ms);
        let over: Vec<_> =
            over.map(|closed| Request::delete(&format!("{lock}/{}", closed.name))).collect();
        if !over.is_empty() {
            session.send(over);
        }
        let closed_until = queue.closed_until(now_ms).filter(|_| !is_held);
        let (admission, first) = match is_replacing {
            true => beside(&queue, me),
            false if is_held => (queue.admission(me), 0),
            false => (queue.admission_of_waiter(me), 0),
        };
        if admission == Admission::Granted && closed_until.is_none() {
            let ttl = lives_for(session, claim, sent)?;
            let token = token_of(node)?;
            if !self.claims.grant(claim.id) {
                return Err(taken_back());
            }
            let grant = Grant::new(token, ttl);
            return Ok(Round::Done(Attempt::Granted(grant)));
        }
        let mut targets: Vec<&str> = match closed_until {
            Some(_) => queue.closed.iter().map(|closed| &*closed.name).collect(),
            None => behind(&admission).iter().map(|place| &*queue.places[*place].name).collect(),
        };
        let takes_place = claim.order == Order::Fifo || claim.beside.is_some();
        let keeps_place = claim.waits && takes_place;
        // An upgrade may remove its own node, and leave those ahead: it makes another one at once.
        if keeps_place && claim.mode == Mode::Write {
            targets.push(&node.name);
        }
        let path = |name: &str| format!("{lock}/{name}");
        // The claim to name: the holder or, of a closed key, the one that closed it.
        let closed = queue.closed_last(now_ms).filter(|_| closed_until.is_some());
        let named = closed.map(|closed| &closed.name);
        // The first one waits if the limit is smaller than what it takes.
        let first = queue.places.get(first).filter(|_| me > 0);
        let first = named.or(first.map(|place| &place.name));
        let first = first.map(|name| path(name));
        let ahead = queue.waiting_before(me);
        let mut blocked = Blocked::by(Cause::Held).with(|it| {
            it.ahead = Some(ahead);
            let limit = queue.limit_version.map(|version| format!("\n{LIMIT}{version}"));
            it.resume = Some((targets.join("\n") + &limit.unwrap_or_default()).into());
        });
        let said = if keeps_place {
            let behind: Vec<_> = targets.iter().map(|name| path(name)).collect();
            let is_far =
                ahead > FAR && !is_replacing && closed_until.is_none() && queue.closed.is_empty();
            let far = first.as_deref().filter(|_| is_far).map(|first| {
                let blocked = blocked.clone();
                let limit_version = queue.limit_version;
                Box::new(LastAnswer {
                    first: first.into(),
                    behind: behind.clone(),
                    blocked,
                    limit_version,
                })
            });
            self.claims.change(claim.id, |own| own.far = far);
            self.watch(session, behind, first.as_deref(), is_new).await
        } else {
            let delete = [Request::delete(&own_path)].into_iter();
            let requests = delete.chain(first.as_deref().map(Request::get)).collect();
            let mut landed = self.withdraw(claim, session, requests).await?;
            first.as_ref().and_then(|_| data_in(&mut landed))
        };
        let opens_in = closed_until.map(|until| (until - now_ms).max(1) as u64);
        let named_in = said.is_none().then_some(NAMED_AFTER).filter(|_| is_new);
        blocked.retry_after = opens_in.map(Duration::from_millis).or(named_in);
        if closed_until.is_some() {
            blocked.cause = Cause::Linger;
            blocked.holder = said.as_deref().map(closed_by);
            return Ok(Round::Done(Attempt::Blocked(blocked)));
        }
        let told = said.as_deref().map(Told::read);
        // An upgrade waits for readers of other kinds as for ours.
        if !is_replacing && told.as_ref().is_some_and(|told| !told.is_ours()) {
            blocked.cause = Cause::Foreign;
        }
        let is_holder = admission != Admission::Granted;
        blocked.holder = told.filter(|_| is_holder).map(|told| told.holder);
        Ok(Round::Done(Attempt::Blocked(blocked)))
    }

    /// Watches the nodes ahead, and reads the first in the queue, or the node that keeps the key closed, unless the
    /// claim is new and stands further behind.
    ///
    /// The wait makes up for a missing answer, but messages to people say less.
    async fn watch(
        &self,
        session: &Session,
        ahead: Vec<String>,
        first: Option<&str>,
        is_new: bool,
    ) -> Option<Vec<u8>> {
        let is_next = ahead.iter().any(|path| Some(&**path) == first);
        let mut paths: Vec<_> = ahead.into_iter().filter(|path| !session.watches(path)).collect();
        let mut requests: Vec<_> = paths.iter().map(|path| Request::watch(path)).collect();
        let asks = is_next || !is_new;
        if let Some(first) = first.filter(|first| asks && !paths.iter().any(|path| path == first)) {
            requests.push(Request::get(first));
            paths.push(first.to_owned());
        }
        let mut landed = session.fly(requests).await;
        let mut said = None;
        for path in &paths {
            let read = data_in(&mut landed);
            said = said.or(read.filter(|_| Some(&**path) == first));
        }
        said
    }

    /// Takes the place of a claim back, by the first of these requests.
    pub(super) async fn withdraw(
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
}

/// The data of the node that was read.
pub(super) fn data_in(landed: &mut Landed) -> Option<Vec<u8>> {
    let body = landed.next().ok()?.ok()?;
    messages::data(&body).map(|(data, _)| data)
}

/// The rank of a claim that has a node in the queue of a read-write lock.
fn rank_of(own: &OwnClaim, mode: Mode) -> Option<i64> {
    let node = own.node.as_ref().filter(|_| mode.shape() == Shape::ReadWrite)?;
    Place::rank_of(&node.name)
}

/// Whether it was the end of the session, and not something that a new one would meet as well.
fn is_passing(error: &BackendError) -> bool {
    error.kind == BackendErrorKind::Unreachable
}

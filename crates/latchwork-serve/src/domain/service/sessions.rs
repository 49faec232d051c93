//! Sessions: one renewal keeps many holds.
//!
//! A session is a lock of its own, whose sealed ticket is its id. The claims of its holds carry its number at the store, so
//! any instance finds them. An instance remembers those that it has granted or found; with a shared seal key, each renewal
//! reads the others from the store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork::{FencingToken, Resize};
use latchwork_store::{Mode, Moment, random_u128};

use super::Service;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::holds::hold_status::{HoldStatus, Marks};
use crate::domain::holds::id::HoldId;
use crate::domain::holds::origin::{Origin, SESSION_NAMES, SessionNumber};
use crate::domain::holds::release::ReleaseKind;
use crate::domain::holds::seal::Purpose;
use crate::domain::holds::ticket::Ticket;
use crate::domain::holds::validity::{promised, renewed_until};
use crate::domain::refusal::{Kind, RENEW_AGAIN_STEP, Refusal};
use crate::domain::store_claims::StoreClaim;
use crate::domain::wish::{LockWish, Options, Target};
use crate::time::spawn;

/// A session, and for how long its client may rely on its holds.
#[derive(Debug)]
pub(crate) struct SessionStatus {
    /// The id that its client has.
    pub(crate) id: String,
    pub(crate) ttl: Duration,
    /// For how long the client may rely on all holds, counted from the arrival of its request.
    pub(crate) valid_for: Duration,
    /// When to renew it, counted from the answer.
    pub(crate) renew_in: Duration,
    /// The locks that it holds, each with its token.
    pub(crate) held: Vec<(String, FencingToken)>,
    pub(crate) lost: Vec<LostLock>,
}

/// A lock that the session no longer holds.
#[derive(Debug)]
pub(crate) struct LostLock {
    pub(crate) name: String,
    pub(crate) token: FencingToken,
    pub(crate) reason: &'static str,
}

/// What has ended with a session.
#[derive(Debug)]
pub(crate) struct EndedSession {
    pub(crate) released: usize,
    pub(crate) lost: Vec<LostLock>,
}

/// A session of the caller, as the store has it.
#[derive(Debug)]
pub(crate) struct OwnSession {
    pub(crate) number: SessionNumber,
    pub(crate) holder: Arc<str>,
    pub(crate) age: Option<Duration>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) locks: usize,
}

/// The results of the renewals of a session's holds.
#[derive(Default)]
struct Renewals {
    held: Vec<(String, FencingToken)>,
    /// The shortest validity.
    valid_for: Option<Duration>,
    lost: Vec<LostLock>,
    /// The first one that the store has not answered.
    failed: Option<Refusal>,
}

impl Service {
    /// Begins a session.
    ///
    /// # Errors
    ///
    /// `Unsupported` where a lock is tied to the process that acquired it; those of an acquire.
    pub(crate) async fn create_session(
        &self,
        options: Options,
        caller: &Caller,
    ) -> Result<SessionStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        if !self.has_tickets {
            let message = "session: this store ties a lock to the process that acquired it";
            return Err(Refusal::new(Kind::Unsupported, message)
                .with_next_step("renew each hold, or use another store than ZooKeeper"));
        }
        let number = SessionNumber(random_u128());
        let (mode, resize) = (Mode::Exclusive, Resize::Never);
        let lock = LockWish { name: number.name(), mode, resize, is_fair: false };
        let mut wish = self.wish_of(Target::Locks(vec![lock]), options, caller, None)?;
        wish.origin.session = Some(number);
        let taken = self.take(&wish, caller, false).await.map_err(Refusal::without_hold)?;
        let granted = match taken {
            super::Outcome::Hold(granted) => granted,
            super::Outcome::Repeat(_) | super::Outcome::Skipped(_) => return Err(no_session()),
        };
        // The same ticket, as the id of a session.
        let ticket = self.seals.open(Purpose::Hold, &granted.text).ok_or_else(no_session)?;
        let id = self.seals.seal(Purpose::Session, &ticket).ok_or_else(no_session)?;
        let owner = &caller.principal.name;
        let seen = self.registry.look(granted.id, owner, caller.arrival, false, true)?;
        Ok(self.status(id, &seen, Renewals::default(), caller.arrival))
    }

    /// The session with this id, if it is one of the caller's.
    ///
    /// # Errors
    ///
    /// `NotFound`, whatever is wrong with the id.
    pub(super) fn open_session(&self, text: &str, caller: &Caller) -> Result<Box<Ticket>, Refusal> {
        let ticket = self.seals.open(Purpose::Session, text);
        if ticket.is_none() && self.seals.is_newer(Purpose::Session, text) {
            return Err(Refusal::newer());
        }
        let own = ticket.filter(|ticket| *ticket.owner == *caller.principal.name);
        own.map(Box::new).ok_or_else(no_session)
    }

    /// Refuses a session that has ended, as the store has it.
    pub(super) async fn check_session(&self, session: &Ticket) -> Result<(), Refusal> {
        if let Some(ended) = self.registry.ended(session.id(), &session.owner) {
            return Err(of_session(ended.refusal()));
        }
        match session.look(&self.locks).await {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(has_ended()),
            Err(error) => Err(Refusal::of(&error, None)),
        }
    }

    /// Renews a session and all of its holds; `marks` are those of the holds that the client knows.
    ///
    /// # Errors
    ///
    /// `Lost`, `Released` and `NotFound` for a session that has ended; `Unreachable` if the store has not confirmed all.
    pub(crate) async fn renew_session(
        &self,
        text: &str,
        marks: Option<Marks>,
        caller: &Caller,
    ) -> Result<SessionStatus, Refusal> {
        self.renew_for(text, marks, caller, true).await
    }

    /// The same; no event tells of a loss of the session if its client has not asked, who may have ended it elsewhere.
    async fn renew_for(
        &self,
        text: &str,
        marks: Option<Marks>,
        caller: &Caller,
        is_asked: bool,
    ) -> Result<SessionStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let session = self.open_session(text, caller)?;
        let Some(number) = session.session() else { return Err(no_session()) };
        // The holds of a session that has ended are left to their leases, on which the client relies until it has read that.
        let own = match is_asked {
            true => self.renew_ticket(&session, caller).await,
            false => self.renew_in_session(&session, caller).await,
        };
        let own = own.map_err(of_session)?;
        let mut renewals = Renewals::default();
        let known = self.registry.holds_of(number);
        self.renew_holds(&known, caller, &mut renewals).await;
        // Another instance may have granted holds in this session. What its client does not know, it does not rely on.
        let is_all = marks.is_some_and(|it| it == Marks::of(&renewals.held));
        let is_all = is_all && renewals.lost.is_empty();
        if self.outlived() && !is_all && renewals.failed.is_none() {
            let found = self.found(&session, number, &known, caller.arrival).await?;
            self.renew_holds(&found, caller, &mut renewals).await;
        }
        if let Some(refusal) = renewals.failed {
            return Err(refusal);
        }
        // A hold that was changed elsewhere is lost under its old token only.
        let Renewals { held, lost, .. } = &mut renewals;
        let names: HashSet<&str> = held.iter().map(|(name, _)| &**name).collect();
        lost.retain(|lock| !names.contains(&*lock.name));
        let renewed = self.status(text.to_owned(), &own, renewals, caller.arrival);
        if renewed.renew_in.is_zero() {
            let message = "session: the store has not confirmed all leases in time";
            return Err(Refusal::new(Kind::Unreachable, message).with_next_step(RENEW_AGAIN_STEP));
        }
        // Its end may have released the holds meanwhile.
        match self.registry.ended(session.id(), &session.owner) {
            Some(ended) => Err(of_session(ended.refusal())),
            None => Ok(renewed),
        }
    }

    /// Renews a session for a stream, whose client counts from its one request.
    ///
    /// # Errors
    ///
    /// As [`renew_session`](Self::renew_session).
    pub(crate) async fn keep_session(
        &self,
        text: &str,
        caller: &Caller,
    ) -> Result<SessionStatus, Refusal> {
        let now = self.clock.now();
        let fresh = Caller { arrival: now, ..caller.clone() };
        let kept = self.renew_for(text, None, &fresh, false).await?;
        let valid_for = promised(caller.arrival, now.plus(kept.valid_for), kept.ttl);
        Ok(SessionStatus { valid_for, ..kept })
    }

    /// Renews holds at the store, all in one turn.
    async fn renew_holds(&self, holds: &[Ticket], caller: &Caller, all: &mut Renewals) {
        let answers = join_all(holds.iter().map(|it| self.renew_in_session(it, caller))).await;
        for (ticket, answer) in holds.iter().zip(answers) {
            let reason = match answer {
                Ok(status) => {
                    let shortest = all.valid_for.unwrap_or(Duration::MAX);
                    all.valid_for = Some(status.valid_for.min(shortest));
                    all.held.extend(status.locks);
                    continue;
                }
                Err(refusal) => match refusal.kind {
                    // Its client has ended it.
                    Kind::Released | Kind::Unconfirmed => None,
                    Kind::Lost => Some(refusal.reason.unwrap_or("taken")),
                    Kind::Forbidden => Some("forbidden"),
                    _ => {
                        all.failed.get_or_insert(refusal);
                        continue;
                    }
                },
            };
            self.registry.leave_session(ticket);
            let lost = reason.into_iter().flat_map(|reason| self.lost_locks(ticket, reason));
            all.lost.extend(lost);
        }
    }

    fn lost_locks(&self, ticket: &Ticket, reason: &'static str) -> Vec<LostLock> {
        let name = |key: &latchwork_store::Key| self.names.name_of(key.as_str());
        ticket.tokens().map(|(key, token)| LostLock { name: name(key), token, reason }).collect()
    }

    /// The holds of a session after `since`, but for those that are `known`: of the store, and those that were granted
    /// here meanwhile.
    async fn found(
        &self,
        session: &Ticket,
        number: SessionNumber,
        known: &[Ticket],
        since: Moment,
    ) -> Result<Vec<Ticket>, Refusal> {
        let known: HashSet<_> = known.iter().flat_map(Ticket::ids).collect();
        let claims = self.store_claims.after(since).await?;
        let is_new = |it: &&StoreClaim| {
            self.is_hold_of(it, session, number) && !known.contains(&HoldId::of(it.id))
        };
        let new = claims.iter().filter(is_new).map(|claim| self.ticket_of(claim, session));
        let goes_on = |it: &Ticket| self.registry.ended(it.id(), &it.owner).is_none();
        Ok(self.registry.remember_found(session, new.filter(goes_on).collect(), &known))
    }

    fn is_hold_of(&self, claim: &StoreClaim, session: &Ticket, number: SessionNumber) -> bool {
        claim.origin.session == Some(number)
            && claim.origin.owner == session.owner
            && session.locks.iter().all(|lock| lock.id() != claim.id)
    }

    /// The ticket of one claim of a session.
    fn ticket_of(&self, claim: &StoreClaim, session: &Ticket) -> Ticket {
        let since = self.clock.wall().saturating_sub(claim.age.unwrap_or_default());
        let locks = vec![claim.hold(session.lease())];
        Ticket { locks, since, max_end: None, period: None, ..session.clone() }
    }

    /// Ends a session, and releases all of its holds.
    ///
    /// # Errors
    ///
    /// As those of a release, of the session itself; `Unreachable` if the store has not confirmed all.
    pub(crate) async fn end_session(
        self: &Arc<Self>,
        text: &str,
        caller: &Caller,
    ) -> Result<EndedSession, Refusal> {
        let session = self.open_session(text, caller)?;
        let Some(number) = session.session() else { return Err(no_session()) };
        // First the session: from then on no instance adds a hold to it.
        let own = self.release_ticket(&session, caller).await.map_err(of_session);
        if let Err(refusal) = &own
            && !matches!(refusal.kind, Kind::Released | Kind::Lost | Kind::Unconfirmed)
        {
            return own.map(|()| EndedSession { released: 0, lost: Vec::new() });
        }
        let mut holds = self.registry.holds_of(number);
        if self.outlived() {
            holds.extend(self.found(&session, number, &holds, self.clock.now()).await?);
        }
        let releases = holds.iter().map(|ticket| self.release_ticket(ticket, caller));
        let mut ended = EndedSession { released: 0, lost: Vec::new() };
        let mut failed = None;
        for (ticket, answer) in holds.iter().zip(join_all(releases).await) {
            let reason = match answer {
                Ok(()) => {
                    ended.released += ticket.locks.len();
                    continue;
                }
                Err(refusal) => match refusal.kind {
                    Kind::Released => continue,
                    Kind::Lost => refusal.reason.unwrap_or("taken"),
                    Kind::Unconfirmed => "unconfirmed",
                    _ => {
                        failed.get_or_insert(refusal);
                        continue;
                    }
                },
            };
            ended.lost.extend(self.lost_locks(ticket, reason));
        }
        if let Some(refusal) = failed {
            return Err(refusal.with_next_step("repeat this request: the others are released"));
        }
        self.registry.remove_session(number);
        own.map(|()| ended)
    }

    /// Releases a hold of which the ticket is at hand.
    async fn release_ticket(
        self: &Arc<Self>,
        ticket: &Ticket,
        caller: &Caller,
    ) -> Result<(), Refusal> {
        let released = self
            .release_asked(
                ticket.id(),
                Some(Box::new(ticket.clone())),
                caller,
                ReleaseKind::Release,
            )
            .await;
        released.map(drop)
    }

    /// A stream that keeps a session begins; returns the number of the session, and its own.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub(crate) fn open_stream(
        &self,
        text: &str,
        caller: &Caller,
    ) -> Result<(SessionNumber, u64), Refusal> {
        let number = self.open_session(text, caller)?.session().ok_or_else(no_session)?;
        Ok((number, self.registry.open_stream(number)))
    }

    /// A stream has ended. Where `is_left`, its client has closed it, and the session that is bound to it ends in the
    /// background. Not if a newer stream keeps it; and with a shared seal key another instance may have that.
    pub(crate) fn close_stream(
        self: &Arc<Self>,
        text: &str,
        caller: &Caller,
        (session, stream): (SessionNumber, u64),
        is_left: bool,
    ) {
        let is_newest = self.registry.close_stream(session, stream);
        if is_left && is_newest && !self.outlived() {
            let (service, text, caller) = (self.clone(), text.to_owned(), caller.clone());
            spawn(async move { service.end_session(&text, &caller).await.map(drop) });
        }
    }

    /// Shows a session as the store has it, and renews nothing.
    ///
    /// # Errors
    ///
    /// As [`renew_session`](Self::renew_session).
    pub(crate) async fn show_session(
        &self,
        text: &str,
        caller: &Caller,
    ) -> Result<SessionStatus, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let session = self.open_session(text, caller)?;
        let Some(number) = session.session() else { return Err(no_session()) };
        let own = self.show_ticket(&session, caller).await.map_err(of_session)?;
        let claims = self.store_claims.after(caller.arrival).await?;
        let mut seen = Renewals::default();
        for claim in claims.iter().filter(|it| self.is_hold_of(it, &session, number)) {
            let (name, token) = (self.names.name_of(claim.key.as_str()), claim.token);
            if self.registry.ended(HoldId::of(claim.id), &session.owner).is_some() {
                continue;
            }
            if caller.principal.check(Right::Lock, &name).is_err() {
                seen.lost.push(LostLock { name, token, reason: "forbidden" });
                continue;
            }
            let left = claim.remaining.unwrap_or_default();
            let until = self.seen_until(HoldId::of(claim.id), caller.arrival, left);
            let until = renewed_until(caller.arrival, until, own.ttl);
            let valid_for = promised(caller.arrival, until, own.ttl);
            seen.valid_for = Some(valid_for.min(seen.valid_for.unwrap_or(valid_for)));
            seen.held.push((name, token));
        }
        Ok(self.status(text.to_owned(), &own, seen, caller.arrival))
    }

    /// The sessions of the caller, as the store has them.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn own_sessions(&self, caller: &Caller) -> Result<Vec<OwnSession>, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let claims = self.store_claims.after(caller.arrival).await?;
        let own = claims.iter().filter(|it| *it.origin.owner == *caller.principal.name);
        let (sessions, holds): (Vec<_>, Vec<_>) = own.partition(|it| self.is_session(it));
        let locks = |number| holds.iter().filter(|it| it.origin.session == Some(number)).count();
        let shown = |it: &StoreClaim| {
            let number = it.origin.session?;
            let (holder, age, remaining) = (it.holder.text.clone(), it.age, it.remaining);
            Some(OwnSession { number, holder, age, remaining, locks: locks(number) })
        };
        Ok(sessions.into_iter().filter_map(shown).collect())
    }

    /// The holds of the caller, as the store has them, sorted by name.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn own_holds(&self, caller: &Caller) -> Result<Vec<StoreClaim>, Refusal> {
        caller.principal.check_right(Right::Lock)?;
        let claims = self.store_claims.after(caller.arrival).await?;
        let own = claims.iter().filter(|it| *it.origin.owner == *caller.principal.name);
        let mut own: Vec<_> = own.filter(|it| !self.is_session(it)).cloned().collect();
        own.sort_by(|one, other| (&one.key, one.token).cmp(&(&other.key, other.token)));
        Ok(own)
    }

    /// The status for an answer now to a request that arrived at `arrival`.
    fn status(
        &self,
        id: String,
        own: &HoldStatus,
        renewals: Renewals,
        arrival: Moment,
    ) -> SessionStatus {
        let valid_for = renewals.valid_for.unwrap_or(own.valid_for).min(own.valid_for);
        let left = valid_for.saturating_sub(self.clock.now().since(arrival));
        let Renewals { held, lost, .. } = renewals;
        SessionStatus { id, ttl: own.ttl, valid_for, renew_in: left / 3, held, lost }
    }

    /// Refuses a hold whose session has ended, as the store has it.
    pub(super) async fn check_session_of(&self, hold: &Ticket) -> Result<(), Refusal> {
        let Some(number) = hold.session() else { return Ok(()) };
        let seen = self.locks.inspect(number.name()).await;
        let seen = seen.map_err(|error| Refusal::of(&error, None))?;
        let is_own = |party: &latchwork_store::Party| {
            Origin::read(&party.holder).is_some_and(|it| it.session == Some(number))
        };
        if seen.holders.iter().any(is_own) {
            return Ok(());
        }
        Err(has_ended())
    }

    /// Whether a claim is a session, and no hold.
    fn is_session(&self, claim: &StoreClaim) -> bool {
        self.names.name_of(claim.key.as_str()).starts_with(SESSION_NAMES)
    }
}

/// The next step after the end of a session.
const NEXT: &str = "treat all locks of the session as lost; begin a new one with POST /v1/sessions";

/// The store no longer has the session.
fn has_ended() -> Refusal {
    Refusal::new(Kind::Lost, "session: it has ended").reason("taken").with_next_step(NEXT)
}

/// There is no such session; there may never have been one.
fn no_session() -> Refusal {
    let message = "session: the service does not know this session";
    Refusal::new(Kind::NotFound, message)
        .with_next_step("use the id that POST /v1/sessions returned, with the token that made it")
}

/// The refusal of a session, from that of the lock that it is.
pub(super) fn of_session(refusal: Refusal) -> Refusal {
    let message = refusal.message.replacen("hold:", "session:", 1);
    let step = match refusal.kind {
        Kind::Lost | Kind::Released | Kind::NotFound => NEXT.to_owned(),
        _ => refusal.step.clone(),
    };
    Refusal { message, step, key: None, ..refusal }
}

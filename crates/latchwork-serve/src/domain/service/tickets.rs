//! Holds that their clients keep: each request brings the ticket, and the store answers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork::{Error, ErrorKind, Event, FencingToken, Lost, LostReason, Observer, Unwatched};
use latchwork_store::{Key, Moment};

use super::Service;
use super::sessions::of_session;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::events::event::LockEvent;
use crate::domain::holds::claims::GrantedHold;
use crate::domain::holds::ended::Ending;
use crate::domain::holds::hold_status::HoldStatus;
use crate::domain::holds::id::HoldId;
use crate::domain::holds::kept::{Granted, Keeper};
use crate::domain::holds::origin::SESSION_NAMES;
use crate::domain::holds::registry::Hold;
use crate::domain::holds::release::{ReleaseKind, ReleaseOutcome};
use crate::domain::holds::seal::Purpose;
use crate::domain::holds::ticket::Ticket;
use crate::domain::holds::tickets::{Confirmed, Doubtful, Sighting};
use crate::domain::holds::validity::renewed_until;
use crate::domain::refusal::{Kind, RENEW_AGAIN_STEP, Refusal};
use crate::domain::wish::{Options, Target, Whose, Wish};
use crate::time::spawn;

/// How many holds whose end is near are asked for at a time.
const ASKED: usize = 64;

/// A hold that the store has granted, and that its client does not know yet: it ends with this value.
struct Unheld<'a> {
    service: &'a Service,
    ticket: Option<Ticket>,
}

impl Drop for Unheld<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.service.undo(ticket);
        }
    }
}

/// The last part of a hold that may not last for ever.
struct LastPart {
    /// What remains of its longest time.
    left: Duration,
    /// What remains of its lease at the store.
    lease: Duration,
    /// The end of the validity.
    until: Moment,
}

/// The hold that a request is about.
pub(crate) enum Asked {
    /// One that this process keeps.
    Kept(HoldId),
    /// One that its client keeps.
    Ticket(Box<Ticket>),
}

impl Service {
    /// Who keeps the holds with short names.
    fn keeper(&self) -> Keeper {
        if self.has_tickets { Keeper::Client } else { Keeper::Process }
    }

    /// Whether holds outlive this instance: others can renew and release them.
    pub(crate) fn outlived(&self) -> bool {
        self.has_tickets && self.seals.are_shared()
    }

    /// Checks what a client wants.
    ///
    /// # Errors
    ///
    /// As [`Wish::new`]; those of a session that cannot be used.
    pub(crate) fn wish(
        &self,
        target: Target,
        mut options: Options,
        caller: &Caller,
    ) -> Result<Wish, Refusal> {
        let session = options.session.take().map(|text| self.open_session(&text, caller));
        let session = session.transpose()?.map(Arc::from);
        let wish = self.wish_of(target, options, caller, session)?;
        match wish.names().into_iter().find(|name| name.starts_with(SESSION_NAMES)) {
            Some(name) => {
                let message = format!("name: {SESSION_NAMES:?} begins the names of sessions");
                Err(Refusal::invalid(message, "choose another name").key(name))
            }
            None => Ok(wish),
        }
    }

    pub(super) fn wish_of(
        &self,
        target: Target,
        options: Options,
        caller: &Caller,
        session: Option<Arc<Ticket>>,
    ) -> Result<Wish, Refusal> {
        let whose =
            Whose { owner: caller.principal.name.clone(), session, added: self.names.added() };
        Wish::new(target, options, self.locks.capabilities(), self.keeper(), whose)
    }

    /// The hold with this id, if it may be one of the caller's.
    ///
    /// # Errors
    ///
    /// `NotFound`, whatever is wrong with the id.
    pub(crate) fn open(&self, text: &str, caller: &Caller) -> Result<Asked, Refusal> {
        if let Ok(id) = text.parse() {
            return Ok(Asked::Kept(id));
        }
        let ticket = self.seals.open(Purpose::Hold, text);
        if ticket.is_none() && self.seals.is_newer(Purpose::Hold, text) {
            return Err(Refusal::newer());
        }
        let own = ticket.filter(|ticket| *ticket.owner == *caller.principal.name);
        own.map(Box::new).map(Asked::Ticket).ok_or_else(Refusal::no_hold)
    }

    /// Makes a ticket of a hold that was just granted, and enters it.
    pub(super) async fn enter_ticket(
        &self,
        granted: Granted,
        wish: &Wish,
        caller: &Caller,
        is_named: bool,
    ) -> Result<GrantedHold, Refusal> {
        let period = granted.period();
        let taken = Ticket::take(granted).await;
        let (locks, until) = taken.map_err(|error| Refusal::of(&error, None))?;
        // Without a wait, it is no more than a renewal gives.
        let until = match wish.wait.is_zero() {
            true => renewed_until(caller.arrival, until, wish.ttl),
            false => until,
        };
        let since = self.clock.wall();
        let ticket = Ticket {
            owner: caller.principal.name.clone(),
            locks,
            ttl: wish.ttl,
            since: Duration::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
            max_end: wish.max_hold.map(|longest| since.saturating_add(longest)),
            period,
        };
        // Without an entry, a renewal of the session would find and keep it.
        let mut unheld = Unheld { service: self, ticket: Some(ticket.clone()) };
        let until = self.lengthened(&ticket, until).await;
        let until = until.map_err(|error| Refusal::of(&error, Some(&self.name_of(&ticket))))?;
        let text = self.enter(&ticket, wish.session.as_deref(), until, is_named).await?;
        unheld.ticket = None;
        Ok(GrantedHold { id: ticket.id(), text: text.into() })
    }

    /// Ends a hold that no client has learned of, also if a renewal of its session has entered it.
    fn undo(&self, ticket: Ticket) {
        self.registry.leave_session(&ticket);
        let ending = Ending::Released(ReleaseKind::Release, ReleaseOutcome::Unknown);
        for hold in self.registry.end_ticket(&ticket, ending) {
            self.publish_elsewhere(&hold);
        }
        self.abandon(ticket);
    }

    /// Enters a new hold, unless its session has ended meanwhile, and returns its id.
    async fn enter(
        &self,
        ticket: &Ticket,
        session: Option<&Ticket>,
        until: Moment,
        is_named: bool,
    ) -> Result<String, Refusal> {
        let sealed = self.seals.seal(Purpose::Hold, ticket);
        let text = sealed
            .ok_or_else(|| Refusal::new(Kind::Broken, "hold: the machine gives no random bytes"))?;
        if let Some(session) = session {
            self.check_session(session).await?;
        }
        self.enter_checked(ticket, session, until, is_named)?;
        Ok(text)
    }

    /// Enters a new hold whose session was at the store a moment ago.
    fn enter_checked(
        &self,
        ticket: &Ticket,
        session: Option<&Ticket>,
        until: Moment,
        is_named: bool,
    ) -> Result<(), Refusal> {
        for before in self.registry.insert_ticket(ticket, until, is_named)? {
            self.ends_here(&before, None);
        }
        if let Some(session) = session {
            self.registry.remember(session, ticket);
            // Its end has released the holds that it saw.
            if let Some(ended) = self.registry.ended(session.id(), &session.owner) {
                return Err(of_session(ended.refusal()));
            }
        }
        Ok(())
    }

    /// Gives a new hold its whole lease: a grant that the store has pushed to a waiter, or that was handed over, may end
    /// in a moment. Returns the end of the validity.
    ///
    /// # Errors
    ///
    /// `Lost`. Without an answer, the validity is that of the grant.
    pub(super) async fn lengthened(&self, ticket: &Ticket, until: Moment) -> Result<Moment, Error> {
        let (lease, now) = (self.lease_of(ticket), self.clock.now());
        // The store's shortest lease may be longer than the ttl.
        let until = until.minus(ticket.lease().saturating_sub(ticket.ttl));
        if until.since(now) >= lease.min(ticket.ttl) / 2 {
            return Ok(until);
        }
        match ticket.renew(&self.locks, lease).await {
            Err(error) if error.kind() != ErrorKind::Lost => Ok(until),
            renewed => renewed.map(|until| renewed_until(now, until, ticket.ttl)),
        }
    }

    /// The lease of a renewal: that of the hold, or what remains of its longest hold.
    fn lease_of(&self, ticket: &Ticket) -> Duration {
        let left = ticket.max_left(self.clock.wall());
        self.lease_with(ticket, left.unwrap_or(Duration::MAX))
    }

    fn lease_with(&self, ticket: &Ticket, left: Duration) -> Duration {
        ticket.lease().min(left).max(*self.locks.capabilities().ttl.start())
    }

    /// Reads the last part of a hold that the wall clock puts near the end of its longest time. Wall clocks of instances
    /// differ: they say when to ask, and the store's age of the hold decides if there is one. `None` if it is not held.
    async fn last_part(
        &self,
        ticket: &Ticket,
        by_wall: Duration,
    ) -> Result<Option<LastPart>, Error> {
        let mut last = LastPart { left: by_wall, lease: Duration::MAX, until: Moment::NEVER };
        let longest = ticket.max_end.map(|end| end.saturating_sub(ticket.since));
        for lock in &ticket.locks {
            let asked = self.clock.now();
            let seen = self.locks.inspect(&self.names.name_of(lock.key().as_str())).await?;
            let Some(own) = seen.holders.iter().find(|party| party.id == Some(lock.id())) else {
                return Ok(None);
            };
            if let (Some(longest), Some(age)) = (longest, own.age) {
                last.left = longest.saturating_sub(age);
            }
            let lease = own.remaining.unwrap_or(lock.ttl());
            // What a store shows has the lock delay in it.
            let seen = lease.saturating_sub(lock.holder().room_for_delay());
            let until = self.seen_until(HoldId::of(lock.id()), asked, seen);
            last.lease = last.lease.min(lease);
            last.until = last.until.min(until);
        }
        Ok(Some(last))
    }

    /// Until when a hold is valid, by what the store has said or by what this instance knows.
    pub(super) fn seen_until(&self, id: HoldId, asked: Moment, left: Duration) -> Moment {
        let seen = Unwatched::seen_until(&self.locks, asked, left);
        self.registry.known_until(id).map_or(seen, |known| known.max(seen))
    }

    /// Releases a hold that no client has learned of.
    pub(super) fn abandon(&self, ticket: Ticket) {
        let (locks, wall) = (self.locks.clone(), self.clock.wall());
        spawn(async move { ticket.end(&locks, ReleaseKind::Release, wall, |_| ()).await });
    }

    /// Renews a hold at the store.
    pub(super) async fn renew_ticket(
        &self,
        ticket: &Ticket,
        caller: &Caller,
    ) -> Result<HoldStatus, Refusal> {
        let renewed = self.renew_at_store(ticket, caller).await?;
        renewed.map_err(|error| self.not_renewed(ticket, &error))
    }

    /// Renews a session, or a hold of one. If the store does not have it, its client may have released it elsewhere: the
    /// answer tells of a loss, and no event does.
    pub(super) async fn renew_in_session(
        &self,
        ticket: &Ticket,
        caller: &Caller,
    ) -> Result<HoldStatus, Refusal> {
        let error = match self.renew_at_store(ticket, caller).await? {
            Ok(status) => return Ok(status),
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Lost || !self.may_be_released_elsewhere(ticket) {
            return Err(self.not_renewed(ticket, &error));
        }
        // The others of several locks are not renewed again. They end with their leases: the client still relies on them.
        let holds = match ticket.locks.len() {
            1 => self.registry.forget_ticket(ticket).into_iter().collect(),
            _ => self.registry.end_ticket(ticket, Ending::Lost("taken")),
        };
        for hold in holds {
            self.publish_elsewhere(&hold);
        }
        Err(Ending::Lost("taken").refusal(&self.name_of(ticket)))
    }

    /// Whether another instance may have released a hold that the store does not have.
    fn may_be_released_elsewhere(&self, ticket: &Ticket) -> bool {
        self.outlived()
            && self.registry.ended(ticket.id(), &ticket.owner).is_none()
            && self.registry.gone(ticket) == Ending::Lost("taken")
    }

    /// Renews a hold, or returns the error of the store.
    pub(super) async fn renew_at_store(
        &self,
        ticket: &Ticket,
        caller: &Caller,
    ) -> Result<Result<HoldStatus, Error>, Refusal> {
        self.check_ticket(ticket, caller)?;
        self.registry.check_open()?;
        let wall = self.clock.wall();
        let Some(left) = ticket.max_left(wall).filter(|left| *left < ticket.lease()) else {
            return self.renewed(ticket, ticket.renew(&self.locks, ticket.lease()).await, caller);
        };
        let last = match self.last_part(ticket, left).await {
            Ok(Some(last)) => last,
            Ok(None) => return Err(self.lose(ticket, self.registry.gone(ticket))),
            Err(error) => return Ok(Err(error)),
        };
        if last.left.is_zero() {
            return Err(self.lose(ticket, Ending::Lost("max_hold")));
        }
        let renewed = match last.left <= last.lease {
            // A renewal would shorten a lease on which the client relies.
            true => Ok(last.until),
            false => ticket.renew(&self.locks, self.lease_with(ticket, last.left)).await,
        };
        self.renewed(&ticket.with_left(last.left, wall), renewed, caller)
    }

    /// Keeps what the store has answered to a renewal.
    fn renewed(
        &self,
        ticket: &Ticket,
        renewed: Result<Moment, Error>,
        caller: &Caller,
    ) -> Result<Result<HoldStatus, Error>, Refusal> {
        match renewed {
            Ok(until) => {
                let until = renewed_until(caller.arrival, until, ticket.ttl);
                self.confirmed(ticket, until, caller, true).map(Ok)
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// Shows a hold as the store has it.
    pub(super) async fn show_ticket(
        &self,
        ticket: &Ticket,
        caller: &Caller,
    ) -> Result<HoldStatus, Refusal> {
        if let Some(ended) = self.registry.ended(ticket.id(), &ticket.owner) {
            return Err(ended.refusal());
        }
        match ticket.look(&self.locks).await {
            Ok(Some(until)) => {
                let until = renewed_until(caller.arrival, until, ticket.ttl);
                self.confirmed(ticket, until, caller, false)
            }
            Ok(None) if self.may_be_released_elsewhere(ticket) => {
                self.registry.leave_session(ticket);
                let taken = Ending::Lost("taken");
                for hold in self.registry.end_ticket(ticket, taken) {
                    self.publish_elsewhere(&hold);
                }
                Err(taken.refusal(&self.name_of(ticket)))
            }
            Ok(None) => Err(self.lose(ticket, self.registry.gone(ticket))),
            Err(error) => Err(Refusal::of(&error, Some(&self.name_of(ticket)))),
        }
    }

    /// Keeps what the store has said of a hold, and tells it to the client.
    pub(super) fn confirmed(
        &self,
        ticket: &Ticket,
        until: Moment,
        caller: &Caller,
        renewed: bool,
    ) -> Result<HoldStatus, Refusal> {
        let Confirmed { status, is_new } =
            self.registry.confirm(ticket, until, caller.arrival, renewed)?;
        if is_new {
            self.begins_here(ticket);
        }
        Ok(status)
    }

    /// Counts a hold that another instance has granted.
    pub(super) fn begins_here(&self, ticket: &Ticket) {
        for (key, token) in ticket.tokens() {
            self.store_watch.add_own(key, token);
            self.metrics.event(&Event::Adopted { key, token });
        }
    }

    /// Counts the end of a hold without a release by this instance.
    pub(super) fn ends_here(&self, hold: &Hold, ending: Option<Ending>) {
        if hold.kept.known().is_none() {
            // The library counts the guards.
            return;
        }
        let now = self.clock.now();
        let reason = match ending {
            None | Some(Ending::Released(..)) => None,
            Some(Ending::NotRenewed) => Some(LostReason::Expired),
            Some(Ending::Lost("max_hold")) => Some(LostReason::MaxHold),
            Some(Ending::Lost(_) | Ending::Forced) => Some(LostReason::Taken),
        };
        let held = now.since(hold.since);
        for (key, token) in hold.kept.locks() {
            let key = &key;
            self.metrics.event(&match reason {
                Some(reason) => Event::Lost { key, token, lost: Lost::new(reason, now), held },
                None => Event::Detached { key, token, held },
            });
        }
    }

    /// Refuses what the caller may no longer use, and a hold whose end this instance has seen.
    pub(super) fn check_ticket(&self, ticket: &Ticket, caller: &Caller) -> Result<(), Refusal> {
        for (key, _) in ticket.tokens() {
            let name = self.names.name_of(key.as_str());
            // A session belongs to its token, whatever the prefixes of that are.
            if !name.starts_with(SESSION_NAMES) {
                caller.principal.check(Right::Lock, &name)?;
            }
        }
        match self.registry.ended(ticket.id(), &ticket.owner) {
            Some(ended) => Err(ended.refusal()),
            None => Ok(()),
        }
    }

    /// The refusal of a renewal that the store has not granted.
    pub(super) fn not_renewed(&self, ticket: &Ticket, error: &Error) -> Refusal {
        if error.kind() == ErrorKind::Lost {
            return self.lose(ticket, self.registry.gone(ticket));
        }
        let refusal = Refusal::of(error, Some(&self.name_of(ticket)));
        match error.kind() {
            ErrorKind::Unreachable => refusal.with_next_step(RENEW_AGAIN_STEP),
            _ => refusal,
        }
    }

    /// Ends a hold that the store does not have. The others of several locks are released by the client's `DELETE`, or
    /// end with their leases: as long as its client has not read this answer, it relies on the one before.
    fn lose(&self, ticket: &Ticket, ending: Ending) -> Refusal {
        // The loop that ends holds may have found it meanwhile.
        if let Some(ended) = self.registry.ended(ticket.id(), &ticket.owner) {
            return ended.refusal();
        }
        self.registry.leave_session(ticket);
        for hold in self.registry.end_ticket(ticket, ending) {
            tracing::warn!(
                name = self.name_of(ticket),
                reason = ending.reason(),
                "a hold was lost"
            );
            self.publish_end(&hold, ending);
        }
        ending.refusal(&self.name_of(ticket))
    }

    /// The name of the first lock.
    pub(super) fn name_of(&self, ticket: &Ticket) -> String {
        let first = ticket.tokens().next();
        first.map(|(key, _)| self.names.name_of(key.as_str())).unwrap_or_default()
    }

    /// Asks the store for holds whose end is near. Those that it does not have were ended by another instance, or were
    /// not renewed.
    pub(super) async fn settle(self: Arc<Self>, doubtful: Vec<Doubtful>) {
        for some in doubtful.chunks(ASKED) {
            let sightings = join_all(some.iter().map(|it| self.sight(it))).await;
            for (doubtful, sighting) in some.iter().zip(&sightings) {
                match self.registry.sighted(doubtful.id, sighting) {
                    Some((hold, Some(ending))) => {
                        self.publish_end(&hold, ending);
                        crate::metrics::not_renewed();
                    }
                    Some((hold, None)) => self.publish_elsewhere(&hold),
                    None => {}
                }
            }
        }
        self.registry.sooner.notify_one();
    }

    async fn sight(&self, doubtful: &Doubtful) -> Sighting {
        let name = self.names.name_of(doubtful.key.as_str());
        let asked = self.clock.now();
        let Ok(seen) = self.locks.inspect(&name).await else { return Sighting::Silence };
        let claim = Some(doubtful.id.claim());
        match seen.holders.iter().find(|party| party.id == claim) {
            Some(party) => {
                let left = party.remaining.unwrap_or_default();
                Sighting::Held { left, until: self.seen_until(doubtful.id, asked, left) }
            }
            None => Sighting::Gone,
        }
    }

    /// Publishes that a hold has ended elsewhere: by a release, or by a loss.
    pub(super) fn publish_elsewhere(&self, hold: &Hold) {
        self.ends_here(hold, None);
        for (key, token) in hold.kept.locks() {
            self.store_watch.remove_own(&key, token);
            let event = LockEvent::new("released", self.names.name_of(key.as_str()));
            let lasted = Some(self.clock.now().since(hold.since));
            self.hub.publish(LockEvent { token: Some(token), lasted, by: "store", ..event });
        }
    }

    /// Publishes the ends of the holds of tickets that were taken away from this key.
    pub(super) fn publish_forced(&self, key: &Key, tokens: &[FencingToken]) {
        for (hold, ending) in self.registry.forced(key, tokens) {
            self.publish_end(&hold, ending);
        }
    }
}

#[cfg(test)]
mod tests {
    use latchwork::{Driver, Resize};
    use latchwork_store::Mode;
    use tokio::sync::mpsc;

    use super::*;
    use crate::domain::access::caller::Peer;
    use crate::domain::access::policy::AccessPolicy;
    use crate::domain::access::principal::Principal;
    use crate::domain::events::event::Forced;
    use crate::domain::events::hub::Hub;
    use crate::domain::holds::registry::{Limits, Registry};
    use crate::domain::holds::seal::Seals;
    use crate::domain::names::Names;
    use crate::domain::service::Parts;
    use crate::domain::wish::LockWish;

    /// A service of files, without a seal key, and a client.
    async fn service(dir: &tempfile::TempDir) -> (Driver, Arc<Service>, Caller) {
        let url = format!("file://{}", dir.path().display());
        let locks = latchwork::connect(&url).await.unwrap();
        let driver = Driver::start().unwrap();
        let (clock, names) = (driver.io().clock().clone(), Names::new(""));
        let (limits, rights) = (Limits { holds: 10, waiters: 10 }, [Right::Lock]);
        let arrival = clock.now();
        let service = Service::new(Parts {
            locks,
            names: names.clone(),
            store: url.as_str().into(),
            registry: Registry::new(clock.clone(), limits, names, false),
            seals: Seals::new(None, "").unwrap(),
            hub: Arc::new(Hub::new(|_| None)),
            clock,
            access: AccessPolicy::new(None, false, false),
            losses: mpsc::unbounded_channel().1,
        });
        let principal = Arc::new(Principal::local(&rights));
        (driver, service, Caller { principal, arrival, peer: Peer::Unix })
    }

    /// H533: the names are too long for a ticket, and one of the locks was taken away.
    #[tokio::test]
    async fn h533_a_delete_frees_what_is_left_of_a_lost_hold_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, service, caller) = service(&dir).await;
        let long = "n".repeat(6_000);
        let (mode, resize) = (Mode::Exclusive, Resize::Never);
        let lock = |name: &str| LockWish { name: name.into(), mode, resize, is_fair: false };
        let options = Options { ttl: Some(Duration::from_secs(60)), ..Options::default() };
        let target = Target::Locks(vec![lock("a"), lock(&long)]);
        let wish = service.wish(target, options, &caller).unwrap();
        let taken = service.acquire(wish, &caller, None).await.unwrap().into_hold().unwrap();
        let (key, of) =
            (service.names.key("a").unwrap(), Forced { by: "me".into(), why: "".into() });
        service.force_release("a", &key, of).await.unwrap();
        let is_free = |limit| {
            let other = service.locks.mutex(&long);
            async move { other.acquire_within(Duration::from_millis(limit)).await.is_ok() }
        };
        assert_eq!(service.renew(&taken.id, &caller).await.unwrap_err().kind, Kind::Lost);
        let name = "another".into();
        let another = Principal { name, ..Principal::local(&[Right::Lock]) };
        let another = Caller { principal: Arc::new(another), ..caller.clone() };
        let deleted = service.release(&taken.id, &another, ReleaseKind::Release).await;
        assert_eq!(deleted.unwrap_err().kind, Kind::NotFound);
        assert!(!is_free(300).await, "its client may not have read that it is lost");
        let deleted = service.release(&taken.id, &caller, ReleaseKind::Release).await;
        assert_eq!(deleted.unwrap_err().kind, Kind::Lost);
        assert!(is_free(10_000).await && service.registry.is_idle());
    }

    /// H450: between the look at the session and the entry of the hold, which its end cannot see.
    #[tokio::test]
    async fn h450_a_session_that_ends_during_a_grant_leaves_no_hold() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, service, caller) = service(&dir).await;
        let begun = service.create_session(Options::default(), &caller).await.unwrap();
        let session = service.open_session(&begun.id, &caller).unwrap();
        let (mode, resize) = (Mode::Exclusive, Resize::Never);
        let lock = LockWish { name: "a".into(), mode, resize, is_fair: false };
        let options = Options { session: Some(begun.id.clone()), ..Options::default() };
        let wish = service.wish(Target::Locks(vec![lock]), options, &caller).unwrap();
        let manager = wish.manager(&service.locks, &"me".into());
        let kept = service.grant(&wish, &manager).await.unwrap().ok().unwrap();
        let (locks, until) = Ticket::take(kept).await.unwrap();
        let ticket = Ticket { locks, ..Ticket::clone(&session) };
        service.check_session(&session).await.unwrap();
        let ended = service.end_session(&begun.id, &caller).await.unwrap();
        assert_eq!(ended.released, 0, "it was not entered");
        let unheld = Unheld { service: &service, ticket: Some(ticket.clone()) };
        let refused = service.enter_checked(&ticket, Some(&session), until, false).unwrap_err();
        assert_eq!(refused.kind, Kind::Released);
        drop(unheld);
        assert!(service.locks.mutex("a").acquire_within(Duration::from_secs(5)).await.is_ok());
        assert_eq!(service.registry.count(), 0);
    }

    /// H476: a renewal that is cut after the session's own lock has confirmed none of its holds.
    #[tokio::test]
    async fn h476_a_look_at_a_session_promises_what_its_holds_have() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, service, caller) = service(&dir).await;
        let options = || Options { ttl: Some(Duration::from_secs(5)), ..Options::default() };
        let begun = service.create_session(options(), &caller).await.unwrap();
        let session = service.open_session(&begun.id, &caller).unwrap();
        let (mode, resize) = (Mode::Exclusive, Resize::Never);
        let lock = LockWish { name: "a".into(), mode, resize, is_fair: false };
        let options = Options { session: Some(begun.id.clone()), ..Options::default() };
        let wish = service.wish(Target::Locks(vec![lock]), options, &caller).unwrap();
        service.take(&wish, &caller, false).await.unwrap();
        let half = Duration::from_secs(1);
        crate::time::pause(half).await;
        let now = || Caller { arrival: service.clock.now(), ..caller.clone() };
        let own = service.renew_ticket(&session, &now()).await.unwrap();
        let shown = service.show_session(&begun.id, &now()).await.unwrap();
        assert_eq!(shown.held.len(), 1);
        assert!(
            shown.valid_for + half / 2 <= own.valid_for,
            "{:?} of {:?}",
            shown.valid_for,
            own.valid_for
        );
    }

    /// H478: the wall clock of the instance that renews says that the longest hold is over in a second; the store has
    /// counted no second of it.
    #[tokio::test]
    async fn h478_a_clock_that_is_ahead_shortens_no_lease() {
        let dir = tempfile::tempdir().unwrap();
        let (_driver, service, caller) = service(&dir).await;
        let ttl = Duration::from_secs(20);
        let options = Options { ttl: Some(ttl), ..Options::default() };
        let begun = service.create_session(options, &caller).await.unwrap();
        let granted = service.open_session(&begun.id, &caller).unwrap();
        let wall = service.clock.wall();
        for ahead in [Duration::from_secs(59), Duration::from_secs(70)] {
            let since = wall.saturating_sub(ahead);
            let max_end = Some(since + Duration::from_secs(60));
            let ticket = Ticket { since, max_end, ..Ticket::clone(&granted) };
            let renewed = service.renew_at_store(&ticket, &caller).await.unwrap().unwrap();
            assert!(renewed.valid_for > ttl / 2, "{ahead:?}: {renewed:?}");
            let (over, ..) = service.registry.remove_late();
            assert!(over.is_empty(), "{ahead:?}: {over:?}");
            let left = granted.look(&service.locks).await.unwrap().unwrap();
            assert!(left.since(service.clock.now()) > ttl / 2, "{ahead:?}");
        }
    }
}

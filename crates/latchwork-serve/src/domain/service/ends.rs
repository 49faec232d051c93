//! The ends of holds: released, not renewed, lost, or taken away; and the loop that notices them.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use latchwork::{Error, ErrorKind, FencingToken, ForceReleased};
use latchwork_store::Key;

use super::Service;
use super::tickets::Asked;
use crate::domain::access::caller::Caller;
use crate::domain::events::event::{Forced, LockEvent};
use crate::domain::events::observer::Loss;
use crate::domain::holds::ended::{Ending, answer};
use crate::domain::holds::ends::ReleaseState;
use crate::domain::holds::id::HoldId;
use crate::domain::holds::registry::Hold;
use crate::domain::holds::release::{Confirmation, ProgressSender, ReleaseKind, ReleaseOutcome};
use crate::domain::holds::ticket::{Released, Ticket};
use crate::domain::refusal::{Kind, Refusal};
use crate::time::spawn;

/// How often the claims and ends that are too old are removed.
const SWEEP: Duration = Duration::from_secs(30);

/// A release that is to be asked for.
struct Ends {
    id: HoldId,
    hold: Box<Hold>,
    /// If its client keeps it.
    ticket: Option<Box<Ticket>>,
    kind: ReleaseKind,
    name: Arc<str>,
}

impl Service {
    /// Ends the holds whose clients do not renew them, and those that the library has lost, until the
    /// service stops.
    pub(crate) async fn watch(self: Arc<Self>) {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut losses) = losses else { return };
        let mut swept = self.clock.now();
        loop {
            let (over, doubtful, next) = self.registry.remove_late();
            if !doubtful.is_empty() {
                spawn(self.clone().settle(doubtful));
            }
            for (hold, ending) in over {
                self.publish_end(&hold, ending);
                if ending == Ending::NotRenewed {
                    crate::metrics::not_renewed();
                }
                // It is released in the background.
                drop(hold);
            }
            let now = self.clock.now();
            if now.since(swept) >= SWEEP {
                swept = now;
                self.registry.sweep();
                self.claims.sweep(|id| self.registry.knows(id));
            }
            self.turns.send_modify(|count| *count = count.wrapping_add(1));
            let wake = next.min(now.plus(SWEEP));
            tokio::select! {
                () = self.clock.sleep_until(wake) => {}
                () = self.registry.sooner.notified() => {}
                loss = losses.recv() => match loss {
                    Some(loss) => self.lost(&loss),
                    None => return,
                },
            }
        }
    }

    /// Completes after another turn of the loop that ends holds, and after the threads that renew leases have run a
    /// task. The store is not asked, because a restart of the service would not repair the store.
    pub(crate) async fn turn(&self) {
        let mut turns = self.turns.subscribe();
        self.registry.sooner.notify_one();
        // An error means that the service has ended.
        let _ = turns.changed().await;
        self.locks.heartbeat().await;
    }

    fn lost(&self, loss: &Loss) {
        if let Some((id, hold, ending)) = self.registry.lost(&loss.key, loss.token, loss.reason) {
            let (name, reason) = (self.names.name_of(loss.key.as_str()), ending.reason());
            tracing::warn!(name, token = %loss.token, reason, "a hold was lost");
            self.publish_end(&hold, ending);
            self.leave_to_its_ttl(id, hold);
        }
    }

    /// Keeps the other locks of a lost hold until its client's ttl is over or the client deletes it: it relies on them
    /// until it learns of the loss.
    fn leave_to_its_ttl(&self, id: HoldId, hold: Hold) {
        let has_others = hold.kept.known().is_none() && hold.kept.locks().len() > 1;
        if !has_others {
            return;
        }
        let (clock, registry, end) = (self.clock.clone(), self.registry.clone(), hold.end);
        let owner = hold.owner().clone();
        registry.keep_others(id, hold);
        spawn(async move {
            clock.sleep_until(end).await;
            drop(registry.take_others(id, &owner));
        });
    }

    /// Takes a lock away from its holders, of this service or not.
    ///
    /// # Errors
    ///
    /// As [`force_release`](latchwork::LockManager::force_release).
    pub(crate) async fn force_release(
        &self,
        name: &str,
        key: &Key,
        forced: Forced,
    ) -> Result<ForceReleased, Error> {
        let forcing = self.registry.begin_forced_release(key);
        let done = self.locks.force_release(name).await;
        for one in done.iter().flat_map(|done| &done.evicted) {
            self.hub.publish(LockEvent {
                token: one.token.map(FencingToken::from_grant),
                holder: Some(one.holder.shown().to_string()),
                mode: Some(one.mode.word()),
                forced: Some(forced.clone()),
                ..LockEvent::new("forced", name)
            });
        }
        // The library has ended the holds that the store evicted, also if it could not evict all. Meanwhile the store
        // may have granted the lock again, even to a client of this service.
        for (id, hold, ending) in self.registry.evicted(key) {
            self.publish_end(&hold, ending);
            self.leave_to_its_ttl(id, hold);
        }
        let tokens = done.iter().flat_map(|done| &done.evicted).filter_map(|one| one.token);
        let tokens: Vec<_> = tokens.map(FencingToken::from_grant).collect();
        self.publish_forced(key, &tokens);
        drop(forcing);
        done
    }

    /// Releases a hold, or ends its task with success. A repeat learns the result of the first request.
    ///
    /// # Errors
    ///
    /// As [`Registry::release`](crate::domain::holds::registry::Registry::release); `Unreachable` while the store does
    /// not answer.
    pub(crate) async fn release(
        self: &Arc<Self>,
        text: &str,
        caller: &Caller,
        asked: ReleaseKind,
    ) -> Result<Confirmation, Refusal> {
        let (id, ticket) = match self.open(text, caller)? {
            Asked::Kept(id) => (id, None),
            Asked::Ticket(ticket) => (ticket.id(), Some(ticket)),
        };
        self.release_asked(id, ticket, caller, asked).await
    }

    pub(super) async fn release_asked(
        self: &Arc<Self>,
        id: HoldId,
        ticket: Option<Box<Ticket>>,
        caller: &Caller,
        asked: ReleaseKind,
    ) -> Result<Confirmation, Refusal> {
        let state = self.registry.release(id, ticket.as_deref(), &caller.principal.name, asked);
        let state = match state {
            Err(refusal) => {
                // Its client knows of the loss, and relies on none of its locks: those that are left end now.
                if let Some(ticket) = ticket.filter(|it| it.locks.len() > 1)
                    && matches!(refusal.kind, Kind::Lost | Kind::Unconfirmed)
                {
                    self.abandon_once(*ticket);
                }
                drop(self.registry.take_others(id, &caller.principal.name));
                return Err(refusal);
            }
            Ok(state) => state,
        };
        let (kind, name, receiver) = match state {
            ReleaseState::Confirmed(confirmation) => return Ok(confirmation),
            ReleaseState::UnderWay { kind, name, receiver } => (kind, name, receiver),
            ReleaseState::New { hold, is_new, parts, sender, receiver } => {
                parts.iter().for_each(|part| self.ends_here(part, None));
                if let Some(ticket) = ticket.as_deref() {
                    self.registry.leave_session(ticket);
                    if is_new {
                        self.begins_here(ticket);
                    }
                }
                let ending = Ending::Released(asked, ReleaseOutcome::Pending);
                self.publish_end(&hold, ending);
                let name: Arc<str> = Arc::from(hold.name(&self.names));
                // It goes on if the client closes its connection.
                let end = Ends { id, hold, ticket, kind: asked, name: Arc::clone(&name) };
                spawn(self.clone().end(end, sender));
                (asked, name, receiver)
            }
        };
        answer(asked, kind, receiver.outcome().await?, &name)
    }

    /// Releases the other locks of a lost hold, unless an earlier request does so.
    fn abandon_once(&self, ticket: Ticket) {
        let id = ticket.id();
        if !self.registry.begin_abandoning(id) {
            return;
        }
        let (locks, wall, registry) =
            (self.locks.clone(), self.clock.wall(), self.registry.clone());
        spawn(async move {
            ticket.end(&locks, ReleaseKind::Release, wall, |_| ()).await;
            registry.end_abandoning(id);
        });
    }

    /// Asks the store until it answers, and keeps its answer.
    async fn end(self: Arc<Self>, ends: Ends, sender: ProgressSender) {
        let Ends { id, hold, ticket, kind, name } = ends;
        let failed = |error: &Error| {
            let refusal = Refusal::of(error, Some(&name));
            sender.failed(refusal.with_next_step(
                "repeat this request: the service asks the store until the lease is over, and tells what it says",
            ));
        };
        let unknown = |error: &Error| {
            tracing::warn!(name = ?name, %error, "a release was not confirmed");
            ReleaseOutcome::Unknown
        };
        let ids = ticket.as_ref().map_or_else(|| vec![id], |it| it.ids().collect());
        let outcome = match ticket {
            Some(ticket) => {
                let is_late = hold.kept.valid_until() <= self.clock.now();
                match ticket.end(&self.locks, kind, self.clock.wall(), failed).await {
                    Released::Held => ReleaseOutcome::Held,
                    // Another instance may have released it, for a request whose answer was lost, or does so now.
                    Released::PartlyHeld | Released::NotHeld if self.outlived() => {
                        ReleaseOutcome::Unknown
                    }
                    Released::PartlyHeld => ReleaseOutcome::Lost("taken"),
                    Released::NotHeld if is_late => ReleaseOutcome::Lost("not_renewed"),
                    Released::NotHeld => ReleaseOutcome::Lost("taken"),
                    Released::Unknown(error) => unknown(&error),
                }
            }
            None => match hold.kept.end(kind, failed).await {
                Ok(()) => ReleaseOutcome::Held,
                Err(error) => match (error.kind(), error.lost()) {
                    (_, Some(lost)) => ReleaseOutcome::Lost(lost.reason.word()),
                    (ErrorKind::Lost, None) => ReleaseOutcome::Lost("taken"),
                    _ => unknown(&error),
                },
            },
        };
        self.registry.settle(&ids, kind, outcome);
        sender.done(outcome);
    }

    /// Publishes the end of a hold.
    pub(crate) fn publish_end(&self, hold: &Hold, ending: Ending) {
        let word = if let Ending::Released(..) = ending { "released" } else { "lost" };
        if word == "lost" {
            self.ends_here(hold, Some(ending));
        }
        for (key, token) in hold.kept.locks() {
            self.store_watch.remove_own(&key, token);
            self.hub.publish(LockEvent {
                token: Some(token),
                reason: ending.reason(),
                lasted: Some(self.clock.now().since(hold.since)),
                ..LockEvent::new(word, self.names.name_of(key.as_str()))
            });
        }
    }
}

//! Renewals: many claims of a process by one script.

use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{BackendError, Claim, Renewal};
use redis::Value;
use tokio::sync::watch;

use crate::protocol::answers::renewals;
use crate::protocol::names::Names;
use crate::protocol::scripted::{Scripted, may_be_alone};
use crate::protocol::scripts::RENEW;
use crate::protocol::value::{letter, millis};
use crate::server::errors::{Failure, Reaction, strange};
use crate::server::topology::Route;

/// How much longer than the first of several nodes the others may take to answer a renewal.
const GRACE: Duration = Duration::from_millis(250);

/// The most work for one script, so that it blocks the server for a few milliseconds only: a claim that
/// holds alone counts as one.
const MOST: usize = 512;
/// A reader, or a holder of permits, counts as this many.
const MEMBER: usize = 4;

/// A slot, and claims there by their place in a list, as many as one script renews.
#[derive(Debug)]
struct Group {
    slot: Option<u16>,
    work: usize,
    claims: Vec<(usize, Names)>,
}

/// Prepares the route of some renewals; it gets their shortest ttl.
pub(crate) type Prepare<'a> = &'a (dyn Fn(Route, Duration) -> Route + Sync);

impl Scripted {
    /// Renews claims, each group on a route that `prepare` has prepared.
    pub(crate) async fn renew_all(
        &self,
        claims: &[Claim],
        prepare: Prepare<'_>,
    ) -> Vec<Result<Renewal, BackendError>> {
        let mut answers: Vec<Option<Result<Renewal, BackendError>>> = vec![None; claims.len()];
        let mut groups: Vec<Group> = Vec::new();
        for (index, claim) in claims.iter().enumerate() {
            match self.names(claim) {
                Err(error) => answers[index] = Some(Err(error)),
                Ok(names) => {
                    let slot = names.slot();
                    let work = if claim.mode.is_alone() { 1 } else { MEMBER };
                    // Counters are one for a namespace, so a group has one namespace too.
                    let fits = |group: &&mut Group| {
                        group.slot == slot
                            && group.work + work <= MOST
                            && group.claims[0].1.namespace() == names.namespace()
                    };
                    match groups.iter_mut().find(fits) {
                        Some(group) => {
                            group.work += work;
                            group.claims.push((index, names));
                        }
                        None => groups.push(Group { slot, work, claims: vec![(index, names)] }),
                    }
                }
            }
        }
        // A stopped node must not delay the renewals on the other nodes.
        let (first, _) = watch::channel(false);
        let mut running = Vec::new();
        for Group { slot, claims: group, .. } in &groups {
            let (several, first) = (groups.len() > 1, &first);
            running.push(Box::pin(async move {
                let renewal = self.renew_group(*slot, group, claims, prepare);
                if !several {
                    return renewal.await;
                }
                let late = async {
                    let _ = first.subscribe().wait_for(|answered| *answered).await;
                    self.store.io.sleep(GRACE).await;
                };
                tokio::select! {
                    biased;
                    renewals = renewal => {
                        if renewals.iter().any(Result::is_ok) {
                            first.send_replace(true);
                        }
                        renewals
                    }
                    () = late => vec![Err(BackendError::no_answer(GRACE)); group.len()],
                }
            }));
        }
        for (group, renewals) in groups.iter().zip(join_all(running).await) {
            for ((index, _), renewal) in group.claims.iter().zip(renewals) {
                match renewal {
                    Ok(Renewal::Lost) => drop(self.store.pushes.close(claims[*index].id)),
                    Ok(Renewal::Held { token, .. }) => self.store.pushes.note(token),
                    Err(_) => {}
                }
                answers[*index] = Some(renewal);
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Renews claims of one slot and namespace.
    async fn renew_group(
        &self,
        slot: Option<u16>,
        group: &[(usize, Names)],
        claims: &[Claim],
        prepare: Prepare<'_>,
    ) -> Vec<Result<Renewal, BackendError>> {
        let all = |error: BackendError| vec![Err(error); group.len()];
        let mut route = match self.store.topology.route(slot).await {
            Ok(route) => prepare(route, shortest(group, claims)),
            Err(error) => return all(error),
        };
        route.set_impatient(true);
        match self.renew_together(&mut route, group, claims, false).await {
            Ok(renewals) => renewals.into_iter().map(Ok).collect(),
            Err(failure) if failure.reaction != Reaction::Again || slot.is_none() => {
                all(failure.error)
            }
            // The slot is moving, and its keys are on two nodes: one key alone is always found, and a claim
            // that holds alone needs no other.
            Err(_) => {
                route.set_impatient(false);
                let mut renewals = Vec::new();
                for member in group {
                    let claim = &claims[member.0];
                    let bare = may_be_alone(claim) && claim.floor == 0;
                    let one = std::slice::from_ref(member);
                    let renewal = self.renew_together(&mut route, one, claims, bare).await;
                    renewals.push(renewal.map_err(BackendError::from).and_then(only));
                }
                renewals
            }
        }
    }

    /// Renews claims by one script; if `bare`, by their own keys alone.
    async fn renew_together(
        &self,
        route: &mut Route,
        group: &[(usize, Names)],
        claims: &[Claim],
        bare: bool,
    ) -> Result<Vec<Renewal>, Failure> {
        let members: Vec<&Claim> = group.iter().map(|(index, _)| &claims[*index]).collect();
        let run = route.run(&RENEW, |command, _| {
            command.arg(group.len() * 3 + 1);
            for (index, (_, names)) in group.iter().enumerate() {
                let lock = names.lock();
                command.arg(lock);
                if index == 0 {
                    command.arg(if bare { lock.to_owned() } else { names.token() });
                }
                if bare {
                    command.arg(lock).arg(lock);
                } else {
                    command.arg(names.helper("claims")).arg(names.helper("held"));
                }
            }
            for claim in &members {
                command.arg(claim.id.to_string()).arg(letter(claim.mode));
                command.arg(millis(claim.ttl)).arg(claim.floor);
            }
        });
        let answer = run.await?;
        route.check_replicas()?;
        Ok(renewals(&answer, &members)?)
    }

    /// Renews one claim, as [`Self::renew_all`] does.
    pub(crate) async fn renew_one(
        &self,
        claim: &Claim,
        names: &Names,
        prepare: Prepare<'_>,
    ) -> Result<Renewal, BackendError> {
        let (group, claims) = ([(0, names.clone())], std::slice::from_ref(claim));
        let mut one = self.renew_group(names.slot(), &group, claims, prepare).await;
        one.pop().unwrap_or_else(|| Err(strange(&Value::Nil)))
    }
}

fn shortest(group: &[(usize, Names)], claims: &[Claim]) -> Duration {
    group.iter().map(|(index, _)| claims[*index].ttl).min().unwrap_or_default()
}

fn only(mut renewals: Vec<Renewal>) -> Result<Renewal, BackendError> {
    renewals.pop().ok_or_else(|| strange(&Value::Nil))
}

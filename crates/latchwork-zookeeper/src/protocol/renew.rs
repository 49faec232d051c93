//! Renewals: one write that proves the session, and a check of each node, in one round trip.

use std::sync::Arc;

use latchwork_store::{BackendError, Claim, Effect, Renewal};

use crate::protocol::answers::{lives_for, pulse_in, token_of};
use crate::protocol::claims::{Node, OwnClaim};
use crate::protocol::release::read;
use crate::protocol::shared::Shared;
use crate::server::errors::{refused, strange, unsupported};
use crate::server::session::messages::{Refusal, Request, Stat};
use crate::server::session::{Reading, Session};

/// As many claims are renewed by one flight.
const MOST: usize = 500;

/// A claim that is renewed, and where its answer goes.
struct HeldClaim<'a> {
    place: usize,
    claim: &'a Claim,
    node: Node,
}

impl Shared {
    pub(crate) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Renewal, BackendError>> {
        let mut answers: Vec<Option<Result<Renewal, BackendError>>> = vec![None; claims.len()];
        let mut groups: Vec<(Arc<Session>, Vec<HeldClaim<'_>>)> = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            match self.claims.get(claim.id) {
                Some(OwnClaim {
                    ends: false, granted: true, node: Some(node), session, ..
                }) => {
                    self.claims.asked(claim.id, self.io.now());
                    let held = HeldClaim { place, claim, node };
                    match groups
                        .iter_mut()
                        .find(|(of, group)| of.is(&session) && group.len() < MOST)
                    {
                        Some((_, group)) => group.push(held),
                        None => groups.push((session, vec![held])),
                    }
                }
                // It came too late: a claim that is being released is not held any more.
                Some(own) if own.granted => {
                    let released = self.release_claim(claim).await;
                    answers[place] = Some(released.map(|_| Renewal::Lost));
                }
                _ => answers[place] = Some(self.renew_unknown(claim).await),
            }
        }
        for (session, group) in groups {
            match self.renew_together(&session, &group).await {
                Ok(renewed) => {
                    for (held, answer) in group.iter().zip(renewed) {
                        answers[held.place] = Some(answer);
                    }
                }
                Err(error) => {
                    for held in &group {
                        answers[held.place] = Some(Err(error.clone()));
                    }
                }
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(strange("a read")))).collect()
    }

    async fn renew_together(
        &self,
        session: &Arc<Session>,
        group: &[HeldClaim<'_>],
    ) -> Result<Vec<Result<Renewal, BackendError>>, BackendError> {
        // An error tells nothing of what a heart-beat has kept alive meanwhile.
        let unsure = |error: BackendError| error.with_effect(Effect::Unknown);
        let up = session.up().await.map_err(unsure)?;
        let sent = Reading::now(&self.io);
        let paths: Vec<_> = group
            .iter()
            .map(|held| format!("{}/{}", self.names.lock(&held.claim.key), held.node.name))
            .collect();
        let looks = paths.iter().map(|path| Request::exists(path));
        let requests = [Request::set(&up.pulse)].into_iter().chain(looks).collect();
        let mut landed = session.fly(requests).await;
        pulse_in(&mut landed, &up.pulse).map_err(unsure)?;
        let mut answers = Vec::with_capacity(group.len());
        for (held, path) in group.iter().zip(&paths) {
            let answer = match landed.next() {
                Ok(Ok(body)) => match Stat::read(&body) {
                    Some(stat) if stat.owner == up.id && stat.created == held.node.created => {
                        self.held(session, held, sent)
                    }
                    // Somebody has deleted it and made another one.
                    Some(_) => self.lost(held),
                    None => Err(strange("an exists")),
                },
                Ok(Err(Refusal::NO_NODE)) => {
                    self.forget_missing(held.claim, session, path);
                    Ok(Renewal::Lost)
                }
                Ok(Err(refusal)) => Err(unsure(refused(refusal, path))),
                Err(error) => Err(unsure(error)),
            };
            answers.push(answer);
        }
        Ok(answers)
    }

    fn held(
        &self,
        session: &Session,
        held: &HeldClaim<'_>,
        sent: Reading,
    ) -> Result<Renewal, BackendError> {
        let token = token_of(&held.node)?;
        if held.claim.floor > token {
            return Err(unsupported("ZooKeeper cannot lift its transaction number to a floor"));
        }
        let ttl = lives_for(session, held.claim, sent)?;
        Ok(Renewal::held(ttl, token, None))
    }

    fn lost(&self, held: &HeldClaim<'_>) -> Result<Renewal, BackendError> {
        self.claims.forget(held.claim.id);
        Ok(Renewal::Lost)
    }

    /// Not granted to this client, as far as it knows: such a claim is not held, or not by us.
    async fn renew_unknown(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        let lock = self.names.lock(&claim.key);
        let session = self.sessions.any();
        let up = session.up().await?;
        let (queue, _) = read(&session, &up, &lock).await?;
        let me = queue.places.iter().position(|place| place.id() == Some(claim.id));
        match me.map(|me| queue.admission(me)) {
            // Only a try makes a claim of it, and only by its own session.
            Some(latchwork_store::kit::lineup::Admission::Granted) => {
                Err(unsupported("the claim is of another session: only that one can renew it"))
            }
            _ => Ok(Renewal::Lost),
        }
    }
}

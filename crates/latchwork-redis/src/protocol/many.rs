//! Verbs for several claims at once, for a majority of servers: free keys with one command.

use futures_util::future::join_all;
use latchwork_store::{Attempt, BackendError, Claim, Linger, Released};
use latchwork_wire::combine::Combined;

use crate::protocol::free::FreeRequest;
use crate::protocol::scripted::{Scripted, may_be_alone};
use crate::server::topology::Route;

impl Scripted {
    /// The route on which several claims may share a command; `None` if each needs a command to itself.
    async fn shared_route(&self, claims: usize) -> Result<Option<Route>, BackendError> {
        if claims < 2 || self.store.topology.is_cluster() {
            return Ok(None);
        }
        self.store.topology.route(None).await.map(Some)
    }

    /// Tries with the whole script.
    async fn try_in_line(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        let names = self.names(claim)?;
        let mut route = self.store.topology.route(names.slot()).await?;
        let known = self.store.pushes.find(claim.id);
        Box::pin(self.try_whole(&mut route, &names, claim, known)).await
    }

    /// As [`Self::try_acquire`] for each.
    pub(crate) async fn try_acquire_all(
        &self,
        claims: &[Claim],
    ) -> Vec<Result<Attempt, BackendError>> {
        let route = match self.shared_route(claims.len()).await {
            Ok(Some(route)) => route,
            Ok(None) => return join_all(claims.iter().map(|claim| self.try_acquire(claim))).await,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers: Vec<_> = claims.iter().map(|_| None).collect();
        let (mut short, mut requests) = (Vec::new(), Vec::new());
        for (index, claim) in claims.iter().enumerate() {
            match self.names(claim) {
                Ok(names) => {
                    if route.link().facts.set_nx_get
                        && may_be_alone(claim)
                        && self.store.pushes.find(claim.id).is_none()
                        && !self.recent_queues.had_queue(&names)
                    {
                        requests.push(self.take_request(&route, &names, claim));
                        short.push(index);
                    }
                }
                Err(error) => answers[index] = Some(Err(error)),
            }
        }
        if !requests.is_empty() {
            let taken = self.take.kind().send_all(&requests).await;
            for (index, answer) in short.into_iter().zip(taken) {
                let attempt = answer.and_then(|answer| self.taken(answer, &claims[index]));
                answers[index] = attempt.transpose();
            }
        }
        let left = answers.iter().enumerate().filter(|(_, answer)| answer.is_none());
        let left: Vec<usize> = left.map(|(index, _)| index).collect();
        let whole = left.iter().map(|index| self.try_in_line(&claims[*index]));
        for (index, answer) in left.iter().zip(join_all(whole).await) {
            answers[*index] = Some(answer);
        }
        answers.into_iter().flatten().collect()
    }

    /// As [`Self::release`] without a linger for each.
    pub(crate) async fn release_all(
        &self,
        claims: &[Claim],
    ) -> Vec<Result<Released, BackendError>> {
        let route = match self.shared_route(claims.len()).await {
            Ok(Some(route)) => route,
            Ok(None) => {
                let release = |claim| self.release(claim, Linger::None);
                return join_all(claims.iter().map(release)).await;
            }
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let pushes = &self.store.pushes;
        let mut answers: Vec<_> = claims.iter().map(|_| None).collect();
        let (mut short, mut requests) = (Vec::new(), Vec::new());
        for (index, claim) in claims.iter().enumerate() {
            // A claim that has waited, or whose key had a queue, is released separately.
            if may_be_alone(claim)
                && pushes.find(claim.id).is_none()
                && let Ok(names) = self.store.naming.of(&claim.key)
                && !self.recent_queues.had_queue(&names)
            {
                requests.push(FreeRequest::of(&route, &names, claim));
                short.push(index);
            }
        }
        if !requests.is_empty() {
            let freed = self.free.kind().send_all(&requests).await;
            for (index, freed) in short.into_iter().zip(freed) {
                answers[index] = match freed {
                    Ok(true) => Some(Ok(Released::Yes)),
                    Ok(false) => None,
                    Err(error) => Some(Err(error)),
                };
            }
        }
        let left = answers.iter().enumerate().filter(|(_, answer)| answer.is_none());
        let left: Vec<usize> = left.map(|(index, _)| index).collect();
        // The short script has run for each claim that it can release.
        let whole = left.iter().map(|index| self.release_as(&claims[*index], Linger::None, false));
        for (index, answer) in left.iter().zip(join_all(whole).await) {
            answers[*index] = Some(answer);
        }
        answers.into_iter().flatten().collect()
    }
}

//! `renew_all`: one request for each object, and all of them at the same time.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use latchwork_store::kit::record::Record;
use latchwork_store::{Answers, BackendError, Claim, Renewal};

use crate::protocol::attempt::ALIVE;
use crate::protocol::change::{Look, Step};
use crate::protocol::names::object_of;
use crate::protocol::object::times;
use crate::protocol::shared::Store;

/// So many objects are renewed at a time.
const AT_ONCE: usize = 32;

impl Store {
    pub(crate) async fn renew_each(&self, claims: &[Claim], answers: &Answers) {
        let mut keys: Vec<Vec<usize>> = Vec::new();
        let mut groups = std::collections::HashMap::new();
        for (place, claim) in claims.iter().enumerate() {
            let group = *groups.entry(&claim.key).or_insert_with(|| {
                keys.push(Vec::new());
                keys.len() - 1
            });
            keys[group].push(place);
        }
        let mut renewals = FuturesUnordered::new();
        let mut keys = keys.into_iter();
        let one = |places: Vec<usize>| async move {
            let of_key: Vec<Claim> = places.iter().map(|place| claims[*place].clone()).collect();
            let renewed = self.renew(&of_key).await;
            for (n, place) in places.iter().enumerate() {
                answers.say(*place, renewed.as_ref().map(|all| all[n]).map_err(Clone::clone));
            }
        };
        renewals.extend(keys.by_ref().take(AT_ONCE).map(one));
        while renewals.next().await.is_some() {
            renewals.extend(keys.next().map(one));
        }
    }

    /// Renews claims on one key.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let Some(first) = claims.first() else { return Ok(Vec::new()) };
        let entry = self.known.entry(&object_of(&first.key));
        let judge = |record: &mut Record, look: &Look<'_>| {
            let renew = |claim: &Claim| record.renew(claim, times(look.now), ALIVE).0;
            let renewals: Vec<Renewal> = claims.iter().map(renew).collect();
            let is_lost = |renewal: &Renewal| matches!(renewal, Renewal::Lost);
            // Memory may be old: only the server says that a claim is lost.
            if renewals.iter().any(is_lost) && !look.is_fresh {
                return Step::Ask;
            }
            // A claim whose ttl is over is taken out: a client that first sees it now would restart its ttl.
            let was_there = |claim: &Claim| look.before.held.iter().any(|m| m.id == claim.id);
            match renewals.iter().all(is_lost) && !claims.iter().any(was_there) {
                true => Step::Done(renewals),
                false => Step::Write(renewals),
            }
        };
        let (renewals, _) = self.change(&first.key, &entry, claims, judge).await?;
        Ok(renewals)
    }
}

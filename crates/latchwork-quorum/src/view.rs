//! Inspection: the state that a majority of the answering nodes agrees on.

use std::collections::BTreeMap;

use super::flight::Flight;
use super::round::limited;
use super::tally::Size;
use super::{INSPECT_LIMIT, LIST_LIMIT, Shared};
use latchwork_store::*;
use latchwork_store::{BackendError, Effect, Key};

impl Shared {
    pub(super) async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        let limit = match query {
            Query::Key(_) => INSPECT_LIMIT,
            Query::Prefix(_) => LIST_LIMIT,
        };
        let mut flight = Flight::new(self.nodes.iter().enumerate().map(|(index, node)| {
            let (node, query) = (node.clone(), query.clone());
            let ask = async move { node.inspect(&query).await };
            (index, limited(self, limit, ask))
        }));
        let (mut views, mut failures) = (Vec::new(), Vec::new());
        let start = self.io.now();
        let mut until = start.plus(LIST_LIMIT);
        while !flight.is_empty() {
            let left = until.since(self.io.now());
            let Some(landed) = self.io.within(left, flight.land()).await else {
                // What they have is in the views of the majority as well.
                let late = self.io.now().since(start);
                let is_here = |node: &usize| {
                    views.iter().any(|(n, _)| n == node) || failures.iter().any(|(n, _)| n == node)
                };
                let silent: Vec<_> = (0..self.nodes.len()).filter(|node| !is_here(node)).collect();
                failures
                    .extend(silent.into_iter().map(|node| (node, BackendError::no_answer(late))));
                break;
            };
            for (node, answer) in landed.into_iter().flatten() {
                match answer {
                    Ok(snapshots) => views.push((node, snapshots)),
                    Err(error) => failures.push((node, error)),
                }
            }
            if views.len() >= self.size.majority {
                // The rest has as long again, from the first such moment on.
                let now = self.io.now();
                until = until.min(now.plus(INSPECT_LIMIT.max(now.since(start))));
            }
        }
        if views.len() < self.size.majority {
            return Err(self.too_few(&failures, Effect::NotApplied));
        }
        views.sort_unstable_by_key(|(node, _)| *node);
        let mut keys: BTreeMap<Key, Vec<Snapshot>> = BTreeMap::new();
        for snapshot in views.iter().flat_map(|(_, snapshots)| snapshots) {
            keys.entry(snapshot.key.clone()).or_default().push(snapshot.clone());
        }
        let names = self.book().names();
        let own = |id: ClaimId| names.get(&id).copied().unwrap_or(id);
        let of = Size::of(views.len());
        // With the nodes that did not answer, so few may be a majority.
        let enough = self.size.majority.saturating_sub(self.nodes.len() - views.len());
        let mut merged: Vec<_> = keys
            .into_iter()
            .map(|(key, snapshots)| merge(key, &snapshots, (of, enough), &own))
            .collect();
        if !failures.is_empty() {
            let silent = self.too_few(&failures, Effect::NotApplied).message;
            merged.iter_mut().for_each(|(snapshot, _)| snapshot.notes.push(silent.clone()));
        }
        if let Query::Prefix(_) = query {
            merged.retain(|(snapshot, may_be_held)| *may_be_held || !snapshot.is_free());
        }
        Ok(merged.into_iter().map(|(snapshot, _)| snapshot).collect())
    }
}

/// Joins the views of one key, and says whether somebody may hold it by the votes of nodes that did not answer:
/// `enough` views are a majority with those. `own` translates the names of rounds to those of claims.
fn merge(
    key: Key,
    snapshots: &[Snapshot],
    (of, enough): (Size, usize),
    own: &dyn Fn(ClaimId) -> ClaimId,
) -> (Snapshot, bool) {
    let (mut notes, mut may_be_held) = (Vec::<String>::new(), false);
    for note in snapshots.iter().flat_map(|s| &s.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let mut holders = Vec::new();
    for seen in group(snapshots.iter().flat_map(|s| &s.holders)) {
        let first = seen[0];
        if seen.len() >= of.majority {
            let token = of.within(seen.iter().map(|p| p.token.unwrap_or(0)));
            let remaining = of.reached(seen.iter().filter_map(|p| p.remaining));
            let id = first.id.map(own);
            holders.push(first.clone().with(|it| {
                it.id = id;
                it.token = token;
                it.remaining = remaining;
            }));
        } else {
            let (votes, all) = (seen.len(), of.nodes);
            let depends = votes >= enough;
            may_be_held |= depends;
            let so =
                if depends { "the others decide whether it is held" } else { "so it is not held" };
            notes.push(format!(
                "{:?} is on {votes} of {all} nodes: less than a majority, {so}",
                first.holder.text
            ));
        }
    }
    let mut waiters: Vec<Party> = Vec::new();
    for seen in group(snapshots.iter().flat_map(|s| &s.waiters)) {
        let id = seen[0].id.map(own);
        let holds = |party: &Party| party.id == id;
        if !holders.iter().any(holds) && !waiters.iter().any(holds) {
            waiters.push(seen[0].clone().with(|it| it.id = id));
        }
    }
    let missing = || std::iter::repeat_n(Default::default(), of.nodes - snapshots.len());
    let linger = snapshots.iter().map(|s| s.linger.unwrap_or_default()).chain(missing());
    let tokens = snapshots.iter().map(|s| s.token).chain((snapshots.len()..of.nodes).map(|_| 0));
    let linger = of.reached(linger).filter(|left| !left.is_zero());
    let joined = Snapshot::free(key).with(|it| {
        it.shape = holders.first().or(waiters.first()).map(|party| party.mode.shape());
        it.holders = holders;
        it.waiters = waiters;
        it.token = of.reached(tokens).unwrap_or(0);
        it.linger = linger;
        it.closed_by = linger.and_then(|_| closed_by(snapshots));
        it.notes = notes;
    });
    (joined, may_be_held)
}

/// The holder that most nodes name as the one that closed a key; of as many, the last one. A node that was away may
/// still name an earlier one.
fn closed_by(snapshots: &[Snapshot]) -> Option<Holder> {
    let named = || snapshots.iter().filter_map(|seen| seen.closed_by.as_ref());
    let votes = |one: &Holder| named().filter(|other| *other == one).count();
    named().max_by_key(|one| (votes(one), one.closed_at)).cloned()
}

/// The same party at several nodes, by its name there or, without one, by its text.
fn group<'a>(parties: impl Iterator<Item = &'a Party>) -> Vec<Vec<&'a Party>> {
    let same = |a: &Party, b: &Party| a.id == b.id && (a.id.is_some() || a.holder == b.holder);
    let mut groups: Vec<Vec<&Party>> = Vec::new();
    for party in parties {
        match groups.iter_mut().find(|seen| same(seen[0], party)) {
            Some(seen) => seen.push(party),
            None => groups.push(vec![party]),
        }
    }
    groups
}

//! One vote for each server, however many addresses lead to it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Moment};

use crate::config::Endpoint;
use crate::lock;

/// For so long after a refusal the server is not asked again who it is.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The seat of one node among those that vote together.
#[derive(Debug, Clone)]
pub(crate) struct Seat {
    all: Arc<Mutex<Vec<Place>>>,
    index: usize,
}

#[derive(Debug)]
struct Place {
    endpoint: Endpoint,
    /// The server whose vote the node has.
    votes_for: Option<String>,
    /// Another node had it, when this one was last connected.
    refused: Option<(Moment, BackendError)>,
}

impl Seat {
    /// A seat for each of these nodes.
    pub(crate) fn for_all<'a>(nodes: impl Iterator<Item = &'a Endpoint>) -> Vec<Self> {
        let place =
            |node: &Endpoint| Place { endpoint: node.clone(), votes_for: None, refused: None };
        let places: Vec<Place> = nodes.map(place).collect();
        let (count, all) = (places.len(), Arc::new(Mutex::new(places)));
        (0..count).map(|index| Self { all: all.clone(), index }).collect()
    }

    /// Takes the vote of the server that a new connection leads to. A server that does not say which
    /// it is gives one to each node.
    ///
    /// # Errors
    ///
    /// `Invalid` if another node has it: both addresses are named.
    pub(crate) fn take(&self, server: &str, now: Moment) -> Result<(), BackendError> {
        let mut all = lock(&self.all);
        let (own, server) = (self.index, Some(server).filter(|id| !id.is_empty()));
        let has_it = |place: &Place| server.is_some() && place.votes_for.as_deref() == server;
        let mut others = all.iter().enumerate().filter(|(index, _)| *index != own);
        let twin = others.find(|(_, place)| has_it(place)).map(|(_, twin)| {
            let (twin, this) = (&twin.endpoint, &all[own].endpoint);
            let message =
                format!("store: {twin} and {this} are the same server, which has one vote");
            BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
                .with_next_step("name each server once; they must not fail together")
        });
        let place = &mut all[own];
        place.votes_for = server.filter(|_| twin.is_none()).map(str::to_owned);
        place.refused = twin.clone().map(|twin| (now, twin));
        twin.map_or(Ok(()), Err)
    }

    /// Fails for a moment after a refusal, so that no request connects just to hear it again.
    ///
    /// # Errors
    ///
    /// Those of [`take`](Self::take).
    pub(crate) fn check(&self, now: Moment) -> Result<(), BackendError> {
        let all = lock(&self.all);
        let is_new = |(at, _): &&(Moment, BackendError)| now < at.plus(REFUSED_FOR);
        all[self.index]
            .refused
            .as_ref()
            .filter(is_new)
            .map_or(Ok(()), |(_, error)| Err(error.clone()))
    }

    /// Whether another node had the vote of its server when it was last connected.
    pub(crate) fn is_refused(&self) -> bool {
        lock(&self.all)[self.index].refused.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Seat; 2] {
        let nodes = ["a", "b"].map(|host| Endpoint::parse(host, 6_379).unwrap());
        Seat::for_all(nodes.iter()).try_into().unwrap()
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn the_first_address_of_a_server_has_its_vote() {
        let [a, b] = two();
        a.take("1", at(0)).unwrap();
        let error = b.take("1", at(1)).unwrap_err();
        assert_eq!(
            (error.kind, &*error.message),
            (
                BackendErrorKind::Invalid,
                "store: a:6379 and b:6379 are the same server, which has one vote"
            )
        );
        // The one that has it may connect again.
        a.take("1", at(1)).unwrap();
        assert!(b.is_refused() && b.check(at(1)).is_err() && b.check(at(2)).is_ok());
        // Servers that do not say which they are.
        let [a, b] = two();
        a.take("", at(0)).unwrap();
        b.take("", at(0)).unwrap();
    }

    #[test]
    fn servers_that_exchange_their_addresses_have_a_vote_each() {
        let [a, b] = two();
        a.take("1", at(0)).unwrap();
        b.take("2", at(0)).unwrap();
        assert!(a.take("2", at(1)).is_err());
        b.take("1", at(1)).unwrap();
        a.take("2", at(1)).unwrap();
        assert!(!a.is_refused() && !b.is_refused());
        // A server that was restarted is another one.
        a.take("3", at(2)).unwrap();
        b.take("2", at(2)).unwrap();
    }
}

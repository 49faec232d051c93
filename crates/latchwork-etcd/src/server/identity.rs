//! Checks that the members of an address are one cluster, and answer for themselves.
//!
//! Members of two clusters would grant one lock twice. Each answer carries the number of its cluster,
//! so a member that was replaced by one of another cluster is noticed by its first answer. Clusters
//! of one member that were started without options all have the same number: so each member is
//! asked for a lease that was granted at another one, too ([`crate::server::examination`]).

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use latchwork_store::doctor::Tested;
use latchwork_store::{BackendError, BackendErrorKind, Effect};
use tokio::sync::Notify;

use crate::config::Endpoint;
use crate::proto::{
    AuthRoleGetResponse, AuthUserGetResponse, AuthenticateResponse, LeaseGrantResponse,
    LeaseRevokeResponse, LeaseTimeToLiveResponse, RangeResponse, ResponseHeader, StatusResponse,
    TxnResponse,
};
use crate::server::errors::{Failure, Reaction};

/// What an examination of a member has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Found {
    /// It was not examined yet.
    Nothing,
    /// It is of the cluster, and answers for itself.
    Fit,
    /// `etcd grpc-proxy`: it keeps leases alive at times of its own choice.
    Front,
    /// It does not know a lease that another member has granted.
    Stranger,
    /// It lacks what locks need.
    Old,
}

impl Found {
    fn of(byte: u8) -> Self {
        let all = [Self::Nothing, Self::Fit, Self::Front, Self::Stranger, Self::Old];
        all.into_iter().find(|found| *found as u8 == byte).unwrap_or(Self::Nothing)
    }
}

#[derive(Debug)]
struct Member {
    endpoint: Endpoint,
    /// The cluster that its last answer named; 0 before.
    cluster: AtomicU64,
    found: AtomicU8,
}

/// What the members of one address have said of themselves.
#[derive(Debug)]
pub(crate) struct Identity {
    members: Vec<Member>,
    /// The cluster that the first answer of all named; 0 before.
    cluster: AtomicU64,
    /// A member is to be examined.
    pub(crate) news: Notify,
    /// The client has ended.
    pub(crate) closed: Notify,
}

impl Identity {
    pub(crate) fn new(endpoints: &[Endpoint]) -> Self {
        let member = |endpoint: &Endpoint| Member {
            endpoint: endpoint.clone(),
            cluster: AtomicU64::new(0),
            found: AtomicU8::new(Found::Nothing as u8),
        };
        Self {
            members: endpoints.iter().map(member).collect(),
            cluster: AtomicU64::new(0),
            news: Notify::new(),
            closed: Notify::new(),
        }
    }

    /// Compares the cluster that an answer names with that of the first answer of all.
    pub(crate) fn check(
        &self,
        member: usize,
        header: Option<&ResponseHeader>,
    ) -> Result<(), Failure> {
        let said = header.map_or(0, |header| header.cluster_id);
        if said == 0 {
            // A front leaves it out at times.
            return Ok(());
        }
        let expected =
            match self.cluster.compare_exchange(0, said, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => said,
                Err(first) => first,
            };
        let last = &self.members[member].cluster;
        if last.load(Ordering::SeqCst) != said {
            let before = last.swap(said, Ordering::SeqCst);
            if before != 0 || said != expected {
                self.set(member, Found::Nothing);
            }
        }
        if said == expected { Ok(()) } else { Err(self.refusal(member)) }
    }

    pub(crate) fn found(&self, member: usize) -> Found {
        Found::of(self.members[member].found.load(Ordering::SeqCst))
    }

    pub(crate) fn set(&self, member: usize, found: Found) {
        self.members[member].found.store(found as u8, Ordering::SeqCst);
        if found != Found::Fit {
            self.news.notify_one();
        }
    }

    /// The members that were not found to be fit.
    pub(crate) fn unfit(&self) -> Vec<usize> {
        let is_unfit = |n: &usize| self.found(*n) != Found::Fit || self.is_foreign(*n);
        (0..self.members.len()).filter(is_unfit).collect()
    }

    fn is_foreign(&self, member: usize) -> bool {
        let said = self.members[member].cluster.load(Ordering::SeqCst);
        said != 0 && said != self.cluster.load(Ordering::SeqCst)
    }

    /// Whether this member may be asked, as far as is known.
    pub(crate) fn may_ask(&self, member: usize) -> Result<(), Failure> {
        let is_bad =
            !matches!(self.found(member), Found::Nothing | Found::Fit) || self.is_foreign(member);
        if is_bad { Err(self.refusal(member)) } else { Ok(()) }
    }

    /// Whether locks may be granted: not while any member is of another cluster, for other clients
    /// may be granted the same lock there.
    pub(crate) fn may_grant(&self) -> Result<(), BackendError> {
        let refusals = (0..self.members.len()).map(|member| self.may_ask(member));
        refusals.collect::<Result<(), _>>().map_err(|failure| failure.of_a_read().error)
    }

    fn refusal(&self, member: usize) -> Failure {
        let endpoint = &self.members[member].endpoint;
        let (kind, message, step) = match self.found(member) {
            Found::Front => {
                let message = format!(
                    "{endpoint} is an etcd grpc-proxy: it renews leases at times of its own \
                     choice, so a lease may expire while its holder relies on it"
                );
                let step = "name the members themselves, or a proxy that forwards connections, \
                    such as etcd gateway";
                (BackendErrorKind::Unsupported, message, step)
            }
            Found::Old => {
                let needed = Tested::ETCD.needed;
                let message = format!("{endpoint} is older than etcd {needed}, which locks need");
                (BackendErrorKind::Unsupported, message, "upgrade the server")
            }
            _ => (BackendErrorKind::Corrupt, self.mixed(member), MIXED_STEP),
        };
        let error = BackendError::new(kind, Effect::Unknown, message).with_next_step(step);
        Failure { error, reaction: Reaction::Elsewhere }
    }

    /// Names the members and their clusters.
    fn mixed(&self, member: usize) -> String {
        if !self.is_foreign(member) {
            let (stranger, cluster) = (&self.members[member], self.cluster.load(Ordering::SeqCst));
            let others = self.members.iter().filter(|other| !std::ptr::eq(*other, stranger));
            let others: Vec<_> = others.map(|other| other.endpoint.to_string()).collect();
            return format!(
                "{} does not know what was granted at {}: they are different clusters, though both \
                 have the number {cluster:x}",
                stranger.endpoint,
                others.join(", ")
            );
        }
        if self.members.len() == 1 {
            let said = self.members[0].cluster.load(Ordering::SeqCst);
            let expected = self.cluster.load(Ordering::SeqCst);
            return format!(
                "{} is now of cluster {said:x}, and was of cluster {expected:x}",
                self.members[0].endpoint
            );
        }
        clusters(self.members.iter().map(|m| (&m.endpoint, m.cluster.load(Ordering::SeqCst))))
    }
}

pub(crate) const MIXED_STEP: &str =
    "name the members of one cluster only; if it was replaced on purpose, restart this program";

/// Names members and their clusters.
pub(crate) fn clusters<'a>(members: impl Iterator<Item = (&'a Endpoint, u64)>) -> String {
    let of = |(endpoint, cluster): (&Endpoint, u64)| match cluster {
        0 => format!("{endpoint} of a cluster that is not known"),
        _ => format!("{endpoint} of cluster {cluster:x}"),
    };
    format!(
        "the address names members of different clusters: {}",
        members.map(of).collect::<Vec<_>>().join(", ")
    )
}

/// An answer that tells of which cluster its member is.
pub(crate) trait Headed {
    fn header(&self) -> Option<&ResponseHeader>;
}

macro_rules! headed {
    ($($answer:ty)*) => {$(
        impl Headed for $answer {
            fn header(&self) -> Option<&ResponseHeader> {
                self.header.as_ref()
            }
        }
    )*};
}

headed! {
    AuthenticateResponse LeaseGrantResponse LeaseRevokeResponse LeaseTimeToLiveResponse
    RangeResponse StatusResponse TxnResponse AuthUserGetResponse AuthRoleGetResponse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(members: u16) -> Identity {
        let endpoint = |port| Endpoint { host: "h".into(), port };
        Identity::new(&(1..=members).map(endpoint).collect::<Vec<_>>())
    }

    fn of(cluster_id: u64) -> ResponseHeader {
        ResponseHeader { cluster_id, ..ResponseHeader::default() }
    }

    #[test]
    fn an_answer_of_another_cluster_is_refused_and_names_both() {
        let identity = identity(2);
        identity.check(0, Some(&of(0xa))).unwrap();
        identity.check(0, Some(&of(0))).unwrap();
        identity.check(0, None).unwrap();
        identity.may_grant().unwrap();
        let failure = identity.check(1, Some(&of(0xb))).unwrap_err();
        assert_eq!(failure.error.effect, Effect::Unknown, "its effect is there, not here");
        assert_eq!(failure.reaction, Reaction::Elsewhere);
        let said = identity.may_grant().unwrap_err();
        assert_eq!(said.effect, Effect::NotApplied);
        assert!(said.message.contains("h:1 of cluster a, h:2 of cluster b"), "{said:?}");
        assert!(identity.may_ask(0).is_ok() && identity.may_ask(1).is_err());
        // It was put right.
        identity.check(1, Some(&of(0xa))).unwrap();
        identity.may_grant().unwrap();
    }

    #[test]
    fn strangers_and_proxies_are_refused_until_found_fit() {
        let identity = identity(2);
        identity.check(0, Some(&of(0xa))).unwrap();
        assert_eq!(identity.unfit(), [0, 1]);
        for (found, words) in [
            (Found::Stranger, "h:2 does not know"),
            (Found::Front, "grpc-proxy"),
            (Found::Old, "h:2 is older than etcd 3.4"),
        ] {
            identity.set(1, found);
            assert!(identity.may_grant().unwrap_err().message.contains(words));
            assert!(identity.may_ask(1).is_err() && identity.may_ask(0).is_ok());
        }
        identity.set(1, Found::Fit);
        identity.may_grant().unwrap();
        assert_eq!(identity.unfit(), [0]);
        // A member that has changed its cluster has to be examined again.
        identity.set(0, Found::Fit);
        assert!(identity.check(1, Some(&of(0xb))).is_err() || identity.unfit() == [1]);
    }
}

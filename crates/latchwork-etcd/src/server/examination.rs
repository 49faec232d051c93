//! The examination of a member: whether it is of the same cluster as the others, and answers for
//! itself.
//!
//! Each member is examined when the client connects, as far as it answers soon; the others, and those
//! that are replaced later, in the background.

use std::sync::Weak;
use std::time::Duration;

use futures_util::future::{join, join_all};
use latchwork_store::Io;
use latchwork_store::doctor::Tested;
use latchwork_wire::is_silent;
use tokio_stream::StreamExt as _;

use crate::proto::LeaseKeepAliveRequest;
use crate::server::errors::Failure;
use crate::server::identity::{Found, Identity};
use crate::server::link::{Link, leases};
use crate::server::members::Members;

/// How long the member that has answered may take to be examined.
const LIMIT: Duration = Duration::from_secs(5);
/// How long connecting waits for the other members. A dead one answers never.
const OTHERS: Duration = Duration::from_millis(700);
/// How long they have to take a connection.
const REACHED: Duration = Duration::from_millis(250);
/// The pause between two examinations of a member that does not answer, or is not fit.
const PAUSE: Duration = Duration::from_secs(5);
/// How long a lease lives that is granted for an examination.
const LEASE: i64 = 15;
/// How often a lease that a member does not know is asked for: it may be a little behind.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// The lease that nobody has.
const NO_LEASE: i64 = i64::MAX;

impl Link {
    /// Whether this is `etcd grpc-proxy`. A member answers a keep-alive of a lease that is not there
    /// with a ttl of 0. The proxy does not pass keep-alives on: it has a loop of its own for each
    /// lease, and when that ends it reports the remaining ttl of the lease, which is -1 then.
    async fn is_front(&self) -> Result<bool, Failure> {
        let ask = tokio_stream::once(LeaseKeepAliveRequest { id: NO_LEASE });
        // The stream stays open until its answer has come.
        let request = self.request(ask.chain(tokio_stream::pending()));
        let told = self.on(|connection| async move {
            let answers = leases(connection).lease_keep_alive(request).await?;
            answers.into_inner().message().await
        });
        match told.await {
            Ok(Some(answer)) => {
                self.check(answer.header.as_ref())?;
                Ok(answer.ttl < 0)
            }
            Ok(None) => Err(Failure::broken(&self.endpoint, "keep-alives")),
            Err(status) => Err(self.failure(&status)),
        }
    }
}

impl Members {
    /// Examines all members; waits for the one that is asked now, and for the others a moment.
    pub(crate) async fn examine_all(&self, lease: i64) {
        let now = self.current();
        let members = (0..self.count()).map(|member| async move {
            if member == now {
                return self.io().within(LIMIT, self.examine(member, lease)).await;
            }
            let link = self.link(member);
            if is_silent(&link.endpoint, self.io()) {
                return None;
            }
            self.io().within(REACHED, link.connect()).await?.ok()?;
            self.io().within(OTHERS, self.examine(member, lease)).await
        });
        join_all(members.map(Box::pin)).await;
    }

    async fn examine(&self, member: usize, lease: i64) {
        let link = self.link(member);
        // Whatever it does not answer, it is examined again.
        if link.log_in().await.is_err() {
            return;
        }
        let (is_front, status) = join(link.is_front(), link.status()).await;
        // One that does not tell its version is not judged by it.
        let is_old = status.is_ok_and(|it| Tested::ETCD.refuse(&it.version).is_some());
        let found = match is_front {
            Ok(_) if is_old => Found::Old,
            Ok(true) => Found::Front,
            Ok(false) if self.count() == 1 => Found::Fit,
            Ok(false) => match self.is_stranger(&link, lease).await {
                Some(true) => Found::Stranger,
                Some(false) => Found::Fit,
                None => return,
            },
            Err(_) => return,
        };
        self.identity().set(member, found);
    }

    /// Whether a member does not know a lease that another one has granted; `None` if that is not
    /// certain.
    async fn is_stranger(&self, link: &Link, lease: i64) -> Option<bool> {
        for _ in 0..LOOKS {
            if link.time_to_live(lease).await.ok()?.ttl >= 0 {
                return Some(false);
            }
            self.io().sleep(BETWEEN_LOOKS).await;
        }
        // Unless it has ended.
        let ask = self.ask(|link| async move { link.time_to_live(lease).await });
        (ask.await.ok()?.ttl > 0).then_some(true)
    }

    async fn examine_again(&self, unfit: &[usize]) {
        // A dead member costs the others nothing.
        let answers = unfit.iter().map(|member| async move {
            let asked = self.link(*member);
            self.io().within(LIMIT, asked.time_to_live(NO_LEASE)).await.is_some_and(|a| a.is_ok())
        });
        if join_all(answers.map(Box::pin)).await.contains(&true) {
            self.examine_with_a_lease(unfit).await;
        }
    }

    /// Examines these members with a lease of its own; not at all if none is granted.
    pub(crate) async fn examine_with_a_lease(&self, members: &[usize]) {
        let Ok(lease) = self.ask(|link| async move { link.grant(LEASE).await }).await else {
            return;
        };
        let examined =
            members.iter().map(|member| self.io().within(LIMIT, self.examine(*member, lease.id)));
        join_all(examined.map(Box::pin)).await;
        // If it fails, it ends by itself.
        let _ = self.ask(|link| async move { link.revoke(lease.id).await }).await;
    }
}

/// Examines members again until all are fit, and whenever one is not any more.
pub(crate) async fn keep_examining(members: Weak<Members>, io: Io) {
    let Some(identity) = members.upgrade().map(|members| members.identity().clone()) else {
        return;
    };
    tokio::select! {
        () = examine_on(&members, &identity, &io) => {}
        () = identity.closed.notified() => {}
    }
}

async fn examine_on(members: &Weak<Members>, identity: &Identity, io: &Io) {
    loop {
        let unfit = identity.unfit();
        if unfit.is_empty() {
            identity.news.notified().await;
            continue;
        }
        io.sleep(PAUSE).await;
        let Some(members) = members.upgrade() else { return };
        members.examine_again(&unfit).await;
    }
}

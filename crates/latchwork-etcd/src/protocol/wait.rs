//! The wait: a watch on each place ahead that matters, and one on the claim's own.
//!
//! Where nobody but one place is ahead, its end admits the claim: no further trip is needed,
//! for its own place was there when the other one left. The grant counts from the last try, whose
//! keep-alive is what the lease is known to have.
//!
//! One request may delete both places, and their watches tell it one after the other, in any order. So
//! the own watch goes on as that of a holder, without a gap: if it tells of an end, the engine is asked to
//! renew the claim, and learns that it is lost.
//!
//! A claim for permits watches the limit beside the queue as well. `Blocked::resume` has the revision that
//! the claim has seen.

use std::future::{Future, poll_fn};
use std::num::NonZeroI64;
use std::task::Poll;
use std::time::Duration;

use latchwork_store::{BackendError, Blocked, Claim, Grant, Wake};

use crate::config::Endpoint;
use crate::proto::KeyValue;
use crate::protocol::claims::OwnClaim;
use crate::protocol::names::{self, end_of};
use crate::protocol::queue::{NEXT, Target, limit_changed_in};
use crate::protocol::requests::{self, Freshness};
use crate::protocol::shared::Shared;
use crate::server::errors::{Failure, error};
use crate::server::link::Link;
use crate::server::watch::{Listener, Observation, Watch};
use crate::server::watchers::Notice;

/// With more places than these one watch is on the whole queue. Each of the others is shared by all
/// waiters of a client that wait for the same place.
const MOST_WATCHES: usize = 16;

/// What was waited for.
#[derive(Debug)]
enum WaitEnd {
    /// Something has left, or may have.
    Something,
    /// A place ahead has left, and the own one was there then, which this watches.
    Ahead(Listener),
}

/// Which places are watched, and which of them is the claim's own.
struct WatchTargets<'a> {
    prefix: &'a [u8],
    ahead: &'a [Target],
    own: Option<Place<'a>>,
    /// Of permits: the revision at which the limit was changed that the claim has seen.
    limit_changed: Option<i64>,
}

/// The claim's own place.
struct Place<'a> {
    claim: &'a Claim,
    target: Target,
    revision: NonZeroI64,
}

impl WatchTargets<'_> {
    /// The own place first: what its watch tells is older, or is not, but then it does no harm.
    fn all(&self) -> impl Iterator<Item = &Target> {
        self.own.iter().map(|own| &own.target).chain(self.ahead)
    }

    fn key(&self, target: &Target) -> Vec<u8> {
        [self.prefix, &target.suffix].concat()
    }
}

impl Shared {
    pub(crate) async fn wait_for(
        &self,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        let prefix = names::queue(&claim.key);
        let resume = blocked.resume.as_deref().unwrap_or_default();
        let ahead = Target::read_all(resume);
        let limit_changed = limit_changed_in(resume);
        if ahead.is_empty() && limit_changed.is_none() {
            // Nothing to watch for: the engine checks again by itself.
            return std::future::pending().await;
        }
        let own = self.claims.get(claim.id).and_then(|own| Some((own, own.revision?)));
        // A place that is gone has to be asked for again.
        let place = own.map(|(own, revision)| Place {
            claim,
            target: Target {
                suffix: format!("{:x}", own.lease.id).into_bytes(),
                revision: revision.get(),
            },
            revision,
        });
        let watched = WatchTargets { prefix: &prefix, ahead: &ahead, own: place, limit_changed };
        let seen = self.members.follow(|link| {
            let watched = &watched;
            async move { link.listen(watch(&link, watched)).await }
        });
        let is_next = resume.split(' ').any(|word| word == NEXT) && ahead.len() == 1;
        match (seen.await.map_err(error)?, own) {
            (WaitEnd::Ahead(watch), Some((own, revision))) if is_next => {
                self.members.identity().may_grant()?;
                Ok(self.admitted(claim, own, revision, watch))
            }
            _ => Ok(Wake::Look),
        }
    }

    /// The claim is the first in queue.
    fn admitted(
        &self,
        claim: &Claim,
        own: OwnClaim,
        revision: NonZeroI64,
        watch: Listener,
    ) -> Wake {
        self.holds(claim, own.lease.id, Some(watch));
        let token = revision.get() as u64;
        let grant = Grant::new(token, own.lease.ttl);
        Wake::Admitted { grant, stamp: claim.stamp, since_try: Duration::ZERO }
    }
}

/// Ends when one of these places is gone.
async fn watch(link: &Link, watched: &WatchTargets<'_>) -> Result<WaitEnd, Failure> {
    let targets: Vec<_> = watched.all().collect();
    // Few places have a watch each, so that nobody is notified of what others do.
    let mut watches: Vec<Watch> = match targets.len() {
        0..=MOST_WATCHES => {
            targets.iter().map(|t| link.watches().open(watched.key(t), Vec::new())).collect()
        }
        _ => vec![link.watches().open(watched.prefix.to_vec(), end_of(watched.prefix))],
    };
    let mut limit = watched
        .limit_changed
        .map(|_| link.watches().observe(names::limit(watched.prefix), Vec::new()));
    if let Some(limit) = &mut limit {
        changes(limit, link).await?;
    }
    let mut last = i64::MIN;
    for watch in &mut watches {
        match watch.notice(&link.endpoint).await? {
            Notice::Open { since } => last = last.max(since),
            Notice::Gone(_) => return Ok(WaitEnd::Something),
        }
    }
    // All places were there when the own one was taken.
    let missed_nothing =
        limit.is_none() && watched.own.as_ref().is_some_and(|own| last <= own.revision.get());
    if !missed_nothing {
        // What went before the watches were open; this member sees what its watches do.
        let Some(there) = look(link, watched, &targets).await? else {
            return Ok(WaitEnd::Something);
        };
        if there.contains(&false) {
            let is_own_there = there.first() == Some(&true);
            return Ok(if is_own_there { ahead(link, watched) } else { WaitEnd::Something });
        }
    }
    loop {
        let notice = tokio::select! {
            notice = next_notice(&mut watches, &link.endpoint) => notice?,
            changed = async {
                match &mut limit {
                    Some(limit) => changes(limit, link).await,
                    None => std::future::pending().await,
                }
            } => {
                changed?;
                return Ok(WaitEnd::Something);
            }
        };
        let Notice::Gone(gone) = notice else { continue };
        let is_gone = |t: &Target| gone.iter().any(|gone| gone.ended(&watched.key(t), t.revision));
        if watched.own.as_ref().is_some_and(|own| is_gone(&own.target)) {
            return Ok(WaitEnd::Something);
        }
        if watched.ahead.iter().any(is_gone) {
            return Ok(ahead(link, watched));
        }
    }
}

/// Waits for the next hint of a watch on a limit, the first of which says that it is open.
async fn changes(limit: &mut Observation, link: &Link) -> Result<(), Failure> {
    let hint = limit.hint().await;
    hint.map(drop).ok_or_else(|| Failure::broken(&link.endpoint, "watches").of_a_read())
}

/// What one of these watches tells, the first of them first.
async fn next_notice(watches: &mut [Watch], from: &Endpoint) -> Result<Notice, Failure> {
    let mut notices: Vec<_> =
        watches.iter_mut().map(|watch| Box::pin(watch.notice(from))).collect();
    poll_fn(|cx| {
        let mut told = notices.iter_mut().map(|notice| notice.as_mut().poll(cx));
        told.find(Poll::is_ready).unwrap_or(Poll::Pending)
    })
    .await
}

/// A place ahead has left. From here on the own one is watched for a holder; who does not become one
/// drops that.
fn ahead(link: &Link, watched: &WatchTargets<'_>) -> WaitEnd {
    match &watched.own {
        Some(own) => {
            let key = watched.key(&own.target);
            WaitEnd::Ahead(link.watches().hold(key, own.claim.id, own.revision, true))
        }
        None => WaitEnd::Something,
    }
}

/// Which of the places this member has, at one revision; `None` if it has another limit than the one
/// that the claim has seen.
async fn look(
    link: &Link,
    watched: &WatchTargets<'_>,
    targets: &[&Target],
) -> Result<Option<Vec<bool>>, Failure> {
    let mut keys: Vec<_> = targets.iter().map(|t| watched.key(t)).collect();
    let limit = names::limit(watched.prefix);
    let changed = |found: Option<KeyValue>| {
        watched.limit_changed != Some(found.map_or(0, |found| found.mod_revision))
    };
    if targets.len() > MOST_WATCHES {
        let queue = requests::local(requests::queue(watched.prefix));
        if watched.limit_changed.is_some() {
            let found = link.range(requests::local(requests::one(&limit))).await?.kvs;
            if changed(found.into_iter().next()) {
                return Ok(None);
            }
        }
        let found = link.range(queue).await?.kvs;
        let is_there = |(key, t): (&Vec<u8>, &&Target)| {
            found.iter().any(|e| e.key == *key && e.create_revision == t.revision)
        };
        return Ok(Some(keys.iter().zip(targets).map(is_there).collect()));
    }
    if watched.limit_changed.is_some() {
        keys.push(limit);
    }
    let glance = requests::glance(keys.iter().map(|key| &**key), Freshness::OfOneMember);
    let mut found = requests::found(link.txn(glance).await.map_err(Failure::of_a_read)?);
    let is_there = |(found, t): (Option<KeyValue>, &&Target)| {
        found.is_some_and(|e| e.create_revision == t.revision)
    };
    let there: Vec<_> = found.by_ref().take(targets.len()).zip(targets).map(is_there).collect();
    if watched.limit_changed.is_some() && changed(found.next().flatten()) {
        return Ok(None);
    }
    Ok(Some(if there.len() == targets.len() { there } else { vec![false; targets.len()] }))
}

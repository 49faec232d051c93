//! The wait: a watch on the place ahead, and one on the claim's own.
//!
//! Where nobody but that one place is ahead, its end admits the claim: no further trip is needed,
//! for its own place was there when the other one left. The grant counts from the last try, whose
//! keep-alive is what the lease is known to have.

use std::time::Duration;

use latchwork_core::{BackendError, Blocked, Claim, Grant, Wake};

use crate::backend::Shared;
use crate::claims::Own;
use crate::errors::Failure;
use crate::line::{NEXT, Target};
use crate::link::Link;
use crate::members::error;
use crate::names::{self, end_of};
use crate::requests::{self, Freshness};
use crate::watch::Watch;
use crate::watchers::Notice;

/// What was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Something has left, or may have.
    Something,
    /// The place ahead has left, and the own one was there then.
    Ahead,
}

/// Which places are watched, and which of them is the claim's own.
struct Watched<'a> {
    prefix: &'a [u8],
    ahead: &'a [Target],
    own: Option<Target>,
}

impl Watched<'_> {
    fn all(&self) -> impl Iterator<Item = &Target> {
        self.ahead.iter().chain(&self.own)
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
        let prefix = names::line(&claim.key);
        let resume = blocked.resume.as_deref().unwrap_or_default();
        let ahead = Target::read_all(resume);
        if ahead.is_empty() {
            // Nothing to watch for: core looks again by itself.
            return std::future::pending().await;
        }
        let own = self.claims.get(claim.id).and_then(|own| Some((own, own.revision?.get())));
        // A place that is gone has to be asked for anew.
        let target = own.map(|(own, revision)| Target {
            suffix: format!("{:x}", own.lease.id).into_bytes(),
            revision,
        });
        let watched = Watched { prefix: &prefix, ahead: &ahead, own: target };
        let seen = self.members.follow(|link| {
            let watched = &watched;
            async move { watch(&link, watched).await }
        });
        let is_next = resume.split(' ').any(|word| word == NEXT) && ahead.len() == 1;
        match (seen.await.map_err(error)?, own) {
            (Seen::Ahead, Some((own, revision))) if is_next => {
                self.members.identity().may_grant()?;
                Ok(self.admitted(claim, own, revision))
            }
            _ => Ok(Wake::Look),
        }
    }

    /// The claim is the first in line.
    fn admitted(&self, claim: &Claim, own: Own, revision: i64) -> Wake {
        self.holds(claim, own.lease.id);
        let grant = Grant { token: revision as u64, ttl: own.lease.ttl, store_time: None };
        Wake::Admitted { grant, stamp: claim.stamp, since_try: Duration::ZERO }
    }
}

/// Ends when one of these places is gone.
async fn watch(link: &Link, watched: &Watched<'_>) -> Result<Seen, Failure> {
    let targets: Vec<_> = watched.all().collect();
    // Few places have a watch each, so that nobody is told of what others do.
    let mut watches: Vec<Watch> = match targets.len() {
        0..=2 => targets.iter().map(|t| link.watches().open(watched.key(t), Vec::new())).collect(),
        _ => vec![link.watches().open(watched.prefix.to_vec(), end_of(watched.prefix))],
    };
    let mut last = i64::MIN;
    for watch in &mut watches {
        match watch.notice(&link.endpoint).await? {
            Notice::Open { since } => last = last.max(since),
            Notice::Gone(_) => return Ok(Seen::Something),
        }
    }
    // All places were there when the own one was taken.
    let missed_nothing = watched.own.as_ref().is_some_and(|own| last <= own.revision);
    if !missed_nothing {
        // What went before the watches were open; this member sees what its watches do.
        let there = look(link, watched, &targets).await?;
        if there.contains(&false) {
            let is_own_there = watched.own.is_some() && there.last() == Some(&true);
            return Ok(if is_own_there { Seen::Ahead } else { Seen::Something });
        }
    }
    loop {
        let notice = match &mut watches[..] {
            // The own place first: what it tells is older, or is not, but then it does no harm.
            [ahead, own] => tokio::select! {
                biased;
                notice = own.notice(&link.endpoint) => notice?,
                notice = ahead.notice(&link.endpoint) => notice?,
            },
            [one, ..] => one.notice(&link.endpoint).await?,
            [] => return Ok(Seen::Something),
        };
        let Notice::Gone(gone) = notice else { continue };
        let is_gone = |t: &Target| gone.iter().any(|gone| gone.ended(&watched.key(t), t.revision));
        if watched.own.as_ref().is_some_and(is_gone) {
            return Ok(Seen::Something);
        }
        if watched.ahead.iter().any(is_gone) {
            let has_own = watched.own.is_some();
            return Ok(if has_own { Seen::Ahead } else { Seen::Something });
        }
    }
}

/// Which of the places this member has, at one revision.
async fn look(
    link: &Link,
    watched: &Watched<'_>,
    targets: &[&Target],
) -> Result<Vec<bool>, Failure> {
    let keys: Vec<_> = targets.iter().map(|t| watched.key(t)).collect();
    if targets.len() > 2 {
        let line = requests::local(requests::line(watched.prefix));
        let found = link.range(line).await?.kvs;
        let is_there = |(key, t): (&Vec<u8>, &&Target)| {
            found.iter().any(|e| e.key == *key && e.create_revision == t.revision)
        };
        return Ok(keys.iter().zip(targets).map(is_there).collect());
    }
    let glance = requests::glance(keys.iter().map(|key| &**key), Freshness::OfOneMember);
    let found = requests::found(link.txn(glance).await.map_err(Failure::of_a_read)?);
    let is_there = |(found, t): (Option<_>, &&Target)| {
        found.is_some_and(|e: crate::proto::KeyValue| e.create_revision == t.revision)
    };
    let there: Vec<_> = found.zip(targets).map(is_there).collect();
    Ok(if there.len() == targets.len() { there } else { vec![false; targets.len()] })
}

//! The wait: a watch on the place ahead, and one on the claim's own.

use latchwork_core::{BackendError, Blocked, Claim, Wake};

use crate::backend::Shared;
use crate::errors::Failure;
use crate::line::Target;
use crate::link::Link;
use crate::members::error;
use crate::names::{self, end_of};
use crate::proto::{RangeRequest, RangeResponse};
use crate::requests;
use crate::watch::{Notice, Watch};

impl Shared {
    pub(crate) async fn wait_for(
        &self,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        let prefix = names::line(&claim.key);
        let mut targets = Target::read_all(blocked.resume.as_deref().unwrap_or_default());
        if targets.is_empty() {
            // Nothing to watch for: core looks again by itself.
            return std::future::pending().await;
        }
        if let Some(own) = self.claims.get(claim.id)
            && let Some(revision) = own.revision
        {
            // A place that is gone has to be asked for anew.
            let suffix = format!("{:x}", own.lease.id).into_bytes();
            targets.push(Target { suffix, revision });
        }
        let (prefix, targets) = (&prefix, &targets);
        self.members
            .follow(|link| async move { watch(&link, prefix, targets).await })
            .await
            .map(|()| Wake::Look)
            .map_err(error)
    }
}

/// Ends when one of these places is gone.
async fn watch(link: &Link, prefix: &[u8], targets: &[Target]) -> Result<(), Failure> {
    let key = |target: &Target| [prefix, &target.suffix].concat();
    // Few places have a watch each, so that nobody is told of what others do.
    let mut watches: Vec<Watch> = match targets.len() {
        0..=2 => targets.iter().map(|t| link.watches().open(key(t), Vec::new())).collect(),
        _ => vec![link.watches().open(prefix.to_vec(), end_of(prefix))],
    };
    for watch in &mut watches {
        if let Notice::Gone(_) = watch.notice(&link.endpoint).await? {
            return Ok(());
        }
    }
    // What went before the watches were open; this member sees what its watches do.
    let found = look(link, prefix, targets).await?;
    let is_there = |target: &Target| {
        let name = key(target);
        found.kvs.iter().any(|e| e.key == name && e.create_revision == target.revision)
    };
    if !targets.iter().all(is_there) {
        return Ok(());
    }
    let names: Vec<_> = targets.iter().map(key).collect();
    loop {
        let notice = match &mut watches[..] {
            [one, two] => tokio::select! {
                notice = one.notice(&link.endpoint) => notice?,
                notice = two.notice(&link.endpoint) => notice?,
            },
            [one, ..] => one.notice(&link.endpoint).await?,
            [] => return Ok(()),
        };
        if let Notice::Gone(gone) = notice
            && gone.iter().any(|key| names.contains(key))
        {
            return Ok(());
        }
    }
}

/// The places as this member has them.
async fn look(link: &Link, prefix: &[u8], targets: &[Target]) -> Result<RangeResponse, Failure> {
    let local = |request| RangeRequest { serializable: true, ..request };
    if targets.len() > 2 {
        return link.range(local(requests::line(prefix))).await;
    }
    let mut found = RangeResponse::default();
    for target in targets {
        let key = [prefix, &target.suffix].concat();
        found.kvs.extend(link.range(local(requests::one(&key))).await?.kvs);
    }
    Ok(found)
}

//! The wait: a watch on the node ahead, and one on the claim's own.

use futures_util::future::select_all;
use latchwork_core::{BackendError, Blocked, Claim, Wake};

use crate::backend::Shared;
use crate::errors::refused;
use crate::session::messages::{Refusal, Request};

impl Shared {
    pub(crate) async fn wait_for(
        &self,
        claim: &Claim,
        blocked: &Blocked,
    ) -> Result<Wake, BackendError> {
        let lock = self.names.lock(&claim.key);
        let resume = blocked.resume.as_deref().unwrap_or_default();
        let names = resume.split('\n').filter(|name| !name.is_empty());
        let mut paths: Vec<String> = names.map(|name| format!("{lock}/{name}")).collect();
        if paths.is_empty() {
            // Nothing to watch for: core looks again by itself.
            return std::future::pending().await;
        }
        let own = self.claims.get(claim.id);
        let session = match &own {
            Some(own) => own.session.clone(),
            None => self.sessions.of(claim.ttl),
        };
        if let Some(node) = own.and_then(|own| own.node) {
            // A place that is gone has to be asked for anew.
            paths.push(format!("{lock}/{}", node.name));
            self.claims.change(claim.id, |own| own.watched = true);
        }
        let news: Vec<_> = paths.iter().map(|path| session.listen(path)).collect();
        let mut landed = session.fly(paths.iter().map(|path| Request::watch(path)).collect()).await;
        for path in &paths {
            match landed.next()? {
                Ok(_) => {}
                // It went before it could be watched.
                Err(Refusal::NO_NODE) => return Ok(Wake::Look),
                Err(refusal) => return Err(refused(refusal, path)),
            }
        }
        // A listener ends without a word.
        let _ = select_all(news).await;
        Ok(Wake::Look)
    }
}

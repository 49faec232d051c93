//! Who may do what, as long as the service runs: tokens that are replaced, and clients without one.

use std::sync::{Arc, PoisonError};

use latchwork::Error;

use super::Service;
use crate::domain::access::principal::{Principal, Right};
use crate::domain::access::tokens::Tokens;
use crate::http::Caller;
use crate::http::origin::Hosts;
use crate::server::listener::Peer;

/// Who may do what.
#[derive(Debug, Default)]
pub(crate) struct Access {
    pub(crate) tokens: Option<Tokens>,
    /// Whether loopback and Unix sockets need a token too.
    pub(crate) always: bool,
    /// Whether nobody needs a token.
    pub(crate) nobody: bool,
}

impl Service {
    /// The names by which a client at this address may call the service.
    pub(crate) fn hosts(&self, peer: &Peer) -> Hosts {
        let needs_token = self.anonymous(peer).is_none();
        if peer.is_unix() || (needs_token && !peer.is_loopback()) {
            return Hosts::Any;
        }
        Hosts::loopback(&self.hosts)
    }

    /// Who somebody without a token is; `None` if a token is needed.
    pub(crate) fn anonymous(&self, peer: &Peer) -> Option<Arc<Principal>> {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        let rights: &[Right] = match peer {
            _ if access.always => return None,
            // Only this user, and root, can open it.
            Peer::Unix => &[Right::Read, Right::Lock, Right::Admin],
            // Any user of this machine.
            peer if peer.is_loopback() => &[Right::Read, Right::Lock],
            _ if access.nobody => &[Right::Read, Right::Lock],
            _ => return None,
        };
        Some(Arc::new(Principal::local(rights)))
    }

    /// Whether it was started so that nobody needs a token.
    pub(crate) fn is_open(&self) -> bool {
        self.access.read().unwrap_or_else(PoisonError::into_inner).nobody
    }

    /// The owner of this token.
    pub(crate) fn principal(&self, token: &[u8]) -> Option<Arc<Principal>> {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        access.tokens.as_ref()?.find(token)
    }

    /// Whether it was started with tokens.
    pub(crate) fn has_tokens(&self) -> bool {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        access.tokens.is_some()
    }

    /// Reads the file of tokens again; the old ones stay if it cannot be used.
    ///
    /// # Errors
    ///
    /// As [`Tokens::read`].
    pub(crate) fn reload_tokens(&self) -> Result<Option<usize>, Error> {
        let path = {
            let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
            access.tokens.as_ref().map(|tokens| tokens.path().to_owned())
        };
        let Some(path) = path else { return Ok(None) };
        // Not under the lock: requests go on while a slow disk answers.
        let mut new = Tokens::read(&path)?;
        let count = new.count();
        let mut access = self.access.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = &access.tokens {
            new.keep(old);
        }
        access.tokens = Some(new);
        drop(access);
        self.accesses.send_modify(|count| *count += 1);
        Ok(Some(count))
    }

    /// Completes when the token of this client is not known any more.
    pub(crate) async fn revoked(&self, caller: &Caller) {
        let mut accesses = self.accesses.subscribe();
        while self.knows(&caller.principal) {
            if accesses.changed().await.is_err() {
                // The service is gone, and with it all that waits.
                return std::future::pending().await;
            }
        }
    }

    /// Whether a client that was let in is let in yet.
    fn knows(&self, principal: &Arc<Principal>) -> bool {
        let access = self.access.read().unwrap_or_else(PoisonError::into_inner);
        // What clients without a token may do does not change.
        principal.is_local() || access.tokens.as_ref().is_some_and(|it| it.has(principal))
    }
}

//! Who may do what while the service runs: tokens that are replaced, and clients without one.

use std::sync::{Arc, PoisonError, RwLock};

use latchwork::Error;
use tokio::sync::watch;

use super::caller::{Caller, Peer};
use super::principal::{Principal, Right};
use super::tokens::Tokens;

/// The rules of access.
#[derive(Debug)]
pub(crate) struct AccessPolicy {
    tokens: RwLock<Option<Tokens>>,
    /// Whether loopback and Unix sockets need a token, too.
    always: bool,
    /// Whether no client needs a token.
    open: bool,
    /// Counts how often the tokens were read again.
    reloads: watch::Sender<u64>,
}

impl AccessPolicy {
    /// Access by these tokens. With `always`, loopback and Unix sockets need one, too; with `open`, no client does.
    pub(crate) fn new(tokens: Option<Tokens>, always: bool, open: bool) -> Self {
        Self { tokens: RwLock::new(tokens), always, open, reloads: watch::channel(0).0 }
    }

    /// The principal of a client without a token; `None` if a token is needed.
    pub(crate) fn anonymous(&self, peer: &Peer) -> Option<Arc<Principal>> {
        let rights: &[Right] = match peer {
            _ if self.always => return None,
            // Only this user, and root, can open it.
            Peer::Unix => &[Right::Read, Right::Lock, Right::Admin],
            // Any user of this machine.
            peer if peer.is_loopback() => &[Right::Read, Right::Lock],
            _ if self.open => &[Right::Read, Right::Lock],
            _ => return None,
        };
        Some(Arc::new(Principal::local(rights)))
    }

    /// Whether no client needs a token.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The owner of this token.
    pub(crate) fn principal(&self, token: &[u8]) -> Option<Arc<Principal>> {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.as_ref()?.find(token)
    }

    /// Whether there are tokens.
    pub(crate) fn has_tokens(&self) -> bool {
        self.tokens.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Reads the file of tokens again; the old ones stay if it cannot be used.
    ///
    /// # Errors
    ///
    /// As [`Tokens::read`].
    pub(crate) fn reload_tokens(&self) -> Result<Option<usize>, Error> {
        let path = {
            let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
            tokens.as_ref().map(|tokens| tokens.path().to_owned())
        };
        let Some(path) = path else { return Ok(None) };
        // Not under the lock: a slow disk must not delay requests.
        let mut new = Tokens::read(&path)?;
        let count = new.count();
        let mut tokens = self.tokens.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = tokens.as_ref() {
            new.keep(old);
        }
        *tokens = Some(new);
        drop(tokens);
        self.reloads.send_modify(|count| *count += 1);
        Ok(Some(count))
    }

    /// Completes when the token of this client is no longer known.
    pub(crate) async fn revoked(&self, caller: &Caller) {
        let mut reloads = self.reloads.subscribe();
        while self.knows(&caller.principal) {
            if reloads.changed().await.is_err() {
                // The service has ended, and with it everything that waits.
                return std::future::pending().await;
            }
        }
    }

    /// Whether a client that had access has it still.
    pub(crate) fn knows(&self, principal: &Arc<Principal>) -> bool {
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        // The rights of clients without a token do not change.
        principal.is_local() || tokens.as_ref().is_some_and(|it| it.has(principal))
    }
}

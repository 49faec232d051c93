//! Who may do what while the service runs: tokens that are replaced, and clients without one.

use std::sync::{Arc, PoisonError, RwLock};

use latchwork::Error;
use tokio::sync::watch;

use super::caller::{Caller, Peer};
use super::principal::{Principal, Right};
use super::tokens::Tokens;
use crate::domain::refusal::Refusal;

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
        let new = Tokens::read(&path)?;
        let count = new.count();
        *self.tokens.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
        self.reloads.send_modify(|count| *count += 1);
        Ok(Some(count))
    }

    /// Completes when this client may no longer do that to one of these names, with the refusal.
    pub(crate) async fn revoked(
        &self,
        caller: &Caller,
        right: Right,
        names: &[impl AsRef<str>],
    ) -> Refusal {
        self.refused(caller, |now| {
            names.iter().map(|name| now.check(right, name.as_ref())).find_map(Result::err)
        })
        .await
    }

    /// Completes when this client may no longer do all that it could when it asked.
    pub(crate) async fn narrowed(&self, caller: &Caller) {
        let is_less = |now: &Principal| !now.includes(&caller.principal);
        self.refused(caller, |now| is_less(now).then(Refusal::unknown_token)).await;
    }

    async fn refused(
        &self,
        caller: &Caller,
        check: impl Fn(&Principal) -> Option<Refusal>,
    ) -> Refusal {
        let mut reloads = self.reloads.subscribe();
        loop {
            let Some(now) = self.renewed(&caller.principal) else {
                return Refusal::unknown_token();
            };
            if let Some(refusal) = check(&now) {
                return refusal;
            }
            if reloads.changed().await.is_err() {
                // The service has ended, and with it everything that waits.
                return std::future::pending().await;
            }
        }
    }

    /// Whether a client may still do all that it could when it asked.
    pub(crate) fn is_as_before(&self, principal: &Arc<Principal>) -> bool {
        self.renewed(principal).is_some_and(|now| now.includes(principal))
    }

    /// A client that had access, with its rights as they are now.
    fn renewed(&self, principal: &Arc<Principal>) -> Option<Arc<Principal>> {
        // The rights of clients without a token do not change.
        if principal.is_local() {
            return Some(principal.clone());
        }
        let tokens = self.tokens.read().unwrap_or_else(PoisonError::into_inner);
        tokens.as_ref()?.renewed(principal).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use futures_util::FutureExt as _;
    use latchwork_store::Moment;

    use super::*;
    use crate::domain::refusal::Kind;

    const TOKEN: &str = "correct-horse-battery";

    /// H473: an administrator changes the entry of a token whose request waits for `shop/a`.
    #[test]
    fn h473_a_request_waits_on_while_its_token_allows_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let write = |rights: &str, prefixes: &str, token: &str| {
            let entry = format!(
                r#"{{"name":"web","token":"{token}","rights":{rights},"prefixes":{prefixes}}}"#
            );
            fs::write(&path, format!(r#"{{"tokens":[{entry}]}}"#)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        };
        let (both, lock) = (r#"["read","lock"]"#, r#"["lock"]"#);
        write(both, r#"["shop/"]"#, TOKEN);
        let access = AccessPolicy::new(Some(Tokens::read(&path).unwrap()), true, false);
        let principal = access.principal(TOKEN.as_bytes()).unwrap();
        let arrival = Moment::from_nanos(0);
        let caller = Caller { principal, arrival, peer: Peer::Unix };
        let refused = |right| {
            let refusal = access.revoked(&caller, right, &["shop/a"]).now_or_never();
            refusal.map(|refusal| refusal.kind)
        };
        let cases = [
            (both, r#"["shop/"]"#, TOKEN, None, None, true),
            (both, r#"["shop/","more/"]"#, TOKEN, None, None, true),
            (both, r#"["shop/a"]"#, TOKEN, None, None, false),
            (lock, r#"["shop/"]"#, TOKEN, None, Some(Kind::Forbidden), false),
            (both, r#"["more/"]"#, TOKEN, Some(Kind::Forbidden), Some(Kind::Forbidden), false),
            (
                both,
                r#"["shop/"]"#,
                "another-horse-battery",
                Some(Kind::Unauthorized),
                Some(Kind::Unauthorized),
                false,
            ),
        ];
        for (rights, prefixes, token, to_lock, to_read, goes_on) in cases {
            write(rights, prefixes, token);
            access.reload_tokens().unwrap();
            assert_eq!(refused(Right::Lock), to_lock, "{rights} {prefixes} {token}");
            assert_eq!(refused(Right::Read), to_read, "{rights} {prefixes} {token}");
            let is_over = access.narrowed(&caller).now_or_never().is_some();
            assert_eq!(is_over, !goes_on, "{rights} {prefixes} {token}");
            // A stream that ends so is none that its client has left.
            assert_eq!(access.is_as_before(&caller.principal), goes_on, "{rights} {prefixes}");
        }
    }
}

//! Plain mode: the mutex on a store that takes one key for each command and pushes nothing.
//!
//! A claim is the same string under the same name as otherwise, so clients with all means, clients in
//! plain mode and plain clients of other libraries exclude one another. There is no queue: waiters poll
//! every 50 to 250 ms, and the first one to poll after a release acquires the key.
//!
//! Tokens need two keys, the lock and the counter of its namespace, and no command may use both. So a
//! claim takes the key first, then draws a token, and then writes the token into the value if it still
//! holds the key. Of two successive claims the second draws after the first has written, because the key
//! was not free before: its token is greater. The price is three round trips for a free key instead of
//! one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Claim, Effect, Grant, Key, Linger, Mode, Released,
    Renewal, Snapshot, Wake,
};
use redis::{Value, cmd};

use crate::protocol::answers::{blocked_by, spent, token};
use crate::protocol::names::Names;
use crate::protocol::scripts::{
    PLAIN_CONFIRM, PLAIN_INSPECT, PLAIN_RELEASE, PLAIN_RENEW, PLAIN_TAKE, PLAIN_TOKEN,
};
use crate::protocol::snapshot::read_plain;
use crate::protocol::store::{Store, only_plain, poll_pause};
use crate::protocol::value::{millis, stored};
use crate::server::errors::strange;
use crate::server::link::Link;
use crate::server::reply::{number, text};

/// The token of a claim that has not drawn one yet.
const NONE: &str = "0000000000000000";

/// How often a claim starts again if its key is deleted while it draws its token.
const TRIES: u32 = 3;

/// The verbs by scripts of one key.
pub(crate) struct Plain {
    store: Arc<Store>,
}

impl Plain {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if claim.mode != Mode::Exclusive {
            return Err(only_plain(format_args!("no {}", claim.mode.shape())));
        }
        if claim.beside.is_some() {
            return Err(only_plain("no upgrade or downgrade of holds"));
        }
        if claim.floor != 0 {
            return Err(only_plain("no floor for tokens"));
        }
        let names = self.store.naming.of(&claim.key)?;
        // The flag `.` says that this holder cannot notify waiters when it releases.
        let holder = stored(self.store.io.clock().wall(), &claim.holder);
        let value = format!("lw:x:.:{}:{NONE}:{holder}", claim.id);
        let (id, ttl) = (claim.id.to_string(), millis(claim.ttl).to_string());
        for _ in 0..TRIES {
            let taken =
                self.one_key(&names, PLAIN_TAKE, names.lock(), &[&value, &ttl, &id]).await?;
            let token = match &taken {
                Value::Array(parts) => match &parts[..] {
                    [Value::Int(1), token] => text(token),
                    [Value::Int(0), Value::BulkString(value), left] => {
                        return self.blocked_plain(value, left, claim);
                    }
                    _ => None,
                },
                _ => None,
            };
            let token = match token.as_deref() {
                None => return Err(strange(&taken)),
                Some("" | NONE) => self.confirm(&names, &id).await?,
                Some(token) => token.to_owned(),
            };
            if let Ok(token) = token.parse() {
                self.store.pushes.close(claim.id);
                return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
            }
        }
        Err(BackendError::new(
            BackendErrorKind::Unreachable,
            Effect::Unknown,
            "the key was deleted again and again before the client had its token",
        )
        .with_next_step("use a longer ttl, or find out which client deletes the key"))
    }

    /// Draws a token and writes it into the key; empty if the key is no longer the claim's.
    async fn confirm(&self, names: &Names, id: &str) -> Result<String, BackendError> {
        // From here on the effect of an error is unknown: the key is taken.
        let unknown = |error: BackendError| error.with_effect(Effect::Unknown);
        let counter = names.token();
        let drawn = self.one_key(names, &PLAIN_TOKEN, &counter, &[]).await.map_err(unknown)?;
        if let Some(spent) = spent(&drawn) {
            // Without a token there is no hold: free the key.
            self.one_key(names, PLAIN_RELEASE, names.lock(), &[id]).await.map_err(unknown)?;
            return Err(spent);
        }
        let token = token(&drawn).ok_or_else(|| strange(&drawn))?.to_string();
        let confirmed = self.one_key(names, PLAIN_CONFIRM, names.lock(), &[id, &token]).await;
        let confirmed = confirmed.map_err(unknown)?;
        text(&confirmed).ok_or_else(|| strange(&confirmed))
    }

    fn blocked_plain(
        &self,
        value: &[u8],
        left: &Value,
        claim: &Claim,
    ) -> Result<Attempt, BackendError> {
        let retry_after = number(left).map(|left| Duration::from_millis(left + 1));
        let attempt = blocked_by(value, retry_after.is_none(), claim)?;
        if claim.waits {
            // The store has no entry for it; only this process knows that it waits.
            self.store.pushes.open(claim.id, None);
        }
        Ok(match attempt {
            Attempt::Blocked(blocked) => {
                Attempt::Blocked(blocked.with(|it| it.retry_after = retry_after))
            }
            granted => granted,
        })
    }

    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, BackendError> {
        if !claim.waits {
            return std::future::pending().await; // only the engine's timer wakes it
        }
        self.store.io.sleep(poll_pause()).await;
        Ok(Wake::Look)
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, BackendError> {
        if claim.mode != Mode::Exclusive || claim.floor != 0 {
            return Err(only_plain("no such renewal"));
        }
        let names = self.store.naming.of(&claim.key)?;
        let (id, ttl) = (claim.id.to_string(), millis(claim.ttl).to_string());
        let renewed = match self.one_key(&names, PLAIN_RENEW, names.lock(), &[&id, &ttl]).await {
            Ok(renewed) => renewed,
            // A key of another type is not this claim's.
            Err(error) if error.kind == BackendErrorKind::Mismatch => return Ok(Renewal::Lost),
            Err(error) => return Err(error),
        };
        match text(&renewed).as_deref() {
            // A claim without a token was not granted.
            Some("" | NONE) => Ok(Renewal::Lost),
            Some(token) => {
                let token = token.parse().map_err(|_| strange(&renewed))?;
                Ok(Renewal::held(claim.ttl, token, None))
            }
            None => Err(strange(&renewed)),
        }
    }

    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        if linger != Linger::None {
            return Err(only_plain("no linger"));
        }
        let names = self.store.naming.of(&claim.key)?;
        let waited = self.store.pushes.close(claim.id);
        let id = claim.id.to_string();
        match self.one_key(&names, PLAIN_RELEASE, names.lock(), &[&id]).await {
            Ok(Value::Int(1)) => Ok(Released::Yes),
            Ok(Value::Int(0)) if waited => Ok(Released::Yes),
            Ok(Value::Int(0)) => Ok(Released::NotHeld),
            Ok(other) => Err(strange(&other)),
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(Released::NotHeld),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn renew_all(&self, claims: &[Claim]) -> Vec<Result<Renewal, BackendError>> {
        join_all(claims.iter().map(|claim| Box::pin(self.renew(claim)))).await
    }

    pub(crate) async fn look_at(&self, key: &Key, names: &Names) -> Result<Snapshot, BackendError> {
        let answer = self.one_key(names, PLAIN_INSPECT, names.lock(), &[]).await?;
        read_plain(&answer, key, names, "plain mode").ok_or_else(|| strange(&answer))
    }

    async fn one_key(
        &self,
        names: &Names,
        script: &str,
        key: &str,
        args: &[&str],
    ) -> Result<Value, BackendError> {
        one_key(&self.store, names, script, key, args).await
    }
}

/// Runs a script of one key. The source is sent each time: a proxy may send each key to another server,
/// and not every proxy accepts `EVALSHA`.
pub(crate) async fn one_key(
    store: &Store,
    names: &Names,
    script: &str,
    key: &str,
    args: &[&str],
) -> Result<Value, BackendError> {
    let eval = |_: &Link, _| {
        let mut command = cmd("EVAL");
        command.arg(script).arg(1).arg(key).arg(args);
        command
    };
    Ok(store.topology.route(names.slot()).await?.send(eval).await?)
}

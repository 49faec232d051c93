//! Locks over HTTP: the requests of `latchwork serve`, and those of etcd's gateway.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;

use super::http::{Client, Result, text_of};

/// Whose requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Latchwork,
    /// Each lock has a lease of its own, as each of Latchwork's has.
    Gateway,
}

/// A lock that is held.
pub(super) enum Hold {
    /// The path of the hold.
    Latchwork(String),
    /// The lease.
    Gateway(String),
}

impl Api {
    pub(super) const LATCHWORK: &str = "service";
    pub(super) const GATEWAY: &str = "gateway";

    pub(super) fn of(word: &str) -> Option<Self> {
        match word {
            Self::LATCHWORK => Some(Self::Latchwork),
            Self::GATEWAY => Some(Self::Gateway),
            _ => None,
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Latchwork => Self::LATCHWORK,
            Self::Gateway => Self::GATEWAY,
        }
    }

    /// Takes a lock; waits for it for so long if there is a time to wait.
    pub(super) async fn acquire(
        self,
        client: &mut Client,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Hold> {
        match self {
            Self::Latchwork => {
                static NEXT: AtomicU64 = AtomicU64::new(0);
                let next = NEXT.fetch_add(1, Ordering::Relaxed);
                // As clients are advised to do: a repeated request gets the same hold.
                let key = format!("{:08x}-0000-4000-8000-{next:012x}", std::process::id());
                let body =
                    format!(r#"{{"ttl_ms":{},"wait_ms":{}}}"#, ttl.as_millis(), wait.as_millis());
                let path = format!("/v1/locks/{}", name.replace('/', "%2F"));
                let headers = [("idempotency-key", &*key)];
                let granted = client.done(Method::POST, &path, &headers, body).await?;
                Ok(Hold::Latchwork(format!("/v1/holds/{}", text_of(&granted, "hold")?)))
            }
            Self::Gateway => {
                // A waiter has nobody who keeps its lease alive here.
                let lease = grant(client, ttl + wait).await?;
                lock(client, name, &lease).await?;
                Ok(Hold::Gateway(lease))
            }
        }
    }
}

/// Grants a lease of etcd.
pub(super) async fn grant(client: &mut Client, ttl: Duration) -> Result<String> {
    let body = format!(r#"{{"TTL":{}}}"#, ttl.as_secs());
    text_of(&client.done(Method::POST, "/v3/lease/grant", &[], body).await?, "ID")
}

/// Takes a lock of etcd, and returns its key.
pub(super) async fn lock(client: &mut Client, name: &str, lease: &str) -> Result<String> {
    let body = format!(r#"{{"name":"{}","lease":"{lease}"}}"#, STANDARD.encode(name));
    text_of(&client.done(Method::POST, "/v3/lock/lock", &[], body).await?, "key")
}

/// Releases a lock of etcd; its lease stays.
pub(super) async fn unlock(client: &mut Client, key: &str) -> Result<()> {
    let body = format!(r#"{{"key":"{key}"}}"#);
    client.done(Method::POST, "/v3/lock/unlock", &[], body).await.map(drop)
}

impl Hold {
    pub(super) async fn renew(&self, client: &mut Client) -> Result<()> {
        match self {
            Self::Latchwork(hold) => {
                let path = format!("{hold}/renew");
                client.done(Method::POST, &path, &[], String::new()).await.map(drop)
            }
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                client.done(Method::POST, "/v3/lease/keepalive", &[], body).await.map(drop)
            }
        }
    }

    /// etcd deletes the key with its lease: one request, as Latchwork's.
    pub(super) async fn release(self, client: &mut Client) -> Result<()> {
        match self {
            Self::Latchwork(hold) => {
                client.done(Method::DELETE, &hold, &[], String::new()).await.map(drop)
            }
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                client.done(Method::POST, "/v3/lease/revoke", &[], body).await.map(drop)
            }
        }
    }
}

//! Locks over HTTP: the requests of `latchwork serve`, and those of etcd's gateway, each lock by itself or many by
//! one renewal.

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
    /// The locks of a connection belong to one session of the service.
    Sessions,
    /// The same; the client tells the marks of its holds.
    Marked,
    /// The locks of a connection are keys of one lease of etcd, as Consul's are of a session.
    Leases,
}

/// A lock that is held, or what keeps many.
pub(super) enum Hold {
    /// The path of the hold.
    Latchwork(String),
    /// The lease.
    Gateway(String),
    /// The path of the session, and the marks of its holds if the client tells them.
    Session(String, Option<AtomicU64>),
    /// A key that a session or lease keeps.
    Kept,
}

impl Api {
    pub(super) const LATCHWORK: &str = "service";
    pub(super) const GATEWAY: &str = "gateway";

    pub(super) fn of(word: &str) -> Option<Self> {
        let all = [Self::Latchwork, Self::Gateway, Self::Sessions, Self::Marked, Self::Leases];
        all.into_iter().find(|it| it.word() == word)
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Latchwork => Self::LATCHWORK,
            Self::Gateway => Self::GATEWAY,
            Self::Sessions => "sessions",
            Self::Marked => "marked",
            Self::Leases => "leases",
        }
    }

    /// Begins what keeps the locks of a connection, if they are not kept each by itself.
    pub(super) async fn begin(self, client: &mut Client, ttl: Duration) -> Result<Option<Hold>> {
        Ok(match self {
            Self::Latchwork | Self::Gateway => None,
            Self::Sessions | Self::Marked => {
                let body = format!(r#"{{"ttl_ms":{}}}"#, ttl.as_millis());
                let begun = client.done(Method::POST, "/v1/sessions", &[], body).await?;
                let path = format!("/v1/sessions/{}", text_of(&begun, "session")?);
                Some(Hold::Session(path, (self == Self::Marked).then(AtomicU64::default)))
            }
            Self::Leases => Some(Hold::Gateway(grant(client, ttl).await?)),
        })
    }

    /// Takes a free lock, which `keeper` keeps if there is one.
    pub(super) async fn take(
        self,
        client: &mut Client,
        name: &str,
        ttl: Duration,
        keeper: Option<&Hold>,
    ) -> Result<Hold> {
        match keeper {
            Some(Hold::Session(path, marks)) => {
                let session = path.rsplit('/').next().unwrap_or_default();
                let body = format!(r#"{{"session":"{session}"}}"#);
                let path = format!("/v1/locks/{}", name.replace('/', "%2F"));
                let granted = client.done(Method::POST, &path, &[], body).await?;
                if let Some(marks) = marks {
                    let mark = u64::from_str_radix(&text_of(&granted, "mark")?, 16)?;
                    marks.fetch_add(mark, Ordering::Relaxed);
                }
                Ok(Hold::Kept)
            }
            Some(Hold::Gateway(lease)) => {
                create(client, name, lease).await?;
                Ok(Hold::Kept)
            }
            _ => self.acquire(client, name, ttl, Duration::ZERO).await,
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
            Self::Latchwork | Self::Sessions | Self::Marked => {
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
            Self::Gateway | Self::Leases => {
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

/// Creates a key with a lease, unless it is there: a lock without a queue.
async fn create(client: &mut Client, name: &str, lease: &str) -> Result<()> {
    let key = STANDARD.encode(name);
    let body = format!(
        r#"{{"compare":[{{"key":"{key}","target":"CREATE","create_revision":"0"}}],"success":[{{"request_put":{{"key":"{key}","value":"{key}","lease":"{lease}"}}}}]}}"#
    );
    let answer = client.done(Method::POST, "/v3/kv/txn", &[], body).await?;
    match has(&answer, r#""succeeded":true"#) {
        true => Ok(()),
        false => Err(format!("{name} is not free").into()),
    }
}

/// Whether an answer has this text.
fn has(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|part| part == text.as_bytes())
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
    /// Whether other locks belong to it, of a load that has such.
    pub(super) fn keeps(&self, api: Api) -> bool {
        matches!(self, Self::Session(..)) || api == Api::Leases
    }

    pub(super) async fn renew(&self, client: &mut Client) -> Result<()> {
        match self {
            Self::Latchwork(hold) => {
                let path = format!("{hold}/renew");
                client.done(Method::POST, &path, &[], String::new()).await.map(drop)
            }
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                let answer = client.done(Method::POST, "/v3/lease/keepalive", &[], body).await?;
                // A lease that has ended is an answer without a ttl.
                has(&answer, "TTL").then_some(()).ok_or_else(|| "the lease has ended".into())
            }
            Self::Session(session, marks) => {
                let path = format!("{session}/renew");
                let told = marks.as_ref().map(|marks| marks.load(Ordering::Relaxed));
                let body = told.map_or(String::new(), |it| format!(r#"{{"marks":"{it:016x}"}}"#));
                let answer = client.done(Method::POST, &path, &[], body).await?;
                has(&answer, r#""lost":[]"#).then_some(()).ok_or_else(|| "locks are lost".into())
            }
            Self::Kept => Ok(()),
        }
    }

    /// etcd deletes the key with its lease: one request, as Latchwork's.
    pub(super) async fn release(self, client: &mut Client) -> Result<()> {
        match self {
            Self::Latchwork(path) | Self::Session(path, _) => {
                client.done(Method::DELETE, &path, &[], String::new()).await.map(drop)
            }
            // It ends with what keeps it.
            Self::Kept => Ok(()),
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                client.done(Method::POST, "/v3/lease/revoke", &[], body).await.map(drop)
            }
        }
    }
}

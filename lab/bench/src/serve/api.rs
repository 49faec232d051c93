//! Locks over HTTP: the requests of `latchwork serve`, and those of etcd's gateway, each lock by itself or many by
//! one renewal.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;

use super::http::{Client, text_of};
use crate::roles::Outcome;

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
use Api::{Gateway, Latchwork, Leases, Marked, Sessions};

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

const WORDS: [(Api, &str); 5] = [
    (Latchwork, "service"),
    (Gateway, "gateway"),
    (Sessions, "sessions"),
    (Marked, "marked"),
    (Leases, "leases"),
];

impl Api {
    pub(super) fn of(word: &str) -> Option<Self> {
        WORDS.into_iter().find(|it| it.1 == word).map(|it| it.0)
    }

    pub(super) fn word(self) -> &'static str {
        WORDS.into_iter().find(|it| it.0 == self).map_or("", |it| it.1)
    }

    /// Whether one renewal keeps many locks.
    pub(super) fn keeps_many(self) -> bool {
        matches!(self, Sessions | Marked | Leases)
    }

    /// Begins what keeps the locks of a connection, if they are not kept each by itself.
    pub(super) async fn begin(self, client: &mut Client, ttl: Duration) -> Outcome<Option<Hold>> {
        Ok(match self {
            Latchwork | Gateway => None,
            Sessions | Marked => {
                let body = format!(r#"{{"ttl_ms":{}}}"#, ttl.as_millis());
                let session = client.text("/v1/sessions", body, "session").await?;
                let marks = (self == Marked).then(AtomicU64::default);
                Some(Hold::Session(format!("/v1/sessions/{session}"), marks))
            }
            Leases => Some(Hold::Gateway(grant(client, ttl).await?)),
        })
    }

    /// Takes a free lock, which `keeper` keeps if there is one.
    pub(super) async fn take(
        self,
        client: &mut Client,
        name: &str,
        ttl: Duration,
        keeper: Option<&Hold>,
    ) -> Outcome<Hold> {
        match keeper {
            Some(Hold::Session(path, marks)) => {
                let session = path.rsplit('/').next().unwrap_or_default();
                let body = format!(r#"{{"session":"{session}"}}"#);
                let granted = client.post(&path_of(name), body).await?;
                if let Some(marks) = marks {
                    let mark = u64::from_str_radix(&text_of(&granted, "mark")?, 16)?;
                    marks.fetch_add(mark, Ordering::Relaxed);
                }
                Ok(Hold::Kept)
            }
            Some(Hold::Gateway(lease)) => {
                // Creates a key with the lease, unless it is there: a lock without a queue.
                let key = STANDARD.encode(name);
                let body = format!(
                    r#"{{"compare":[{{"key":"{key}","target":"CREATE","create_revision":"0"}}],"success":[{{"request_put":{{"key":"{key}","value":"{key}","lease":"{lease}"}}}}]}}"#
                );
                let answer = client.post("/v3/kv/txn", body).await?;
                has(&answer, r#""succeeded":true"#, "the key is not free")?;
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
    ) -> Outcome<Hold> {
        if matches!(self, Gateway | Leases) {
            // A waiter has nobody who keeps its lease alive here.
            let lease = grant(client, ttl + wait).await?;
            lock(client, name, &lease).await?;
            return Ok(Hold::Gateway(lease));
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        // As clients are advised to do: a repeated request gets the same hold.
        let key = format!("{:08x}-0000-4000-8000-{next:012x}", std::process::id());
        let body = format!(r#"{{"ttl_ms":{},"wait_ms":{}}}"#, ttl.as_millis(), wait.as_millis());
        let granted = client.ask(Method::POST, &path_of(name), Some(&key), body).await?;
        Ok(Hold::Latchwork(format!("/v1/holds/{}", text_of(&granted, "hold")?)))
    }
}

fn path_of(name: &str) -> String {
    format!("/v1/locks/{}", name.replace('/', "%2F"))
}

/// Grants a lease of etcd.
pub(super) async fn grant(client: &mut Client, ttl: Duration) -> Outcome<String> {
    client.text("/v3/lease/grant", format!(r#"{{"TTL":{}}}"#, ttl.as_secs()), "ID").await
}

/// Fails unless an answer has this text.
fn has(answer: &[u8], text: &str, or: &str) -> Outcome {
    let is_there = answer.windows(text.len()).any(|part| part == text.as_bytes());
    is_there.then_some(()).ok_or_else(|| or.into())
}

/// Takes a lock of etcd, and returns its key.
pub(super) async fn lock(client: &mut Client, name: &str, lease: &str) -> Outcome<String> {
    let body = format!(r#"{{"name":"{}","lease":"{lease}"}}"#, STANDARD.encode(name));
    client.text("/v3/lock/lock", body, "key").await
}

/// Releases a lock of etcd; its lease stays.
pub(super) async fn unlock(client: &mut Client, key: &str) -> Outcome {
    client.post("/v3/lock/unlock", format!(r#"{{"key":"{key}"}}"#)).await.map(drop)
}

impl Hold {
    pub(super) async fn renew(&self, client: &mut Client) -> Outcome {
        match self {
            Self::Latchwork(hold) => {
                client.post(&format!("{hold}/renew"), String::new()).await.map(drop)
            }
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                let answer = client.post("/v3/lease/keepalive", body).await?;
                // A lease that has ended is an answer without a ttl.
                has(&answer, "TTL", "the lease has ended")
            }
            Self::Session(session, marks) => {
                let told = marks.as_ref().map(|marks| marks.load(Ordering::Relaxed));
                let body = told.map_or(String::new(), |it| format!(r#"{{"marks":"{it:016x}"}}"#));
                let answer = client.post(&format!("{session}/renew"), body).await?;
                has(&answer, r#""lost":[]"#, "locks are lost")
            }
            Self::Kept => Ok(()),
        }
    }

    /// etcd deletes the key with its lease: one request, as Latchwork's.
    pub(super) async fn release(self, client: &mut Client) -> Outcome {
        match self {
            Self::Latchwork(path) | Self::Session(path, _) => {
                client.ask(Method::DELETE, &path, None, String::new()).await.map(drop)
            }
            // It ends with what keeps it.
            Self::Kept => Ok(()),
            Self::Gateway(lease) => {
                let body = format!(r#"{{"ID":"{lease}"}}"#);
                client.post("/v3/lease/revoke", body).await.map(drop)
            }
        }
    }
}

//! The one way to change an object: read it, judge, and write it if its version is still the same.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use latchwork_store::kit::record::Record;
use latchwork_store::{BackendError, Claim, Key, Moment};
use latchwork_store::{Backoff, random_between};

use crate::lock;
use crate::protocol::known::{Entry, LastView};
use crate::protocol::object::{Change, Object};
use crate::protocol::room::has_room;
use crate::protocol::shared::Store;
use crate::protocol::stored::Stored;
use crate::server::errors::{altered, corrupt, is_too_long, refused};
use crate::server::link::Answer;

/// What a verb has found.
pub(crate) enum Step<T> {
    /// The answer; nothing is to be written.
    Done(T),
    /// It cannot be said from memory: ask the server.
    Ask,
    /// The answer, if the record can be written.
    Write(T),
}

/// What a verb judges by.
pub(crate) struct Look<'a> {
    pub(crate) before: &'a Record,
    pub(crate) now: Moment,
    /// The record comes from an answer of the server to this verb, and not from memory.
    pub(crate) is_fresh: bool,
    /// How often another client was faster.
    pub(crate) conflicts: u32,
    /// The object has no room for one more claim: none can be added.
    pub(crate) is_full: bool,
    /// The object of the record, if there is one.
    pub(crate) base: Option<&'a Object>,
}

/// How an attempt to write has ended.
enum Written {
    Yes(Arc<Object>),
    /// Another client was faster.
    Conflict,
    /// The server asks for patience, and has done nothing.
    Later(Duration),
    /// The object would be larger than the server takes.
    TooLong(BackendError),
}

/// A server that is overloaded is asked again so often.
const REFUSAL_LIMIT: u32 = 3;

impl Store {
    /// Changes the object of a key. `judge` is called again after each conflict, with the record as it is then.
    pub(crate) async fn change<T>(
        &self,
        key: &Key,
        entry: &Entry,
        claims: &[Claim],
        mut judge: impl FnMut(&mut Record, &Look<'_>) -> Step<T>,
    ) -> Result<(T, Option<Arc<Object>>), BackendError> {
        let (mut is_fresh, mut conflicts, mut refusals, mut is_full) = (false, 0, 0, false);
        // A conflict means that somebody was served: who comes again at once meets the same crowd.
        let mut pauses = Backoff::new(Duration::from_millis(2), Duration::from_millis(200));
        loop {
            self.check_pauses(entry)?;
            if matches!(entry.seen().0, LastView::Nothing) {
                self.fetch(entry).await?;
                is_fresh = true;
            }
            let (seen, sight) = entry.seen();
            let base = match &seen {
                LastView::Here(object) => Some(&**object),
                LastView::Absent => None,
                // It was forgotten meanwhile.
                LastView::Nothing => continue,
            };
            self.check_key(base, key)?;
            let (now, wall) = (self.link.io.now(), self.link.io.clock().wall());
            let time = *lock(&self.link.time);
            let before = base.map(|object| object.record(&sight, now, wall, time));
            let mut before = before.unwrap_or_default();
            before.token = before.token.max(entry.floor());
            let mut after = before.clone();
            let look = Look { before: &before, now, is_fresh, conflicts, is_full, base };
            let answer = match judge(&mut after, &look) {
                Step::Done(answer) => return Ok((answer, None)),
                Step::Ask => {
                    self.fetch(entry).await?;
                    is_fresh = true;
                    continue;
                }
                Step::Write(answer) => answer,
            };
            let (name, key, after) = (&*entry.name, key.as_str(), &after);
            let before = &before;
            let change = Change { base, name, key, before, after, claims, now, wall, time };
            let (lease, stored) = change.lease();
            let adds = change.adds();
            if adds && !is_full && !has_room(&lease, &stored) {
                is_full = true;
                continue;
            }
            let sent = base.map(|object| object.version);
            match self.write(entry, sent, &lease, stored).await? {
                Written::Yes(object) => return Ok((answer, Some(object))),
                Written::Conflict => {
                    conflicts += 1;
                    if conflicts > 1 {
                        self.link.io.sleep(pauses.pause()).await;
                    }
                    self.fetch(entry).await?;
                    if entry.version() == sent {
                        entry.pauses.note(self.link.io.now());
                    }
                    (is_fresh, is_full) = (true, false);
                }
                // Others have written into the object, too.
                Written::TooLong(_) if adds && !is_full => is_full = true,
                Written::TooLong(error) => return Err(error),
                Written::Later(after) => {
                    refusals += 1;
                    if refusals > REFUSAL_LIMIT {
                        let message = "the API server is overloaded (status 429)";
                        let kind = latchwork_store::BackendErrorKind::Unreachable;
                        let effect = latchwork_store::Effect::NotApplied;
                        return Err(BackendError::new(kind, effect, message));
                    }
                    self.link.io.sleep(after).await;
                }
            }
        }
    }

    /// Reads the object from the server: by a quorum, as a read without a version is.
    pub(crate) async fn fetch(&self, entry: &Entry) -> Result<(), BackendError> {
        let path = format!("{}/{}", self.link.leases(), entry.name);
        for refusal in 0.. {
            let (before, was_here) = (self.known.before(Some(entry)), entry.is_here());
            let answer = self.link.ask(Method::GET, &path, None).await?;
            match answer.status {
                200 => {
                    let object = self.read(entry, &answer)?;
                    if before.is_after_read(object.version) && self.start_over(before) {
                        entry.pauses.note(answer.at);
                    }
                    self.known.note(entry, object, answer.at);
                    return Ok(());
                }
                404 => {
                    // Somebody has deleted it, or the server's data are of a time before it.
                    if was_here && entry.is_here() {
                        // Without an answer it is taken for deleted.
                        let _ = self.compare().await;
                    }
                    self.known.note_absence(entry, None);
                    return Ok(());
                }
                429 if refusal < REFUSAL_LIMIT => self.link.io.sleep(patience(&answer)).await,
                _ => return Err(self.refused(&answer, "read a lease", false)),
            }
        }
        Ok(())
    }

    async fn write(
        &self,
        entry: &Entry,
        sent: Option<u64>,
        lease: &Lease,
        mut stored: Stored,
    ) -> Result<Written, BackendError> {
        let body = serde_json::to_vec(lease)
            .map_err(|error| corrupt(&self.namespace, &entry.name, &error.to_string()))?;
        let before = self.known.before(Some(entry));
        let exists = sent.is_some();
        let (method, path) = match exists {
            true => (Method::PUT, format!("{}/{}", self.link.leases(), entry.name)),
            false => (Method::POST, self.link.leases()),
        };
        let (under_way, awaited) = entry.awaits();
        let answer = self.link.ask_on(method, &path, Some(body), Some(under_way)).await;
        awaited.answered();
        let answer = answer?;
        Ok(match answer.status {
            200 | 201 => {
                let object = self.read(entry, &answer)?;
                stored.settle(object.version);
                if object.stored != stored {
                    self.known.note(entry, object, answer.at);
                    return Err(altered(&self.namespace, &entry.name));
                }
                // With the version that was sent: a server writes nothing if nothing has changed.
                let is_unwritten = sent == Some(object.version);
                if !is_unwritten && before.is_after(object.version) {
                    self.start_over(before);
                }
                Written::Yes(self.known.note(entry, object, answer.at))
            }
            409 => Written::Conflict,
            404 if exists => Written::Conflict,
            429 => Written::Later(patience(&answer)),
            _ => {
                let doing = if exists { "change a lease" } else { "create a lease" };
                let error = self.refused(&answer, doing, true);
                match is_too_long(&answer) {
                    true => Written::TooLong(error),
                    false => return Err(error),
                }
            }
        })
    }

    fn read(&self, entry: &Entry, answer: &Answer) -> Result<Object, BackendError> {
        let lease: Result<Lease, _> = serde_json::from_slice(&answer.body);
        let object = lease.map_err(|error| error.to_string()).and_then(Object::read);
        match object {
            Ok(object) => Ok(object),
            Err(why) => {
                self.known.forget(entry);
                Err(corrupt(&self.namespace, &entry.name, &why))
            }
        }
    }

    /// An object by the hash of another key is none of ours to change.
    fn check_key(&self, base: Option<&Object>, key: &Key) -> Result<(), BackendError> {
        let Some(object) = base else { return Ok(()) };
        match object.key() {
            Some(noted) if noted != key.as_str() => {
                let why = format!("it belongs to the key {noted:?}, and not to {:?}", key.as_str());
                Err(corrupt(&self.namespace, object.name(), &why))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn refused(&self, answer: &Answer, doing: &str, writes: bool) -> BackendError {
        refused(answer, doing, &self.namespace, writes)
    }
}

/// How long a server that is overloaded is left alone: as long as it asks for, and a little more so that not all
/// come back together.
fn patience(answer: &Answer) -> Duration {
    let asked = answer.retry_after.unwrap_or(Duration::from_millis(500));
    asked + random_between(Duration::ZERO, Duration::from_millis(200))
}

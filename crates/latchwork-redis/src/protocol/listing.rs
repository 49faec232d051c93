//! Lists the locks of all servers, a step at a time and without `KEYS`.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use latchwork_store::{BackendError, BackendErrorKind, Key, Snapshot};
use redis::{Value, cmd};

use crate::protocol::names::{Names, key_text_of_tagged, lock_of};
use crate::protocol::store::Store;
use crate::protocol::verbs::Verbs;
use crate::server::errors::{Failure, Reaction, is_about_a_command, is_moving, strange};
use crate::server::link::Link;
use crate::server::node::Node;
use crate::server::reply::{number, text};
use crate::server::slot::slot_of;

/// How many keys the server reads in one step of a listing.
const STEP: u32 = 1_000;
/// How many locks are looked at together. One after the other, each would cost a round trip.
const AT_ONCE: usize = 64;
/// How long a node of a Cluster has for a step, and for a look. One that is silent must not keep the others from being
/// listed.
const NODE_LIMIT: Duration = Duration::from_secs(2);
/// And another server, before the time of a whole list is over: so the error names it.
const SERVER_LIMIT: Duration = Duration::from_secs(8);
/// The holder that is shown for a lock that cannot be read.
const UNREADABLE: &str = "not known: the lock cannot be read";

impl Store {
    /// The locks whose key starts with `prefix`. The server is asked step by step, so its other clients
    /// wait no longer than one step takes.
    pub(crate) async fn list(
        &self,
        verbs: &Verbs,
        prefix: &str,
    ) -> Result<Vec<Snapshot>, BackendError> {
        let mut locks = BTreeSet::new();
        let pattern = self.pattern(prefix);
        let nodes = self.topology.nodes().await?;
        let found =
            join_all(nodes.iter().map(|node| Box::pin(self.names_on(node, &pattern)))).await;
        let mut away = Vec::new();
        for found in found {
            match found {
                Ok(found) => locks.extend(found),
                Err(error) if self.is_only_there(&error) => away.push(error),
                Err(error) => return Err(error),
            }
        }
        let is_cluster = self.topology.is_cluster();
        let keys = locks.into_iter().filter_map(|lock| {
            let names = self.naming.of_stored(&lock);
            let text = if is_cluster { key_text_of_tagged(&lock) } else { lock };
            let key = text.starts_with(prefix).then(|| Key::new(&text));
            Some((key?.ok()?, names))
        });
        let looks = keys.map(|(key, names)| Box::pin(self.look_of_list(verbs, key, names)));
        let seen = stream::iter(looks).buffer_unordered(AT_ONCE);
        let mut snapshots: Vec<Snapshot> =
            seen.try_filter_map(async |seen| Ok(seen)).try_collect().await?;
        snapshots.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        // Each entry says that others may be missing. A list without an entry would say that there is none.
        match away.into_iter().next() {
            Some(error) if snapshots.is_empty() => Err(error),
            Some(error) => {
                let note = format!("this list is not complete: {}", error.message);
                snapshots.iter_mut().for_each(|seen| seen.notes.push(note.clone()));
                Ok(snapshots)
            }
            None => Ok(snapshots),
        }
    }

    /// A lock of a list, unless it is free by now, or nothing that this user may read.
    async fn look_of_list(
        &self,
        verbs: &Verbs,
        key: Key,
        names: Names,
    ) -> Result<Option<Snapshot>, BackendError> {
        let look = self.io.answer(self.step_limit(), verbs.look_at(&key, &names));
        match look.await {
            Err(error) if is_out_of_bounds(&error) => Ok(None),
            Err(error) if is_moving(&error) || self.is_only_there(&error) => {
                Ok(Some(Snapshot::unreadable(key, UNREADABLE, error)))
            }
            snapshot => snapshot.map(|seen| (!seen.is_free()).then_some(seen)),
        }
    }

    fn step_limit(&self) -> Duration {
        if self.topology.is_cluster() { NODE_LIMIT } else { SERVER_LIMIT }
    }

    /// Whether a failure concerns one of several nodes, and says nothing of the others.
    fn is_only_there(&self, error: &BackendError) -> bool {
        self.topology.is_cluster() && error.kind == BackendErrorKind::Unreachable
    }

    /// The names of locks on one node.
    async fn names_on(&self, node: &Node, pattern: &str) -> Result<BTreeSet<String>, BackendError> {
        let (mut locks, mut scan) = (BTreeSet::new(), Scan::of(pattern));
        while !scan.is_over {
            let step = async {
                let link = node.link().await?;
                let names = scan.step(&link).await.map_err(cannot_list)?;
                Ok((link, names))
            };
            let (link, names) = self.io.answer(self.step_limit(), step).await?;
            let mut ours = Vec::new();
            for name in names {
                match lock_of(&name) {
                    Some((lock, false)) => drop(locks.insert(lock.to_owned())),
                    Some((_, true)) => ours.push(name),
                    None => {}
                }
            }
            locks.extend(self.only_ours(&link, ours).await?);
        }
        Ok(locks)
    }

    /// The markers of the guard that there are.
    pub(crate) async fn markers(&self) -> Result<Vec<Marker>, BackendError> {
        self.shared_helpers("guard").await
    }

    /// The helpers of this kind that many locks share: counters of tokens, or markers.
    pub(crate) async fn shared_helpers(&self, kind: &str) -> Result<Vec<Marker>, BackendError> {
        let (ending, pattern) = (format!("lw:{kind}"), format!("*lw:{kind}*"));
        let mut markers = Vec::new();
        for node in self.topology.nodes().await? {
            let mut scan = Scan::of(&pattern);
            while !scan.is_over {
                let found = scan.step(&*node.link().await?).await?;
                markers.extend(found.into_iter().filter_map(|stored| {
                    let (namespace, slot) = stored.split_once(&ending)?;
                    let slot = slot_of(slot.strip_prefix(':').unwrap_or_default());
                    let names = self.naming.within(namespace, slot);
                    let is_one = names.guard() == stored || names.token() == stored;
                    is_one.then_some(Marker { names, stored })
                }));
            }
        }
        markers.sort_unstable_by(|a, b| a.stored.cmp(&b.stored));
        markers.dedup_by(|a, b| a.stored == b.stored);
        Ok(markers)
    }

    /// The pattern of the names of matching locks. On Cluster a brace may precede the name.
    fn pattern(&self, prefix: &str) -> String {
        let mut pattern = String::new();
        for (at, character) in prefix.char_indices() {
            let starts_name =
                self.topology.is_cluster() && prefix.find(':').map_or(0, |c| c + 1) == at;
            if starts_name {
                return pattern + "*";
            }
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
                pattern.push('\\');
            }
            pattern.push(character);
        }
        pattern + "*"
    }

    /// The names whose value is a lock of Latchwork; the others are data of other programs.
    async fn only_ours(
        &self,
        link: &Link,
        names: Vec<String>,
    ) -> Result<Vec<String>, BackendError> {
        let mut asked = Vec::new();
        for name in names {
            asked.push(async move {
                let mut start = cmd("GETRANGE");
                start.arg(&name).arg(0).arg(2);
                match link.send(&start).await {
                    Ok(value) if text(&value).as_deref() == Some("lw:") => Ok(Some(name)),
                    Ok(_) => Ok(None),
                    // Its slot is moving: follow the name.
                    Err(Failure {
                        reaction:
                            Reaction::Moved(_)
                            | Reaction::Ask(_)
                            | Reaction::AskPort(_)
                            | Reaction::Again,
                        ..
                    }) if self.topology.is_cluster() => {
                        self.is_ours(&name).await.map(|ours| ours.then_some(name))
                    }
                    Err(failure) if failure.error.kind == BackendErrorKind::Mismatch => Ok(None),
                    Err(failure) if is_out_of_bounds(&failure.error) => Ok(None),
                    Err(failure) => Err(failure.error),
                }
            });
        }
        let answers = join_all(asked.into_iter().map(Box::pin)).await;
        answers.into_iter().filter_map(Result::transpose).collect()
    }

    /// Whether the value of a name is a lock of Latchwork, wherever its slot is. If it cannot be read, it counts as
    /// one: its entry then says why.
    async fn is_ours(&self, name: &str) -> Result<bool, BackendError> {
        let mut route = self.topology.route(slot_of(name).into()).await?;
        let start = |_: &Link, _| {
            let mut start = cmd("GETRANGE");
            start.arg(name).arg(0).arg(2);
            start
        };
        match route.send(start).await.map_err(BackendError::from) {
            Ok(value) => Ok(text(&value).as_deref() == Some("lw:")),
            Err(error) if error.kind == BackendErrorKind::Mismatch => Ok(false),
            Err(error) if is_out_of_bounds(&error) => Ok(false),
            Err(error) if is_moving(&error) => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// A marker of the guard or another helper that many locks share, and where it is.
pub(crate) struct Marker {
    pub(crate) names: Names,
    pub(crate) stored: String,
}

/// A scan of the names on one server, a step at a time.
struct Scan<'a> {
    pattern: &'a str,
    /// Where the next step begins.
    cursor: u64,
    is_over: bool,
}

impl<'a> Scan<'a> {
    fn of(pattern: &'a str) -> Self {
        Self { pattern, cursor: 0, is_over: false }
    }

    /// The matching names of the next step.
    async fn step(&mut self, link: &Link) -> Result<Vec<String>, BackendError> {
        let mut scan = cmd("SCAN");
        scan.arg(self.cursor).arg("COUNT").arg(STEP).arg("MATCH").arg(self.pattern);
        let answer = link.send(&scan).await.map_err(|failure| failure.error)?;
        let (next, found) = scanned(&answer).ok_or_else(|| strange(&answer))?;
        self.cursor = next;
        self.is_over = next == 0;
        Ok(found)
    }
}

/// Whether the user may not read this name: every user sees it in a listing, and only some may read it.
fn is_out_of_bounds(error: &BackendError) -> bool {
    error.kind == BackendErrorKind::Denied && !is_about_a_command(&error.message)
}

fn cannot_list(error: BackendError) -> BackendError {
    if error.kind != BackendErrorKind::Unsupported {
        return error;
    }
    let message = format!("this store does not list its keys: {}", error.message);
    BackendError::new(error.kind, error.effect, message)
        .with_next_step("ask for a single key by its name")
}

fn scanned(answer: &Value) -> Option<(u64, Vec<String>)> {
    let Value::Array(parts) = answer else { return None };
    let [cursor, Value::Array(names)] = &parts[..] else { return None };
    // Names that are not UTF-8 are not keys of Latchwork.
    let name = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    Some((number(cursor)?, names.iter().filter_map(name).collect()))
}

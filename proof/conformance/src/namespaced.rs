//! A part of a store: all keys of a trial in a namespace of their own, which the trial never sees.
//!
//! For stores on servers: one server serves all trials.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Claim, Key, Linger, Query, Released, Renewal, Resized,
    Snapshot, Verb, Wake, Watch,
};

/// The namespace of a store.
#[derive(Debug)]
pub struct Namespace {
    prefix: String,
    /// Keys that are too long with the prefix, by what they are called instead.
    long: Mutex<HashMap<String, Key>>,
}

impl Namespace {
    /// The namespace of the keys that begin so.
    pub fn new(prefix: String) -> Self {
        Self { prefix, long: Mutex::default() }
    }

    fn inside(&self, key: &Key) -> Key {
        let whole = format!("{}{}", self.prefix, key.as_str());
        if whole.len() <= Key::MAX_LEN {
            return Key::new(whole).expect("short enough");
        }
        let mut long = self.long.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, _)) = long.iter().find(|(_, original)| *original == key) {
            return Key::new(name).expect("short enough");
        }
        let start = format!("{}long {} ", self.prefix, long.len());
        let name = start.clone() + &"l".repeat(Key::MAX_LEN - start.len());
        long.insert(name.clone(), key.clone());
        Key::new(name).expect("short enough")
    }

    fn outside(&self, key: &Key) -> Key {
        if let Some(original) =
            self.long.lock().unwrap_or_else(PoisonError::into_inner).get(key.as_str())
        {
            return original.clone();
        }
        let name = key.as_str().strip_prefix(&self.prefix).expect("in the namespace");
        Key::new(name).expect("not empty")
    }
}

/// A backend of which only this namespace is seen.
#[derive(Debug)]
pub struct Namespaced {
    node: Arc<dyn Backend>,
    namespace: Arc<Namespace>,
}

impl Namespaced {
    /// Shows this part of a store.
    pub fn new(node: Arc<dyn Backend>, namespace: Arc<Namespace>) -> Self {
        Self { node, namespace }
    }

    fn claim(&self, claim: &Claim) -> Claim {
        claim.clone().with(|it| it.key = self.namespace.inside(&claim.key))
    }

    /// Errors name the key, as the trial knows it.
    fn named<T>(&self, result: Result<T, BackendError>) -> Result<T, BackendError> {
        result.map_err(|mut error| {
            error.message = error.message.replace(&self.namespace.prefix, "");
            error
        })
    }
}

// Not enrolled: it shows a part of a store that is.
impl Backend for Namespaced {
    latchwork_store::pass_on!(node: capabilities, ttl_may_change, renews_for_others, detach, adopt);

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        let claim = self.claim(claim);
        Box::pin(async move { self.named(self.node.try_acquire(&claim).await) })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        let claim = self.claim(claim);
        Box::pin(async move { self.named(self.node.wait(&claim, blocked).await) })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        let claims: Vec<Claim> = claims.iter().map(|claim| self.claim(claim)).collect();
        Box::pin(async move {
            let answers = self.node.renew_all(&claims).await;
            answers.into_iter().map(|answer| self.named(answer)).collect()
        })
    }

    fn resize<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Resized, BackendError>> {
        let claim = self.claim(claim);
        Box::pin(async move { self.named(self.node.resize(&claim).await) })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        let claim = self.claim(claim);
        Box::pin(async move { self.named(self.node.release(&claim, linger).await) })
    }

    fn watch<'a>(&'a self, key: &'a Key) -> Verb<'a, Result<Option<Box<dyn Watch>>, BackendError>> {
        let key = self.namespace.inside(key);
        Box::pin(async move { self.named(self.node.watch(&key).await) })
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        let query = match query {
            Query::Key(key) => Query::Key(self.namespace.inside(key)),
            Query::Prefix(prefix) => {
                Query::Prefix(format!("{}{prefix}", self.namespace.prefix).into())
            }
        };
        Box::pin(async move {
            let mut found = self.named(self.node.inspect(&query).await)?;
            for snapshot in &mut found {
                snapshot.key = self.namespace.outside(&snapshot.key);
            }
            found.sort_by(|a, b| a.key.cmp(&b.key));
            Ok(found)
        })
    }
}

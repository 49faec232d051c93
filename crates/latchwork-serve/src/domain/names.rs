//! The names that clients use, and the keys that they are in the store.

use std::sync::Arc;

/// Takes the namespace of the service off a key.
#[derive(Debug, Clone)]
pub(crate) struct Names(Arc<str>);

impl Names {
    pub(crate) fn new(namespace: &str) -> Self {
        match namespace {
            "" => Self("".into()),
            namespace => Self(format!("{namespace}:").into()),
        }
    }

    /// The name of a key in this namespace.
    pub(crate) fn name_of(&self, key: &str) -> String {
        key.strip_prefix(&*self.0).unwrap_or(key).to_owned()
    }
}

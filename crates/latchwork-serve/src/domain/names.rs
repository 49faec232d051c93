//! The names that clients use, and the keys in the store.

use std::sync::Arc;

use latchwork::Error;
use latchwork_store::Key;

/// Adds the namespace of the service to names, and removes it from keys.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    namespace: Arc<str>,
    /// The beginning of all keys.
    prefix: Arc<str>,
}

impl Names {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = match namespace {
            "" => "".into(),
            namespace => format!("{namespace}:").into(),
        };
        Self { namespace: namespace.into(), prefix }
    }

    /// The key of a name.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is empty or too long.
    pub(crate) fn key(&self, name: &str) -> Result<Key, Error> {
        Key::new(name)?.in_namespace(&self.namespace)
    }

    /// How many bytes longer a key is than its name.
    pub(crate) fn added(&self) -> usize {
        self.prefix.len()
    }

    /// The name of a key in this namespace.
    pub(crate) fn name_of(&self, key: &str) -> String {
        key.strip_prefix(&*self.prefix).unwrap_or(key).to_owned()
    }
}

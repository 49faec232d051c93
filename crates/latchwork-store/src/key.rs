//! Keys: the names of locks, checked once.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// The name of a lock, with its namespace.
///
/// Any text of 1 byte to 64 KiB is a key: slashes, dots, spaces, control characters and every
/// script are taken as they are, and two different texts are two different keys on every backend,
/// also when they differ by case only (B13). Backends escape what their store cannot take.
///
/// ```
/// use latchwork_store::Key;
///
/// let key = Key::new("stock/42").unwrap();
/// assert_eq!(key.as_str(), "stock/42");
/// assert_eq!(key.in_namespace("shop").unwrap().as_str(), "shop:stock/42");
/// assert!(Key::new("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes.
    pub const MAX_LEN: usize = 64 * 1024;

    /// Checks a name and creates a key from it.
    ///
    /// # Errors
    ///
    /// `Invalid` if the name is empty or longer than [`Key::MAX_LEN`] bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "key: the name is empty")
                .with_next_step("give the lock a name of at least one character"));
        }
        if name.len() > Self::MAX_LEN {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "key: the name has {} bytes, the longest allowed has {}",
                    name.len(),
                    Self::MAX_LEN
                ),
            )
            .with_next_step("use a shorter name, for example a hash of it"));
        }
        Ok(Self(name.into()))
    }

    /// Returns the key inside a namespace: `namespace:name`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the namespace holds the separator `:` (two namespaces could then name the same
    /// key), or if the whole becomes too long.
    pub fn in_namespace(&self, namespace: &str) -> Result<Self, Error> {
        Self::check_namespace(namespace)?;
        if namespace.is_empty() {
            return Ok(self.clone());
        }
        Self::new(format!("{namespace}:{}", self.0))
    }

    /// Checks a namespace: anything without the separator.
    ///
    /// # Errors
    ///
    /// `Invalid` if it holds the separator `:`.
    pub fn check_namespace(namespace: &str) -> Result<(), Error> {
        if namespace.contains(':') {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("namespace: {namespace:?} holds ':', which separates it from the name"),
            )
            .with_next_step("use another character, such as '.' or '/'"));
        }
        Ok(())
    }

    /// Returns the text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text of the key, without a copy.
impl From<&Key> for Arc<str> {
    fn from(key: &Key) -> Self {
        key.0.clone()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?})", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_hostile_names_as_they_are() {
        for name in ["../x", "a\0b", "Straße", "A", "a", " ", "{tag}", "x/../../y", "\u{202e}"] {
            assert_eq!(Key::new(name).unwrap().as_str(), name);
        }
        assert!(Key::new("x".repeat(10_000)).is_ok());
        assert!(Key::new("x".repeat(Key::MAX_LEN + 1)).is_err());
    }

    #[test]
    fn a_namespace_cannot_hold_the_separator() {
        let error = Key::new("x").unwrap().in_namespace("a:b").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("namespace"));
    }
}

//! The owner of a request, and its rights.

use std::sync::Arc;

use serde::Deserialize;

use crate::domain::refusal::Refusal;

/// A right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// See locks and events, and, with all names, examine the store.
    Read,
    /// Take, renew and release locks.
    Lock,
    /// Take locks away from others, open tasks, and, with all names, examine the store.
    Admin,
}

impl Right {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Lock => "lock",
            Self::Admin => "admin",
        }
    }
}

/// The name of a client without a token.
pub(crate) const LOCAL: &str = "local";

/// The owner of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The name of its token, for limits and logs.
    pub(crate) name: Arc<str>,
    pub(crate) rights: Vec<Right>,
    /// The prefixes of the names that it may use; the empty prefix allows all names.
    pub(crate) prefixes: Vec<String>,
    /// The SHA-256 of its token; none without a token.
    pub(crate) token: Option<[u8; 32]>,
}

impl Principal {
    /// A client without a token.
    pub(crate) fn local(rights: &[Right]) -> Self {
        let (name, rights) = (LOCAL.into(), rights.to_vec());
        Self { name, rights, prefixes: vec![String::new()], token: None }
    }

    /// Whether it has no token.
    pub(crate) fn is_local(&self) -> bool {
        *self.name == *LOCAL
    }

    /// Whether it may see, or do that to, the lock `name`.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.rights.contains(&right) && self.prefixes.iter().any(|it| name.starts_with(&**it))
    }

    /// Whether it may do all that `other` may.
    pub(crate) fn includes(&self, other: &Self) -> bool {
        let is_allowed = |prefix: &String| self.prefixes.iter().any(|it| prefix.starts_with(&**it));
        other.rights.iter().all(|it| self.rights.contains(it))
            && other.prefixes.iter().all(is_allowed)
    }

    /// Refuses a right that it does not have on this name.
    ///
    /// # Errors
    ///
    /// `Forbidden`, which names the right, or says that no prefix of the token fits.
    pub(crate) fn check(&self, right: Right, name: &str) -> Result<(), Refusal> {
        self.check_right(right)?;
        if self.may(right, name) {
            return Ok(());
        }
        let message = "token: it may not use names that begin so";
        Err(Refusal::forbidden(message, "use a name with one of the token's prefixes").key(name))
    }

    /// Refuses a request that needs a right on any name.
    ///
    /// # Errors
    ///
    /// `Forbidden`, which names the right.
    pub(crate) fn check_right(&self, right: Right) -> Result<(), Refusal> {
        if self.rights.contains(&right) {
            return Ok(());
        }
        let message = format!("token: it does not have the right {:?}", right.word());
        Err(Refusal::forbidden(message, "use a token with this right (serve --tokens FILE)"))
    }

    /// Refuses an examination of the store, which tells of the store's address and settings.
    ///
    /// # Errors
    ///
    /// `Forbidden` without the right `read` or `admin`, or with prefixes.
    pub(crate) fn check_examination(&self) -> Result<(), Refusal> {
        if ![Right::Read, Right::Admin].iter().any(|it| self.rights.contains(it)) {
            let message = "token: it has neither the right \"read\" nor \"admin\"";
            let step = "use a token with one of these rights (serve --tokens FILE)";
            return Err(Refusal::forbidden(message, step));
        }
        if !self.prefixes.iter().any(String::is_empty) {
            let message = "token: it has prefixes, and the examination is of the whole store";
            return Err(Refusal::forbidden(message, "use a token without prefixes"));
        }
        Ok(())
    }
}

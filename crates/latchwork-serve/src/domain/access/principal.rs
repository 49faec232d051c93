//! Who makes a request, and what it may do.

use std::sync::Arc;

use serde::Deserialize;

use crate::http::error::ApiError;

/// A right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Right {
    /// See locks and events.
    Read,
    /// Take, renew and release locks.
    Lock,
    /// Take locks away from others, open tasks, examine the store.
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

/// Who makes a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    /// The name of its token, for limits and logs.
    pub(crate) name: Arc<str>,
    pub(crate) rights: Vec<Right>,
    /// The beginnings of the names that it may use; none are needed for all names.
    pub(crate) prefixes: Vec<String>,
}

impl Principal {
    /// Somebody without a token on this machine.
    pub(crate) fn local(rights: &[Right]) -> Self {
        Self { name: LOCAL.into(), rights: rights.to_vec(), prefixes: vec![String::new()] }
    }

    /// Whether it has no token.
    pub(crate) fn is_local(&self) -> bool {
        *self.name == *LOCAL
    }

    /// Whether it may see, or do that to, the lock `name`.
    pub(crate) fn may(&self, right: Right, name: &str) -> bool {
        self.rights.contains(&right) && self.prefixes.iter().any(|it| name.starts_with(&**it))
    }

    /// Refuses what it may not do.
    ///
    /// # Errors
    ///
    /// `Forbidden`, which names what is missing.
    pub(crate) fn check(&self, right: Right, name: &str) -> Result<(), ApiError> {
        self.check_right(right)?;
        if self.may(right, name) {
            return Ok(());
        }
        let message = "token: it may not use names that begin so";
        Err(ApiError::forbidden(message, "use a name with one of the token's prefixes").key(name))
    }

    /// Refuses a request that needs a right on any name.
    ///
    /// # Errors
    ///
    /// `Forbidden`, which names the right.
    pub(crate) fn check_right(&self, right: Right) -> Result<(), ApiError> {
        if self.rights.contains(&right) {
            return Ok(());
        }
        let message = format!("token: it does not have the right {:?}", right.word());
        Err(ApiError::forbidden(message, "use a token with this right (serve --tokens FILE)"))
    }
}

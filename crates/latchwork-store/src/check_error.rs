//! Why a check of a fencing token in a transaction of the user failed.

use std::error::Error as StdError;
use std::fmt;

use crate::{Error, Fenced};

/// Why a check failed. Do not write, and roll back the transaction.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckError<E> {
    /// A larger token was admitted for the resource: another holder has superseded this one.
    Refused(Fenced),
    /// The name of the resource is no key, the token is none of a store, or the statements are for another
    /// database.
    Invalid(Error),
    /// The database did not answer, or refused the statement. After a serialization error (SQLSTATE
    /// 40001), begin the transaction again, with the same token, while the guard is held.
    Database(E),
}

impl<E> CheckError<E> {
    /// Returns the refused token and the newest one, if the holder was superseded.
    pub fn refused(&self) -> Option<Fenced> {
        match self {
            Self::Refused(fenced) => Some(*fenced),
            Self::Invalid(_) | Self::Database(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for CheckError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(fenced) => write!(
                f,
                "refused: {fenced}, so another holder has the lock; roll the transaction back"
            ),
            Self::Invalid(error) => error.fmt(f),
            Self::Database(error) => write!(f, "the token could not be checked: {error}"),
        }
    }
}

impl<E: StdError + 'static> StdError for CheckError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Refused(fenced) => Some(fenced),
            Self::Invalid(error) => Some(error),
            Self::Database(error) => Some(error),
        }
    }
}

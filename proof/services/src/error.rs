use std::fmt;

/// Tells what a server, a proxy or a tool did not do, with the end of its log where there is one.
#[derive(Debug)]
pub struct Error(String);

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error of a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Says what was being done when it happened.
    pub(crate) fn while_(what: impl fmt::Display, cause: impl fmt::Display) -> Self {
        Self(format!("{what}: {cause}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        Self::other(e)
    }
}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self(e.to_string())
    }
}

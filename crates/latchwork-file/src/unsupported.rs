//! The backend on systems other than Linux, where it is unsupported.

#![cfg_attr(
    target_os = "linux",
    allow(dead_code, unreachable_pub, reason = "compiled for its test alone")
)]

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use latchwork_store::doctor::Report;
use latchwork_store::{
    Attempt, Backend, BackendError, Blocked, Capabilities, Claim, Error, ErrorKind, Io, Linger,
    Query, Released, Renewal, Snapshot, Verb, Wake,
};

/// Locks between the processes of one machine; on Linux only.
#[derive(Debug)]
pub struct FileBackend(Infallible);

impl FileBackend {
    /// Opens nothing.
    ///
    /// # Errors
    ///
    /// Always `Unsupported`.
    pub fn connect(dir: impl AsRef<Path>, _io: Io) -> Result<Arc<FileBackend>, Error> {
        let store: Arc<str> = format!("file://{}", dir.as_ref().display()).into();
        Err(Error::new(ErrorKind::Unsupported, "the file backend needs Linux")
            .with_store(store)
            .with_next_step("use a store on the network, such as Redis, etcd or ZooKeeper"))
    }

    /// Opens nothing.
    ///
    /// # Errors
    ///
    /// Always `Unsupported`.
    pub fn read_only(dir: impl AsRef<Path>, io: Io) -> Result<Arc<FileBackend>, Error> {
        Self::connect(dir, io)
    }

    /// Whether this process had to poll.
    pub fn polls(&self) -> bool {
        match self.0 {}
    }
}

/// Examines nothing.
///
/// # Errors
///
/// Always `Unsupported`.
pub async fn doctor(dir: impl AsRef<Path>, io: Io) -> Result<Report, Error> {
    match FileBackend::connect(dir, io)?.0 {}
}

impl Backend for FileBackend {
    fn capabilities(&self) -> Capabilities {
        match self.0 {}
    }

    fn try_acquire<'a>(&'a self, _claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        match self.0 {}
    }

    fn wait<'a>(
        &'a self,
        _claim: &'a Claim,
        _blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        match self.0 {}
    }

    fn renew_all<'a>(
        &'a self,
        _claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        match self.0 {}
    }

    fn release<'a>(
        &'a self,
        _claim: &'a Claim,
        _linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        match self.0 {}
    }

    fn inspect<'a>(&'a self, _query: &'a Query) -> Verb<'a, Result<Vec<Snapshot>, BackendError>> {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_system_is_told_which_stores_it_can_use() {
        let io = latchwork::Driver::start().unwrap().io();
        let error = FileBackend::connect("/var/lib/app/locks", io).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.message(), "the file backend needs Linux");
        let step = "use a store on the network, such as Redis, etcd or ZooKeeper";
        assert_eq!(error.next_step(), Some(step));
    }
}

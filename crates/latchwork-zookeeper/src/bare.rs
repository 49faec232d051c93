//! The bare requests of a lock on this crate's session, as a baseline for measurements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::{BackendError, Error, Io};

use crate::config::ZooKeeperConfig;
use crate::server::errors::{refused, strange};
use crate::server::session::messages::{self, Access, Kind, Request};
use crate::server::session::{Ensemble, Reply, Session};

/// A session, as the backend has one.
#[derive(Clone)]
pub struct Bare(Arc<Session>);

impl Bare {
    /// Connects, as a user without a name.
    ///
    /// # Errors
    ///
    /// `Invalid` or `Unreachable`, as for the backend.
    pub async fn connect(url: &str, io: Io) -> Result<Self, Error> {
        let ensemble = Arc::new(Ensemble::new(ZooKeeperConfig::parse(url)?));
        let session = Session::open(&ensemble, Duration::from_secs(50), &io, None);
        let up = session.up().await;
        up.map_err(|error| Error::from_backend(error, None, &ensemble.config.shown().into()))?;
        Ok(Self(session))
    }

    /// Makes a node for others to be below.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub async fn make_folder(&self, path: &str) -> Result<(), BackendError> {
        let request = Request::create(Kind::Persistent, path, b"", Access::Everybody);
        match self.0.fly(vec![request]).await.next()? {
            Ok(_) | Err(messages::Refusal::NODE_EXISTS) => Ok(()),
            Err(refusal) => Err(refused(refusal, path)),
        }
    }

    /// Makes an ephemeral sequential node and lists its neighbours, in one flight; gives its path,
    /// and how many there are.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub async fn create_and_list(&self, folder: &str) -> Result<(String, usize), BackendError> {
        let path = format!("{folder}/node-");
        let kind = Kind::EphemeralSequential;
        let requests = vec![
            Request::create(kind, &path, b"bench", Access::Everybody),
            Request::children(folder),
        ];
        let mut landed = self.0.fly(requests).await;
        let body = done(landed.next()?, &path)?;
        let (path, _) = messages::created(&body).ok_or_else(|| strange("a create"))?;
        let body = done(landed.next()?, folder)?;
        let names = messages::children(&body);
        Ok((path, names.ok_or_else(|| strange("a list"))?.len()))
    }

    /// Deletes a node.
    ///
    /// # Errors
    ///
    /// What the server or the connection says.
    pub async fn delete(&self, path: &str) -> Result<(), BackendError> {
        done(self.0.fly(vec![Request::delete(path)]).await.next()?, path).map(drop)
    }
}

fn done(reply: Reply, path: &str) -> Result<Vec<u8>, BackendError> {
    reply.map_err(|refusal| refused(refusal, path))
}

impl fmt::Debug for Bare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Bare").field(&self.0).finish()
    }
}

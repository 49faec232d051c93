//! The client's credentials, and the login token that proves them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::Login;

pub(crate) type Token = MetadataValue<Ascii>;

#[derive(Default)]
pub(crate) struct Proof {
    login: Option<Login>,
    token: Mutex<Option<Token>>,
    /// Whoever asks for a token. It costs the server a tenth of a second of work, so that one asks
    /// for all.
    door: sync::Mutex<()>,
}

/// The turn to ask for a token.
pub(crate) struct Turn<'a> {
    pub(crate) login: &'a Login,
    proof: &'a Proof,
    _door: sync::MutexGuard<'a, ()>,
}

impl Turn<'_> {
    pub(crate) fn done(self, token: Token) {
        *self.proof.lock() = Some(token);
    }
}

impl Proof {
    pub(crate) fn new(login: Option<Login>) -> Self {
        Self { login, ..Self::default() }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.lock().clone()
    }

    /// Forgets the token that a member has refused, unless there is a newer one.
    pub(crate) fn refused(&self, token: Option<&Token>) {
        let mut present = self.lock();
        if present.as_ref() == token {
            *present = None;
        }
    }

    /// Whether there are a user and a password to ask for a new token with.
    pub(crate) fn can_log_in(&self) -> bool {
        self.login.is_some()
    }

    /// The turn to ask for a token, if there must be one and is none.
    pub(crate) async fn turn(&self) -> Option<Turn<'_>> {
        let login = self.login.as_ref()?;
        if self.lock().is_some() {
            return None;
        }
        let door = self.door.lock().await;
        let is_missing = self.lock().is_none();
        is_missing.then_some(Turn { login, proof: self, _door: door })
    }

    /// A request with what goes along with each.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        self.request_as(message, self.token())
    }

    /// As [`Self::request`], with a token that the caller goes on to know.
    pub(crate) fn request_as<T>(&self, message: T, token: Option<Token>) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        // A member without a leader refuses at once, and does not wait for one.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = token {
            metadata.insert("token", token);
        }
        request
    }

    fn lock(&self) -> MutexGuard<'_, Option<Token>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

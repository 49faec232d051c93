//! The client's credentials, and the login token that proves them.
//!
//! Whether users are checked is a state of the servers, which changes while clients run: then a request
//! is refused without effect, and is sent again with another token, or with none.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::Login;
use crate::errors::{Failure, Reaction};

pub(crate) type Token = MetadataValue<Ascii>;

#[derive(Default)]
pub(crate) struct Proof {
    login: Option<Login>,
    state: Mutex<State>,
    /// Whoever asks for a token. It costs the server a tenth of a second of work, so that one asks
    /// for all.
    door: sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// The servers have said that they check nobody, and none has refused a request without a token
    /// since.
    is_unchecked: bool,
}

/// The turn to ask for a token.
pub(crate) struct Turn<'a> {
    pub(crate) login: &'a Login,
    proof: &'a Proof,
    _door: sync::MutexGuard<'a, ()>,
}

impl Turn<'_> {
    pub(crate) fn done(self, token: Token) {
        *self.proof.lock() = State { token: Some(token), is_unchecked: false };
    }

    /// The servers check nobody: from now on requests go without a token.
    pub(crate) fn not_needed(self) {
        *self.proof.lock() = State { token: None, is_unchecked: true };
    }
}

impl Proof {
    pub(crate) fn new(login: Option<Login>) -> Self {
        Self { login, ..Self::default() }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.lock().token.clone()
    }

    /// Forgets what a member has refused, this token or that there was none, unless there is something
    /// newer.
    pub(crate) fn refused(&self, token: Option<&Token>) {
        let mut state = self.lock();
        if state.token.as_ref() == token {
            *state = State::default();
        }
    }

    /// Whether there are a user and a password that the servers do not check.
    pub(crate) fn is_unchecked(&self) -> bool {
        self.lock().is_unchecked
    }

    /// Whether a request that has failed so can be sent again: with another token, or without one.
    pub(crate) fn can_mend(&self, failure: &Failure) -> bool {
        self.login.is_some() && matches!(failure.reaction, Reaction::LogIn | Reaction::NoLogin)
    }

    /// The turn to ask for a token, if there must be one and is none.
    pub(crate) async fn turn(&self) -> Option<Turn<'_>> {
        let login = self.login.as_ref()?;
        let is_missing = || {
            let state = self.lock();
            state.token.is_none() && !state.is_unchecked
        };
        if !is_missing() {
            return None;
        }
        let door = self.door.lock().await;
        is_missing().then_some(Turn { login, proof: self, _door: door })
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

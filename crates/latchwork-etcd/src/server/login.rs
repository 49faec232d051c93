//! The client's credentials, and the login token that proves them.
//!
//! Whether users are checked is a state of the servers, which changes while clients run: then a request
//! is refused without effect, and is sent again with another token, or with none.

use std::sync::{Mutex, MutexGuard, PoisonError};

use latchwork_store::{Error, Io};
use latchwork_wire::Sourced;
use tokio::sync;
use tonic::Request;
use tonic::metadata::{Ascii, MetadataValue};

use crate::config::Login;
use crate::server::errors::{Failure, Reaction};

pub(crate) type Token = MetadataValue<Ascii>;

pub(crate) struct Proof {
    login: Sourced<Option<Login>>,
    state: Mutex<State>,
    /// Held by the task that asks for a token. That costs the server a tenth of a second of work, so
    /// one asks for all.
    door: sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    token: Option<Token>,
    /// The login that it is for.
    version: u64,
    /// The servers have said that they check nobody, and none has refused a request without a token
    /// since.
    is_unchecked: bool,
}

/// The right to ask for a token: one request does.
pub(crate) struct LoginAttempt<'a> {
    pub(crate) login: Login,
    version: u64,
    proof: &'a Proof,
    _door: sync::MutexGuard<'a, ()>,
}

impl LoginAttempt<'_> {
    pub(crate) fn done(self, token: Token) {
        let (token, version) = (Some(token), self.version);
        *self.proof.lock() = State { token, version, is_unchecked: false };
    }

    /// The servers check nobody: from now on requests go without a token.
    pub(crate) fn not_needed(self) {
        let version = self.version;
        *self.proof.lock() = State { token: None, version, is_unchecked: true };
    }

    /// Whether the source of the login, which was refused, has another one.
    pub(crate) async fn renew(&mut self, io: &Io) -> Result<bool, Error> {
        match self.proof.login.after_refusal(self.version, io).await? {
            Some((Some(login), version)) => {
                (self.login, self.version) = (login, version);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

impl Proof {
    pub(crate) fn new(login: Sourced<Option<Login>>) -> Self {
        Self { login, state: Mutex::default(), door: sync::Mutex::default() }
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
        matches!(failure.reaction, Reaction::LogIn | Reaction::NoLogin)
            && self.login.current().0.is_some()
    }

    /// Whether what was refused with this token, or for want of one, can be sent again as the user that counts now; then
    /// the token is forgotten.
    pub(crate) async fn mends(&self, failure: &Failure, token: Option<&Token>, io: &Io) -> bool {
        let can_mend = match failure.reaction {
            Reaction::NoRight => self.is_superseded(token, io).await,
            _ => self.can_mend(failure),
        };
        if can_mend {
            self.refused(token);
        }
        can_mend
    }

    /// Whether a stream was refused because of this token, in place of which there is another one.
    pub(crate) fn is_outdated(&self, failure: &Failure, token: Option<&Token>) -> bool {
        let state = self.lock();
        matches!(failure.reaction, Reaction::LogIn | Reaction::NoRight)
            && state.token.is_some()
            && state.token.as_ref() != token
    }

    /// Whether there is a newer login than that of this token, whose user lacks a right.
    async fn is_superseded(&self, token: Option<&Token>, io: &Io) -> bool {
        let version = {
            let state = self.lock();
            // Another request was refused as well, and has logged in meanwhile.
            if state.token.as_ref() != token {
                return true;
            }
            state.version
        };
        self.login.is_superseded(version, io).await
    }

    /// The right to ask for a token, if there must be one and is none.
    pub(crate) async fn login_attempt(&self) -> Option<LoginAttempt<'_>> {
        let is_missing = || {
            let state = self.lock();
            state.token.is_none() && !state.is_unchecked
        };
        if !is_missing() {
            return None;
        }
        self.login.current().0?;
        let door = self.door.lock().await;
        let (login, version) = self.login.current();
        let login = login.filter(|_| is_missing())?;
        Some(LoginAttempt { login, version, proof: self, _door: door })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// H275: of two requests that were refused with the same token, one logs in again; the other follows.
    #[tokio::test]
    async fn h275_a_token_that_another_request_has_replaced_is_superseded() {
        let login = Login { user: "app".into(), password: "secret".into() };
        let driver = latchwork::Driver::start().unwrap();
        let (proof, io) = (Proof::new(Sourced::fixed(Some(login))), driver.io());
        let [old, new] = ["old", "new"].map(Token::from_static);
        proof.login_attempt().await.unwrap().done(old.clone());
        assert!(!proof.is_superseded(Some(&old), &io).await);
        proof.refused(Some(&old));
        assert!(proof.is_superseded(Some(&old), &io).await, "it is asked for");
        proof.login_attempt().await.unwrap().done(new.clone());
        assert!(proof.is_superseded(Some(&old), &io).await, "it is there");
        assert!(!proof.is_superseded(Some(&new), &io).await);
    }
}

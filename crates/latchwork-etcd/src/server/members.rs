//! The members of the cluster: one is used, and the next one if it does not answer.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use latchwork_store::{Effect, Error, Io, Moment};
use latchwork_wire::race;

use crate::config::{Endpoint, EtcdConfig};
use crate::server::errors::{Failure, Reaction};
use crate::server::identity::Identity;
use crate::server::link::Link;
use crate::server::login::Proof;
use crate::server::watch::WatchReports;

/// A member that has been asked for so long and was given up by the asker is not asked again while
/// there is another one.
const SILENCE: Duration = Duration::from_millis(300);

/// How often a request is sent again after a login: users may be changed, and their check be enabled
/// and disabled, while it is under way.
const LOGINS: u32 = 3;

pub(crate) struct Members {
    links: Vec<Arc<Link>>,
    identity: Arc<Identity>,
    /// The one that is asked.
    current: AtomicUsize,
    proof: Arc<Proof>,
    io: Io,
}

impl Members {
    /// Makes the links; reports on the watches of holders go to `words`.
    pub(crate) fn new(config: &EtcdConfig, io: &Io, words: &WatchReports) -> Result<Self, Error> {
        let proof = Arc::new(Proof::new(config.login.clone()));
        let identity = Arc::new(Identity::new(&config.members));
        let link = |(number, endpoint): (usize, &Endpoint)| {
            Link::new(
                endpoint.clone(),
                config.tls.as_ref(),
                proof.clone(),
                io,
                (number, words, &identity),
            )
            .map(Arc::new)
        };
        let links = config.members.iter().enumerate().map(link).collect::<Result<_, _>>()?;
        Ok(Self {
            links,
            identity,
            current: AtomicUsize::new(0),
            proof: proof.clone(),
            io: io.clone(),
        })
    }

    /// Asks the present member; the next one, if it is certain that this one did nothing.
    pub(crate) async fn ask<T, F>(
        &self,
        request: impl Fn(Arc<Link>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        self.ask_for(true, request).await
    }

    /// As [`Self::ask`], for an answer that may take any time.
    pub(crate) async fn follow<T, F>(
        &self,
        request: impl Fn(Arc<Link>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        self.ask_for(false, request).await
    }

    async fn ask_for<T, F>(
        &self,
        soon: bool,
        request: impl Fn(Arc<Link>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let mut logins = LOGINS;
        let mut left = self.links.len();
        if self.links.len() > 1 && !self.links[self.current()].is_connected() {
            // It is large, and every request has room for it.
            Box::pin(self.reach()).await;
        }
        loop {
            let number = self.current.load(Ordering::Relaxed);
            let link = self.links[number].clone();
            let mut patience =
                Patience { members: self, number, since: soon.then(|| self.io.now()) };
            let entered = match self.identity.may_ask(number) {
                Ok(()) => link.log_in().await,
                Err(failure) => Err(failure.of_a_read()),
            };
            let token = self.proof.token();
            let answer = match entered {
                Ok(()) => request(link).await,
                Err(failure) => Err(failure),
            };
            patience.since = None;
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let certain = failure.error.effect == Effect::NotApplied;
            match failure.reaction {
                Reaction::Elsewhere => {
                    self.turn_from(number);
                    left -= 1;
                    if !certain || left == 0 {
                        return Err(failure);
                    }
                }
                _ if logins > 0
                    && Box::pin(self.proof.mends(&failure, token.as_ref(), &self.io)).await =>
                {
                    logins -= 1;
                }
                _ => return Err(failure),
            }
        }
    }

    /// Turns to the first member that can be reached, from the present one on.
    async fn reach(&self) {
        let (count, first) = (self.links.len(), self.current());
        let mut attempts = Vec::new();
        for link in self.links[first..].iter().chain(&self.links[..first]) {
            attempts.push(link.connect());
        }
        // If none can be reached, the request says why.
        if let Ok((place, ())) = race(attempts, &self.io).await {
            self.turn_to((first + place) % count, first);
        }
    }

    /// What the members have said of themselves.
    pub(crate) fn identity(&self) -> &Arc<Identity> {
        &self.identity
    }

    /// Whether the address has a user that the members do not check.
    pub(crate) fn is_login_unchecked(&self) -> bool {
        self.proof.is_unchecked()
    }

    /// The number of the one that is asked.
    pub(crate) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    pub(crate) fn link(&self, number: usize) -> Arc<Link> {
        self.links[number].clone()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.links.len()
    }

    /// Asks this member once, and no other.
    pub(crate) async fn ask_one<T, F>(
        &self,
        number: usize,
        request: impl FnOnce(Arc<Link>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send,
    {
        let token = self.proof.token();
        let answer = request(self.links[number].clone()).await;
        if answer.as_ref().is_err_and(|failure| self.proof.can_mend(failure)) {
            self.proof.refused(token.as_ref());
        }
        answer
    }

    /// Asks the next member from now on, if this one is still the present one.
    pub(crate) fn turn_from(&self, number: usize) {
        self.turn_to((number + 1) % self.links.len(), number);
    }

    fn turn_to(&self, to: usize, from: usize) {
        // If it fails, somebody else has turned already.
        let _ = self.current.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Notices that an asker has given up.
struct Patience<'a> {
    members: &'a Members,
    number: usize,
    since: Option<Moment>,
}

impl Drop for Patience<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since
            && self.members.io.now().since(since) >= SILENCE
        {
            self.members.turn_from(self.number);
        }
    }
}

//! A server: the store in memory, with a clock of its own, and what can happen to it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use latchwork_store::*;
use latchwork_store::{BackendError, Capabilities, Cause, Io};

use crate::level::Level;
use crate::machine::MachineClock;
use crate::planted::Planted;

pub(crate) struct Server {
    io: Io,
    name: Arc<str>,
    store: Mutex<Arc<MemoryBackend>>,
    /// How many things keep it from running.
    frozen: Level<u32>,
    /// Counts its starts.
    starts: Level<u64>,
    /// It grants nothing until then.
    quarantine: AtomicU64,
    longest_ttl: Duration,
    planted: Option<Planted>,
    /// The first token of each key, and the grants that a bug remembers.
    firsts: Mutex<HashMap<Key, u64>>,
}

impl Server {
    pub(crate) fn new(number: usize, rate: i64, ttl: Duration, planted: Option<Planted>) -> Self {
        let clock = MachineClock::new(rate, Duration::ZERO);
        let io = Io::new(|task| drop(tokio::spawn(task)), Arc::new(clock));
        let store = Mutex::new(MemoryBackend::new(io.clone()));
        Self {
            io,
            name: format!("mem:s{number}").into(),
            store,
            frozen: Level::default(),
            starts: Level::default(),
            quarantine: AtomicU64::new(0),
            // Its own clock may be faster than it was.
            longest_ttl: ttl + ttl / 50,
            planted,
            firsts: Mutex::default(),
        }
    }

    fn store(&self) -> Arc<MemoryBackend> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn firsts(&self) -> MutexGuard<'_, HashMap<Key, u64>> {
        self.firsts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }

    pub(crate) fn freeze(&self) {
        self.frozen.change(|count| *count += 1);
    }

    pub(crate) fn thaw(&self) {
        self.frozen.change(|count| *count -= 1);
    }

    /// Waits until it runs.
    pub(crate) async fn running(&self) {
        self.frozen.until(|count| *count == 0).await;
    }

    /// Completes when it has restarted.
    pub(crate) async fn restarted(&self) {
        let before = self.starts.read(|starts| *starts);
        self.starts.until(|starts| *starts != before).await;
    }

    /// It starts again, with its data.
    pub(crate) fn restart(&self) {
        self.starts.change(|starts| *starts += 1);
    }

    /// It starts again, without its data.
    pub(crate) fn forget(&self) {
        let store = MemoryBackend::new(self.io.clone());
        *self.store.lock().unwrap_or_else(PoisonError::into_inner) = store;
        if !self.has(Planted::NoQuarantine) {
            let until = self.io.now().plus(self.longest_ttl);
            self.quarantine.store(until.as_nanos(), Ordering::SeqCst);
        }
        if self.has(Planted::TokensBeginAgain) {
            self.firsts().clear();
        }
        self.restart();
    }

    fn quarantined_for(&self) -> Duration {
        Moment::from_nanos(self.quarantine.load(Ordering::SeqCst)).since(self.io.now())
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.store().capabilities();
        capabilities.store = self.name.clone();
        capabilities
    }

    /// The claim as it is kept, by a server that is right or has a bug.
    fn kept(&self, claim: &Claim) -> Claim {
        let mut kept = claim.clone();
        match self.planted {
            Some(Planted::TheServerForgetsEarly) => kept.ttl /= 2,
            Some(Planted::ATryLeavesAPlace) => kept.waits = true,
            Some(Planted::OnePermitTooMany) => {
                if let Mode::Permits { of, .. } = &mut kept.mode {
                    *of += 1;
                }
            }
            Some(Planted::ReadersBesideAWriter) if kept.mode == Mode::Read => {
                kept.key = Key::new("readers").expect("a key");
            }
            Some(Planted::KeysCollide) if kept.mode == Mode::Exclusive => {
                kept.key = Key::new("one").expect("a key");
            }
            _ => {}
        }
        kept
    }

    pub(crate) async fn try_acquire(&self, claim: Claim) -> Result<Attempt, BackendError> {
        let left = self.quarantined_for();
        if !left.is_zero() {
            let mut blocked = Blocked::by(Cause::Quarantine);
            blocked.retry_after = Some(left);
            return Ok(Attempt::Blocked(blocked));
        }
        let kept = self.kept(&claim);
        let attempt = self.store().try_acquire(&kept).await?;
        let attempt = match attempt {
            Attempt::Blocked(blocked)
                if self.has(Planted::GrantedAMomentEarly)
                    && blocked.retry_after.is_some_and(|it| it < claim.ttl / 4) =>
            {
                let (token, ttl) = (self.firsts().values().max().unwrap_or(&1) + 1, claim.ttl);
                Attempt::Granted(Grant::new(token, ttl))
            }
            other => other,
        };
        let Attempt::Granted(mut grant) = attempt else { return Ok(attempt) };
        grant.ttl = claim.ttl;
        let mut firsts = self.firsts();
        let first = firsts.entry(claim.key.clone()).or_insert(grant.token);
        match self.planted {
            Some(Planted::TokensStandStill) => grant.token = *first,
            Some(Planted::TokensBeginAgain) => grant.token -= *first - 1,
            Some(Planted::GrantedAMomentEarly) => *first = (*first).max(grant.token),
            _ => {}
        }
        Ok(Attempt::Granted(grant))
    }

    pub(crate) async fn wait(&self, claim: Claim, blocked: Blocked) -> Result<Wake, BackendError> {
        if self.has(Planted::NobodyIsWoken) || blocked.cause == Cause::Quarantine {
            return std::future::pending().await;
        }
        let kept = self.kept(&claim);
        self.store().wait(&kept, &blocked).await
    }

    pub(crate) async fn renew(&self, claim: Claim) -> Result<Renewal, BackendError> {
        let kept = self.kept(&claim);
        let token = || self.firsts().get(&claim.key).copied().unwrap_or(1);
        let renewed = |token| Renewal::held(claim.ttl, token, None);
        if self.has(Planted::RenewalsAreNotWritten) {
            return Ok(renewed(token()));
        }
        let answer = self.store().renew_all(std::slice::from_ref(&kept)).await.remove(0)?;
        match answer {
            Renewal::Held { .. } if self.has(Planted::TokensStandStill) => Ok(renewed(token())),
            Renewal::Held { token: given, .. } if self.has(Planted::TokensBeginAgain) => {
                Ok(renewed(given - (token() - 1)))
            }
            Renewal::Held { token, .. } => Ok(renewed(token)),
            Renewal::Lost => Ok(Renewal::Lost),
        }
    }

    pub(crate) async fn resize(&self, claim: Claim) -> Result<Resized, BackendError> {
        let kept = self.kept(&claim);
        self.store().resize(&kept).await
    }

    pub(crate) async fn release(
        &self,
        claim: Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let kept = self.kept(&claim);
        let store = self.store();
        if self.has(Planted::ReleasesAreNotCarriedOut) {
            return Ok(Released::Yes);
        }
        if self.has(Planted::WithdrawalsAreIgnored) {
            let seen = store.inspect(&Query::Key(kept.key.clone())).await?;
            if seen.iter().all(|it| it.holders.iter().all(|party| party.id != Some(kept.id))) {
                return Ok(Released::NotHeld);
            }
        }
        let released = store.release(&kept, linger).await?;
        if released == Released::NotHeld && self.has(Planted::ReleaseFreesAnybody) {
            for holder in self.holders(&kept.key).await? {
                store.release(&kept.clone().with(|it| it.id = holder), linger).await?;
            }
        }
        Ok(released)
    }

    async fn holders(&self, key: &Key) -> Result<Vec<ClaimId>, BackendError> {
        let seen = self.store().inspect(&Query::Key(key.clone())).await?;
        Ok(seen.iter().flat_map(|it| it.holders.iter().filter_map(|party| party.id)).collect())
    }

    pub(crate) async fn inspect(&self, query: Query) -> Result<Vec<Snapshot>, BackendError> {
        self.store().inspect(&query).await
    }
}

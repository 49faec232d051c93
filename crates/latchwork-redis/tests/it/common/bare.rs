//! A bare backend on a thread of its own, and claims that a test sends with it.

use std::sync::Arc;

use latchwork::Driver;
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_store::*;

use super::*;

pub const LONG: Duration = Duration::from_secs(30);

/// One process as the store sees it.
pub struct Bare {
    pub backend: Arc<RedisBackend>,
    pub driver: Driver,
    /// Whether its claims wait in line.
    pub waits: bool,
}

impl Bare {
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let driver = Driver::start()?;
        let backend = RedisBackend::connect(RedisConfig::parse(url)?, driver.io()).await?;
        Ok(Self { backend, driver, waits: true })
    }

    pub fn claim(&self, name: &str, mode: Mode) -> Claim {
        Claim::new(
            Key::new(name).unwrap(),
            ClaimId::random(),
            mode,
            LONG,
            Stamp::new(self.driver.io().now()),
        )
        .with(|it| {
            it.holder = "a test".into();
            it.waits = self.waits;
        })
    }

    pub async fn granted(&self, claim: &Claim) -> Result<u64, BackendError> {
        match self.backend.try_acquire(claim).await? {
            Attempt::Granted(grant) => Ok(grant.token),
            Attempt::Blocked(blocked) => panic!("{:?} is blocked: {blocked:?}", claim.key),
        }
    }

    pub async fn blocked(&self, claim: &Claim) -> Result<Blocked, BackendError> {
        match self.backend.try_acquire(claim).await? {
            Attempt::Blocked(blocked) => Ok(blocked),
            Attempt::Granted(_) => panic!("{:?} is free", claim.key),
        }
    }

    pub async fn released(&self, claim: &Claim) -> Result<(), BackendError> {
        let released = self.backend.release(claim, Linger::None).await?;
        assert_eq!(released, Released::Yes, "{:?}", claim.key);
        Ok(())
    }
}

//! Whether a store is fit for locks, and what it needs before the first one.

use latchwork_core::Error;
use latchwork_core::doctor::{Finding, Prepared, Report};

use crate::address::Address;
#[cfg(not(feature = "etcd"))]
use crate::connect::no_etcd_backend;
#[cfg(not(feature = "file"))]
use crate::connect::no_file_backend;
#[cfg(not(feature = "redis"))]
use crate::connect::no_redis_backend;
#[cfg(not(feature = "zookeeper"))]
use crate::connect::no_zookeeper_backend;

/// Examines a store: is it fit for locks, what follows if not, and what is to be done.
///
/// The address is read as by [`connect`](crate::connect()). Nothing is locked.
///
/// # Errors
///
/// `Invalid` for an address that cannot be read, `Unsupported` for a store that this build or this
/// system does not have, `Unreachable` and `Denied` if the store does not answer at all. Whatever
/// else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), latchwork::Error> {
/// let report = latchwork::doctor("mem:").await?;
/// assert!(report.is_fit());
/// for finding in &report.findings {
///     println!("{} {}: {}", finding.severity, finding.code, finding.found);
/// }
/// # Ok(())
/// # }
/// ```
pub async fn doctor(url: &str) -> Result<Report, Error> {
    match Address::parse(url)? {
        Address::Memory => Ok(memory()),
        #[cfg(feature = "file")]
        Address::File(directory) => {
            let driver = latchwork_core::Driver::start()?;
            latchwork_file::doctor(directory, driver.io()).await
        }
        #[cfg(not(feature = "file"))]
        Address::File(_) => Err(no_file_backend()),
        #[cfg(feature = "redis")]
        Address::Redis(url) => {
            let config = latchwork_redis::RedisConfig::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            latchwork_redis::doctor(config, driver.io()).await
        }
        #[cfg(feature = "redis")]
        Address::Redlock(url) => {
            let config = latchwork_redis::redlock::Config::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            latchwork_redis::redlock::doctor(config, driver.io()).await
        }
        #[cfg(not(feature = "redis"))]
        Address::Redis(_) | Address::Redlock(_) => Err(no_redis_backend()),
        #[cfg(feature = "etcd")]
        Address::Etcd(url) => {
            let config = latchwork_etcd::EtcdConfig::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            latchwork_etcd::doctor(config, driver.io()).await
        }
        #[cfg(not(feature = "etcd"))]
        Address::Etcd(_) => Err(no_etcd_backend()),
        #[cfg(feature = "zookeeper")]
        Address::ZooKeeper(url) => {
            let config = latchwork_zookeeper::ZooKeeperConfig::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            latchwork_zookeeper::doctor(config, driver.io()).await
        }
        #[cfg(not(feature = "zookeeper"))]
        Address::ZooKeeper(_) => Err(no_zookeeper_backend()),
    }
}

/// Prepares a store for its first locks, where it needs that, and says what was done.
///
/// To be called by whoever sets the store up and knows that no lock is held there. Neither a
/// directory nor memory needs it, and Redis only with `guard=true`, which redlock has on by itself: then the quarantine is taken
/// off, which a server that is new is in.
///
/// # Errors
///
/// As [`doctor`], and `Invalid` if locks are in use.
pub async fn init(url: &str) -> Result<Prepared, Error> {
    let store = match Address::parse(url)? {
        Address::Memory => "mem:".into(),
        #[cfg(feature = "file")]
        Address::File(directory) => format!("file://{}", directory.display()).into(),
        #[cfg(not(feature = "file"))]
        Address::File(_) => return Err(no_file_backend()),
        #[cfg(feature = "redis")]
        Address::Redis(url) => {
            let config = latchwork_redis::RedisConfig::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            return latchwork_redis::init(config, driver.io()).await;
        }
        #[cfg(feature = "redis")]
        Address::Redlock(url) => {
            let config = latchwork_redis::redlock::Config::parse(&url)?;
            let driver = latchwork_core::Driver::start()?;
            return latchwork_redis::redlock::init(config, driver.io()).await;
        }
        #[cfg(not(feature = "redis"))]
        Address::Redis(_) | Address::Redlock(_) => return Err(no_redis_backend()),
        #[cfg(feature = "etcd")]
        Address::Etcd(url) => {
            latchwork_etcd::EtcdConfig::parse(&url)?;
            // What it shows has no password.
            url.rsplit_once('@').map_or(url.clone(), |(_, hosts)| format!("etcd://{hosts}")).into()
        }
        #[cfg(not(feature = "etcd"))]
        Address::Etcd(_) => return Err(no_etcd_backend()),
        #[cfg(feature = "zookeeper")]
        Address::ZooKeeper(url) => {
            latchwork_zookeeper::ZooKeeperConfig::parse(&url)?;
            url.rsplit_once('@').map_or(url.clone(), |(_, hosts)| format!("zk://{hosts}")).into()
        }
        #[cfg(not(feature = "zookeeper"))]
        Address::ZooKeeper(_) => return Err(no_zookeeper_backend()),
    };
    Ok(Prepared { store, steps: Vec::new() })
}

fn memory() -> Report {
    let mut report = Report::new("mem:");
    report.add(
        Finding::info("scope", "this process alone; each connect is a store of its own")
            .consequence("other processes are not kept out")
            .remedy("use a directory (file:///...) or a server to lock between processes"),
    );
    report.add(
        Finding::info("persistence", "none")
            .consequence("locks, lingers and tokens end with the process; tokens start anew")
            .remedy("use another store where a token must outlive the process"),
    );
    report.add(Finding::ok("clock", "the holder's own"));
    report
}

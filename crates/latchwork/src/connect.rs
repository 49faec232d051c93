//! From an address to locks.

use std::path::PathBuf;
use std::sync::Arc;

use latchwork_core::{Backend, Driver, Error, ErrorKind, LockManager, MemoryBackend};

use crate::address::Address;

/// Connects to a store.
///
/// | address | store |
/// | --- | --- |
/// | `file:///directory` | a directory of this machine, shared by its processes |
/// | `redis://[user:password@]host[:port][/database]` | one Redis server |
/// | `redis+sentinel://h1,h2,h3/service` | the Redis master that Sentinels name |
/// | `redis+cluster://h1,h2,h3` | a Redis Cluster |
/// | `redlock://h1,h2,h3` | a majority of independent Redis servers |
/// | `etcd://[user:password@]h1,h2,h3` | an etcd cluster; `etcds` for TLS |
/// | `mem:` | this process alone; a fresh store with each call |
///
/// # Errors
///
/// `Invalid` for an address that cannot be read, `Unsupported` for a store that this build or this
/// system does not have, `Denied` and `Unreachable` as the store says.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), latchwork::Error> {
/// let locks = latchwork::connect("mem:").await?.namespace("shop");
/// assert!(locks.mutex("stock/42").try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
pub async fn connect(url: &str) -> Result<LockManager, Error> {
    let address = Address::parse(url)?;
    let driver = Driver::start()?;
    let backend: Arc<dyn Backend> = match address {
        Address::Memory => MemoryBackend::new(driver.io()),
        #[cfg(feature = "file")]
        Address::File(directory) => latchwork_file::FileBackend::connect(directory, driver.io())?,
        #[cfg(not(feature = "file"))]
        Address::File(_) => {
            return Err(no_file_backend());
        }
        #[cfg(feature = "redis")]
        Address::Redis(url) => {
            let config = latchwork_redis::RedisConfig::parse(&url)?;
            latchwork_redis::RedisBackend::connect(config, driver.io()).await?
        }
        #[cfg(feature = "redis")]
        Address::Redlock(url) => {
            let config = latchwork_redis::redlock::Config::parse(&url)?;
            latchwork_redis::redlock::connect(config, driver.io()).await?
        }
        #[cfg(not(feature = "redis"))]
        Address::Redis(_) | Address::Redlock(_) => {
            return Err(no_redis_backend());
        }
        #[cfg(feature = "etcd")]
        Address::Etcd(url) => {
            let config = latchwork_etcd::EtcdConfig::parse(&url)?;
            latchwork_etcd::EtcdBackend::connect(config, driver.io()).await?
        }
        #[cfg(not(feature = "etcd"))]
        Address::Etcd(_) => {
            return Err(no_etcd_backend());
        }
        #[cfg(feature = "zookeeper")]
        Address::ZooKeeper(url) => {
            let config = latchwork_zookeeper::ZooKeeperConfig::parse(&url)?;
            latchwork_zookeeper::ZooKeeperBackend::connect(config, driver.io()).await?
        }
        #[cfg(not(feature = "zookeeper"))]
        Address::ZooKeeper(_) => {
            return Err(no_zookeeper_backend());
        }
    };
    Ok(LockManager::new(backend, driver))
}

#[cfg(not(feature = "file"))]
pub(crate) fn no_file_backend() -> Error {
    Error::new(ErrorKind::Unsupported, "store: this build has no file backend")
        .next_step("build with the feature `file`")
}

#[cfg(not(feature = "redis"))]
pub(crate) fn no_redis_backend() -> Error {
    Error::new(ErrorKind::Unsupported, "store: this build has no Redis backend")
        .next_step("build with the feature `redis`")
}

#[cfg(not(feature = "etcd"))]
pub(crate) fn no_etcd_backend() -> Error {
    Error::new(ErrorKind::Unsupported, "store: this build has no etcd backend")
        .next_step("build with the feature `etcd`")
}

#[cfg(not(feature = "zookeeper"))]
pub(crate) fn no_zookeeper_backend() -> Error {
    Error::new(ErrorKind::Unsupported, "store: this build has no ZooKeeper backend")
        .next_step("build with the feature `zookeeper`")
}

/// The store of a user who names none: a directory of their own that outlives reboots and is not
/// swept by temp cleaners.
///
/// `$XDG_STATE_HOME/latchwork`, else `$HOME/.local/state/latchwork`.
///
/// # Errors
///
/// `Invalid` if neither variable is set to an absolute path.
pub fn default_store() -> Result<String, Error> {
    let absolute =
        |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("state")))
        .ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "store: no default, for HOME is not set")
                .next_step("name the store, for example file:///var/lib/app/locks")
        })?;
    Ok(file_url(&state.join("latchwork")))
}

/// The address of a directory.
fn file_url(path: &std::path::Path) -> String {
    let mut url = String::from("file://");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                url.push(char::from(*byte));
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_names_the_same_directory_again() {
        let path = std::path::Path::new("/tmp/a b/\u{e9}%");
        let address = Address::parse(&file_url(path)).unwrap();
        assert_eq!(address, Address::File(path.into()));
    }
}

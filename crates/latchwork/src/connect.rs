//! Opens a store by its address: one table of all stores that this build supports.

use std::path::PathBuf;
use std::sync::Arc;

#[cfg(feature = "etcd")]
use latchwork_etcd::EtcdConfig;
#[cfg(feature = "kubernetes")]
use latchwork_kubernetes::KubernetesConfig;
#[cfg(feature = "postgres")]
use latchwork_postgres::PostgresConfig;
#[cfg(feature = "redis")]
use latchwork_redis::{RedisConfig, redlock};
use latchwork_store::doctor::{Finding, Prepared, Report};
use latchwork_store::{Backend, Error, ErrorKind, Io, MemoryBackend};
use latchwork_wire::Source;
#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "kubernetes"))]
use latchwork_wire::address::is_plain;
#[cfg(feature = "zookeeper")]
use latchwork_zookeeper::ZooKeeperConfig;

use crate::address::Address;
use crate::locks::manager::LockManager;
use crate::runtime::driver::Driver;

/// A store that this build can open, with its address read.
enum Store {
    Memory(Option<String>),
    #[cfg(feature = "file")]
    File(PathBuf),
    #[cfg(feature = "redis")]
    Redis(Box<RedisConfig>),
    #[cfg(feature = "redis")]
    Redlock(redlock::Config),
    #[cfg(feature = "etcd")]
    Etcd(EtcdConfig, String),
    #[cfg(feature = "zookeeper")]
    ZooKeeper(ZooKeeperConfig, String),
    #[cfg(feature = "postgres")]
    Postgres(Box<PostgresConfig>),
    #[cfg(feature = "kubernetes")]
    Kubernetes(KubernetesConfig, String),
}

impl Store {
    fn read(url: &str) -> Result<Self, Error> {
        Ok(match Address::parse(url)? {
            Address::Memory(name) => Self::Memory(name),
            #[cfg(feature = "file")]
            Address::File(directory) => Self::File(directory),
            #[cfg(feature = "redis")]
            Address::Redis(url) => Self::Redis(Box::new(RedisConfig::parse(&url)?)),
            #[cfg(feature = "redis")]
            Address::Redlock(url) => Self::Redlock(redlock::Config::parse(&url)?),
            #[cfg(feature = "etcd")]
            Address::Etcd(url) => Self::Etcd(EtcdConfig::parse(&url)?, url),
            #[cfg(feature = "zookeeper")]
            Address::ZooKeeper(url) => Self::ZooKeeper(ZooKeeperConfig::parse(&url)?, url),
            #[cfg(feature = "postgres")]
            Address::Postgres(url) => Self::Postgres(Box::new(PostgresConfig::parse(&url)?)),
            #[cfg(feature = "kubernetes")]
            Address::Kubernetes(url) => Self::Kubernetes(KubernetesConfig::parse(&url)?, url),
            #[cfg(not(feature = "file"))]
            Address::File(_) => return Err(not_built("file", "file")),
            #[cfg(not(feature = "redis"))]
            Address::Redis(_) | Address::Redlock(_) => {
                return Err(not_built("Redis or Valkey", "redis"));
            }
            #[cfg(not(feature = "etcd"))]
            Address::Etcd(_) => return Err(not_built("etcd", "etcd")),
            #[cfg(not(feature = "zookeeper"))]
            Address::ZooKeeper(_) => return Err(not_built("ZooKeeper", "zookeeper")),
            #[cfg(not(feature = "postgres"))]
            Address::Postgres(_) => return Err(not_built("PostgreSQL", "postgres")),
            #[cfg(not(feature = "kubernetes"))]
            Address::Kubernetes(_) => return Err(not_built("Kubernetes", "kubernetes")),
        })
    }

    /// The store that reads its login again from this source, if it has one.
    #[cfg_attr(
        not(any(
            feature = "redis",
            feature = "etcd",
            feature = "zookeeper",
            feature = "postgres"
        )),
        expect(unused_variables, reason = "the others have no login in their address")
    )]
    fn sourced(self, source: &Source) -> Self {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(config) => Self::Redis(Box::new(config.source(source.clone()))),
            #[cfg(feature = "redis")]
            Self::Redlock(config) => Self::Redlock(config.source(source.clone())),
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => Self::Postgres(Box::new(config.source(source.clone()))),
            #[cfg(feature = "etcd")]
            Self::Etcd(config, url) => Self::Etcd(config.source(source.clone()), url),
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config, url) => Self::ZooKeeper(config.source(source.clone()), url),
            other => other,
        }
    }

    async fn open(self, io: Io) -> Result<Arc<dyn Backend>, Error> {
        Ok(match self {
            Self::Memory(None) => MemoryBackend::new(io),
            Self::Memory(Some(name)) => MemoryBackend::named(&name, io),
            #[cfg(feature = "file")]
            Self::File(directory) => latchwork_file::FileBackend::connect(directory, io)?,
            #[cfg(feature = "redis")]
            Self::Redis(config) => latchwork_redis::RedisBackend::connect(*config, io).await?,
            #[cfg(feature = "redis")]
            Self::Redlock(config) => redlock::connect(config, io).await?,
            #[cfg(feature = "etcd")]
            Self::Etcd(config, _) => latchwork_etcd::EtcdBackend::connect(config, io).await?,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config, _) => {
                latchwork_zookeeper::ZooKeeperBackend::connect(config, io).await?
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => {
                latchwork_postgres::PostgresBackend::connect(*config, io).await?
            }
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(config, _) => {
                latchwork_kubernetes::KubernetesBackend::connect(config, io).await?
            }
        })
    }

    async fn examine(self, io: Io) -> Result<Report, Error> {
        match self {
            Self::Memory(name) => {
                drop(io);
                Ok(of_memory(name.as_deref()))
            }
            #[cfg(feature = "file")]
            Self::File(directory) => latchwork_file::doctor(directory, io).await,
            #[cfg(feature = "redis")]
            Self::Redis(config) => latchwork_redis::doctor(*config, io).await,
            #[cfg(feature = "redis")]
            Self::Redlock(config) => redlock::doctor(config, io).await,
            #[cfg(feature = "etcd")]
            Self::Etcd(config, _) => latchwork_etcd::doctor(config, io).await,
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config, _) => latchwork_zookeeper::doctor(config, io).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => latchwork_postgres::doctor(*config, io).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(config, _) => latchwork_kubernetes::doctor(config, io).await,
        }
    }

    /// Where nothing is to be prepared, a server must be there all the same.
    #[cfg_attr(
        not(any(
            feature = "file",
            feature = "redis",
            feature = "postgres",
            feature = "etcd",
            feature = "zookeeper",
            feature = "kubernetes"
        )),
        expect(unused_variables, reason = "the others need no preparation")
    )]
    async fn prepare(self, io: Io) -> Result<Prepared, Error> {
        let store: Arc<str> = match self {
            Self::Memory(name) => format!("mem:{}", name.unwrap_or_default()).into(),
            #[cfg(feature = "file")]
            Self::File(directory) => {
                let is_new = directory.read_dir().map_or(true, |mut names| names.next().is_none());
                latchwork_file::FileBackend::connect(&directory, io)?;
                let store = format!("file://{}", directory.display()).into();
                let step = is_new.then(|| "made the directory and the files in it".to_owned());
                return Ok(Prepared { store, steps: step.into_iter().collect() });
            }
            #[cfg(feature = "redis")]
            Self::Redis(config) => return latchwork_redis::init(*config, io).await,
            #[cfg(feature = "redis")]
            Self::Redlock(config) => return redlock::init(config, io).await,
            #[cfg(feature = "etcd")]
            Self::Etcd(config, url) => {
                latchwork_etcd::EtcdBackend::connect(config, io).await?;
                without_password(&url)
            }
            #[cfg(feature = "zookeeper")]
            Self::ZooKeeper(config, url) => {
                latchwork_zookeeper::ZooKeeperBackend::connect(config, io).await?;
                without_password(&url)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(config) => return latchwork_postgres::init(*config, io).await,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(config, url) => {
                latchwork_kubernetes::KubernetesBackend::connect(config, io).await?;
                without_password(&url)
            }
        };
        Ok(Prepared { store, steps: Vec::new() })
    }
}

/// An address that was read, without its login and its options.
#[cfg(any(feature = "etcd", feature = "zookeeper", feature = "kubernetes"))]
fn without_password(url: &str) -> Arc<str> {
    let (start, _) = url.split_once('?').unwrap_or((url, ""));
    let (scheme, start) = start.split_once("://").unwrap_or(("", start));
    let (authority, path) = start.split_once('/').unwrap_or((start, ""));
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    match path {
        "" => format!("{scheme}://{hosts}").into(),
        path if path.split('/').all(is_plain) => format!("{scheme}://{hosts}/{path}").into(),
        _ => format!("{scheme}://{hosts}/...").into(),
    }
}

#[cfg(not(all(
    feature = "file",
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "postgres",
    feature = "kubernetes"
)))]
fn not_built(store: &str, feature: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("store: this build has no {store} backend"))
        .with_next_step(format!("build with the feature `{feature}`"))
}

/// Connects to a store.
///
/// | address | store |
/// | --- | --- |
/// | `file:///directory` | a directory of this machine, shared by its processes |
/// | `redis://[user:password@]host[:port][/database]` | one server of Redis or Valkey |
/// | `redis+unix://[user:password@]/path[?db=database]` | one server of Redis or Valkey, through its socket in the file system |
/// | `redis+sentinel://h1,h2,h3/service` | the master that Sentinels name |
/// | `redis+cluster://h1,h2,h3` | a Cluster |
/// | `redlock://h1,h2,h3` | a majority of independent servers of Redis or Valkey |
/// | `etcd://[user:password@]h1,h2,h3` | an etcd cluster; `etcds` for TLS |
/// | `zk://[user:password@]h1,h2,h3[/chroot]` | a ZooKeeper ensemble; `zks` for TLS |
/// | `postgres://[user:password@]host[:port]/database` | a table of PostgreSQL, which [`init`] makes |
/// | `k8s://namespace`, `k8s://context/namespace` | the leases of a namespace of Kubernetes |
/// | `mem:` | this process alone; a fresh store with each call |
/// | `mem:NAME` | this process alone; all connections to this name share it, until the last manager is dropped |
///
/// `rediss` is Redis by TLS. `valkey` and `valkeys` mean what `redis` and `rediss` mean, also before `+sentinel`,
/// `+cluster`, `+unix` and `+redlock`. White space at the ends of an address is left out. A path that begins with `/` is a directory: `/srv/locks`. The case of a scheme does not
/// matter.
///
/// # Runtimes
///
/// A manager and its futures work in any tokio runtime, in several at once, in other executors, and in
/// none ([`block_on`](crate::block_on)). Renewals run on Latchwork's own threads, so a runtime that is
/// blocked or ends loses no lock. On Redis, answers are read on the tokio runtime of the first caller,
/// which is fastest. That runtime should have I/O enabled, as those of `#[tokio::main]` and
/// `#[tokio::test]` have; without it answers take the longer way, and tokio's panic message about it
/// appears once.
///
/// # Errors
///
/// `Invalid` for an address that cannot be read, `Unsupported` for a store that this build or this
/// system does not have, `Denied` and `Unreachable` as the store says.
///
/// # Cancel safety
///
/// May be dropped at any time; nothing is left.
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
pub async fn connect(url: impl AsRef<str>) -> Result<LockManager, Error> {
    let store = Store::read(url.as_ref())?;
    let driver = Driver::start()?;
    let backend = store.open(driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

/// Connects to the store whose address a source has, and reads the source again when a server refuses
/// the login.
///
/// So a password or a token can be replaced while locks are held. The address is otherwise as for
/// [`connect`], and only its user and its password may change.
///
/// # Errors
///
/// As [`connect`], and `Invalid` if the source cannot be read. Later, a source that cannot be read or
/// names another store is a part of the error of the login that was refused.
///
/// # Cancel safety
///
/// May be dropped at any time. A command that was started is run to its end.
///
/// # Examples
///
/// ```no_run
/// # async fn example() -> Result<(), latchwork::Error> {
/// use latchwork::Source;
///
/// let locks = latchwork::connect_from(&Source::file("/run/secrets/locks")).await?;
/// let others = latchwork::connect_from(&Source::command("print-address --token")).await?;
/// # Ok(())
/// # }
/// ```
pub async fn connect_from(source: &Source) -> Result<LockManager, Error> {
    let driver = Driver::start()?;
    let store = Store::read(&source.address(&driver.io()).await?)?.sourced(source);
    let backend = store.open(driver.io()).await?;
    Ok(LockManager::new(backend, driver))
}

/// Checks whether a store is fit for locks, and how to fix it.
///
/// The address is read as by [`connect`]. Nothing is locked.
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
pub async fn doctor(url: impl AsRef<str>) -> Result<Report, Error> {
    let store = Store::read(url.as_ref())?;
    let driver = Driver::start()?;
    store.examine(driver.io()).await
}

/// Prepares a store for its first locks, if it needs that, and returns what was done.
///
/// Call it where the store is set up and no lock is held there yet. Memory does not need it. A directory
/// is made, and needs it if it has the sticky bit: its owner must come first. Redis needs it only with
/// `guard=true`, which redlock has on by itself: then the quarantine that a new server is in is taken
/// off. PostgreSQL needs it once: it makes the tables.
///
/// # Errors
///
/// As [`connect`], and `Invalid` if locks are in use.
pub async fn init(url: impl AsRef<str>) -> Result<Prepared, Error> {
    let store = Store::read(url.as_ref())?;
    let driver = Driver::start()?;
    store.prepare(driver.io()).await
}

fn of_memory(name: Option<&str>) -> Report {
    let mut report = Report::new(format!("mem:{}", name.unwrap_or_default()));
    let scope = match name {
        Some(_) => "this process alone; each connect to this name shares the store",
        None => "this process alone; each connect is a store of its own",
    };
    report.add(
        Finding::info("scope", scope)
            .consequence("other processes are not excluded")
            .remedy("use a directory (file:///...) or a server to lock between processes"),
    );
    report.add(
        Finding::info("persistence", "none")
            .consequence("locks, closed periods and tokens end with the process")
            .remedy("use another store if tokens must outlive the process"),
    );
    report.add(Finding::ok("clock", "the holder's own"));
    report
}

/// Returns the default store: a directory of this user that survives reboots and temp cleaners.
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
            let is_set = std::env::var_os("HOME").is_some_and(|home| !home.is_empty());
            let why = if is_set { "no absolute path" } else { "not set" };
            let message = format!("store: there is no default because HOME is {why}");
            Error::new(ErrorKind::Invalid, message)
                .with_next_step("name the store, for example file:///var/lib/app/locks")
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

    #[test]
    fn a_store_that_is_not_built_names_its_feature() {
        for (address, feature, is_built) in [
            ("file:///locks", "file", cfg!(feature = "file")),
            ("redis://h", "redis", cfg!(feature = "redis")),
            ("redlock://a,b,c", "redis", cfg!(feature = "redis")),
            ("etcd://h", "etcd", cfg!(feature = "etcd")),
            ("zk://h", "zookeeper", cfg!(feature = "zookeeper")),
            ("postgres://h/db", "postgres", cfg!(feature = "postgres")),
            ("k8s://namespace", "kubernetes", cfg!(feature = "kubernetes")),
        ] {
            let refused = Store::read(address).err();
            assert_eq!(refused.is_none(), is_built, "{address}: {refused:?}");
            let step = ["build with the feature `", feature, "`"].concat();
            assert!(refused.is_none_or(|it| it.next_step() == Some(&*step)), "{address}");
        }
    }
}

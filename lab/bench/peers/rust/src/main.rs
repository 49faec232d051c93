//! `rslock`, `async-redis-lock` and `zookeeper-client` in the words of `src/roles.rs`: `KIND URL TTL_MS NUMBER`.

#![expect(clippy::disallowed_methods, reason = "measures with the process's own clock")]

#[path = "../../../src/roles.rs"]
mod roles;
#[allow(dead_code, reason = "who measures reads the times again")]
#[path = "../../../src/times.rs"]
mod times;

use std::time::Duration;

use async_redis_lock::{Locker, Options};
use redis::{Client, IntoConnectionInfo};
use roles::{Lock, Outcome};
use rslock::LockManager;
use zookeeper_client::{Acls, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

const TTL: Duration = Duration::from_secs(30);

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, url, ttl, _] = &args[..] else { return Err("KIND URL TTL_MS NUMBER".into()) };
    let ttl = match ttl.parse()? {
        0 => TTL,
        ttl => Duration::from_millis(ttl),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match kind.as_str() {
            "rslock" => {
                let locks = LockManager::from_clients(clients(url)?);
                all(|key| Ok(Rslock { locks: locks.clone(), key: key.into() })).await
            }
            "async-redis-lock" => {
                let clients = clients(url)?;
                let locks = Locker::from_client(clients.first().ok_or("a server")?.clone()).await?;
                // As its documents advise; the default is a ttl of 3 s.
                let options = Options::new().ttl(ttl).extend(ttl / 3).timeout(None);
                let (locks, options) = (&locks, &options);
                all(|key| {
                    let (locks, options) = (locks.clone(), options.clone());
                    Ok(Async { locks, options, key: key.into() })
                })
                .await
            }
            "zookeeper-client" => {
                // `zk://HOST:PORT/FOLDER`, or without a folder.
                let rest = url.strip_prefix("zk://").ok_or("an address")?;
                let (hosts, folder) = rest.split_once('/').unwrap_or((rest, "bench"));
                let connector = zookeeper_client::Client::connector().with_session_timeout(TTL);
                let client = connector.connect(hosts).await?;
                all(|key| Ok(Recipe { client: client.clone(), folder: format!("/{folder}/{key}") }))
                    .await
            }
            _ => Err(format!("no such kind: {kind}").into()),
        }
    })
}

async fn all<L: Lock>(make: impl Fn(&str) -> Outcome<L>) -> Outcome {
    roles::warm(&make).await?;
    roles::serve(make, roles::spawn).await
}

/// One server, or several: `redlock://HOST:PORT,HOST:PORT,...`
fn clients(url: &str) -> Outcome<Vec<Client>> {
    let (_, hosts) = url.split_once("://").ok_or("an address")?;
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let open = |host| {
        let info = format!("redis://{host}").into_connection_info()?;
        Ok(Client::open(info.set_tcp_settings(tcp.clone()))?)
    };
    hosts.split(',').map(open).collect()
}

struct Rslock {
    locks: LockManager,
    key: String,
}

impl Lock for Rslock {
    type Held = rslock::LockGuard;

    async fn acquire(&self) -> Outcome<Self::Held> {
        let held = self.locks.acquire(self.key.as_str(), TTL).await;
        held.map_err(|error| format!("{error:?}").into())
    }

    async fn release(&self, held: Self::Held) -> Outcome {
        held.release().await;
        Ok(())
    }
}

struct Async {
    locks: Locker,
    options: Options,
    key: String,
}

impl Lock for Async {
    type Held = async_redis_lock::Lock;

    async fn acquire(&self) -> Outcome<Self::Held> {
        Ok(self.locks.acquire_with_options(&self.options, self.key.as_str()).await?)
    }

    async fn release(&self, held: Self::Held) -> Outcome {
        Ok(held.release().await?)
    }

    fn is_held(held: &Self::Held) -> bool {
        !held.is_lost()
    }
}

/// Its lock recipe, with the names that Curator gives. A lock that is dropped is deleted in the background.
struct Recipe {
    client: zookeeper_client::Client,
    folder: String,
}

impl Lock for Recipe {
    type Held = OwnedLockClient;

    async fn acquire(&self) -> Outcome<Self::Held> {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-")?;
        let folders = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(folders)?;
        Ok(self.client.lock(prefix, b"", options).await?.into_owned())
    }

    async fn release(&self, held: Self::Held) -> Outcome {
        drop(held);
        Ok(())
    }
}

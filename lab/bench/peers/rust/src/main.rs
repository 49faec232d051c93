//! `rslock`, `async-redis-lock` and `zookeeper-client` in the roles of the measurements: `KIND ROLE
//! URL ...`.

#![expect(clippy::disallowed_methods, reason = "measures with the process's own clock")]

#[path = "../../../src/roles.rs"]
mod roles;
#[path = "../../../src/times.rs"]
mod times;
mod zookeeper;

use std::time::Duration;

use async_redis_lock::{Locker, Options};
use redis::{Client, IntoConnectionInfo};
use roles::{Lock, Outcome};
use rslock::LockManager;

const TTL: Duration = Duration::from_secs(30);

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kind, role, url, rest @ ..] = &args[..] else { return Err("KIND ROLE URL ...".into()) };
    let rest: Vec<String> = std::iter::once(role).chain(rest).cloned().collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if kind == "zookeeper-client" {
        return runtime.block_on(zookeeper::run(&rest, url));
    }
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    // One server, or several: redlock://HOST:PORT,HOST:PORT,...
    let (_, hosts) = url.split_once("://").ok_or("an address")?;
    let open = |host| {
        let info = format!("redis://{host}").into_connection_info()?;
        Client::open(info.set_tcp_settings(tcp.clone()))
    };
    let clients = hosts.split(',').map(open).collect::<Result<Vec<_>, _>>()?;
    runtime.block_on(async {
        match kind.as_str() {
            "rslock" => {
                let locks = LockManager::from_clients(clients);
                let make = |key: &str| Rslock { locks: locks.clone(), key: key.into() };
                roles::run(&rest, make).await
            }
            "async-redis-lock" => {
                let [client] = &clients[..] else { return Err("one server".into()) };
                let locks = Locker::from_client(client.clone()).await?;
                // As its documents advise; the default is a ttl of 3 s.
                let options = Options::new().ttl(TTL).extend(TTL / 3);
                let make = |key: &str| Async {
                    locks: locks.clone(),
                    key: key.into(),
                    options: options.clone().timeout(None),
                };
                match &rest[..] {
                    [role, ttl] if role == "held" => {
                        let ttl = Duration::from_millis(ttl.parse()?);
                        let options = options.clone().ttl(ttl).extend(ttl / 3);
                        let take =
                            async |key: String| locks.acquire_with_options(&options, key).await;
                        roles::held(take, |lock| !lock.is_lost()).await
                    }
                    _ => roles::run(&rest, make).await,
                }
            }
            _ => Err(format!("no such kind: {kind}").into()),
        }
    })
}

struct Rslock {
    locks: LockManager,
    key: String,
}

impl Lock for Rslock {
    type Held = rslock::LockGuard;

    async fn acquire(&self) -> Self::Held {
        self.locks.acquire(self.key.as_str(), TTL).await.expect("the server answers")
    }

    async fn release(&self, held: Self::Held) {
        held.release().await;
    }
}

struct Async {
    locks: Locker,
    key: String,
    options: Options,
}

impl Lock for Async {
    type Held = async_redis_lock::Lock;

    async fn acquire(&self) -> Self::Held {
        let held = self.locks.acquire_with_options(&self.options, self.key.as_str());
        held.await.expect("the server answers")
    }

    async fn release(&self, held: Self::Held) {
        held.release().await.expect("the server answers");
    }
}

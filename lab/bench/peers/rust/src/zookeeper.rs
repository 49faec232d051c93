//! The lock recipe of `zookeeper-client`, with the names that Curator gives. A lock that is dropped is
//! deleted in the background.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

use crate::roles::{self, Lock, Outcome};

/// `ROLE ...` at `zk://HOST:PORT/FOLDER`, or without a folder.
pub(crate) async fn run(role: &[String], url: &str) -> Outcome {
    let rest = url.strip_prefix("zk://").ok_or("an address")?;
    let (hosts, folder) = rest.split_once('/').unwrap_or((rest, "bench"));
    let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
    let client = connector.connect(hosts).await?;
    let make = |key: &str| Recipe { client: client.clone(), folder: format!("/{folder}/{key}") };
    match role {
        [role, _ttl] if role == "held" => {
            let take =
                async |key: String| Ok::<_, zookeeper_client::Error>(make(&key).acquire().await);
            // Its session lives as long as the process.
            roles::held(take, |_| true).await
        }
        _ => roles::run(role, make).await,
    }
}

struct Recipe {
    client: Client,
    folder: String,
}

impl Lock for Recipe {
    type Held = OwnedLockClient;

    async fn acquire(&self) -> Self::Held {
        let prefix = LockPrefix::new_curator(&self.folder, "lock-").expect("a good path");
        let folders = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(folders);
        let options = options.expect("good options");
        let held = self.client.lock(prefix, b"", options).await;
        held.expect("the server answers").into_owned()
    }

    async fn release(&self, held: Self::Held) {
        drop(held);
    }
}

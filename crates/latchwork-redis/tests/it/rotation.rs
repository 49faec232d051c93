//! Passwords that are replaced while locks are held.

use std::time::Duration;

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{ClusterOptions, Folder, RedisCluster, RedisOptions, RedisServer, Value};
use latchwork_store::{ErrorKind, Source};

const TTL: Duration = Duration::from_secs(3);
/// For how long a hold is watched after a step: longer than its ttl.
const WATCHED: Duration = Duration::from_millis(3_500);
const EVERYTHING: &str = "~* &* +@all";

/// A file with an address, which is replaced as a whole.
struct StoreFile(Folder);

impl StoreFile {
    fn new(address: &str) -> Self {
        let file = Self(Folder::new().unwrap());
        file.replace(address);
        file
    }

    fn replace(&self, address: &str) {
        let new = self.0.path().join("store.new");
        std::fs::write(&new, address).unwrap();
        std::fs::rename(new, self.0.path().join("store")).unwrap();
    }

    async fn connect(&self) -> LockManager {
        let driver = Driver::start().unwrap();
        let source = Source::file(self.0.path().join("store"));
        let address = source.read_now().unwrap();
        let config = RedisConfig::parse(&address).unwrap().source(source);
        let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
        LockManager::new(backend, driver).ttl(TTL)
    }
}

type Command<'a> = &'a dyn Fn(&[&str]) -> Value;

/// The four steps of a rotation under a hold, and what follows.
async fn rotated(url: &str, command: Command<'_>) {
    let with = |password: &str| url.replacen("://", &format!("://app:{password}@"), 1);
    let cut = || drop(command(&["CLIENT", "KILL", "USER", "app"]));
    let file = StoreFile::new(&with("old"));
    let locks = file.connect().await;
    let held = locks.mutex("rotated").acquire().await.unwrap();
    command(&["ACL", "SETUSER", "app", ">new"]).ok().unwrap();
    file.replace(&with("new"));
    cut();
    tokio::time::sleep(WATCHED).await;
    held.ensure_held().unwrap();
    command(&["ACL", "SETUSER", "app", "<old"]).ok().unwrap();
    cut();
    tokio::time::sleep(WATCHED).await;
    held.ensure_held().unwrap();
    // At once: the file is there just before the server refuses the old one.
    file.replace(&with("last"));
    command(&["ACL", "SETUSER", "app", "resetpass", ">last"]).ok().unwrap();
    cut();
    tokio::time::sleep(WATCHED).await;
    held.ensure_held().unwrap();
    held.release().await.unwrap();
    locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
}

fn with_user() -> RedisOptions {
    RedisOptions::new().user(format!("app on >old {EVERYTHING}"))
}

#[tokio::test]
async fn h270_a_password_replaced_in_four_steps_loses_no_hold() {
    let server = RedisServer::start(&with_user()).unwrap();
    rotated(&server.url(), &|command| server.command(command).unwrap()).await;
}

#[tokio::test]
async fn h270_a_password_replaced_on_a_cluster_loses_no_hold() {
    let options = ClusterOptions { redis: with_user(), ..ClusterOptions::default() };
    let cluster = RedisCluster::start(&options).unwrap();
    let all = |command: &[&str]| {
        let said = cluster.nodes().iter().map(|node| node.command(command).unwrap());
        said.last().unwrap()
    };
    rotated(&cluster.url(), &all).await;
}

/// The old connections live on, and the refusal says what is wrong with the file.
#[tokio::test]
async fn h271_a_file_that_names_another_server_is_refused() {
    let server = RedisServer::start(&with_user()).unwrap();
    let url = server.url().replacen("://", "://app:old@", 1);
    let file = StoreFile::new(&url);
    let locks = file.connect().await;
    let held = locks.mutex("k").acquire().await.unwrap();
    file.replace("redis://app:new@127.0.0.1:1");
    server.command(&["ACL", "SETUSER", "app", "resetpass", ">new"]).unwrap().ok().unwrap();
    tokio::time::sleep(WATCHED).await;
    held.ensure_held().unwrap();
    server.command(&["CLIENT", "KILL", "USER", "app"]).unwrap();
    let refused = loop {
        match locks.mutex("other").try_acquire().await {
            Err(error) if error.kind() == ErrorKind::Denied => break error.to_string(),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            Ok(_) => panic!("it logged in with the password for another server"),
        }
    };
    assert!(refused.contains("names another host"), "{refused}");
    assert!(!refused.contains("old") && !refused.contains("new@"), "{refused}");
    file.replace(&url.replace("old", "new"));
    tokio::time::sleep(WATCHED).await;
    locks.mutex("other").acquire().await.unwrap().release().await.unwrap();
}

//! Passwords that are replaced while locks are held.

use std::time::Duration;

use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig, redlock};
use latchwork_services::{
    ClusterOptions, Folder, RedisCluster, RedisOptions, RedisServer, SentinelOptions, SentinelSet,
    Value,
};
use latchwork_store::ErrorKind;
use latchwork_wire::Source;

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
        if address.starts_with("redlock://") {
            let config = redlock::Config::parse(&address).unwrap().source(source);
            let backend = redlock::connect(config, driver.io()).await.unwrap();
            return LockManager::new(backend, driver).ttl(TTL);
        }
        let config = RedisConfig::parse(&address).unwrap().source(source);
        let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
        LockManager::new(backend, driver).ttl(TTL)
    }
}

type Command<'a> = &'a dyn Fn(&[&str]) -> Value;

/// The four steps of a rotation under a hold, and what follows.
async fn rotated(url: &str, command: Command<'_>) {
    let with = |password: &str| {
        url.replacen("://", &format!("://app:{password}@"), 1).replace("PASSWORD", password)
    };
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

/// H552: the old user may still log in. It loses its keys, and then its commands.
#[tokio::test]
async fn h552_rights_that_go_to_another_user_lose_no_hold() {
    let options = with_user().user(format!("app2 on >new {EVERYTHING}"));
    let server = RedisServer::start(&options).unwrap();
    let with = |login: &str| server.url().replacen("://", &format!("://{login}@"), 1);
    let file = StoreFile::new(&with("app:old"));
    let locks = file.connect().await;
    let held = locks.mutex("rotated").acquire().await.unwrap();
    let steps: [(&str, &[&str]); 3] = [
        ("app2:new", &["app", "resetkeys"]),
        ("app:old", &["app2", "-@all", "+@connection"]),
        ("app2:new", &["app", "resetkeys", "resetchannels", "-@all"]),
    ];
    for (login, rights) in steps {
        for user in ["app", "app2"] {
            let all = ["ACL", "SETUSER", user, "~*", "&*", "+@all"];
            server.command(&all).unwrap().ok().unwrap();
        }
        file.replace(&with(login));
        let words = [&["ACL", "SETUSER"], rights].concat();
        server.command(&words).unwrap().ok().unwrap();
        // A free key, before a renewal has been refused.
        locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
        tokio::time::sleep(WATCHED).await;
        held.ensure_held().unwrap();
    }
    held.release().await.unwrap();
}

/// H318: the login of the servers and, with the same steps, that of the Sentinels. Each connection that is cut is made again
/// by way of them.
#[tokio::test]
async fn h318_passwords_replaced_behind_sentinel_lose_no_hold() {
    let options = SentinelOptions { redis: with_user(), ..SentinelOptions::default() };
    let set = SentinelSet::start(&options).unwrap();
    let user = ["ACL", "SETUSER", "app", "on", ">old", "~*", "&*", "+@all"];
    for sentinel in set.sentinels() {
        sentinel.command(&user).unwrap().ok().unwrap();
    }
    let all = |command: &[&str]| {
        let servers = set.nodes().iter().map(|node| node.command(command).unwrap());
        let sentinels = set.sentinels().iter().map(|one| one.command(command).unwrap());
        servers.chain(sentinels).last().unwrap()
    };
    let url = format!("{}?sentinel_user=app&sentinel_password=PASSWORD", set.url());
    rotated(&url, &all).await;
}

/// H318: on all servers at the same time.
#[tokio::test]
async fn h318_a_password_replaced_on_redlock_loses_no_hold() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start(&with_user()).unwrap()).collect();
    let hosts: Vec<_> = servers.iter().map(|one| format!("127.0.0.1:{}", one.port())).collect();
    let url = format!("redlock://{}?guard=false", hosts.join(","));
    let all = |command: &[&str]| {
        servers.iter().map(|server| server.command(command).unwrap()).last().unwrap()
    };
    rotated(&url, &all).await;
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

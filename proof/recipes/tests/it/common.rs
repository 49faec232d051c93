//! What the recipes are run on.

use std::process::{Command, Stdio};
use std::time::Duration;

use latchwork::{Guard, LockManager};
use latchwork_services::PostgresServer;
use latchwork_services::program::Running;
use tokio_postgres::{Client, NoTls};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What may be needed on a busy machine for something that comes at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Locks in memory, for two managers that are two processes to each other.
pub(crate) async fn two_processes(store: &str) -> (LockManager, LockManager) {
    let url = format!("mem:{store}");
    let connect = async || latchwork::connect(&url).await.unwrap().ttl(Duration::from_secs(2));
    (connect().await, connect().await)
}

/// A folder for a store that processes share, and its address.
pub(crate) fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file://{}", folder.path().join("locks").display());
    (folder, url)
}

/// A recipe as a process of its own, with its locks there.
pub(crate) fn program(store: &str, args: &[&str]) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_latchwork-recipes"));
    command.args(args).env("LATCHWORK_STORE", store);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

/// Takes a lock away from its holder, and gives it to the next.
pub(crate) async fn take_over(locks: &LockManager, name: &str) -> Guard {
    locks.force_release(name).await.unwrap();
    locks.mutex(name).acquire_within(SOON).await.unwrap()
}

/// A database with twenty of article 42, made where the runtime is not kept waiting.
pub(crate) async fn database() -> PostgresServer {
    let server = tokio::task::spawn_blocking(|| PostgresServer::start().unwrap()).await.unwrap();
    let stock = "CREATE TABLE stock (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL,
                                     token BIGINT NOT NULL DEFAULT 0);
                 INSERT INTO stock VALUES (42, 20)";
    client(&server).await.batch_execute(stock).await.unwrap();
    server
}

pub(crate) async fn client(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.conninfo(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn number(db: &Client, query: &str) -> i64 {
    db.query_one(query, &[]).await.unwrap().get(0)
}

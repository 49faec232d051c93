//! A stale holder cannot commit: its token is checked in the transaction that writes.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::*;
use latchwork_postgres::PostgresConfig;
use latchwork_postgres::fence::{CheckError, Fence};
use latchwork_services::PostgresServer;
use latchwork_store::FencingToken;
use tokio_postgres::{Client, IsolationLevel, NoTls};

/// Set for the process that is stopped between its check and its commit: the port and the isolation level.
const ROLE: &str = "LATCHWORK_FENCED";

fn token(n: u64) -> FencingToken {
    FencingToken::from_grant(n)
}

pub(crate) fn fence(port: u16) -> Fence {
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres");
    Fence::new(&PostgresConfig::parse(&url).unwrap()).idle_limit(2 * SEC)
}

pub(crate) async fn client(port: u16) -> Client {
    let conninfo = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&conninfo, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn level(name: &str) -> IsolationLevel {
    match name {
        "serializable" => IsolationLevel::Serializable,
        _ => IsolationLevel::ReadCommitted,
    }
}

/// One unit is sold under a token; the number that is left.
async fn sell(
    client: &mut Client,
    fence: &Fence,
    at: IsolationLevel,
    token: FencingToken,
    pause: impl AsyncFnOnce(),
) -> Result<i64, Box<dyn std::error::Error>> {
    let mut transaction = client.build_transaction().isolation_level(at).start().await?;
    fence.check(&mut transaction, "stock", token).await?;
    let left: i64 = transaction.query_one("SELECT amount FROM stock", &[]).await?.get(0);
    transaction.execute("UPDATE stock SET amount = $1", &[&(left - 1)]).await?;
    pause().await;
    transaction.commit().await?;
    Ok(left - 1)
}

fn shop() -> PostgresServer {
    let server = server();
    server.psql("CREATE TABLE stock (amount BIGINT); INSERT INTO stock VALUES (10)").unwrap();
    server
}

/// The old holder: checks, writes, says so, waits for a word, and commits.
fn be_the_old_holder(role: &str) {
    let (port, at) = role.split_once(' ').unwrap();
    let port = port.parse().unwrap();
    run(async {
        let mut client = client(port).await;
        let pause = async || {
            println!("\nchecked");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        };
        let sold = sell(&mut client, &fence(port), level(at), token(1), pause).await;
        println!("\nsold {}", sold.is_ok());
    });
}

/// `old` is the old holder, in a process of its own: it checks with the token 1.
pub(crate) fn stopped_between_check_and_commit(at: &str, test: &str, old: fn(&str)) {
    if let Ok(role) = std::env::var(ROLE) {
        return old(&role);
    }
    let server = shop();
    let mut old = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, format!("{} {at}", server.port()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(old.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.find(|line| line == "checked").expect("the old holder has checked");
    let pid = rustix::process::Pid::from_child(&old);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    run(async {
        let start = Instant::now();
        let mut client = client(server.port()).await;
        // It waits until the server ends the transaction of the one that has stopped.
        let mut tries = 0;
        let left = loop {
            match sell(&mut client, &fence(server.port()), level(at), token(2), async || {}).await {
                Ok(left) => break left,
                // As the page says: begin again, with the same token.
                Err(error) => assert!(tries < 3, "{error}"),
            }
            tries += 1;
        };
        assert_eq!(left, 9, "it does not see what was never committed");
        assert!(start.elapsed() < 8 * SEC, "{:?}", start.elapsed());
    });
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    drop(old.stdin.take());
    assert_eq!(lines.find(|line| line.starts_with("sold")).as_deref(), Some("sold false"));
    old.wait().unwrap();
    assert_eq!(server.psql("SELECT amount FROM stock").unwrap(), "9");
}

/// H154: a holder is stopped between its check and its commit.
#[test]
fn h154_a_stopped_holder_cannot_commit_at_read_committed() {
    let test = "fence::h154_a_stopped_holder_cannot_commit_at_read_committed";
    stopped_between_check_and_commit("read committed", test, be_the_old_holder);
}

/// H154 at the strictest level.
#[test]
fn h154_a_stopped_holder_cannot_commit_at_serializable() {
    let test = "fence::h154_a_stopped_holder_cannot_commit_at_serializable";
    stopped_between_check_and_commit("serializable", test, be_the_old_holder);
}

#[test]
fn a_smaller_token_is_refused_and_an_equal_one_admitted() {
    let server = shop();
    run(async {
        let (mut client, fence) = (client(server.port()).await, fence(server.port()));
        for n in [2, 2, 5] {
            let mut transaction = client.transaction().await.unwrap();
            fence.check(&mut transaction, "stock", token(n)).await.unwrap();
            transaction.commit().await.unwrap();
        }
        // What is rolled back was never seen.
        let mut transaction = client.transaction().await.unwrap();
        fence.check(&mut transaction, "stock", token(9)).await.unwrap();
        transaction.rollback().await.unwrap();
        let mut transaction = client.transaction().await.unwrap();
        let error = fence.check(&mut transaction, "stock", token(4)).await.unwrap_err();
        let fenced = error.refused().expect("a larger one was admitted");
        assert_eq!((fenced.refused, fenced.newest), (token(4), token(5)));
        fence.check(&mut transaction, "another", token(1)).await.unwrap();
        let error = fence.check(&mut transaction, "", token(1)).await.unwrap_err();
        assert!(matches!(error, CheckError::Invalid(_)), "{error}");
        drop(transaction);
        // The limit ends with the transaction.
        let row = client.query_one("SHOW idle_in_transaction_session_timeout", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "0");
    });
}

/// The short form, from the store beside the data: the key and the token are those of the guard.
#[test]
fn a_guard_that_was_superseded_writes_nothing() {
    let server = shop();
    run(async {
        let store = bare(&server.url()).await;
        let (mut client, mut other) = (client(server.port()).await, client(server.port()).await);
        let locks = store.locks().clone().namespace("shop");
        let old = locks.mutex("stock").ttl(300 * MS).acquire().await.unwrap();
        let stale = Shown(old.key().clone(), old.token());
        old.release().await.unwrap();
        let new = locks.mutex("stock").acquire().await.unwrap();
        let mut transaction = client.transaction().await.unwrap();
        latchwork_postgres::fence(&mut transaction, &new).await.unwrap();
        transaction.commit().await.unwrap();
        let mut transaction = other.transaction().await.unwrap();
        let error = latchwork_postgres::fence(&mut transaction, &stale).await.unwrap_err();
        assert_eq!(error.refused().expect("it is stale").newest, new.token());
        drop(transaction);
        let mut transaction = client.transaction().await.unwrap();
        fence(server.port()).check_guard(&mut transaction, &new).await.unwrap();
        transaction.commit().await.unwrap();
        let kept = server.psql("SELECT convert_from(k, 'UTF8') FROM latchwork_fence").unwrap();
        assert_eq!(kept, "shop:stock");
        new.release().await.unwrap();
    });
}

/// What a guard of before has shown.
struct Shown(latchwork_store::Key, FencingToken);

impl latchwork_store::Held for Shown {
    fn key(&self) -> &latchwork_store::Key {
        &self.0
    }

    fn token(&self) -> FencingToken {
        self.1
    }
}

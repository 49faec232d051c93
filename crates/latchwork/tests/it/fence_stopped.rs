//! A stale holder cannot commit, and what a check does to the session of its transaction.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use latchwork::FencingToken;
use latchwork::fence::sql::{Dialect, Fences};
use latchwork_services::PgBouncer;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio_postgres::{Client, IsolationLevel};

use crate::fence_postgres::{World, client, run};

/// Set for the process that is stopped between its check and its commit: the port and the isolation level.
const ROLE: &str = "LATCHWORK_FENCED";

const SEC: Duration = Duration::from_secs(1);

fn token(n: u64) -> FencingToken {
    FencingToken::from_grant(n)
}

fn fences() -> Fences {
    Fences::new(Dialect::PostgreSql, "fences").unwrap().idle_limit(2 * SEC)
}

fn level(name: &str) -> IsolationLevel {
    match name {
        "serializable" => IsolationLevel::Serializable,
        _ => IsolationLevel::ReadCommitted,
    }
}

fn options(port: u16) -> PgConnectOptions {
    PgConnectOptions::new().host("127.0.0.1").port(port).username("postgres").database("postgres")
}

/// One unit is sold under a token; the number that is left.
async fn sell(
    client: &mut Client,
    at: IsolationLevel,
    token: FencingToken,
    pause: impl AsyncFnOnce(),
) -> Result<i64, Box<dyn std::error::Error>> {
    let mut transaction = client.build_transaction().isolation_level(at).start().await?;
    fences().check(&mut transaction, "stock", token).await?;
    let left: i64 = transaction.query_one("SELECT amount FROM stock", &[]).await?.get(0);
    transaction.execute("UPDATE stock SET amount = $1", &[&(left - 1)]).await?;
    pause().await;
    transaction.commit().await?;
    Ok(left - 1)
}

/// Says that the old holder has checked and written, and waits for a word.
async fn pause() {
    println!("\nchecked");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

async fn with_tokio_postgres(port: u16, at: &str) -> bool {
    let mut client = client(port).await;
    sell(&mut client, level(at), token(1), pause).await.is_ok()
}

async fn with_sqlx(port: u16, at: &str) -> bool {
    let mut connection = PgConnection::connect_with(&options(port)).await.unwrap();
    let mut transaction = connection.begin().await.unwrap();
    let at = format!("SET TRANSACTION ISOLATION LEVEL {at}");
    sqlx::query(&at).execute(&mut *transaction).await.unwrap();
    fences().check(&mut transaction, "stock", token(1)).await.unwrap();
    let sale = "UPDATE stock SET amount = amount - 1";
    sqlx::query(sale).execute(&mut *transaction).await.unwrap();
    pause().await;
    transaction.commit().await.is_ok()
}

/// `old` is the old holder, in a process of its own: it checks with the token 1, and says whether it has committed.
fn stopped_between_check_and_commit(
    at: &str,
    test: &str,
    old: impl AsyncFnOnce(u16, &str) -> bool,
) {
    if let Ok(role) = std::env::var(ROLE) {
        let (port, at) = role.split_once(' ').unwrap();
        return run(async { println!("\nsold {}", old(port.parse().unwrap(), at).await) });
    }
    let world = World::new(10);
    let port = world.server.port();
    let mut old = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("fence_stopped::{test}"), "--nocapture"])
        .env(ROLE, format!("{port} {at}"))
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
        let mut client = client(port).await;
        // It waits until the server ends the transaction of the one that has stopped.
        let mut tries = 0;
        let left = loop {
            match sell(&mut client, level(at), token(2), async || {}).await {
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
    assert_eq!(world.amount(), 9);
}

/// H154: a holder is stopped between its check and its commit.
#[test]
fn h154_a_stopped_holder_cannot_commit_at_read_committed() {
    let test = "h154_a_stopped_holder_cannot_commit_at_read_committed";
    stopped_between_check_and_commit("read committed", test, with_tokio_postgres);
}

/// H154 at the strictest level.
#[test]
fn h154_a_stopped_holder_cannot_commit_at_serializable() {
    let test = "h154_a_stopped_holder_cannot_commit_at_serializable";
    stopped_between_check_and_commit("serializable", test, with_tokio_postgres);
}

/// H154 with sqlx.
#[test]
fn h154_a_stopped_holder_with_sqlx_cannot_commit() {
    let test = "h154_a_stopped_holder_with_sqlx_cannot_commit";
    stopped_between_check_and_commit("read committed", test, with_sqlx);
}

/// H154 with sqlx, at the strictest level.
#[test]
fn h154_a_stopped_holder_with_sqlx_cannot_serialize() {
    let test = "h154_a_stopped_holder_with_sqlx_cannot_serialize";
    stopped_between_check_and_commit("serializable", test, with_sqlx);
}

/// H557: a check sets the limit of its transaction, and leaves a shorter one as it is.
#[test]
fn h557_a_check_makes_no_idle_limit_longer() {
    let world = World::new(1);
    run(async {
        let mut client = world.client().await;
        let usual = Fences::new(Dialect::PostgreSql, "fences").unwrap();
        let none = usual.clone().idle_limit(None);
        for (set, fences, kept) in [
            ("0", &usual, "10s"),
            ("1h", &usual, "10s"),
            ("10s", &usual, "10s"),
            ("250ms", &usual, "250ms"),
            ("3s", &fences(), "2s"),
            ("0", &none, "0"),
            ("1d", &none, "1d"),
        ] {
            let text = format!("SET idle_in_transaction_session_timeout = '{set}'");
            client.batch_execute(&text).await.unwrap();
            let show = "SHOW idle_in_transaction_session_timeout";
            let mut transaction = client.transaction().await.unwrap();
            fences.check(&mut transaction, "stock", token(1)).await.unwrap();
            let row = transaction.query_one(show, &[]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), kept, "{set}, {fences:?}");
            transaction.commit().await.unwrap();
            let row = client.query_one(show, &[]).await.unwrap();
            assert_eq!(row.get::<_, &str>(0), set, "it ends with the transaction");
        }
    });
}

/// H556: an index in the order of a language is out of order after an upgrade of the C library. Then a row is not found,
/// its resource gets a second one, and an old token is admitted.
#[test]
fn h556_names_of_resources_are_in_the_order_of_bytes() {
    let world = World::new(1);
    let order = world.server.psql(
        "SELECT c.collname FROM pg_index i JOIN pg_collation c ON c.oid = i.indcollation[0] \
         WHERE i.indrelid = 'fences'::regclass",
    );
    assert_eq!(order.unwrap(), "C");
}

/// H558: each transaction of a client has another connection of the pooler, with the statements of other clients.
#[test]
fn h558_a_check_behind_a_pooler_leaves_no_statement() {
    let world = World::new(1);
    let bouncer = PgBouncer::start(world.server.port(), 1).unwrap();
    run(async {
        let options = options(bouncer.port()).extra_float_digits(None).statement_cache_capacity(0);
        let mut one = PgConnection::connect_with(&options).await.unwrap();
        let mut two = PgConnection::connect_with(&options).await.unwrap();
        let mut other = client(bouncer.port()).await;
        for n in 1..4 {
            for connection in [&mut one, &mut two] {
                let mut transaction = connection.begin().await.unwrap();
                fences().check(&mut transaction, "stock", token(n)).await.unwrap();
                let stale = fences().check(&mut transaction, "stock", token(n - 1)).await;
                assert!(stale.unwrap_err().refused().is_some());
                transaction.commit().await.unwrap();
            }
            let mut transaction = other.transaction().await.unwrap();
            fences().check(&mut transaction, "stock", token(n)).await.unwrap();
            transaction.commit().await.unwrap();
        }
        let (statements, _) = (other.query_typed("SELECT FROM pg_prepared_statements", &[]), ());
        assert_eq!(statements.await.unwrap().len(), 0);
    });
}

/// A statement that was prepared once costs one trip.
#[test]
fn a_check_of_sqlx_is_prepared_if_others_are() {
    let world = World::new(1);
    run(async {
        let options = options(world.server.port());
        let mut connection = PgConnection::connect_with(&options).await.unwrap();
        let mut kept = Vec::new();
        for n in 1..4 {
            let mut transaction = connection.begin().await.unwrap();
            fences().check(&mut transaction, "stock", token(n)).await.unwrap();
            sqlx::query("SELECT amount FROM stock").execute(&mut *transaction).await.unwrap();
            transaction.commit().await.unwrap();
            kept.push(connection.cached_statements_size());
        }
        assert_eq!(kept, [1, 2, 2]);
    });
}

#[test]
fn a_savepoint_that_is_rolled_back_takes_its_check_along() {
    let world = World::new(1);
    run(async {
        let mut client = world.client().await;
        let mut transaction = client.transaction().await.unwrap();
        let mut savepoint = transaction.transaction().await.unwrap();
        fences().check(&mut savepoint, "stock", token(9)).await.unwrap();
        savepoint.rollback().await.unwrap();
        fences().check(&mut transaction, "stock", token(1)).await.unwrap();
        let mut savepoint = transaction.transaction().await.unwrap();
        let error = fences().check(&mut savepoint, "stock", token(0)).await.unwrap_err();
        assert_eq!(error.refused().unwrap().newest, token(1));
        savepoint.rollback().await.unwrap();
        transaction.commit().await.unwrap();
        let kept = world.server.psql("SELECT token FROM fences").unwrap();
        assert_eq!(kept, token(1).get().to_string());
    });
}

/// A name that no index can have is an error, and not a token that nobody keeps.
#[test]
fn a_name_that_is_too_long_is_admitted_by_nobody() {
    let world = World::new(1);
    run(async {
        let mut client = world.client().await;
        let name: String =
            (0..4000_u32).map(|n| char::from_u32(0x4e00 + n * 7 % 5003).unwrap()).collect();
        for (bytes, is_kept) in [(2598, true), (2799, false)] {
            let mut transaction = client.transaction().await.unwrap();
            let checked = fences().check(&mut transaction, &name[..bytes], token(1)).await;
            assert_eq!(checked.is_ok(), is_kept, "{bytes}: {checked:?}");
            if let Err(error) = checked {
                let source = std::error::Error::source(&error).unwrap();
                let code = source.downcast_ref::<tokio_postgres::Error>().unwrap().code().unwrap();
                assert_eq!(code.code(), "54000");
            }
        }
    });
}

/// The locks are beside the data: the key and the token are those of the guard.
#[cfg(feature = "postgres")]
#[test]
fn a_guard_that_was_superseded_writes_nothing() {
    let world = World::new(1);
    run(async {
        latchwork::init(&world.server.url()).await.unwrap();
        let locks = latchwork::connect(&world.server.url()).await.unwrap().namespace("shop");
        let old = locks.mutex("stock").acquire().await.unwrap();
        locks.force_release("stock").await.unwrap();
        let new = locks.mutex("stock").acquire().await.unwrap();
        let (mut client, mut other) = (world.client().await, world.client().await);
        let mut transaction = client.transaction().await.unwrap();
        fences().check_guard(&mut transaction, &new).await.unwrap();
        transaction.commit().await.unwrap();
        let mut transaction = other.transaction().await.unwrap();
        let error = fences().check_guard(&mut transaction, &old).await.unwrap_err();
        assert_eq!(error.refused().expect("it is stale").newest, new.token());
        drop(transaction);
        let mut connection =
            PgConnection::connect_with(&options(world.server.port())).await.unwrap();
        let mut transaction = connection.begin().await.unwrap();
        fences().check_guard(&mut transaction, &new).await.unwrap();
        transaction.rollback().await.unwrap();
        let kept = world.server.psql("SELECT resource FROM fences").unwrap();
        assert_eq!(kept, "shop:stock");
        new.release().await.unwrap();
    });
}

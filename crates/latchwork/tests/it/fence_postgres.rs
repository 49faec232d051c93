//! Locks and transactions of PostgreSQL: what goes wrong when the lock is released before the
//! commit, and what the order of docs/fencing.md and the statements of `fence::sql` make of it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use latchwork::fence::sql::{Dialect, Fences, bigint};
use latchwork::{Driver, ErrorKind, FencingToken, Guard, LockManager};
use latchwork_services::PostgresServer;
use latchwork_store::MemoryBackend;
use tokio_postgres::{Client, NoTls, Transaction};

/// What may be needed on a busy machine for something that comes at once.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// How many transactions are open and do nothing.
const OPEN: &str = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";

/// A server with a stock, and a store of locks.
pub(crate) struct World {
    pub(crate) server: PostgresServer,
    pub(crate) locks: LockManager,
    pub(crate) fences: Fences,
}

impl World {
    pub(crate) fn new(amount: i64) -> Self {
        let server = PostgresServer::start().unwrap();
        let fences = Fences::new(Dialect::PostgreSql, "fences").unwrap();
        server.psql(&fences.create_table()).unwrap();
        server.psql(&fences.create_table()).unwrap();
        server
            .psql(&format!(
                "CREATE TABLE stock (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL,
                                     token BIGINT NOT NULL DEFAULT 0);
                 INSERT INTO stock VALUES (42, {amount})"
            ))
            .unwrap();
        let driver = Driver::start().unwrap();
        let locks = LockManager::new(MemoryBackend::new(driver.io()), driver);
        Self { server, locks, fences }
    }

    /// A connection of its own, that gives up a statement that waits for too long.
    pub(crate) async fn client(&self) -> Client {
        let client = client(self.server.port()).await;
        client.batch_execute("SET lock_timeout = '30s'").await.unwrap();
        client
    }

    pub(crate) async fn lock(&self) -> Guard {
        self.locks.mutex("stock/42").acquire_within(SOON).await.unwrap()
    }

    pub(crate) fn amount(&self) -> i64 {
        self.server.psql("SELECT amount FROM stock").unwrap().parse().unwrap()
    }

    /// Waits until some session waits for a row of another.
    pub(crate) async fn until_one_waits(&self) {
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waiting = async {
            while self.server.psql(waits).unwrap() != "1" {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(SOON, waiting).await.expect("nobody waits");
    }
}

/// A connection of its own.
pub(crate) async fn client(port: u16) -> Client {
    let conninfo = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) = tokio_postgres::connect(&conninfo, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn read(transaction: &Transaction<'_>) -> i64 {
    transaction.query_one("SELECT amount FROM stock WHERE id = 42", &[]).await.unwrap().get(0)
}

async fn write(transaction: &Transaction<'_>, amount: i64) {
    let sell = "UPDATE stock SET amount = $1 WHERE id = 42";
    assert_eq!(transaction.execute(sell, &[&amount]).await.unwrap(), 1);
}

async fn admit(world: &World, client: &impl tokio_postgres::GenericClient, token: i64) -> u64 {
    client.execute(&world.fences.admit().text, &[&"stock/42", &token]).await.unwrap()
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.unwrap().block_on(test);
}

/// The lock inside of the transaction, released before the commit: the next holder reads what was
/// there before.
#[test]
fn a_release_before_the_commit_shows_the_old_value() {
    let world = World::new(1);
    run(async {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let first = one.transaction().await.unwrap();
        let guard = world.lock().await;
        assert_eq!(read(&first).await, 1);
        write(&first, 0).await;
        guard.release().await.unwrap();

        let second = two.transaction().await.unwrap();
        let guard = world.lock().await;
        assert_eq!(read(&second).await, 1, "sold already, but not for this reader");
        first.commit().await.unwrap();
        write(&second, 0).await;
        guard.release().await.unwrap();
        second.commit().await.unwrap();
        // Two have sold the only one, and the database does not tell.
        assert_eq!(world.amount(), 0);
    });
}

/// The order of docs/fencing.md: lock, transaction, token, write, commit, release.
#[test]
fn a_release_after_the_commit_shows_the_new_value() {
    let world = World::new(1);
    run(async {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let guard = world.lock().await;
        let first = one.transaction().await.unwrap();
        assert_eq!(admit(&world, &first, bigint(guard.token())).await, 1);
        assert_eq!(read(&first).await, 1);
        write(&first, 0).await;

        let bound = Duration::from_millis(100);
        let early = world.locks.mutex("stock/42").acquire_within(bound).await;
        assert_eq!(early.unwrap_err().kind(), ErrorKind::TimedOut, "before the commit");
        first.commit().await.unwrap();
        guard.release().await.unwrap();

        let guard = world.lock().await;
        let second = two.transaction().await.unwrap();
        assert_eq!(admit(&world, &second, bigint(guard.token())).await, 1);
        assert_eq!(read(&second).await, 0, "nothing is left to sell");
    });
}

/// A lock that is waited for inside of a transaction: the database ends the transaction meanwhile,
/// unless the wait is bounded below its limit.
#[test]
fn an_unbounded_wait_outlives_its_transaction() {
    let world = World::new(1);
    run(async {
        let held = world.lock().await;
        for (bound, survives) in [(Duration::from_millis(100), true), (SOON, false)] {
            let mut client = world.client().await;
            let limit = if survives { "30s" } else { "100ms" };
            let set = format!("SET idle_in_transaction_session_timeout = '{limit}'");
            client.batch_execute(&set).await.unwrap();
            let transaction = client.transaction().await.unwrap();
            assert_eq!(read(&transaction).await, 1);
            let mutex = world.locks.mutex("stock/42");
            let waits = async { mutex.acquire_within(bound).await.map(drop) };
            let ended = async {
                while world.server.psql(OPEN).unwrap() != "0" {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::select! {
                waited = waits => {
                    assert!(survives, "the transaction has outlived the wait");
                    assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
                    transaction.rollback().await.unwrap();
                }
                () = ended => {
                    assert!(!survives, "the transaction has ended under the wait");
                    assert!(transaction.commit().await.is_err());
                }
            }
        }
        held.release().await.unwrap();
    });
}

/// Eight buyers, each with a connection of its own, in the order of docs/fencing.md.
#[test]
fn a_crowd_sells_exactly_the_stock() {
    let world = World::new(50);
    run(async {
        let buyers = (0..8).map(|_| async {
            let mut client = world.client().await;
            let mut sold = 0;
            loop {
                let guard = world.lock().await;
                let transaction = client.transaction().await.unwrap();
                assert_eq!(admit(&world, &transaction, bigint(guard.token())).await, 1);
                let amount = read(&transaction).await;
                if amount == 0 {
                    return sold;
                }
                tokio::task::yield_now().await;
                write(&transaction, amount - 1).await;
                transaction.commit().await.unwrap();
                guard.release().await.unwrap();
                sold += 1;
            }
        });
        let sold: i32 = futures_util::future::join_all(buyers).await.into_iter().sum();
        assert_eq!((sold, world.amount()), (50, 0));
    });
}

#[test]
fn the_count_of_rows_says_whether_a_token_is_admitted() {
    let world = World::new(1);
    run(async {
        let client = world.client().await;
        let token = |raw| bigint(FencingToken::from_raw(raw));
        let rising = [1, 9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1];
        for (n, &largest) in rising.iter().enumerate() {
            assert_eq!(admit(&world, &client, token(largest)).await, 1, "{largest}");
            assert_eq!(admit(&world, &client, token(largest)).await, 1, "{largest} again");
            for &smaller in &rising[..n] {
                assert_eq!(admit(&world, &client, token(smaller)).await, 0, "{smaller}");
            }
        }
        let register = world.fences.register().text;
        assert_eq!(client.execute(&register, &[&"other"]).await.unwrap(), 1);
        assert_eq!(client.execute(&register, &[&"other"]).await.unwrap(), 0);
    });
}

#[test]
fn h233_postgres_refuses_what_is_no_token() {
    let world = World::new(1);
    run(async {
        let client = world.client().await;
        let strange = bigint(FencingToken::from_raw(1 << 63));
        let admit = world.fences.admit().text;
        let first = client.execute(&admit, &[&"a", &strange]).await.unwrap_err();
        assert_eq!(first.code(), Some(&tokio_postgres::error::SqlState::CHECK_VIOLATION));
        assert_eq!(client.execute(&admit, &[&"a", &7i64]).await.unwrap(), 1);
        assert!(client.execute(&admit, &[&"a", &strange]).await.is_err());
        assert!(client.execute("UPDATE fences SET token = -1", &[]).await.is_err());
        assert_eq!(client.execute(&admit, &[&"a", &7i64]).await.unwrap(), 1);
    });
}

/// A holder whose lock has passed on wakes up inside of its transaction.
#[test]
fn a_late_transaction_is_refused_and_rolled_back() {
    let world = World::new(2);
    run(async {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let late = world.lock().await;
        let first = one.transaction().await.unwrap();
        assert_eq!(read(&first).await, 2);
        // What an expiry does to a holder that stands still.
        world.locks.force_release("stock/42").await.unwrap();
        let guard = world.lock().await;
        let second = two.transaction().await.unwrap();
        assert_eq!(admit(&world, &second, bigint(guard.token())).await, 1);
        write(&second, 1).await;
        second.commit().await.unwrap();

        assert_eq!(admit(&world, &first, bigint(late.token())).await, 0);
        first.rollback().await.unwrap();
        assert_eq!(world.amount(), 1);
    });
}

/// While one transaction has its token admitted and is not at its end, another one waits for it;
/// then a smaller token is refused, or admitted if the larger one was rolled back.
#[test]
fn a_check_waits_for_an_uncommitted_check() {
    let world = World::new(1);
    run(async {
        for (commits, rows) in [(true, 0), (false, 1)] {
            let (mut one, two) = (world.client().await, world.client().await);
            one.batch_execute("DELETE FROM fences").await.unwrap();
            assert_eq!(admit(&world, &one, 1_024).await, 1);
            let larger = one.transaction().await.unwrap();
            assert_eq!(admit(&world, &larger, 3_072).await, 1);
            let (answer, ()) = tokio::join!(admit(&world, &two, 2_048), async {
                world.until_one_waits().await;
                match commits {
                    true => larger.commit().await.unwrap(),
                    false => larger.rollback().await.unwrap(),
                }
            });
            assert_eq!(answer, rows, "after a commit: {commits}");
        }
    });
}

/// A lease ends inside of a transaction that has its token admitted: the next holder waits for the
/// commit, and then reads what was written.
#[test]
fn the_next_holder_waits_for_an_expired_holders_commit() {
    let world = World::new(1);
    run(async {
        let (mut one, mut two) = (world.client().await, world.client().await);
        let late = world.lock().await;
        let first = one.transaction().await.unwrap();
        assert_eq!(admit(&world, &first, bigint(late.token())).await, 1);
        world.locks.force_release("stock/42").await.unwrap();
        let guard = world.lock().await;
        let second = two.transaction().await.unwrap();
        let (rows, ()) = tokio::join!(admit(&world, &second, bigint(guard.token())), async {
            world.until_one_waits().await;
            write(&first, 0).await;
            first.commit().await.unwrap();
        });
        assert_eq!(rows, 1);
        assert_eq!(read(&second).await, 0, "sold by the one before");
    });
}

#[test]
fn a_column_of_ones_own_needs_no_second_statement() {
    let world = World::new(20);
    run(async {
        let client = world.client().await;
        let d = Dialect::PostgreSql;
        let sell = format!(
            "UPDATE stock SET amount = $1, {} WHERE id = $2 AND {}",
            d.assignment("token", 3).unwrap(),
            d.condition("token", 3).unwrap()
        );
        let (old, new) = (FencingToken::from_grant(1), FencingToken::from_grant(2));
        let id = 42_i64;
        for (amount, token, rows) in [(19_i64, new, 1), (18, old, 0), (18, new, 1)] {
            let changed = client.execute(&sell, &[&amount, &id, &bigint(token)]).await.unwrap();
            assert_eq!(changed, rows, "{amount} with {token}");
        }
        assert_eq!(world.amount(), 18);
    });
}

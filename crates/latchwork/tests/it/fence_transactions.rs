//! `Fences::check` in transactions of tokio-postgres and sqlx, on a real PostgreSQL, with holders of
//! a real lock.

use std::time::Duration;

use latchwork::fence::sql::{Dialect, Fences};
use latchwork::fence::transaction::CheckError;
use latchwork::{ErrorKind, FencingToken, Guard, LockManager};
use sqlx::{ConnectOptions, Connection, PgConnection, Postgres, Row};

use crate::fence_postgres::{SOON, World, run};

/// The clients, each with itself and with the other one.
const PAIRS: [[Kind; 2]; 4] = [
    [Kind::Tokio, Kind::Tokio],
    [Kind::Sqlx, Kind::Sqlx],
    [Kind::Tokio, Kind::Sqlx],
    [Kind::Sqlx, Kind::Tokio],
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tokio,
    Sqlx,
}

enum Client {
    Tokio(tokio_postgres::Client),
    Sqlx(PgConnection),
}

enum Transaction<'a> {
    Tokio(tokio_postgres::Transaction<'a>),
    Sqlx(sqlx::Transaction<'a, Postgres>),
}

/// What a check answers, whichever client it was.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Admitted,
    /// By this token.
    Refused(u64),
    Invalid(String),
    /// The SQLSTATE.
    Database(String),
}

impl<E> From<Result<(), CheckError<E>>> for Answer
where
    E: std::error::Error + 'static,
{
    fn from(checked: Result<(), CheckError<E>>) -> Self {
        match checked {
            Ok(()) => Self::Admitted,
            Err(CheckError::Refused(fenced)) => Self::Refused(fenced.newest.get()),
            Err(CheckError::Invalid(error)) => {
                assert_eq!(error.kind(), ErrorKind::Invalid);
                Self::Invalid(error.to_string())
            }
            Err(error) => {
                let source = std::error::Error::source(&error).unwrap();
                let state = source
                    .downcast_ref::<tokio_postgres::Error>()
                    .and_then(|e| Some(e.code()?.code().to_owned()))
                    .or_else(|| {
                        let error = source.downcast_ref::<sqlx::Error>()?.as_database_error()?;
                        Some(error.code()?.into_owned())
                    });
                Self::Database(state.unwrap_or_else(|| error.to_string()))
            }
        }
    }
}

impl Client {
    async fn of(kind: Kind, world: &World) -> Self {
        if kind == Kind::Tokio {
            return Self::Tokio(world.client().await);
        }
        let options = sqlx::postgres::PgConnectOptions::new()
            .host("127.0.0.1")
            .port(world.server.port())
            .username("postgres")
            .database("postgres")
            .options([("lock_timeout", "30s")])
            .disable_statement_logging();
        Self::Sqlx(PgConnection::connect_with(&options).await.unwrap())
    }

    async fn begin(&mut self) -> Transaction<'_> {
        match self {
            Self::Tokio(client) => Transaction::Tokio(client.transaction().await.unwrap()),
            Self::Sqlx(client) => Transaction::Sqlx(client.begin().await.unwrap()),
        }
    }
}

impl Client {
    /// Waits until a larger token was admitted, or nothing is left to sell.
    async fn until_another_was_there(&mut self, token: FencingToken) {
        let text = format!(
            "SELECT count(*) FROM stock WHERE amount = 0
             OR EXISTS (SELECT FROM fences WHERE token > {token})"
        );
        let look = async {
            loop {
                let found: i64 = match self {
                    Self::Tokio(it) => it.query_one(&text, &[]).await.unwrap().get(0),
                    Self::Sqlx(it) => sqlx::query(&text).fetch_one(it).await.unwrap().get(0),
                };
                if found > 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, look).await.expect("nobody else comes");
    }
}

impl Transaction<'_> {
    async fn check(&mut self, fences: &Fences, resource: &str, token: FencingToken) -> Answer {
        match self {
            Self::Tokio(it) => fences.check(it, resource, token).await.into(),
            Self::Sqlx(it) => fences.check(it, resource, token).await.into(),
        }
    }

    async fn read(&mut self) -> i64 {
        let read = "SELECT amount FROM stock WHERE id = 42";
        match self {
            Self::Tokio(it) => it.query_one(read, &[]).await.unwrap().get(0),
            Self::Sqlx(it) => sqlx::query(read).fetch_one(&mut **it).await.unwrap().get(0),
        }
    }

    async fn write(&mut self, amount: i64) {
        let write = format!("UPDATE stock SET amount = {amount} WHERE id = 42");
        self.execute(&write).await;
    }

    async fn execute(&mut self, text: &str) {
        match self {
            Self::Tokio(it) => drop(it.execute(text, &[]).await.unwrap()),
            Self::Sqlx(it) => drop(sqlx::query(text).execute(&mut **it).await.unwrap()),
        }
    }

    async fn commit(self) {
        match self {
            Self::Tokio(it) => it.commit().await.unwrap(),
            Self::Sqlx(it) => it.commit().await.unwrap(),
        }
    }

    async fn rollback(self) {
        match self {
            Self::Tokio(it) => it.rollback().await.unwrap(),
            Self::Sqlx(it) => it.rollback().await.unwrap(),
        }
    }
}

/// Two processes on one store of locks.
async fn two_processes(name: &str) -> [LockManager; 2] {
    let store = format!("mem:{name}");
    [latchwork::connect(&store).await.unwrap(), latchwork::connect(&store).await.unwrap()]
}

async fn lock(process: &LockManager) -> Guard {
    process.mutex("stock/42").acquire_within(SOON).await.unwrap()
}

/// A guard of the first process whose lock has passed on to the second, and that of the second: what
/// an expiry does to a holder that stands still.
async fn late_and_next([one, two]: &[LockManager; 2]) -> (Guard, Guard) {
    let late = lock(one).await;
    two.force_release("stock/42").await.unwrap();
    (late, lock(two).await)
}

fn token(raw: u64) -> FencingToken {
    FencingToken::from_raw(raw)
}

#[test]
fn a_token_is_admitted_unless_a_larger_one_was() {
    let world = World::new(1);
    run(async {
        for kind in [Kind::Tokio, Kind::Sqlx] {
            let mut client = Client::of(kind, &world).await;
            let resource = format!("stock/{kind:?} '\"; -- 锁");
            let rising = [1, 9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1];
            for (n, &largest) in rising.iter().enumerate() {
                let mut transaction = client.begin().await;
                let mut check =
                    async |raw| transaction.check(&world.fences, &resource, token(raw)).await;
                assert_eq!(check(largest).await, Answer::Admitted, "{largest}");
                assert_eq!(check(largest).await, Answer::Admitted, "{largest} again");
                for &smaller in &rising[..n] {
                    assert_eq!(check(smaller).await, Answer::Refused(largest), "{smaller}");
                }
                transaction.commit().await;
            }
            // Another resource, and another name of the table, start anew.
            let mut transaction = client.begin().await;
            let answer = transaction.check(&world.fences, "other", token(1)).await;
            assert_eq!(answer, Answer::Admitted);
            let qualified = Fences::new(Dialect::PostgreSql, "public.fences").unwrap();
            let answer = transaction.check(&qualified, &resource, token(5)).await;
            assert_eq!(answer, Answer::Refused((1 << 63) - 1));
            transaction.rollback().await;
        }
    });
}

/// A holder whose lock has passed on writes first and asks then, in one transaction: nothing stays.
#[test]
fn a_stale_write_is_undone_by_the_check_in_its_transaction() {
    let world = World::new(2);
    run(async {
        let locks = two_processes("a-stale-write").await;
        for [stale, fresh] in PAIRS {
            let (mut one, mut two) =
                (Client::of(stale, &world).await, Client::of(fresh, &world).await);
            let (late, guard) = late_and_next(&locks).await;
            let mut second = two.begin().await;
            let answer = second.check(&world.fences, "stock/42", guard.token()).await;
            assert_eq!(answer, Answer::Admitted);
            second.write(1).await;
            second.commit().await;

            let mut first = one.begin().await;
            first.write(100).await;
            let answer = first.check(&world.fences, "stock/42", late.token()).await;
            assert_eq!(answer, Answer::Refused(guard.token().get()), "{stale:?}, {fresh:?}");
            assert_eq!(first.read().await, 100, "a refusal does not abort the transaction");
            drop(first);
            // The connection is usable again once the dropped transaction was rolled back.
            let mut again = one.begin().await;
            assert_eq!(again.read().await, 1);
            again.rollback().await;
            guard.release().await.unwrap();
        }
    });
}

/// The newer holder has its token admitted and is not at its end: the stale one waits for the row,
/// and is refused, or admitted if the newer one has changed nothing after all.
#[test]
fn a_stale_check_waits_for_a_newer_transaction_and_its_outcome() {
    let world = World::new(1);
    run(async {
        let locks = two_processes("a-stale-check").await;
        for [stale, fresh] in PAIRS {
            for commits in [true, false] {
                let (mut one, mut two) =
                    (Client::of(stale, &world).await, Client::of(fresh, &world).await);
                let (late, guard) = late_and_next(&locks).await;
                // Both transactions have begun, and the stale one has read.
                let (mut first, mut second) = (one.begin().await, two.begin().await);
                first.read().await;
                let answer = second.check(&world.fences, "stock/42", guard.token()).await;
                assert_eq!(answer, Answer::Admitted);
                let stale_check = first.check(&world.fences, "stock/42", late.token());
                let (answer, ()) = tokio::join!(stale_check, async {
                    world.until_one_waits().await;
                    match commits {
                        true => second.commit().await,
                        false => second.rollback().await,
                    }
                });
                let expected = match commits {
                    true => Answer::Refused(guard.token().get()),
                    false => Answer::Admitted,
                };
                assert_eq!(answer, expected, "{stale:?}, {fresh:?}, commits: {commits}");
                first.rollback().await;
                guard.release().await.unwrap();
            }
        }
    });
}

/// The lease ends after the check: the next holder waits for the commit, and reads what was written.
#[test]
fn the_next_holder_waits_for_an_admitted_transaction() {
    let world = World::new(5);
    run(async {
        let locks = two_processes("a-next-holder").await;
        for (left, [stale, fresh]) in (1..).zip(PAIRS) {
            let (mut one, mut two) =
                (Client::of(stale, &world).await, Client::of(fresh, &world).await);
            let late = lock(&locks[0]).await;
            let (mut first, mut second) = (one.begin().await, two.begin().await);
            let answer = first.check(&world.fences, "stock/42", late.token()).await;
            assert_eq!(answer, Answer::Admitted);
            locks[1].force_release("stock/42").await.unwrap();
            let guard = lock(&locks[1]).await;
            let next = second.check(&world.fences, "stock/42", guard.token());
            let (answer, ()) = tokio::join!(next, async {
                world.until_one_waits().await;
                first.write(left).await;
                first.commit().await;
            });
            assert_eq!(answer, Answer::Admitted);
            assert_eq!(second.read().await, left, "{stale:?}, {fresh:?}");
            second.rollback().await;
            guard.release().await.unwrap();
        }
    });
}

/// Above READ COMMITTED the one that has waited gets an error in place of an answer, and its
/// transaction can only be begun again.
#[test]
fn a_stronger_isolation_answers_with_a_serialization_error() {
    let world = World::new(1);
    run(async {
        for (n, [waits, first]) in (1..).zip(PAIRS) {
            let (mut one, mut two) =
                (Client::of(waits, &world).await, Client::of(first, &world).await);
            let (mut waiting, mut holding) = (one.begin().await, two.begin().await);
            waiting.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").await;
            waiting.read().await;
            let answer = holding.check(&world.fences, "stock/42", token(n * 10)).await;
            assert_eq!(answer, Answer::Admitted);
            let check = waiting.check(&world.fences, "stock/42", token(n * 10 + 1));
            let (answer, ()) = tokio::join!(check, async {
                world.until_one_waits().await;
                holding.commit().await;
            });
            assert_eq!(answer, Answer::Database("40001".into()), "{waits:?}, {first:?}");
        }
    });
}

#[test]
fn a_failed_fence_check_is_an_error() {
    let world = World::new(1);
    run(async {
        for kind in [Kind::Tokio, Kind::Sqlx] {
            let mut client = Client::of(kind, &world).await;
            let mut transaction = client.begin().await;
            let answer = transaction.check(&world.fences, "a", token(1 << 63)).await;
            let Answer::Invalid(message) = answer else { panic!("{answer:?}") };
            assert!(message.starts_with("token: 9223372036854775808 is 2^63 or more"), "{message}");
            let sqlite = Fences::new(Dialect::Sqlite, "fences").unwrap();
            let answer = transaction.check(&sqlite, "a", token(1)).await;
            let Answer::Invalid(message) = answer else { panic!("{answer:?}") };
            assert!(message.starts_with("dialect: Sqlite, but"), "{message}");
            assert!(message.contains("make the fences with Dialect::PostgreSql"), "{message}");
            // Neither has touched the transaction.
            assert_eq!(transaction.check(&world.fences, "a", token(1)).await, Answer::Admitted);
            let missing = Fences::new(Dialect::PostgreSql, "missing").unwrap();
            let answer = transaction.check(&missing, "a", token(1)).await;
            assert_eq!(answer, Answer::Database("42P01".into()));
        }
    });
}

/// Buyers of both clients, each in a process of its own, whose locks are taken away now and then. The first one never
/// waits for the others, so that they do not all wait.
#[test]
fn a_crowd_sells_exactly_the_stock_under_forced_releases() {
    let world = World::new(40);
    run(async {
        let mut buyers = tokio::task::JoinSet::new();
        for buyer in 0..6 {
            let kind = if buyer % 2 == 0 { Kind::Tokio } else { Kind::Sqlx };
            let (mut client, fences) = (Client::of(kind, &world).await, world.fences.clone());
            let locks = latchwork::connect("mem:a-crowd").await.unwrap();
            buyers.spawn(async move {
                let (mut sold, mut refused) = (0, 0);
                for round in 0.. {
                    let guard = lock(&locks).await;
                    if buyer > 0 && (round + buyer) % 5 == 0 {
                        locks.force_release("stock/42").await.unwrap();
                        client.until_another_was_there(guard.token()).await;
                    }
                    let mut transaction = client.begin().await;
                    match transaction.check(&fences, "stock/42", guard.token()).await {
                        Answer::Admitted => {}
                        Answer::Refused(newest) => {
                            assert!(newest > guard.token().get());
                            refused += 1;
                            transaction.rollback().await;
                            continue;
                        }
                        answer => panic!("{answer:?}"),
                    }
                    let amount = transaction.read().await;
                    if amount == 0 {
                        break;
                    }
                    tokio::task::yield_now().await;
                    transaction.write(amount - 1).await;
                    transaction.commit().await;
                    sold += 1;
                }
                (sold, refused)
            });
        }
        let all = buyers.join_all().await;
        let sold: i32 = all.iter().map(|(sold, _)| sold).sum();
        let refused: i32 = all.iter().map(|(_, refused)| refused).sum();
        assert_eq!((sold, world.amount()), (40, 0));
        assert!(refused > 0, "nobody was late");
    });
}

//! What the tests share: a runtime, and clients as other processes would be.

#![allow(dead_code, reason = "each test uses its own")]

use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::ops::Deref;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_postgres::{PostgresBackend, PostgresConfig};
use latchwork_services::{PostgresOptions, PostgresServer};
pub(crate) use latchwork_store::testing::stalls;
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Claim, ClaimId, Error, Grant, Key,
    Linger, Query, Released, Renewal, Snapshot, Wake,
};

pub(crate) const SEC: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// Counts the advisory locks of processes that listen. A migration holds the one with the number 0 for a moment, and
/// a grant one of an observer, whose class is negative.
pub(crate) const LISTENERS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' \
     AND classid::bigint < 2147483648 AND objid <> 0";

pub(crate) fn run<F: Future>(test: F) -> F::Output {
    stalls::start();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

/// A connection of somebody else.
pub(crate) async fn plain_client(port: u16) -> tokio_postgres::Client {
    let conninfo = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
    let (client, connection) =
        tokio_postgres::connect(&conninfo, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A server with the tables.
pub(crate) fn server() -> PostgresServer {
    server_with(&PostgresOptions::new(), "")
}

/// As [`server`], with what follows the address of `init`.
pub(crate) fn server_with(options: &PostgresOptions, init: &str) -> PostgresServer {
    let server = PostgresServer::start_with(options).unwrap();
    run(prepare(&format!("{}{init}", server.url()))).unwrap();
    server
}

pub(crate) async fn prepare(url: &str) -> Result<Vec<String>, Error> {
    let driver = Driver::start().unwrap();
    let config = PostgresConfig::parse(url)?;
    Ok(latchwork_postgres::init(config, driver.io()).await?.steps)
}

pub(crate) async fn examine(url: &str) -> latchwork_store::doctor::Report {
    let driver = Driver::start().unwrap();
    latchwork_postgres::doctor(PostgresConfig::parse(url).unwrap(), driver.io()).await.unwrap()
}

/// The verbs alone, without the engine.
pub(crate) struct Bare {
    backend: Arc<PostgresBackend>,
    locks: LockManager,
}

impl Deref for Bare {
    type Target = PostgresBackend;

    fn deref(&self) -> &PostgresBackend {
        &self.backend
    }
}

pub(crate) async fn connect(url: &str) -> Result<Bare, Error> {
    let driver = Driver::start().unwrap();
    let backend = PostgresBackend::connect(PostgresConfig::parse(url)?, driver.io()).await?;
    Ok(Bare { locks: LockManager::new(backend.clone(), driver), backend })
}

pub(crate) async fn bare(url: &str) -> Bare {
    connect(url).await.expect("the store answers")
}

/// An id after whose end its process removes no rows: tests count statements.
fn plain() -> ClaimId {
    ClaimId::from_u128(ClaimId::random().as_u128() | 1)
}

/// A claim on this key.
pub(crate) fn claim(key: &str) -> Claim {
    latchwork_store::testing::claim(key).with(|it| it.id = plain())
}

/// A claim on the same key that is another one.
pub(crate) fn like(other: &Claim) -> Claim {
    other.clone().with(|it| it.id = plain())
}

impl Bare {
    pub(crate) fn locks(&self) -> &LockManager {
        &self.locks
    }

    pub(crate) fn shared(&self) -> Arc<PostgresBackend> {
        self.backend.clone()
    }

    /// A claim that waits for this hold, and whose place names the channel of its process: the first wait ends when
    /// the process listens.
    pub(crate) async fn waits_for(&self, held: &Claim) -> (Claim, Blocked) {
        let waits = like(held);
        let blocked = self.blocked(&waits).await;
        self.wait(&waits, &blocked).await.unwrap();
        let blocked = self.blocked(&waits).await;
        (waits, blocked)
    }

    pub(crate) async fn granted(&self, claim: &Claim) -> Grant {
        match answered(|| self.try_acquire(claim)).await {
            Attempt::Granted(grant) => grant,
            blocked => panic!("{blocked:?}"),
        }
    }

    pub(crate) async fn blocked(&self, claim: &Claim) -> Blocked {
        match answered(|| self.try_acquire(claim)).await {
            Attempt::Blocked(blocked) => blocked,
            granted => panic!("{granted:?}"),
        }
    }

    pub(crate) async fn renewed(&self, claim: &Claim) -> Renewal {
        answered(|| async { self.renew_all(std::slice::from_ref(claim)).await.remove(0) }).await
    }

    pub(crate) async fn held(&self, claim: &Claim) -> bool {
        matches!(self.renewed(claim).await, Renewal::Held { .. })
    }

    pub(crate) async fn released(&self, claim: &Claim) -> Released {
        answered(|| self.release(claim, Linger::None)).await
    }

    pub(crate) async fn show(&self, key: &str) -> Snapshot {
        let query = Query::Key(Key::new(key).unwrap());
        answered(|| self.inspect(&query)).await.remove(0)
    }

    /// Tries and waits until the claim is granted.
    pub(crate) async fn acquired(&self, claim: &Claim) -> Grant {
        let start = Instant::now();
        loop {
            let blocked = match answered(|| self.try_acquire(claim)).await {
                Attempt::Granted(grant) => return grant,
                Attempt::Blocked(blocked) => blocked,
            };
            assert!(start.elapsed() < 60 * SEC, "still {blocked:?}");
            let pace = blocked.retry_after.unwrap_or(claim.ttl / 3).min(claim.ttl / 3);
            let wait = tokio::time::timeout(pace, self.wait(claim, &blocked)).await;
            if let Ok(Ok(Wake::Admitted { grant, .. })) = wait {
                return grant;
            }
        }
    }
}

/// A claim after whose release its process removes rows that nobody uses.
pub(crate) fn sweeps() -> Claim {
    claim("sweeps").with(|it| it.id = ClaimId::from_u128(it.id.as_u128() & !15))
}

/// A short process that does so.
pub(crate) async fn sweep(url: &str) {
    let (bare, claim) = (bare(url).await, sweeps());
    bare.acquired(&claim).await;
    bare.released(&claim).await;
}

/// Asks again as the engine does while there is no answer.
pub(crate) async fn answered<T, F>(verb: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, BackendError>>,
{
    let start = Instant::now();
    loop {
        match tokio::time::timeout(5 * SEC, verb()).await {
            Ok(Err(error)) if error.kind == BackendErrorKind::Unreachable => {
                assert!(start.elapsed() < 60 * SEC, "{error:?}");
                tokio::time::sleep(10 * MS).await;
            }
            Err(_) => assert!(start.elapsed() < 60 * SEC, "no answer"),
            Ok(answer) => return answer.unwrap(),
        }
    }
}

/// Asks the server again and again until it answers so.
pub(crate) async fn until(server: &PostgresServer, statement: &str, such: impl Fn(&str) -> bool) {
    let start = Instant::now();
    loop {
        let said = server.psql(statement).unwrap_or_else(|error| error.to_string());
        if such(&said) {
            return;
        }
        assert!(start.elapsed() < 60 * SEC, "{statement}: it stays {said:?}");
        tokio::time::sleep(10 * MS).await;
    }
}

/// How many connections of Latchwork there are with this in their last statement.
pub(crate) fn connections(server: &PostgresServer, with: &str) -> u32 {
    let statement = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'latchwork%' AND query LIKE '%{with}%'"
    );
    server.psql(&statement).unwrap().parse().unwrap()
}

/// Somebody's transaction that keeps a lock.
pub(crate) struct Locked(std::thread::JoinHandle<std::process::Output>);

impl Locked {
    /// Returns when the row of a key is locked, for some seconds.
    pub(crate) async fn row(server: &PostgresServer, key: &str, seconds: f32) -> Self {
        let lock = format!("SELECT FROM latchwork WHERE k = '{key}' FOR UPDATE");
        Self::by(server, key, &lock, seconds).await
    }

    /// Returns when this statement has got its lock, which it keeps for some seconds.
    pub(crate) async fn by(
        server: &PostgresServer,
        name: &str,
        statement: &str,
        seconds: f32,
    ) -> Self {
        let mut psql = Command::new("psql");
        psql.env("PGAPPNAME", format!("locks {name}")).arg(server.url());
        psql.args(["-XqAt", "-v", "ON_ERROR_STOP=1"]);
        let pipes = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut psql = pipes.spawn().expect("psql runs");
        let (mut stdin, stdout) = (psql.stdin.take().unwrap(), psql.stdout.take().unwrap());
        writeln!(stdin, "BEGIN; {statement};\n\\echo locked").unwrap();
        let (tell, locked) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let is_locked = BufReader::new(stdout).lines().any(|line| line.unwrap() == "locked");
            let _ = tell.send(is_locked);
            std::thread::sleep(Duration::from_secs_f32(seconds));
            let _ = writeln!(stdin, "COMMIT;");
            drop(stdin);
            psql.wait_with_output().expect("it ends")
        });
        assert!(locked.await.unwrap(), "{statement}: it has no lock");
        Self(thread)
    }

    /// Whether the lock is kept no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its end.
    pub(crate) fn ends(self) {
        let output = self.0.join().expect("it does not panic");
        assert!(output.status.success(), "{output:?}");
    }
}

/// A process with the number 7 listens.
pub(crate) async fn listening(server: &PostgresServer) -> tokio_postgres::Client {
    let (client, connection) =
        tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let class = "SELECT (regexp_match(pg_get_functiondef('latchwork_leave'::regproc), 'lock_shared\\((\\d+)'))[1]";
    let class = server.psql(class).unwrap();
    client.batch_execute(&format!("SELECT pg_advisory_lock({class}, 7)")).await.unwrap();
    client
}

//! The bare statements of a lock on PostgreSQL, over the library that Latchwork uses: rows, and advisory locks.
//! A task has a connection of its own while it holds, and statements are prepared once.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::free_cycles::Work;
use crate::roles::Lock;

/// Takes a row that nobody has or whose lease has ended. The table is made by [`crate::postgres`].
const TAKE: &str = "INSERT INTO bench AS b (k, owner, ends) \
    VALUES ($1, $2, clock_timestamp() + interval '30 seconds') \
    ON CONFLICT (k) DO UPDATE SET owner = excluded.owner, ends = excluded.ends \
    WHERE b.ends <= clock_timestamp() RETURNING owner";
const GIVE: &str = "DELETE FROM bench WHERE k = $1 AND owner = $2";
/// Does not wait for the disk.
const GIVE_ASYNC: &str = "DELETE FROM bench WHERE k = $1 AND owner = $2 \
    RETURNING set_config('synchronous_commit', 'off', true)";

/// Connections that nobody uses, each with its two statements.
struct Pool {
    config: Config,
    texts: [&'static str; 2],
    idle: Mutex<Vec<Session>>,
}

struct Session {
    client: Client,
    statements: Vec<Statement>,
}

impl Pool {
    fn new(url: &str, texts: [&'static str; 2]) -> Result<Arc<Self>, Box<dyn std::error::Error>> {
        Ok(Arc::new(Self { config: url.parse()?, texts, idle: Mutex::default() }))
    }

    /// One that is idle, or a new one that the caller's runtime moves.
    async fn take(&self) -> Session {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return session;
        }
        let (client, connection) = self.config.connect(NoTls).await.expect("the server answers");
        tokio::spawn(connection);
        let mut statements = Vec::new();
        for text in self.texts {
            statements.push(client.prepare(text).await.expect("a statement"));
        }
        Session { client, statements }
    }

    fn put(&self, session: Session) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }
}

/// Locks in rows.
#[derive(Clone)]
pub(crate) struct Rows(Arc<Pool>);

impl Rows {
    pub(crate) fn connect(url: &str, durable: bool) -> Result<Self, Box<dyn std::error::Error>> {
        Pool::new(url, [TAKE, if durable { GIVE } else { GIVE_ASYNC }]).map(Self)
    }

    pub(crate) async fn cycles(self, mut work: Work) {
        let session = self.0.take().await;
        let (key, Session { client, statements }) = (format!("bench/{}", work.name), &session);
        for n in 0_i64.. {
            if !work.goes_on() {
                break;
            }
            let taken = client.query(&statements[0], &[&key, &n]).await;
            assert_eq!(taken.expect("the server answers").len(), 1, "the key is its own");
            let given = client.execute(&statements[1], &[&key, &n]).await;
            assert_eq!(given.expect("the server answers"), 1);
        }
        self.0.put(session);
    }
}

/// Advisory locks of sessions.
#[derive(Clone)]
pub(crate) struct Sessions {
    pool: Arc<Pool>,
    /// As DistributedLock for .NET does it: a try first, then a blocking call on the same connection, each with
    /// the limits set in the same trip, and nothing prepared.
    as_distributed_lock: bool,
}

/// One key of them.
pub(crate) struct Advisory {
    sessions: Sessions,
    key: i64,
}

impl Sessions {
    pub(crate) fn connect(
        url: &str,
        as_distributed_lock: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let texts = ["SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"];
        Ok(Self { pool: Pool::new(url, texts)?, as_distributed_lock })
    }

    pub(crate) fn on(&self, key: &str) -> Advisory {
        // FNV-1a: the same in all processes.
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Advisory { sessions: self.clone(), key: hash as i64 }
    }

    pub(crate) async fn cycles(self, mut work: Work) {
        let lock = self.on(&format!("bench/{}", work.name));
        while work.goes_on() {
            lock.release(lock.acquire().await).await;
        }
    }
}

pub(crate) struct Held(Session);

impl Lock for Advisory {
    type Held = Held;

    async fn acquire(&self) -> Held {
        let session = self.sessions.pool.take().await;
        let Session { client, statements } = &session;
        if !self.sessions.as_distributed_lock {
            client.query(&statements[0], &[&self.key]).await.expect("the server answers");
            return Held(session);
        }
        for way in ["pg_try_advisory_lock", "pg_advisory_lock"] {
            let text = format!(
                "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
                 SELECT pg_catalog.{way}({}) AS result",
                self.key
            );
            let said = client.simple_query(&text).await.expect("the server answers");
            let is_refused = said.iter().any(|message| match message {
                tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0) == Some("f"),
                _ => false,
            });
            if !is_refused {
                break;
            }
        }
        Held(session)
    }

    async fn release(&self, Held(session): Held) {
        let Session { client, statements } = &session;
        if self.sessions.as_distributed_lock {
            let text = format!("SELECT pg_catalog.pg_advisory_unlock({}) AS result", self.key);
            client.simple_query(&text).await.expect("the server answers");
        } else {
            client.query(&statements[1], &[&self.key]).await.expect("the server answers");
        }
        self.sessions.pool.put(session);
    }
}

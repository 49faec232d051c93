//! The bare statements of a lock on PostgreSQL, over the library that Latchwork uses: rows, and advisory locks. A
//! task has a connection of its own while it holds, and statements are prepared once.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, SimpleQueryMessage, Statement};

use crate::handoffs::WAITING;
use crate::roles::{Lock, Outcome};

/// Takes a row that nobody has or whose lease has ended. The table is made by [`crate::store`].
const TAKE: &str = "INSERT INTO bench AS b (k, owner, ends) \
    VALUES ($1, $2, clock_timestamp() + interval '30 seconds') \
    ON CONFLICT (k) DO UPDATE SET owner = excluded.owner, ends = excluded.ends \
    WHERE b.ends <= clock_timestamp() RETURNING owner";
const GIVE: &str = "DELETE FROM bench WHERE k = $1 AND owner = $2";
/// Does not wait for the disk.
const GIVE_ASYNC: &str = "DELETE FROM bench WHERE k = $1 AND owner = $2 \
    RETURNING set_config('synchronous_commit', 'off', true)";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Rows,
    /// Their end does not wait for the disk.
    RowsAsync,
    /// Of sessions.
    Advisory,
    /// As DistributedLock for .NET does it: a try first, then a blocking call on the same connection, each with the
    /// limits set in the same trip, and nothing prepared.
    DistributedLock,
}

/// A connection with its two statements.
pub(crate) struct Session {
    client: Client,
    statements: [Statement; 2],
}

/// Connections that nobody uses.
struct Pool {
    config: Config,
    way: Way,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    /// One that is idle, or a new one that the caller's runtime moves.
    async fn take(&self) -> Outcome<Session> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            return Ok(session);
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        tokio::spawn(connection);
        let [take, give] = match self.way {
            Way::Rows => [TAKE, GIVE],
            Way::RowsAsync => [TAKE, GIVE_ASYNC],
            _ => ["SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)"],
        };
        let statements = [client.prepare(take).await?, client.prepare(give).await?];
        Ok(Session { client, statements })
    }
}

/// A lock on one key.
#[derive(Clone)]
pub(crate) struct Bare {
    pool: Arc<Pool>,
    key: String,
}

impl Bare {
    pub(crate) fn at(url: &str, way: Way) -> Outcome<Self> {
        let pool = Arc::new(Pool { config: url.parse()?, way, idle: Mutex::default() });
        Ok(Self { pool, key: String::new() })
    }

    pub(crate) fn on(&self, key: &str) -> Self {
        Self { key: key.into(), ..self.clone() }
    }

    /// FNV-1a: the same in all processes.
    fn number(&self) -> i64 {
        self.key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }) as i64
    }
}

impl Lock for Bare {
    type Held = (Session, i64);

    async fn acquire(&self) -> Outcome<(Session, i64)> {
        static NEXT: AtomicI64 = AtomicI64::new(0);
        let (session, key) = (self.pool.take().await?, self.number());
        let Session { client, statements } = &session;
        match self.pool.way {
            Way::Rows | Way::RowsAsync => {
                let owner = NEXT.fetch_add(1, Ordering::Relaxed);
                if client.query(&statements[0], &[&self.key, &owner]).await?.len() != 1 {
                    return Err("the key is another's".into());
                }
                return Ok((session, owner));
            }
            Way::Advisory => drop(client.query(&statements[0], &[&key]).await?),
            Way::DistributedLock => {
                for way in ["pg_try_advisory_lock", "pg_advisory_lock"] {
                    let text = format!(
                        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; \
                         SELECT pg_catalog.{way}({key}) AS result"
                    );
                    let said = client.simple_query(&text).await?;
                    let is_no = |said: &SimpleQueryMessage| matches!(said, SimpleQueryMessage::Row(row) if row.get(0) == Some("f"));
                    if !said.iter().any(is_no) {
                        break;
                    }
                }
            }
        }
        Ok((session, key))
    }

    async fn release(&self, (session, number): (Session, i64)) -> Outcome {
        let Session { client, statements } = &session;
        match self.pool.way {
            Way::Rows | Way::RowsAsync => {
                if client.execute(&statements[1], &[&self.key, &number]).await? != 1 {
                    return Err("the key is another's".into());
                }
            }
            Way::Advisory => drop(client.query(&statements[1], &[&number]).await?),
            Way::DistributedLock => {
                let text = format!("SELECT pg_catalog.pg_advisory_unlock({number}) AS result");
                client.simple_query(&text).await?;
            }
        }
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        Ok(())
    }
}

const WRITE: &str = "UPDATE bench SET owner = $1 WHERE k = 'ring'";
/// It has nothing to wait for on the disk.
const NOTIFY: &str = "SELECT pg_notify($1, ''), set_config('synchronous_commit', 'off', true)";

/// A place in a ring of processes, each with a connection on which it listens: who is done writes the next one into a
/// row, waits for the disk, and notifies it, both statements in one flight. It is no lock, as that of etcd.
pub(crate) struct Ring {
    client: Client,
    statements: [Statement; 2],
    /// Lives as long as the process listens.
    _listening: Client,
    news: tokio::sync::Mutex<UnboundedReceiver<()>>,
    next: usize,
    /// The first one begins.
    turn: AtomicBool,
}

impl Ring {
    /// Listens from now on.
    pub(crate) async fn join(url: &str, number: usize) -> Outcome<Arc<Self>> {
        let config: Config = url.parse()?;
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        let row = "INSERT INTO bench VALUES ('ring', 0, clock_timestamp()) ON CONFLICT DO NOTHING";
        client.batch_execute(row).await?;
        let (listening, mut connection) = config.connect(NoTls).await?;
        let (sender, news) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
            while let Some(Ok(message)) = messages.next().await {
                if matches!(message, AsyncMessage::Notification(_)) && sender.send(()).is_err() {
                    return;
                }
            }
        });
        listening.batch_execute(&format!("LISTEN ring_{number}")).await?;
        Ok(Arc::new(Self {
            statements: [client.prepare(WRITE).await?, client.prepare(NOTIFY).await?],
            client,
            _listening: listening,
            news: tokio::sync::Mutex::new(news),
            next: (number + 1) % (WAITING + 1),
            turn: AtomicBool::new(number == 0),
        }))
    }
}

impl Lock for Arc<Ring> {
    type Held = ();

    async fn acquire(&self) -> Outcome {
        if !self.turn.swap(false, Ordering::Relaxed) {
            self.news.lock().await.recv().await.ok_or("nobody listens")?;
        }
        Ok(())
    }

    async fn release(&self, _held: ()) -> Outcome {
        let (owner, channel) = (self.next as i64, format!("ring_{}", self.next));
        let (owner, channel): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) =
            ([&owner], [&channel]);
        let [write, notify] = &self.statements;
        let (written, notified) =
            tokio::join!(self.client.execute(write, &owner), self.client.query(notify, &channel));
        notified?;
        if written? == 1 { Ok(()) } else { Err("no ring".into()) }
    }
}

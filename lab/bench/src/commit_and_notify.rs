//! The least that a durable handover can cost on PostgreSQL: processes in a ring, each with a connection on which it
//! listens. Who is done writes the next one into a row, waits for the disk, and notifies it, both statements in one
//! flight. It is no lock: nobody can join, and nothing goes on if one of them dies.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::{StreamExt as _, stream};
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Statement};

use crate::handoffs::WAITING;
use crate::roles::Lock;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const WRITE: &str = "UPDATE bench SET owner = $1 WHERE k = 'ring'";
/// It has nothing to wait for on the disk.
const NOTIFY: &str = "SELECT pg_notify($1, ''), set_config('synchronous_commit', 'off', true)";

/// A place in the ring.
pub(crate) struct Ring {
    client: Client,
    write: Statement,
    notify: Statement,
    /// Lives as long as the process listens.
    _listening: Client,
    news: Mutex<UnboundedReceiver<()>>,
    next: usize,
    /// The first one begins.
    turn: AtomicBool,
}

fn channel(number: usize) -> String {
    format!("ring_{number}")
}

impl Ring {
    /// Listens from now on. The table is made by [`crate::postgres`].
    pub(crate) async fn join(url: &str, number: usize) -> Result<Self> {
        let config: Config = url.parse()?;
        let (client, connection) = config.connect(NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "INSERT INTO bench VALUES ('ring', 0, clock_timestamp()) ON CONFLICT DO NOTHING",
            )
            .await?;
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
        listening.batch_execute(&format!("LISTEN {}", channel(number))).await?;
        Ok(Self {
            write: client.prepare(WRITE).await?,
            notify: client.prepare(NOTIFY).await?,
            client,
            _listening: listening,
            news: Mutex::new(news),
            next: (number + 1) % (WAITING + 1),
            turn: AtomicBool::new(number == 0),
        })
    }
}

impl Lock for Ring {
    type Held = ();

    async fn acquire(&self) {
        if !self.turn.swap(false, Ordering::Relaxed) {
            self.news.lock().await.recv().await.expect("the server answers");
        }
    }

    async fn release(&self, _held: ()) {
        let (owner, channel) = (self.next as i64, channel(self.next));
        let (owner, channel): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 1]) =
            ([&owner], [&channel]);
        let (written, notified) = tokio::join!(
            self.client.execute(&self.write, &owner),
            self.client.query(&self.notify, &channel),
        );
        assert_eq!(written.expect("the server answers"), 1);
        notified.expect("the server answers");
    }
}

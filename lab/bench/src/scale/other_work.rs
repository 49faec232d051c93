//! What others ask of the same server: small writes, each over a connection of its own.

use latchwork::Driver;
use latchwork_zookeeper::bare::Bare as ZooKeeper;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio_postgres::{Client, NoTls, Statement};

use crate::bare::etcd::Bare as Etcd;
use crate::roles::{Failed, Outcome};
use crate::store::{Store, Which};

/// One connection, and the key that it writes.
pub(super) enum Other {
    /// `SET`
    Redis { connection: MultiplexedConnection, key: String },
    /// A put.
    Etcd(Etcd),
    /// A node is made, its neighbours are listed, and it is deleted.
    ZooKeeper { bare: ZooKeeper, folder: String },
    /// An `UPDATE` of one row that waits for the disk.
    Postgres { client: Client, update: Statement, row: i64 },
}

fn failed(error: impl std::fmt::Display) -> Failed {
    error.to_string().into()
}

impl Other {
    /// Connects the one with this number.
    pub(super) async fn connect(
        which: Which,
        store: &dyn Store,
        row: i64,
        driver: &Driver,
    ) -> Outcome<Self> {
        let (url, key) = (store.address(), format!("other-{row}"));
        Ok(match which {
            Which::Redis => {
                let client = redis::Client::open(url)?;
                let connection = client.get_multiplexed_async_connection().await?;
                Self::Redis { connection, key }
            }
            Which::Etcd => Self::Etcd(Etcd::connect(&url, &Handle::current()).await?.on(&key)),
            Which::ZooKeeper => {
                let (bare, folder) =
                    (ZooKeeper::connect(&url, driver.io()).await?, format!("/{key}"));
                bare.make_folder(&folder).await.map_err(failed)?;
                Self::ZooKeeper { bare, folder }
            }
            Which::Postgres => {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                tokio::spawn(connection);
                let made = "CREATE TABLE IF NOT EXISTS other (id bigint PRIMARY KEY, n bigint)";
                client.batch_execute(made).await?;
                let insert = "INSERT INTO other VALUES ($1, 0) ON CONFLICT DO NOTHING";
                client.execute(insert, &[&row]).await?;
                let update = client.prepare("UPDATE other SET n = n + 1 WHERE id = $1").await?;
                Self::Postgres { client, update, row }
            }
            other => return Err(format!("{other:?} has no server that others use").into()),
        })
    }

    /// Asks once.
    pub(super) async fn ask(&self) -> Outcome {
        match self {
            Self::Redis { connection, key } => {
                let set = redis::cmd("SET").arg(key).arg("x".repeat(100)).to_owned();
                Ok(set.exec_async(&mut connection.clone()).await?)
            }
            Self::Etcd(bare) => bare.put().await,
            Self::ZooKeeper { bare, folder } => {
                let (node, _) = bare.create_and_list(folder).await.map_err(failed)?;
                bare.delete(&node).await.map_err(failed)
            }
            Self::Postgres { client, update, row } => match client.execute(update, &[row]).await? {
                1 => Ok(()),
                other => Err(format!("{other} rows").into()),
            },
        }
    }
}

//! What others ask of the same server: small writes, each over a connection of its own.

use latchwork::Driver;
use latchwork_zookeeper::bare::Bare as ZooKeeper;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

use crate::etcd_bare::Bare as Etcd;
use crate::growth::served::{Served, Which};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// One connection, and the key that it writes.
pub(super) enum Other {
    /// `SET`
    Redis { stream: TcpStream, request: Vec<u8> },
    /// A put.
    Etcd { bare: Etcd, key: Vec<u8> },
    /// A node is made, its neighbours are listed, and it is deleted.
    ZooKeeper { bare: ZooKeeper, folder: String },
    /// An `UPDATE` of one row that waits for the disk.
    Postgres { client: Client, update: Statement, row: i64 },
}

impl Other {
    /// Connects the one with this number.
    pub(super) fn connect(
        which: Which,
        store: &dyn Served,
        number: i64,
        driver: &Driver,
        on: &Runtime,
    ) -> Result<Self> {
        let url = store.address();
        let port = *store.ports().first().ok_or("no server")?;
        Ok(match which {
            Which::Redis => {
                let stream = on.block_on(TcpStream::connect(("127.0.0.1", port)))?;
                stream.set_nodelay(true)?;
                let (key, value) = (format!("other-{number}"), "x".repeat(100));
                let request = format!(
                    "*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n",
                    key.len(),
                    value.len()
                );
                Self::Redis { stream, request: request.into_bytes() }
            }
            Which::Etcd => {
                let bare = Etcd::connect(&url, on).map_err(|error| error.to_string())?;
                Self::Etcd { bare, key: format!("other/{number}").into_bytes() }
            }
            Which::ZooKeeper => {
                let folder = format!("/other-{number}");
                let bare = on.block_on(async {
                    let bare = ZooKeeper::connect(&url, driver.io()).await?;
                    bare.make_folder(&folder).await.map_err(|error| error.to_string())?;
                    Ok::<_, Box<dyn std::error::Error>>(bare)
                })?;
                Self::ZooKeeper { bare, folder }
            }
            Which::Postgres => on.block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
                tokio::spawn(connection);
                let made =
                    "CREATE TABLE IF NOT EXISTS other (id bigint PRIMARY KEY, n bigint NOT NULL)";
                client.batch_execute(made).await?;
                client
                    .execute("INSERT INTO other VALUES ($1, 0) ON CONFLICT DO NOTHING", &[&number])
                    .await?;
                let update = client.prepare("UPDATE other SET n = n + 1 WHERE id = $1").await?;
                Ok::<_, Box<dyn std::error::Error>>(Self::Postgres { client, update, row: number })
            })?,
            Which::Memory | Which::Files | Which::Redlock => {
                return Err(format!("{which:?} has no server that others use").into());
            }
        })
    }

    /// Asks once.
    pub(super) async fn ask(&mut self) -> std::result::Result<(), String> {
        match self {
            Self::Redis { stream, request } => {
                let mut answer = [0; 5];
                let asked = async {
                    stream.write_all(request).await?;
                    stream.read_exact(&mut answer).await
                };
                asked.await.map_err(|error| error.to_string())?;
                if &answer == b"+OK\r\n" { Ok(()) } else { Err(format!("{answer:?}")) }
            }
            Self::Etcd { bare, key } => bare.put(key).await,
            Self::ZooKeeper { bare, folder } => {
                let made = bare.create_and_list(folder).await;
                let (node, _) = made.map_err(|error| error.to_string())?;
                bare.delete(&node).await.map_err(|error| error.to_string())
            }
            Self::Postgres { client, update, row } => {
                let rows = client.execute(&*update, &[&*row]).await;
                match rows.map_err(|error| error.to_string())? {
                    1 => Ok(()),
                    other => Err(format!("{other} rows")),
                }
            }
        }
    }
}

//! Free locks on Redis against the bare commands over the same connection library.
//!
//! The bare cycle is `SET NX PX` and a script that compares and deletes, once with a connection on the
//! caller's thread, as Latchwork's is, and once with one that a thread of its own drives.

use std::sync::Arc;

use latchwork_services::{RedisOptions, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value, cmd};
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::free_cycles::{self, Entry, Work};
use crate::peers;

pub(crate) const DELETE_IF_MINE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                              return redis.call('del',KEYS[1]) else return 0 end";

/// How many times the rate of a client that blocks as well.
const OF_REDIS_PY: f64 = 1.5;

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let there = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let far = Bare::connect(&server, &there)?;
    let near = Bare::connect(&server, &here)?;
    let locks = here.block_on(latchwork::connect(&server.url()))?;
    let (kinds, missing) = peers::install(vec![
        peers::RSLOCK,
        peers::ASYNC_REDIS_LOCK,
        peers::REDIS_PY,
        peers::REDISSON,
        peers::REDSYNC,
        peers::RUEIDISLOCK,
    ]);
    // The floor: bare commands over the library that Latchwork uses.
    let of_bare = |tasks| Some(if tasks == 1 { 0.95 } else { 0.75 });
    let of_near_bare = |tasks| (tasks == 1).then_some(0.9);
    let bare = |name, bare: Bare| {
        let entry = Entry::here(name, &here, move |n| bare.clone().cycles(n));
        entry.counted(&server, &peers::SPIN)
    };
    let mut entries = vec![
        bare("bare", far).goal(of_bare),
        Entry::latchwork("latchwork, with fencing token", &here, locks)
            .counted(&server, &peers::LATCHWORK),
        bare("bare, on the caller's thread", near).on_callers_thread().goal(of_near_bare),
    ];
    for kind in &kinds {
        entries.push(Entry::of(kind, &server)?);
    }
    let blocking = here.block_on(latchwork::connect(&server.url()))?;
    entries.push(
        Entry::blocking("latchwork, a thread that blocks", blocking)
            .counted(&server, &peers::LATCHWORK)
            .beside(peers::REDIS_PY.name, OF_REDIS_PY),
    );
    free_cycles::run(entries, &missing, &server, "")
}

/// A connection, and the hash of the script that releases.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) hash: Arc<str>,
}

impl Bare {
    pub(crate) fn connect(
        server: &RedisServer,
        on: &Runtime,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = server.url().into_connection_info()?.set_tcp_settings(tcp);
        let client = Client::open(info)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = async move {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let hash: String =
                cmd("SCRIPT").arg("LOAD").arg(DELETE_IF_MINE).query_async(&mut connection).await?;
            Ok::<_, redis::RedisError>(Self { connection, hash: hash.into() })
        };
        let made = on.spawn(connection);
        Ok(on.block_on(made)??)
    }

    async fn cycles(self, mut work: Work) {
        let key = format!("bench/{}", work.name);
        let mut connection = self.connection;
        for n in 0u64.. {
            if !work.goes_on() {
                return;
            }
            let value = format!("{:016x}{n:016x}", work.name);
            let set = take(&key, &value);
            let taken = connection.send_packed_command(&set).await.expect("the server answers");
            assert_eq!(taken, Value::Okay);
            let delete = give_back(&self.hash, &key, &value);
            let freed = connection.send_packed_command(&delete).await.expect("the server answers");
            assert_eq!(freed, Value::Int(1));
        }
    }
}

/// The bare way to take a key.
pub(crate) fn take(key: &str, value: &str) -> Cmd {
    let mut set = cmd("SET");
    set.arg(key).arg(value).arg("NX").arg("PX").arg(30_000);
    set
}

/// The bare way to give it back, by the hash of the script.
pub(crate) fn give_back(hash: &str, key: &str, value: &str) -> Cmd {
    let mut delete = cmd("EVALSHA");
    delete.arg(hash).arg(1).arg(key).arg(value);
    delete
}

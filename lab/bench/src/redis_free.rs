//! Free locks on Redis against the bare commands over the same connection library.
//!
//! The bare cycle is `SET NX PX` and a script that compares and deletes, once with a connection on the
//! caller's thread, as Latchwork's is, and once with one that a thread of its own drives. With
//! Latchwork's own script in place of `SET` it is the floor of a lock that gives tokens.

use std::sync::Arc;

use latchwork_services::{RedisOptions, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value, cmd};
use tokio::runtime::Runtime;

use crate::free_cycles::{self, Entry, Work};
use crate::{Outcome, free_child, peers};

pub(crate) const DELETE_IF_MINE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                              return redis.call('del',KEYS[1]) else return 0 end";

/// How many times the rate of a client that blocks as well.
const OF_REDIS_PY: f64 = 1.5;

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let (kinds, missing) = peers::install(vec![
        peers::RSLOCK,
        peers::ASYNC_REDIS_LOCK,
        peers::REDIS_PY,
        peers::REDISSON,
        peers::REDSYNC,
        peers::RUEIDISLOCK,
    ]);
    let of_near_bare = |tasks| (tasks == 1).then_some(0.9);
    let url = server.url();
    let bare = |name, what| {
        Ok::<_, Box<dyn std::error::Error>>(
            Entry::apart(name, what, &url, &[])?.counted(&server, &peers::SPIN),
        )
    };
    let mut entries = vec![
        bare("bare, on the caller's thread", free_child::BARE_REDIS_NEAR)?.goal(of_near_bare),
        Entry::latchwork("latchwork, with fencing token", &server)?,
        // The server counts what the script calls as well, so only scripts are counted.
        bare("bare, with the script that gives a token", free_child::TOKEN_REDIS_NEAR)?
            .counted(&server, &peers::LATCHWORK),
        bare("bare, on a thread of its own", free_child::BARE_REDIS)?,
    ];
    for kind in &kinds {
        let entry = Entry::of(kind, &server)?;
        entries.push(match kind.name == peers::RSLOCK.name {
            true => entry.goal(|tasks| Some(if tasks > 1 { 1.0 } else { 0.95 })).cpu_goal(1.0),
            false => entry,
        });
    }
    let blocking = "latchwork, a thread that blocks";
    entries.push(
        Entry::apart(blocking, free_child::LATCHWORK_THREADS, &url, &[])?
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
    /// The hash of Latchwork's script for a free key, where that takes the key.
    token: Option<Arc<str>>,
}

impl Bare {
    pub(crate) fn connect(url: &str, on: &Runtime) -> Result<Self, Box<dyn std::error::Error>> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = url.into_connection_info()?.set_tcp_settings(tcp);
        let client = Client::open(info)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = async move {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let hash: String =
                cmd("SCRIPT").arg("LOAD").arg(DELETE_IF_MINE).query_async(&mut connection).await?;
            Ok::<_, redis::RedisError>(Self { connection, hash: hash.into(), token: None })
        };
        let made = on.spawn(connection);
        Ok(on.block_on(made)??)
    }

    /// The same with the script that Latchwork takes a free key by: what is between this and the plain
    /// command is the price of the token, and of the look for a queue.
    pub(crate) fn with_tokens(mut self, on: &Runtime) -> redis::RedisResult<Self> {
        let mut load = cmd("SCRIPT");
        load.arg("LOAD").arg(take_script());
        let hash: String = on.block_on(load.query_async(&mut self.connection))?;
        self.token = Some(hash.into());
        Ok(self)
    }

    pub(crate) async fn cycles(self, mut work: Work) {
        let key = format!("bench/{}", work.name);
        let mut connection = self.connection;
        for n in 0u64.. {
            if !work.goes_on() {
                return;
            }
            let value = format!("{:016x}{n:016x}", work.name);
            let value = match &self.token {
                None => {
                    let set = connection.send_packed_command(&take(&key, &value)).await;
                    assert_eq!(set.expect("the server answers"), Value::Okay);
                    value
                }
                Some(hash) => {
                    let set = take_with_token(hash, &key, &value);
                    match connection.send_packed_command(&set).await.expect("the server answers") {
                        Value::Int(token) => format!("{value}{token}"),
                        other => panic!("{other:?} instead of a token"),
                    }
                }
            };
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

/// Latchwork's script for one free key.
pub(crate) fn take_script() -> String {
    let included = [
        (
            "--#include draw.lua\n",
            include_str!("../../../crates/latchwork-redis/src/protocol/scripts/draw.lua"),
        ),
        (
            "--#include keep.lua\n",
            include_str!("../../../crates/latchwork-redis/src/protocol/scripts/keep.lua"),
        ),
    ];
    let script = include_str!("../../../crates/latchwork-redis/src/protocol/scripts/try.lua");
    included.iter().fold(script.to_owned(), |script, (mark, piece)| script.replace(mark, piece))
}

/// To take a key by it.
fn take_with_token(hash: &str, key: &str, value: &str) -> Cmd {
    let mut take = cmd("EVALSHA");
    take.arg(hash).arg(3).arg(key).arg("bench-token").arg(format!("{key}:line"));
    take.arg(value).arg(30_000).arg("").arg(0);
    take
}

/// The bare way to give it back, by the hash of the script.
pub(crate) fn give_back(hash: &str, key: &str, value: &str) -> Cmd {
    let mut delete = cmd("EVALSHA");
    delete.arg(hash).arg(1).arg(key).arg(value);
    delete
}

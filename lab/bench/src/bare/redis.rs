//! The bare commands of a lock on Redis: over the library that Latchwork uses, and over sockets that block.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisResult, Value, cmd};
use rustix::event::{PollFd, PollFlags, poll};
use tokio::runtime::Handle;

use crate::roles::{Lock, Outcome};

const DELETE_IF_MINE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                              return redis.call('del',KEYS[1]) else return 0 end";
/// Of five.
const MAJORITY: usize = 3;

/// Latchwork's script for one free key.
fn take_script() -> String {
    macro_rules! script {
        ($name:literal) => {
            include_str!(concat!("../../../../crates/latchwork-redis/src/protocol/scripts/", $name))
        };
    }
    let script = script!("try.lua").replace("--#include draw.lua\n", script!("draw.lua"));
    script.replace("--#include keep.lua\n", script!("keep.lua"))
}

/// A value that nobody else has.
fn value() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{:016x}{:016x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `SET NX PX` until it is done, and a script that compares and deletes. With Latchwork's own script for a free key
/// in place of `SET` it is the floor of a lock that gives tokens.
#[derive(Clone)]
pub(crate) struct Bare {
    connection: MultiplexedConnection,
    give: Arc<str>,
    take: Option<Arc<str>>,
    key: Arc<str>,
}

impl Bare {
    /// A connection that this runtime moves.
    pub(crate) async fn connect(url: &str, with_token: bool, on: &Handle) -> Outcome<Self> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        let made = on.spawn(async move {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            client.get_multiplexed_async_connection_with_config(&config).await
        });
        let mut connection = made.await??;
        let mut load = async |script: &str| {
            let hash: RedisResult<String> =
                cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await;
            hash.map(Arc::from)
        };
        let give = load(DELETE_IF_MINE).await?;
        let take = if with_token { Some(load(&take_script()).await?) } else { None };
        Ok(Self { connection, give, take, key: "".into() })
    }

    pub(crate) fn on(&self, key: &str) -> Self {
        Self { key: key.into(), ..self.clone() }
    }

    fn take(&self, value: &str) -> Cmd {
        let mut take = cmd(if self.take.is_some() { "EVALSHA" } else { "SET" });
        match &self.take {
            None => take.arg(&*self.key).arg(value).arg("NX").arg("PX").arg(30_000),
            Some(hash) => {
                take.arg(&**hash).arg(3).arg(&*self.key).arg("bench-token");
                take.arg(format!("{}:line", self.key)).arg(value).arg(30_000).arg("").arg(0)
            }
        };
        take
    }

    fn give(&self, value: &str) -> Cmd {
        let mut give = cmd("EVALSHA");
        give.arg(&*self.give).arg(1).arg(&*self.key).arg(value);
        give
    }
}

impl Lock for Bare {
    type Held = String;

    async fn acquire(&self) -> Outcome<String> {
        let (value, mut connection) = (value(), self.connection.clone());
        let take = self.take(&value);
        loop {
            match connection.send_packed_command(&take).await? {
                Value::Okay => return Ok(value),
                Value::Int(token) => return Ok(format!("{value}{token}")),
                _ => {}
            }
        }
    }

    async fn release(&self, value: String) -> Outcome {
        match self.connection.clone().send_packed_command(&self.give(&value)).await? {
            Value::Int(1) => Ok(()),
            other => Err(format!("{other:?} for a release").into()),
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = (u64, RedisResult<Value>)> + Send>>;

/// The same at five servers at once, where a majority counts.
pub(crate) struct Five {
    servers: Vec<Bare>,
    /// The number of the last question, and answers that a majority did not wait for: they are heard beside the next.
    asked: tokio::sync::Mutex<(u64, FuturesUnordered<Answer>)>,
}

impl Five {
    /// At `redlock://HOST:PORT,HOST:PORT...`
    pub(crate) async fn connect(url: &str, on: &Handle) -> Outcome<Self> {
        let (_, hosts) = url.split_once("://").ok_or("an address")?;
        let mut servers = Vec::new();
        for host in hosts.split(',') {
            servers.push(Bare::connect(&format!("redis://{host}"), false, on).await?);
        }
        Ok(Self { servers, asked: Default::default() })
    }

    pub(crate) fn on(&self, key: &str) -> Self {
        let servers = self.servers.iter().map(|server| server.on(key)).collect();
        Self { servers, asked: Default::default() }
    }

    async fn ask(&self, command: impl Fn(&Bare) -> Cmd, yes: &Value) -> Outcome {
        let (number, asked) = &mut *self.asked.lock().await;
        *number += 1;
        for server in &self.servers {
            let (mut connection, command, number) =
                (server.connection.clone(), command(server), *number);
            asked.push(Box::pin(async move {
                (number, connection.send_packed_command(&command).await)
            }));
        }
        let mut said = 0;
        while said < MAJORITY {
            let (of, answer) = asked.next().await.ok_or("no majority")?;
            said += usize::from(answer? == *yes && of == *number);
        }
        Ok(())
    }
}

impl Lock for Five {
    type Held = String;

    async fn acquire(&self) -> Outcome<String> {
        let value = value();
        self.ask(|server| server.take(&value), &Value::Okay).await?;
        Ok(value)
    }

    async fn release(&self, value: String) -> Outcome {
        self.ask(|server| server.give(&value), &Value::Int(1)).await
    }
}

/// Compares the owner, takes a token, names the next owner and wakes it.
const HAND_ON: &str = "local owner = redis.call('GET', KEYS[2]) or ARGV[1]
if owner ~= ARGV[1] then
  return redis.error_reply('another owner')
end
redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[2], ARGV[1], 'PX', 30000)
return redis.call('LPUSH', KEYS[1], '1')";

/// What a socket that blocks, without a library, does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The least that waking another process can cost: the waiter sleeps in `BLPOP`, the holder sends one
    /// `LPUSH`. It is no lock: nothing frees the key if its holder dies.
    Push,
    /// The same, woken by a script that also does what no lock that counts tokens goes without.
    Script,
    /// The two scripts of a free lock. As Latchwork's thread does, it sends, polls and receives.
    Plain,
}

/// Blocks its thread, so there is one task in its process.
pub(crate) struct Socket {
    way: Way,
    key: String,
    connection: Mutex<BufReader<TcpStream>>,
    /// The hashes of the scripts that take and give.
    take: String,
    give: String,
}

impl Socket {
    /// A connection of its own. For a push, the first client puts the value there.
    pub(crate) fn on(url: &str, key: &str, way: Way) -> Outcome<Self> {
        let stream = TcpStream::connect(url.strip_prefix("redis://").ok_or("redis://HOST:PORT")?)?;
        stream.set_nodelay(true)?;
        let connection = Mutex::new(BufReader::new(stream));
        let (take, give) = (String::new(), String::new());
        let mut this = Self { way, key: key.into(), connection, take, give };
        let give = if way == Way::Script { HAND_ON } else { DELETE_IF_MINE };
        this.give = this.ask(&["SCRIPT", "LOAD", give])?;
        this.take = this.ask(&["SCRIPT", "LOAD", &take_script()])?;
        let begun = format!("{key}:begun");
        if way != Way::Plain && this.ask(&["SET", &begun, "1", "NX"])?.starts_with('+') {
            this.ask(&["LPUSH", key, "1"])?;
        }
        Ok(this)
    }

    /// Sends a command and reads its answer: one line, or the text behind its length.
    fn ask(&self, words: &[&str]) -> Outcome<String> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        connection.get_mut().write_all(command.as_bytes())?;
        poll(&mut [PollFd::new(connection.get_ref(), PollFlags::IN)], None)?;
        let mut line = || -> Outcome<String> {
            let mut line = String::new();
            connection.read_line(&mut line)?;
            Ok(line.trim_end().into())
        };
        let first = line()?;
        match first.as_bytes() {
            [b'+' | b':', ..] | [b'$', b'-', ..] => Ok(first),
            [b'$', ..] => line(),
            // That of `BLPOP`.
            [b'*', ..] => (0..4).map(|_| line()).last().ok_or("an element")?,
            _ => Err(format!("{}: {first:?}", words[0]).into()),
        }
    }
}

impl Lock for Socket {
    type Held = String;

    async fn acquire(&self) -> Outcome<String> {
        let key = &*self.key;
        if self.way != Way::Plain {
            return self.ask(&["BLPOP", key, "0"]);
        }
        let (value, line) = (value(), format!("{key}:line"));
        let take =
            ["EVALSHA", &self.take, "3", key, "bench-token", &line, &value, "30000", "", "0"];
        Ok(format!("{value}{}", self.ask(&take)?.trim_start_matches(':')))
    }

    async fn release(&self, value: String) -> Outcome {
        let (key, give) = (&*self.key, &*self.give);
        let (owner, tokens) = (format!("{key}:owner"), format!("{key}:tokens"));
        let said = match self.way {
            Way::Push => self.ask(&["LPUSH", key, "1"])?,
            Way::Script => self.ask(&["EVALSHA", give, "3", key, &owner, &tokens, "somebody"])?,
            Way::Plain => self.ask(&["EVALSHA", give, "1", key, &value])?,
        };
        if said == ":1" { Ok(()) } else { Err(format!("{said:?} for a release").into()) }
    }
}

//! The stock in the Redis server that the locks are in.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::time::Duration;

use latchwork::FencingToken;
use latchwork::fence::Fenced;
use latchwork_redis::fence;
use redis::{Cmd, Connection, FromRedisValue, Pipeline, RedisError, Value, cmd, pipe};

use crate::shop::Shop;

/// After this the keys go by themselves, should nobody be left to remove them.
const LIFE: Duration = Duration::from_secs(600);

/// How long the server may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes how many are left, under the fence.
const WRITE: &str = "
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])";

/// A stock in a string, the fence's token in another, and the lock of the articles in a third.
pub(crate) struct RedisShop {
    connection: RefCell<Connection>,
    stock: String,
    fence: String,
    lock: String,
}

impl fmt::Debug for RedisShop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisShop").field("stock", &self.stock).finish_non_exhaustive()
    }
}

impl RedisShop {
    /// Connects to the server at an address of Latchwork, whose options are not for this client.
    pub(crate) fn connect(store: &str, prefix: &str) -> io::Result<Self> {
        let url = store.split('?').next().unwrap_or(store);
        let client = redis::Client::open(url).map_err(failed)?;
        let connection = client.get_connection_with_timeout(LIMIT).map_err(failed)?;
        connection.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        connection.set_write_timeout(Some(LIMIT)).map_err(failed)?;
        Ok(Self {
            connection: RefCell::new(connection),
            stock: format!("{prefix}:stock"),
            fence: format!("{prefix}:fence"),
            lock: format!("{prefix}:lock"),
        })
    }

    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query(&mut *self.connection.borrow_mut())
    }

    fn ask_all<T: FromRedisValue>(&self, commands: &Pipeline) -> io::Result<T> {
        commands.query(&mut *self.connection.borrow_mut()).map_err(failed)
    }
}

fn failed(error: RedisError) -> io::Error {
    io::Error::other(format!("the stock in Redis: {error}"))
}

fn millis(length: Duration) -> u64 {
    length.as_millis() as u64
}

impl Shop for RedisShop {
    fn fill(&self, stock: u32) -> io::Result<()> {
        let mut all = pipe();
        all.atomic().cmd("SET").arg(&self.stock).arg(stock).arg("PX").arg(millis(LIFE)).ignore();
        all.cmd("DEL").arg(&self.fence).arg(&self.lock).ignore();
        self.ask_all(&all)
    }

    fn read(&self) -> io::Result<u32> {
        self.ask(cmd("GET").arg(&self.stock)).map_err(failed)
    }

    fn write(&self, left: u32) -> io::Result<()> {
        self.ask(cmd("SET").arg(&self.stock).arg(left).arg("PX").arg(millis(LIFE))).map_err(failed)
    }

    fn write_fenced(&self, left: u32, token: FencingToken) -> io::Result<Result<(), Fenced>> {
        let mut eval = cmd("EVAL");
        eval.arg(fence::script(WRITE)).arg(2).arg(&self.fence).arg(&self.stock);
        eval.arg(token.to_string()).arg(left).arg(millis(LIFE));
        match self.ask::<Value>(&eval) {
            Ok(_) => Ok(Ok(())),
            Err(error) => match fence::refusal(&error.to_string()) {
                Some(fenced) => Ok(Err(fenced)),
                None => Err(failed(error)),
            },
        }
    }

    fn lock(&self, mark: &str, expiry: Duration) -> io::Result<bool> {
        let mut set = cmd("SET");
        set.arg(&self.lock).arg(mark).arg("NX").arg("PX").arg(millis(expiry));
        self.ask::<Option<String>>(&set).map(|set| set.is_some()).map_err(failed)
    }

    /// The `DEL` of the articles. The `GET` beside it is there to count.
    fn unlock(&self) -> io::Result<Option<String>> {
        let mut all = pipe();
        all.atomic().cmd("GET").arg(&self.lock).cmd("DEL").arg(&self.lock).ignore();
        self.ask_all::<(Option<String>,)>(&all).map(|(mark,)| mark)
    }

    fn remove(&self) -> io::Result<()> {
        self.ask(cmd("DEL").arg(&self.stock).arg(&self.fence).arg(&self.lock)).map_err(failed)
    }
}

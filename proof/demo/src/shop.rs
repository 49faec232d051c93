//! The stock, the fence on it, and the lock of the articles.
//!
//! Each operation is one step, as a statement of a database is. What goes wrong between two of
//! them is what the demo is about.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use latchwork::FencingToken;
use latchwork::fence::{Fence, Fenced};
use latchwork_redis::fence;
use redis::{Cmd, Connection, FromRedisValue, Pipeline, RedisError, Value, cmd, pipe};
use serde::{Deserialize, Serialize};

use crate::words::{Place, now};

/// What the buyers share.
pub(crate) trait Shop: Send + Sync {
    /// Puts so many units there, and forgets tokens and locks.
    fn fill(&self, stock: u32) -> io::Result<()>;

    /// How many units are there.
    fn read(&self) -> io::Result<u32>;

    /// Writes how many are left, whoever asks.
    fn write(&self, left: u32) -> io::Result<()>;

    /// Writes how many are left unless a larger token has written.
    fn write_fenced(&self, left: u32, token: FencingToken) -> io::Result<Result<(), Fenced>>;

    /// The lock of the articles: sets it if it is not set, for so long. Whether it did.
    fn lock(&self, mark: &str, expiry: Duration) -> io::Result<bool>;

    /// Deletes that lock, whosoever it is. Whose it was.
    fn unlock(&self) -> io::Result<Option<String>>;

    /// Leaves nothing behind.
    fn remove(&self) -> io::Result<()>;
}

/// Makes the stock. A folder is made for this user alone.
pub(crate) fn create(place: Option<&Place>, store: &str) -> io::Result<Arc<dyn Shop>> {
    if let Some(Place::Folder(folder)) = place {
        DirBuilder::new().mode(0o700).create(folder)?;
        let file = File::create(folder.join(FILE))?;
        serde_json::to_writer(file, &Books::default())?;
    }
    open(place, store)
}

/// Opens the stock that another process has made.
pub(crate) fn open(place: Option<&Place>, store: &str) -> io::Result<Arc<dyn Shop>> {
    let local = |folder| Local { books: Mutex::default(), folder };
    Ok(match place {
        None => Arc::new(local(None)),
        Some(Place::Folder(folder)) => Arc::new(local(Some(folder.clone()))),
        Some(Place::Redis(prefix)) => Arc::new(RedisShop::connect(store, prefix)?),
    })
}

const FILE: &str = "stock";

/// All that there is in a shop without a server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Books {
    stock: u32,
    /// The largest token that has written.
    token: u64,
    /// Whose the lock of the articles is, and until when.
    lock: Option<(String, u64)>,
}

/// A stock inside this process, or in a file of a folder, which is locked for each single step.
struct Local {
    books: Mutex<Books>,
    folder: Option<PathBuf>,
}

impl Local {
    fn step<T>(&self, change: impl FnOnce(&mut Books) -> T) -> io::Result<T> {
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(folder) = &self.folder else { return Ok(change(&mut books)) };
        // Its lock ends with the file.
        let mut file = OpenOptions::new().read(true).write(true).open(folder.join(FILE))?;
        file.lock()?;
        *books = serde_json::from_reader(&file)?;
        let before = books.clone();
        let outcome = change(&mut books);
        if *books != before {
            file.rewind()?;
            file.set_len(0)?;
            file.write_all(serde_json::to_string(&*books)?.as_bytes())?;
        }
        Ok(outcome)
    }
}

impl Shop for Local {
    fn fill(&self, stock: u32) -> io::Result<()> {
        self.step(|books| *books = Books { stock, ..Books::default() })
    }

    fn read(&self) -> io::Result<u32> {
        self.step(|books| books.stock)
    }

    fn write(&self, left: u32) -> io::Result<()> {
        self.step(|books| books.stock = left)
    }

    fn write_fenced(&self, left: u32, token: FencingToken) -> io::Result<Result<(), Fenced>> {
        self.step(|books| {
            let fence = Fence::starting_at(FencingToken::from_raw(books.token));
            fence.check_write(token)?;
            (books.stock, books.token) = (left, fence.newest().get());
            Ok(())
        })
    }

    fn lock(&self, mark: &str, expiry: Duration) -> io::Result<bool> {
        self.step(|books| {
            let is_free = books.lock.as_ref().is_none_or(|(_, until)| *until <= now());
            if is_free {
                books.lock = Some((mark.to_owned(), now() + expiry.as_nanos() as u64));
            }
            is_free
        })
    }

    fn unlock(&self) -> io::Result<Option<String>> {
        self.step(|books| {
            books.lock.take().filter(|(_, until)| *until > now()).map(|(mark, _)| mark)
        })
    }

    fn remove(&self) -> io::Result<()> {
        self.folder.as_ref().map_or(Ok(()), std::fs::remove_dir_all)
    }
}

/// After this the keys go by themselves, should nobody be left to remove them.
const LIFE: Duration = Duration::from_secs(600);

/// How long the server may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes how many are left, under the fence.
const WRITE: &str = "
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])";

/// A stock in a string, the fence's token in another, and the lock of the articles in a third.
struct RedisShop {
    connection: Mutex<Connection>,
    stock: String,
    fence: String,
    lock: String,
}

impl RedisShop {
    /// Connects to the server at an address of Latchwork, whose options are not for this client.
    fn connect(store: &str, prefix: &str) -> io::Result<Self> {
        let url = store.split('?').next().unwrap_or(store);
        let client = redis::Client::open(url).map_err(failed)?;
        let connection = client.get_connection_with_timeout(LIMIT).map_err(failed)?;
        connection.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        connection.set_write_timeout(Some(LIMIT)).map_err(failed)?;
        Ok(Self {
            connection: Mutex::new(connection),
            stock: format!("{prefix}:stock"),
            fence: format!("{prefix}:fence"),
            lock: format!("{prefix}:lock"),
        })
    }

    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query(&mut *self.connection.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ask_all<T: FromRedisValue>(&self, commands: &Pipeline) -> io::Result<T> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        commands.query(&mut *connection).map_err(failed)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn token(n: u64) -> FencingToken {
        FencingToken::from_grant(n)
    }

    fn is_a_shop(shop: &dyn Shop) {
        shop.fill(20).unwrap();
        assert_eq!(shop.read().unwrap(), 20);
        shop.write(19).unwrap();
        assert_eq!(shop.write_fenced(18, token(2)).unwrap(), Ok(()));
        let refused = shop.write_fenced(17, token(1)).unwrap().unwrap_err();
        assert_eq!((refused.refused, refused.newest), (token(1), token(2)));
        assert_eq!(shop.read().unwrap(), 18);
        let long = Duration::from_secs(3_600);
        assert!(shop.lock("a", long).unwrap());
        assert!(!shop.lock("b", long).unwrap());
        assert_eq!(shop.unlock().unwrap().as_deref(), Some("a"));
        assert_eq!(shop.unlock().unwrap(), None);
        assert!(shop.lock("c", Duration::from_nanos(1)).unwrap());
        assert!(shop.lock("d", long).unwrap(), "the first has expired");
        shop.fill(1).unwrap();
        assert_eq!(shop.write_fenced(0, token(1)).unwrap(), Ok(()), "a new stock, a new fence");
        assert_eq!(shop.unlock().unwrap(), None);
        shop.remove().unwrap();
    }

    #[test]
    fn a_shop_in_memory_works() {
        is_a_shop(&*create(None, "mem:").unwrap());
    }

    #[test]
    fn a_shop_on_files_works_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("shop");
        is_a_shop(&*create(Some(&Place::Folder(folder.clone())), "file:").unwrap());
        assert!(!folder.exists());
    }
}

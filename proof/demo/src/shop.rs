//! The stock, the fence on it, and the lock of the articles.
//!
//! Each operation is one step, as a statement of a database is. What goes wrong between two of
//! them is what the demo is about.

use std::cell::RefCell;
use std::fmt::Debug;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use latchwork::FencingToken;
use latchwork::fence::{Fence, Fenced};
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;
use serde_json::{Value, json};

use crate::redis_shop::RedisShop;
use crate::words::Place;

/// What the buyers share.
pub(crate) trait Shop: Debug {
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

/// Opens the stock of several processes.
pub(crate) fn open(place: &Place, store: &str) -> io::Result<Box<dyn Shop>> {
    Ok(match place {
        Place::Folder(folder) => Box::new(FileShop::open(folder)),
        Place::Redis(prefix) => Box::new(RedisShop::connect(store, prefix)?),
    })
}

/// All that there is in a shop without a server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Books {
    stock: u32,
    /// The largest token that has written.
    token: FencingToken,
    /// Whose the lock of the articles is, and until when.
    lock: Option<(String, Moment)>,
}

impl Books {
    fn of(stock: u32) -> Self {
        Self { stock, token: FencingToken::from_raw(0), lock: None }
    }

    fn write_fenced(&mut self, left: u32, token: FencingToken) -> Result<(), Fenced> {
        let fence = Fence::starting_at(self.token);
        fence.check_write(token)?;
        (self.stock, self.token) = (left, fence.newest());
        Ok(())
    }

    fn lock(&mut self, mark: &str, expiry: Duration, now: Moment) -> bool {
        if self.lock.as_ref().is_some_and(|(_, until)| *until > now) {
            return false;
        }
        self.lock = Some((mark.to_owned(), now.plus(expiry)));
        true
    }

    fn unlock(&mut self, now: Moment) -> Option<String> {
        self.lock.take().filter(|(_, until)| *until > now).map(|(mark, _)| mark)
    }

    fn encode(&self) -> String {
        let lock = self.lock.as_ref().map(|(mark, until)| json!([mark, until.as_nanos()]));
        json!({"stock": self.stock, "token": self.token.get(), "lock": lock}).to_string()
    }

    fn decode(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let lock = match &value["lock"] {
            Value::Null => None,
            lock => Some((lock[0].as_str()?.to_owned(), Moment::from_nanos(lock[1].as_u64()?))),
        };
        let token = FencingToken::from_raw(value["token"].as_u64()?);
        Some(Self { stock: value["stock"].as_u64()?.try_into().ok()?, token, lock })
    }
}

/// A stock inside this process.
#[derive(Debug)]
pub(crate) struct MemoryShop(RefCell<Books>);

impl MemoryShop {
    pub(crate) fn new() -> Self {
        Self(RefCell::new(Books::of(0)))
    }
}

impl Shop for MemoryShop {
    fn fill(&self, stock: u32) -> io::Result<()> {
        *self.0.borrow_mut() = Books::of(stock);
        Ok(())
    }

    fn read(&self) -> io::Result<u32> {
        Ok(self.0.borrow().stock)
    }

    fn write(&self, left: u32) -> io::Result<()> {
        self.0.borrow_mut().stock = left;
        Ok(())
    }

    fn write_fenced(&self, left: u32, token: FencingToken) -> io::Result<Result<(), Fenced>> {
        Ok(self.0.borrow_mut().write_fenced(left, token))
    }

    fn lock(&self, mark: &str, expiry: Duration) -> io::Result<bool> {
        Ok(self.0.borrow_mut().lock(mark, expiry, boot_time()))
    }

    fn unlock(&self) -> io::Result<Option<String>> {
        Ok(self.0.borrow_mut().unlock(boot_time()))
    }

    fn remove(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A stock in a file, which is locked for each single step.
#[derive(Debug)]
pub(crate) struct FileShop(PathBuf);

impl FileShop {
    const FILE: &str = "stock";

    /// Makes the folder, for this user alone.
    pub(crate) fn create(folder: &Path) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(folder)?;
        Ok(Self::open(folder))
    }

    fn open(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    fn file(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(self.0.join(Self::FILE))?;
        file.lock()?;
        Ok(file)
    }

    /// One step on the books. The file's lock ends with the file.
    fn step<T>(&self, change: impl FnOnce(&mut Books) -> T) -> io::Result<T> {
        let mut file = self.file()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut books =
            Books::decode(&text).ok_or_else(|| io::Error::other("the stock's file is damaged"))?;
        let before = books.clone();
        let outcome = change(&mut books);
        if books != before {
            write_over(&mut file, &books)?;
        }
        Ok(outcome)
    }
}

fn write_over(file: &mut File, books: &Books) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    file.write_all(books.encode().as_bytes())
}

impl Shop for FileShop {
    fn fill(&self, stock: u32) -> io::Result<()> {
        write_over(&mut self.file()?, &Books::of(stock))
    }

    fn read(&self) -> io::Result<u32> {
        self.step(|books| books.stock)
    }

    fn write(&self, left: u32) -> io::Result<()> {
        self.step(|books| books.stock = left)
    }

    fn write_fenced(&self, left: u32, token: FencingToken) -> io::Result<Result<(), Fenced>> {
        self.step(|books| books.write_fenced(left, token))
    }

    fn lock(&self, mark: &str, expiry: Duration) -> io::Result<bool> {
        self.step(|books| books.lock(mark, expiry, boot_time()))
    }

    fn unlock(&self) -> io::Result<Option<String>> {
        self.step(|books| books.unlock(boot_time()))
    }

    fn remove(&self) -> io::Result<()> {
        std::fs::remove_dir_all(&self.0)
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
        is_a_shop(&MemoryShop::new());
    }

    #[test]
    fn a_shop_on_files_works_and_cleans_up() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("shop");
        is_a_shop(&FileShop::create(&folder).unwrap());
        assert!(!folder.exists());
    }
}

//! The least that telling another process can cost on Redis: who waits is asleep in `BLPOP`, who is
//! done sends one `LPUSH`, and the server sends one message to who waited longest. Bare sockets that
//! block, no library. It is no lock: nothing frees the key if its holder dies.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use crate::roles::Lock;

/// Compares the owner, takes a token, names the next owner and wakes it.
const HAND_ON: &str = "local owner = redis.call('GET', KEYS[2]) or ARGV[1]
if owner ~= ARGV[1] then
  return redis.error_reply('another owner')
end
redis.call('INCR', KEYS[3])
redis.call('SET', KEYS[2], ARGV[1], 'PX', 30000)
return redis.call('LPUSH', KEYS[1], '1')";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

pub(crate) struct PushAndPop {
    /// The list, which has one element while nobody holds.
    key: String,
    /// The hash of the script that releases, if one does.
    script: Option<String>,
    connection: Mutex<BufReader<TcpStream>>,
}

impl PushAndPop {
    /// A connection of its own; who comes first puts the element there.
    pub(crate) fn connect(url: &str, key: &str, by_script: bool) -> Result<Self> {
        let host = url.strip_prefix("redis://").ok_or("redis://HOST:PORT")?;
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        let connection = Mutex::new(BufReader::new(stream));
        let mut this = Self { key: key.into(), script: None, connection };
        if by_script {
            this.ask(&["SCRIPT", "LOAD", HAND_ON])?;
            this.script = Some(redis::Script::new(HAND_ON).get_hash().into());
        }
        if this.ask(&["SET", &format!("{key}:begun"), "1", "NX"])?.starts_with('+') {
            this.ask(&["LPUSH", key, "1"])?;
        }
        Ok(this)
    }

    /// Sends a command and reads its answer; that of `BLPOP` has four lines more.
    fn ask(&self, words: &[&str]) -> Result<String> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        connection.get_mut().write_all(command.as_bytes())?;
        let mut line = || -> Result<String> {
            let mut line = String::new();
            connection.read_line(&mut line)?;
            Ok(line)
        };
        let first = line()?;
        match first.as_bytes().first() {
            // The hash of a script is known.
            Some(b'$') if words[0] == "SCRIPT" => line().map(|_| first),
            Some(b'+' | b':' | b'$') => Ok(first),
            Some(b'*') => (0..4).map(|_| line()).last().ok_or("an element")?,
            _ => Err(format!("{}: {first:?}", words[0]).into()),
        }
    }
}

impl Lock for PushAndPop {
    type Held = ();

    /// Blocks its thread, so there is one task in its process.
    async fn acquire(&self) {
        self.ask(&["BLPOP", &self.key, "0"]).expect("the server answers");
    }

    async fn release(&self, _held: ()) {
        let key = &*self.key;
        let asked = match &self.script {
            None => self.ask(&["LPUSH", key, "1"]),
            Some(hash) => {
                let (owner, tokens) = (format!("{key}:owner"), format!("{key}:tokens"));
                self.ask(&["EVALSHA", hash, "3", key, &owner, &tokens, "somebody"])
            }
        };
        let answer = asked.expect("the server answers");
        assert!(answer.starts_with(':'), "{answer:?}");
    }
}

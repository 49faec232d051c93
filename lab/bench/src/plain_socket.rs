//! The floor of a thread on Redis: the two commands of a free lock over a plain socket, without a library.
//!
//! The scripts are those of Latchwork. As its thread does, it sends, polls and receives.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redis::cmd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::times::Times;

type Failed = Box<dyn std::error::Error>;

pub(crate) struct Plain {
    stream: TcpStream,
    /// The hashes of the scripts that take a key and give it back.
    take: String,
    give_back: String,
}

impl Plain {
    pub(crate) fn connect(url: &str, take: &str, give_back: &str) -> Result<Self, Failed> {
        let stream = TcpStream::connect(url.trim_start_matches("redis://"))?;
        stream.set_nodelay(true)?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut load = |script: &str| {
            let mut load = cmd("SCRIPT");
            load.arg("LOAD").arg(script);
            (&stream).write_all(&load.get_packed_command())?;
            let mut line = || lines.next().ok_or("the server closed the connection");
            let _length = line()??;
            Ok::<_, Failed>(line()??)
        };
        let (take, give_back) = (load(take)?, load(give_back)?);
        Ok(Self { stream, take, give_back })
    }

    /// One request, and its answer: a number.
    fn ask(&self, request: &[u8]) -> Result<u64, Failed> {
        (&self.stream).write_all(request)?;
        let longest = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        while poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&longest))? == 0 {}
        let mut answer = [0; 64];
        let length = (&self.stream).read(&mut answer)?;
        let answer = std::str::from_utf8(&answer[..length])?;
        let number = answer.strip_prefix(':').ok_or_else(|| format!("{answer:?}"))?;
        Ok(number.trim_end().parse()?)
    }

    /// Cycles of one thread: how many, in what time, and the time of each.
    pub(crate) fn cycles(&self, length: Duration) -> Result<(u32, Duration, Times), Failed> {
        let (mut times, mut count) = (Times::default(), 0_u32);
        let start = Instant::now();
        let mut begun = start;
        while begun - start < length {
            count += 1;
            let value =
                format!("{:032x}", u128::from(count) << 64 | u128::from(std::process::id()));
            let mut take = cmd("EVALSHA");
            take.arg(&self.take).arg(3).arg("bench/0").arg("bench-token").arg("bench/0:line");
            take.arg(&value).arg(30_000).arg("").arg(0);
            let token = self.ask(&take.get_packed_command())?;
            let mut back = cmd("EVALSHA");
            back.arg(&self.give_back).arg(1).arg("bench/0").arg(format!("{value}{token}"));
            if self.ask(&back.get_packed_command())? != 1 {
                return Err("the key was another's".into());
            }
            let now = Instant::now();
            times.record((now - begun).as_nanos() as u64);
            begun = now;
        }
        Ok((count, start.elapsed(), times))
    }
}

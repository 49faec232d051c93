//! What a cycle on a free key costs the server, by the ways to take the key that one round trip allows.
//!
//! ```text
//! cargo run --release -p latchwork-redis --example free_key
//! ```
//!
//! Each way sends whole cycles in one packet, one or sixteen at a time, and waits for the answers. What
//! counts is the processor time of the server; the ways take turns.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "an example")]

use std::error::Error;
use std::io::{Read, Write};
use std::net::TcpStream;

use latchwork_services::{RedisOptions, RedisServer};
use redis::{Cmd, cmd};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CYCLES: usize = 20_000;
const ROUNDS: usize = 7;
const HEAD: &str = "lw:x:-:00000000000000000000000000000007";
const TAIL: &str = ":1790000000000|host pid 7";

/// Waits for the last answer of a packet by asking for an echo behind it.
struct Client(TcpStream);

impl Client {
    fn ask(&mut self, packet: &[u8]) -> Result<Vec<u8>> {
        const END: &[u8] = b"$3\r\nend\r\n";
        self.0.write_all(packet)?;
        self.0.write_all(&cmd("ECHO").arg("end").get_packed_command())?;
        let (mut answers, mut buffer) = (Vec::new(), [0; 64 * 1024]);
        while !answers.ends_with(END) {
            let count = self.0.read(&mut buffer)?;
            if count == 0 {
                return Err("the server has gone".into());
            }
            answers.extend_from_slice(&buffer[..count]);
        }
        answers.truncate(answers.len() - END.len());
        Ok(answers)
    }

    fn load(&mut self, script: &str) -> Result<String> {
        let answer = self.ask(&cmd("SCRIPT").arg("LOAD").arg(script).get_packed_command())?;
        let text = String::from_utf8(answer)?;
        Ok(text.lines().nth(1).ok_or("no hash")?.to_owned())
    }
}

/// Processor time of a process in microseconds.
fn used(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').ok_or("no statistics of the server")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) * 1e4)
}

fn packed(commands: &[Cmd]) -> Vec<u8> {
    commands.iter().flat_map(Cmd::get_packed_command).collect()
}

fn main() -> Result<()> {
    let server = RedisServer::start(&RedisOptions::new())?;
    let stream = TcpStream::connect(("127.0.0.1", server.port()))?;
    stream.set_nodelay(true)?;
    let mut client = Client(stream);
    let take = include_str!("../src/protocol/scripts/try.lua")
        .replace("--#include draw.lua\n", include_str!("../src/protocol/scripts/draw.lua"))
        .replace("--#include keep.lua\n", include_str!("../src/protocol/scripts/keep.lua"));
    let take = client.load(&take)?;
    let free = client.load(include_str!("../src/protocol/scripts/release.lua"))?;
    let value = format!("{HEAD}:1790000000000000{TAIL}");
    let release = || cmd("EVALSHA").arg(&free).arg(1).arg("k").arg(HEAD).clone();
    let set = |get: bool| {
        let mut set = cmd("SET");
        set.arg("k").arg(&value).arg("NX");
        if get {
            set.arg("GET");
        }
        set.arg("PX").arg(30_000).clone()
    };
    let script = cmd("EVALSHA")
        .arg(&take)
        .arg(&[b"3".as_slice(), b"k", b"token", b"k:line"])
        .arg(format!("{HEAD}:"))
        .arg(30_000)
        .arg(TAIL)
        .arg(0)
        .clone();
    let count = || cmd("INCR").arg("count").clone();
    let look = || cmd("EXISTS").arg("k:line").clone();
    let ways = [
        ("SET, no token", packed(&[set(false), release()])),
        ("the script, with token", packed(&[script, release()])),
        (
            "MULTI, SET, INCR, EXISTS, EXEC",
            packed(&[cmd("MULTI"), set(true), count(), look(), cmd("EXEC"), release()]),
        ),
        (
            "SET, INCR, EXISTS, GET",
            packed(&[set(true), count(), look(), cmd("GET").arg("k").clone(), release()]),
        ),
    ];
    for at_once in [1, 16] {
        println!("{at_once} cycles in one packet:");
        let mut times = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for ((_, cycle), times) in ways.iter().zip(&mut times) {
                let packet = cycle.repeat(at_once);
                let before = used(server.pid())?;
                for _ in 0..CYCLES / at_once {
                    client.ask(&packet)?;
                }
                times.push((used(server.pid())? - before) / CYCLES as f64);
            }
        }
        for ((name, _), times) in ways.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            println!("  {name}: {:.1} us of the server a cycle", times[times.len() / 2]);
        }
    }
    Ok(())
}

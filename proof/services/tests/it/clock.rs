//! A server's own wall clock: steps, rates, and nobody else's.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_services::{Data, Error, RedisOptions, RedisServer, Value};

type Test = Result<(), Box<dyn std::error::Error>>;

const HOUR: Duration = Duration::from_secs(3600);

/// More than two calls take on a loaded machine, and less than any step here.
const SLACK: f64 = 20.0;

fn start() -> Result<RedisServer, Error> {
    RedisServer::start(&RedisOptions::new().with_clock())
}

/// What the server says the time is, in seconds.
fn time(server: &RedisServer) -> Result<f64, Box<dyn std::error::Error>> {
    let time = server.command(&["TIME"])?;
    let part = |n: usize| time.list().get(n).map(Value::text).unwrap_or_default().parse::<f64>();
    Ok(part(0)? + part(1)? / 1e6)
}

#[test]
fn a_step_moves_the_time_and_the_expiry_of_one_server() -> Test {
    let server = start()?;
    let other = RedisServer::start(&RedisOptions::new())?;
    let right = time(&other)?;
    assert!((time(&server)? - right).abs() < SLACK);
    server.command(&["SET", "k", "1", "EX", "3000"])?.ok()?;
    server.clock()?.step_back(HOUR)?;
    assert!((time(&server)? - right + 3600.0).abs() < SLACK);
    assert_eq!(server.command(&["GET", "k"])?.text(), "1");
    server.clock()?.step_forward(2 * HOUR)?;
    assert!((time(&server)? - right - 3600.0).abs() < SLACK);
    assert!((server.clock()?.now().as_secs_f64() - time(&server)?).abs() < SLACK);
    assert_eq!(server.command(&["GET", "k"])?, Value::Nil);
    assert!((time(&other)? - right).abs() < SLACK);
    server.clock()?.reset()?;
    assert!((time(&server)? - right).abs() < SLACK);
    assert!(other.clock().is_err());
    Ok(())
}

#[test]
fn a_rate_is_kept_without_a_step() -> Test {
    let server = start()?;
    server.clock()?.rate(-1_000_000)?;
    let still = time(&server)?;
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(time(&server)?, still);
    // From here on a hundred times too fast.
    server.clock()?.rate(99_000_000)?;
    let (before, start) = (time(&server)?, Instant::now());
    assert!(before >= still);
    std::thread::sleep(Duration::from_millis(100));
    let slept = start.elapsed().as_secs_f64();
    let passed = time(&server)? - before;
    // The first reading is older than `start`, and the last one younger than `slept`.
    assert!(passed >= slept * 99.0, "{passed} in {slept}");
    server.clock()?.rate(0)?;
    let before = time(&server)?;
    assert!((time(&server)? - before) < SLACK);
    Ok(())
}

#[test]
fn a_restart_keeps_the_clock_shift() -> Test {
    let mut server = start()?;
    server.clock()?.step_forward(HOUR)?;
    server.restart(Data::Kept)?;
    let other = RedisServer::start(&RedisOptions::new())?;
    assert!((time(&server)? - time(&other)? - 3600.0).abs() < SLACK);
    Ok(())
}

#[test]
fn only_the_wall_clock_is_shifted() -> Test {
    let server = start()?;
    server.clock()?.step_forward(HOUR)?;
    let monotonic = || {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
    };
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", "import time; print(time.time(), time.monotonic())"]);
    server.clock()?.give_to(&mut python);
    let before = monotonic();
    let output = String::from_utf8(python.output()?.stdout)?;
    let after = monotonic();
    let (wall, steady) = output.trim().split_once(' ').ok_or("no two numbers")?;
    let (wall, steady): (f64, f64) = (wall.parse()?, steady.parse()?);
    assert!((wall - time(&server)?).abs() < SLACK, "{wall}");
    assert!(before < steady && steady < after, "{before} {steady} {after}");
    Ok(())
}

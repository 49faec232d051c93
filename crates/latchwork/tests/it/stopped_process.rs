//! A process that holds a lock is stopped past its validity, for real.
//!
//! The test starts this program again; the test named `child` plays the holder.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use latchwork::fence::Fence;
use latchwork::store::clock::boot_time;
use latchwork::{BlockOn, FencingToken, HoldState};
use rustix::process::{Pid, Signal, kill_process};

const TTL: Duration = Duration::from_secs(1);

/// Plays the holder in the other test; on its own it has nothing to do.
#[test]
fn child() {
    let Some(url) = std::env::var("LATCHWORK_TEST_STORE").ok() else { return };
    let locks = latchwork::connect(&url).block_on().unwrap();
    let guard = locks.mutex("k").ttl(TTL).acquire().block_on().unwrap();
    // Read before the parent is told, for it stops this process at once.
    let mut last = boot_time();
    println!("\n>{}", guard.token());
    loop {
        // Where the time jumps, this thread was stopped; then what it asks next is the first thing
        // that it does.
        let now = boot_time();
        let state = guard.state();
        if now.since(last) >= TTL {
            println!("\n>{}", matches!(state, HoldState::Lost(_)));
            return;
        }
        last = now;
        std::hint::spin_loop();
    }
}

struct Holder {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stopped_process::child", "--nocapture"])
            .env("LATCHWORK_TEST_STORE", url)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the holder ended");
            if let Some(said) = line.strip_prefix('>') {
                return said.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn h01_a_stopped_process_says_lost_when_it_wakes_and_the_fence_refuses_it() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let locks = latchwork::connect(&url).block_on().unwrap();
    for _ in 0..3 {
        let mut holder = Holder::start(&url);
        let old: FencingToken = holder.line().parse().unwrap();
        holder.signal(Signal::STOP);
        // The lock passes on when the ttl of the stopped holder is over.
        let next = locks.mutex("k").acquire_within(20 * TTL).block_on().unwrap();
        let fence = Fence::new();
        fence.check_write(next.token()).unwrap();
        // It has been stopped for a ttl by now, or nearly: its last look may be a moment older.
        std::thread::sleep(TTL / 4);
        holder.signal(Signal::CONT);
        assert_eq!(holder.line(), "true", "its first look after the stop must say lost");
        assert!(fence.check_write(old).is_err(), "whatever it believes");
        next.release().block_on().unwrap();
    }
}

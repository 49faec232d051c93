//! A process that holds a lock is stopped past its validity, for real.
//!
//! The test starts this program again; the test named `child` plays the holder.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

use std::time::Duration;

use latchwork::fence::Fence;
use latchwork::{BlockOn, FencingToken, HoldState};
use latchwork_services::child::{Process, role, say};
use latchwork_store::clock::boot_time;

const TTL: Duration = Duration::from_secs(1);

/// Plays the holder in the other test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((_, url)) = role() else { return };
    let locks = latchwork::connect(&url).block_on().unwrap();
    let guard = locks.mutex("k").ttl(TTL).acquire().block_on().unwrap();
    // Read before the parent is told, for it stops this process at once.
    let mut last = boot_time();
    say(guard.token());
    loop {
        // Where the time jumps, this thread was stopped; then what it asks next is the first thing
        // that it does.
        let now = boot_time();
        let state = guard.state();
        if now.since(last) >= TTL {
            say(matches!(state, HoldState::Lost(_)));
            return;
        }
        last = now;
        std::hint::spin_loop();
    }
}

#[test]
fn h01_a_stopped_process_reads_lost_and_is_fenced() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}", dir.path().display());
    let locks = latchwork::connect(&url).block_on().unwrap();
    for _ in 0..3 {
        let mut holder = Process::start("stopped_process::hold", &url);
        let old: FencingToken = holder.line().parse().unwrap();
        holder.stop();
        // The lock passes on when the ttl of the stopped holder is over.
        let next = locks.mutex("k").acquire_within(20 * TTL).block_on().unwrap();
        let fence = Fence::new();
        fence.check_write(next.token()).unwrap();
        // It has been stopped for a ttl by now, or nearly: its last look may be a moment older.
        std::thread::sleep(TTL / 4);
        holder.cont();
        assert_eq!(holder.line(), "true", "its first look after the stop must say lost");
        assert!(fence.check_write(old).is_err(), "whatever it believes");
        next.release().block_on().unwrap();
    }
}

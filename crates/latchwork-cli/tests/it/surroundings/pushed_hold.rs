//! A lock that Redis pushed to a waiter, short at first: its whole ttl counts from the first renewal.

use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};

use crate::common::{Holder, Running, Store, alive, eventually};

/// Says when it is asked to end, and ends only by SIGKILL.
const SCRIPT: &str = "trap 'echo asked' TERM; echo \"ready 0 $$\"; while :; do sleep 0.05; done";

/// After it had to wait, the command is asked to end a third of the ttl before the end, and half a
/// second later if the store was silent: here 1.2 s before it is killed. With a third of the
/// probation that would be 0.3 s.
#[test]
fn h112_after_waiting_the_command_has_its_whole_time_to_end() {
    let (store, mut server) = (Store::new(), RedisServer::start(&RedisOptions::new()).unwrap());
    let start = |args: &[&str]| {
        let mut command = store.latchwork(args);
        command.env("LATCHWORK_STORE", server.url());
        Running::start(command)
    };
    let go = "until [ -e \"$TRACE/go\" ]; do sleep 0.02; done";
    let first = start(&["-v", "run", "x", "--", "sh", "-c", go]);
    first.stderr.until("acquired");
    let run = start(&["-v", "run", "--ttl", "6s", "x", "--", "sh", "-c", SCRIPT]);
    run.stderr.until("waiting for");
    std::fs::write(store.file("go"), "").unwrap();
    let ready = run.ready();
    // The renewal at a third of the probation has confirmed the whole ttl by then.
    eventually("the whole ttl", || {
        let left = server.command(&["PTTL", "x"]).unwrap().text().parse::<i64>().unwrap();
        (left > 4_000).then_some(())
    });
    server.stop().unwrap();
    run.stdout.until("asked");
    let asked = Instant::now();
    eventually("the end of the group", || alive(ready.group).is_empty().then_some(()));
    let had = asked.elapsed();
    assert!(had >= Duration::from_millis(700), "killed {had:?} after it was asked");
    server.cont().unwrap();
    assert_eq!(run.finish().code(), 73);
}

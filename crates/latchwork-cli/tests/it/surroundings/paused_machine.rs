//! A virtual machine that stood still: the wall clock of the real command is set forward, and its
//! boot clock is not.

use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer, ServerClock, ring_for_step, step_timers};
use rustix::process::Signal;

use crate::common::{Finished, Holder, Ready, Running, Store, alive, eventually};

/// Ends only by SIGKILL.
const DEAF: &str = "trap '' TERM; echo \"ready 0 $$\"; while :; do sleep 0.05; done";
const POLITE: &str = "trap 'exit 0' TERM; echo \"ready 0 $$\"; while :; do sleep 0.05; done";
const PAUSE: Duration = Duration::from_secs(26);
/// For what a loaded machine adds to the second.
const SLACK: Duration = Duration::from_secs(2);

/// A command on Redis whose machine can be paused.
struct World {
    store: Store,
    server: RedisServer,
    clock: ServerClock,
}

impl World {
    fn new() -> Self {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        Self { store: Store::new(), server, clock: ServerClock::of_clients().unwrap() }
    }

    fn start(&self, args: &[&str], script: &str) -> (Running, Ready) {
        let args: Vec<_> = args.iter().copied().chain(["--", "sh", "-c", script]).collect();
        let mut command = self.store.latchwork(&args);
        command.env("LATCHWORK_STORE", self.server.url());
        self.clock.give_to(&mut command);
        let run = Running::start(command);
        let ready = run.ready();
        (run, ready)
    }

    /// The machine goes on after it stood still for so long.
    fn resume(&self, run: &Running, paused: Duration) -> Instant {
        self.clock.step_forward(paused).unwrap();
        let resumed = Instant::now();
        ring_for_step(run.child.id()).unwrap();
        resumed
    }
}

/// Waits until nobody of the command's group runs, which has to be within a second of `resumed`.
fn ends_within_a_second(run: Running, ready: Ready, resumed: Instant) -> Finished {
    eventually("the end of the group", || alive(ready.group).is_empty().then_some(()));
    let took = resumed.elapsed();
    assert!(took <= Duration::from_secs(1) + SLACK, "went on for {took:?}");
    run.finish()
}

/// Lets the lease age, so that less is left of it than the machine stands still.
const AGE: Duration = Duration::from_secs(5);

#[test]
fn h87_a_silent_store_ends_the_command_within_a_second() {
    let ways: [&[&str]; 3] = [
        &["run", "--ttl", "30s", "x"],
        &["once", "--ttl", "30s", "--every", "1d", "x"],
        &["elect", "--ttl", "30s", "--one-term", "x"],
    ];
    std::thread::scope(|scope| {
        for args in ways {
            scope.spawn(move || {
                let mut world = World::new();
                let (run, ready) = world.start(args, DEAF);
                std::thread::sleep(AGE);
                world.server.stop().unwrap();
                let resumed = world.resume(&run, PAUSE);
                let done = ends_within_a_second(run, ready, resumed);
                assert_eq!(done.code(), 73, "{args:?}: {done:?}");
                world.server.cont().unwrap();
            });
        }
    });
}

#[test]
fn h87_a_lock_lost_meanwhile_ends_the_command_within_a_second() {
    let world = World::new();
    let (run, ready) = world.start(&["run", "--ttl", "30s", "x"], POLITE);
    world.server.command(&["DEL", "x"]).unwrap();
    let resumed = world.resume(&run, PAUSE);
    let done = ends_within_a_second(run, ready, resumed);
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("taken away"), "{done:?}");
}

/// More is left of the lease than the machine stood still, but the wall clock may have been fast
/// before: without the store's word the command is asked to end.
#[test]
fn h87_doubt_that_does_not_settle_asks_the_command_to_end() {
    let mut world = World::new();
    let (run, ready) = world.start(&["run", "--ttl", "30s", "x"], POLITE);
    world.server.stop().unwrap();
    let resumed = world.resume(&run, Duration::from_secs(5));
    eventually("the end of the group", || alive(ready.group).is_empty().then_some(()));
    let took = resumed.elapsed();
    assert!(took <= Duration::from_millis(2_500) + SLACK, "went on for {took:?}");
    let done = run.finish();
    assert_eq!(done.code(), 73, "{done:?}");
    assert!(done.stderr.contains("did not confirm"), "{done:?}");
    world.server.cont().unwrap();
}

/// An operator sets the clock, or a time service: the store confirms the lock, and nothing happens.
#[test]
fn h87_a_wall_clock_set_forward_ends_no_command() {
    let world = World::new();
    let script = "echo \"ready 0 $$\"; until [ -e \"$TRACE/go\" ]; do sleep 0.02; done; exit 4";
    let (run, _) = world.start(&["run", "--ttl", "30s", "x"], script);
    for step in [Duration::from_secs(5), Duration::from_secs(3600)] {
        world.resume(&run, step);
        std::thread::sleep(Duration::from_secs(2));
    }
    // A process that is stopped and goes on sees no step.
    run.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(1));
    run.signal(Signal::CONT);
    std::fs::write(world.store.file("go"), "").unwrap();
    let done = run.finish();
    assert_eq!(done.code(), 4, "{done:?}");
}

/// What the kernel does when the clock is set cannot be tested without setting this machine's
/// clock; that it is asked to, can.
#[test]
fn h87_the_kernel_reports_clock_steps() {
    let world = World::new();
    let (run, _) = world.start(&["run", "x"], DEAF);
    for _ in 0..3 {
        let armed = eventually("a timer that steps cancel", || {
            step_timers(run.child.id()).ok().filter(|timers| !timers.is_empty())
        });
        assert_eq!(armed.len(), 1, "one for the process");
        // And again after it rang.
        assert_eq!(ring_for_step(run.child.id()).unwrap(), 1);
    }
}

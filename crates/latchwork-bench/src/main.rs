//! Measurements, side by side in one run: `cargo xtask bench NAME...`.
//!
//! The machines that run this are noisy, so what counts are ratios between two things measured in
//! turns in the same run, and medians.

#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "measures with the process's own clock")]

mod adaptive;
mod bars;
mod child;
mod command;
mod contest;
mod crowd;
mod etcd;
mod etcd_bare;
mod free_cycles;
mod free_lock;
mod handoffs;
mod handover;
mod held;
mod held_by_one;
mod local;
mod lock_child;
mod peers;
mod redis_contend;
mod redis_free;
mod redis_handoff;
mod redis_held;
mod redlock_commands;
mod redlock_contend;
mod redlock_free;
mod redlock_servers;
mod redlock_slow;
mod roles;
mod runner;
mod stats;
mod store;
mod stores;
mod takeover;
mod zookeeper;

use std::process::ExitCode;

use roles::Outcome;

type Bench = fn() -> Outcome;

const BENCHES: &[(&str, &str, Bench)] = &[
    (
        "free-lock",
        "acquire and release of a free lock, against the bare system calls",
        free_lock::run,
    ),
    (
        "adaptive",
        "a simulation: what a ttl that follows the hold times saves in renewals and after a crash",
        adaptive::run,
    ),
    ("local", "handovers inside one process, 16 tasks on one key", local::run),
    ("handover", "from one process to another, against a blocked flock", handover::run),
    ("takeover", "after SIGKILL of the holder, against a blocked flock", takeover::run),
    ("command", "a free run of a command, against flock(1) and etcdctl lock", command::run),
    ("crowd", "64 processes waiting: processor time, and how many a release wakes", crowd::run),
    (
        "redis-free",
        "free locks on Redis, against the bare commands over the same library, and other locks",
        redis_free::run,
    ),
    (
        "redis-contend",
        "8 processes that want one key on Redis, against a client that spins, and other locks",
        redis_contend::run,
    ),
    (
        "redis-handoff",
        "from one process to another on Redis when the holder takes 200 ms, and other locks",
        redis_handoff::run,
    ),
    ("redis-held", "10,000 held locks on Redis, and other locks that renew", redis_held::run),
    (
        "redlock-free",
        "free locks over five servers, against the bare commands to all five, and other locks",
        redlock_free::run,
    ),
    ("redlock-slow", "one stopped server of five: acquires, and other locks", redlock_slow::run),
    (
        "redlock-contend",
        "8 processes that want one key over five servers, and other locks",
        redlock_contend::run,
    ),
    (
        "redlock-splits",
        "2, 8 and 32 processes that want one key over five servers: votes that nobody wins",
        redlock_contend::splits,
    ),
    ("redlock-commands", "commands of a free cycle at each of five servers", redlock_commands::run),
    (
        "etcd-free",
        "free locks on etcd, against the bare transactions and a keep-alive, and Go's package",
        etcd::free,
    ),
    ("etcd-contend", "8 processes that want one key on etcd, and Go's package", etcd::contend),
    (
        "etcd-handoff",
        "from one process to another on etcd when the holder takes 200 ms, and Go's package",
        etcd::handoff,
    ),
    ("etcd-held", "1,000 held locks on etcd, and Go's package", etcd::held),
    (
        "zookeeper-free",
        "free locks on ZooKeeper, against the bare requests of a lock, and other locks",
        zookeeper::free,
    ),
    (
        "zookeeper-contend",
        "8 processes that want one key on ZooKeeper, and other locks",
        zookeeper::contend,
    ),
    (
        "zookeeper-handoff",
        "from one process to another on ZooKeeper when the holder takes 200 ms, and other locks",
        zookeeper::handoff,
    ),
    ("zookeeper-held", "1,000 held locks on ZooKeeper, and other locks", zookeeper::held),
    (
        "stores",
        "all stores side by side: free, contended, hand-off, takeover, and over a slow link",
        stores::run,
    ),
    ("held", "10,000 held guards: memory and processor time", held::run),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((role, rest)) = args.split_first().filter(|(role, _)| role.starts_with("child-")) {
        return child::run(role, rest);
    }
    if let [role, name] = &args[..]
        && role == runner::ROLE
    {
        return runner::measure(name);
    }
    match runner::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

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
mod commit_and_notify;
mod contest;
mod crowd;
mod etcd;
mod etcd_bare;
mod faults;
mod faults_child;
mod free_child;
mod free_cycles;
mod free_lock;
mod goals;
mod growth;
mod handoffs;
mod handover;
mod held;
mod held_by_one;
mod installing;
mod kubernetes;
mod local;
mod lock_child;
mod machine;
mod one_store;
mod peers;
mod plain_socket;
mod postgres;
mod postgres_bare;
mod postgres_waiters;
mod push_and_pop;
mod python;
mod quantiles;
mod record;
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
mod scale;
mod serve;
mod slow_link;
mod stats;
mod store;
mod stores;
mod takeover;
mod times;
mod watch_and_put;
mod zookeeper;

use std::process::ExitCode;

use roles::Outcome;

/// What can be measured.
struct Bench {
    name: &'static str,
    /// Of its section.
    title: &'static str,
    /// In the list, and below the title.
    what: &'static str,
    run: fn() -> Outcome,
}

const fn bench(
    name: &'static str,
    title: &'static str,
    what: &'static str,
    run: fn() -> Outcome,
) -> Bench {
    Bench { name, title, what, run }
}

const BENCHES: &[Bench] = &[
    bench(
        "free-lock",
        "A free lock",
        "acquire and release of a free lock, against the bare system calls",
        free_lock::run,
    ),
    bench(
        "adaptive",
        "A ttl that follows the hold times",
        "a simulation: what a ttl that follows the hold times saves in renewals and after a crash",
        adaptive::run,
    ),
    bench(
        "local",
        "Handovers inside one process, 16 tasks on one key",
        "handovers inside one process, 16 tasks on one key",
        local::run,
    ),
    bench(
        "handover",
        "From one process to another",
        "from one process to another, against a blocked flock",
        handover::run,
    ),
    bench(
        "takeover",
        "Takeover after SIGKILL of the holder",
        "after SIGKILL of the holder, against a blocked flock",
        takeover::run,
    ),
    bench(
        "command",
        "The command, beside flock(1) and etcdctl lock",
        "a free run of a command, against flock(1) and etcdctl lock",
        command::run,
    ),
    bench(
        "crowd",
        "64 processes waiting",
        "64 processes waiting: processor time, and how many a release wakes",
        crowd::run,
    ),
    bench(
        "redis-free",
        "Redis: free locks",
        "free locks on Redis, against the bare commands over the same library, and other locks",
        redis_free::run,
    ),
    bench(
        "redis-contend",
        "Redis: contention between processes",
        "8 processes that want one key on Redis, against a client that spins, and other locks",
        redis_contend::run,
    ),
    bench(
        "redis-local",
        "Redis: contention inside one process",
        "16 tasks of one process that want one key on Redis, and other locks",
        redis_contend::local,
    ),
    bench(
        "redis-handoff",
        "Redis: hand-off when the holder takes 200 ms",
        "from one process to another on Redis when the holder takes 200 ms, and other locks",
        redis_handoff::run,
    ),
    bench(
        "redis-held",
        "Redis: 10,000 held locks",
        "10,000 held locks on Redis, and other locks that renew",
        redis_held::run,
    ),
    bench(
        "redlock-free",
        "Redlock: free locks over five servers",
        "free locks over five servers, against the bare commands to all five, and other locks",
        redlock_free::run,
    ),
    bench(
        "redlock-slow",
        "Redlock: one server stopped",
        "one stopped server of five: acquires, and other locks",
        redlock_slow::run,
    ),
    bench(
        "redlock-contend",
        "Redlock: contention between processes",
        "8 processes that want one key over five servers, and other locks",
        redlock_contend::run,
    ),
    bench(
        "redlock-splits",
        "Redlock: split votes",
        "2, 8 and 32 processes that want one key over five servers: votes that nobody wins",
        redlock_contend::splits,
    ),
    bench(
        "redlock-commands",
        "Redlock: commands of a free cycle",
        "commands of a free cycle at each of five servers",
        redlock_commands::run,
    ),
    bench(
        "etcd-free",
        "etcd: free locks",
        "free locks on etcd, against the bare transactions and a keep-alive, and Go's package",
        etcd::free,
    ),
    bench(
        "etcd-contend",
        "etcd: contention between processes",
        "8 processes that want one key on etcd, and Go's package",
        etcd::contend,
    ),
    bench(
        "etcd-local",
        "etcd: contention inside one process",
        "16 tasks of one process that want one key on etcd, and Go's package",
        etcd::local,
    ),
    bench(
        "etcd-handoff",
        "etcd: hand-off when the holder takes 200 ms",
        "from one process to another on etcd when the holder takes 200 ms, and Go's package",
        etcd::handoff,
    ),
    bench(
        "etcd-held",
        "etcd: 1,000 held locks",
        "1,000 held locks on etcd, and Go's package",
        etcd::held,
    ),
    bench(
        "zookeeper-free",
        "ZooKeeper: free locks",
        "free locks on ZooKeeper, against the bare requests of a lock, and other locks",
        zookeeper::free,
    ),
    bench(
        "zookeeper-contend",
        "ZooKeeper: contention between processes",
        "8 processes that want one key on ZooKeeper, and other locks",
        zookeeper::contend,
    ),
    bench(
        "zookeeper-local",
        "ZooKeeper: contention inside one process",
        "16 tasks of one process that want one key on ZooKeeper, and other locks",
        zookeeper::local,
    ),
    bench(
        "zookeeper-handoff",
        "ZooKeeper: hand-off when the holder takes 200 ms",
        "from one process to another on ZooKeeper when the holder takes 200 ms, and other locks",
        zookeeper::handoff,
    ),
    bench(
        "zookeeper-held",
        "ZooKeeper: 1,000 held locks",
        "1,000 held locks on ZooKeeper, and other locks",
        zookeeper::held,
    ),
    bench(
        "postgres-free",
        "PostgreSQL: free locks",
        "free locks on PostgreSQL, against the bare statements, advisory locks, and other locks",
        postgres::free,
    ),
    bench(
        "postgres-contend",
        "PostgreSQL: contention between processes",
        "8 processes that want one key on PostgreSQL, and other locks",
        postgres::contend,
    ),
    bench(
        "postgres-handoff",
        "PostgreSQL: hand-off when the holder takes 200 ms",
        "from one process to another on PostgreSQL when the holder takes 200 ms, and other locks",
        postgres::handoff,
    ),
    bench(
        "postgres-waiters",
        "PostgreSQL: what 64 waiters cost",
        "64 waiters on one key of PostgreSQL: statements, notifications and the server's processor time",
        postgres_waiters::run,
    ),
    bench(
        "postgres-held",
        "PostgreSQL: 10,000 held locks",
        "10,000 held locks on PostgreSQL, and ShedLock's that are kept alive",
        postgres::held,
    ),
    bench(
        "kubernetes",
        "Kubernetes: leaders",
        "leaders on Kubernetes: requests, takeovers, and leaders that were stopped, beside client-go and two crates",
        kubernetes::run,
    ),
    bench(
        "slow-link",
        "A free lock over a slow link",
        "free locks over a link of 2.5 ms each way, and other locks",
        slow_link::run,
    ),
    bench(
        "stores",
        "All stores side by side",
        "all stores side by side: free, contended, hand-off, takeover, and over a slow link",
        stores::run,
    ),
    bench(
        "faults",
        "What a lock survives",
        "a server of the store is killed in the midst of a contest, on each store",
        faults::run,
    ),
    bench(
        "python",
        "Python: the package beside other locks",
        "the wheel, for threads and asyncio, beside redis-py, python-redis-lock, pottery, kazoo, etcd3gw, aetcd and filelock",
        python::run,
    ),
    bench(
        "serve",
        "The service under load, on Redis",
        "`latchwork serve` with 10,000 locks of 1,000 connections, beside the library on Redis",
        serve::run,
    ),
    bench(
        "serve-etcd",
        "The service under load, beside etcd's HTTP gateway",
        "`latchwork serve` with 10,000 locks of 1,000 connections on etcd, beside the library and etcd's own locks over HTTP",
        serve::beside_gateway,
    ),
    bench(
        "serve-sessions",
        "Many locks by one renewal",
        "sessions of `latchwork serve` on Redis and etcd, beside tickets and beside leases of etcd's HTTP gateway",
        serve::sessions,
    ),
    bench(
        "serve-slow",
        "The service with slow clients",
        "1,000 connections that send nothing, or a byte a second: memory, and when they are cut",
        serve::slow_clients,
    ),
    bench(
        "scale-costs",
        "What a cycle costs each store, and at which rate it gives way",
        "free cycles and renewals on each store: the server's processor time and syncs, and the rates at which they end",
        scale::costs::run,
    ),
    bench(
        "scale-beside",
        "Other work of a server beside locks",
        "small writes of others on each store, alone and beside locks: their times, and the server's processor time",
        scale::beside::run,
    ),
    bench("held", "10,000 held guards", "10,000 held guards: memory and processor time", held::run),
];

/// All measurements, the curves last.
fn benches() -> impl Iterator<Item = &'static Bench> {
    BENCHES.iter().chain(growth::BENCHES)
}

/// The measurement of this name.
fn named(name: &str) -> Option<&'static Bench> {
    benches().find(|bench| bench.name == name)
}

/// Where a measurement stands among all.
fn place(name: &str) -> Option<usize> {
    benches().position(|bench| bench.name == name)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("store") => return one_store::main(),
        Some(one_store::worker::ROLE) => return one_store::worker::main(),
        _ => {}
    }
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

//! Measurements, side by side in one run: `cargo xtask bench NAME...`.
//!
//! The machines that run this are noisy, so what counts are ratios between two things measured in turns in the same
//! run, and medians.

#![expect(clippy::print_stdout, reason = "a command for people")]
#![expect(clippy::disallowed_methods, reason = "measures with the process's own clock")]

mod adaptive;
mod bare;
mod bars;
mod child;
mod command;
mod contest;
mod faults;
mod free;
mod goals;
mod growth;
mod handoffs;
mod held;
mod installing;
mod kubernetes;
mod local;
mod machine;
mod one_store;
mod peers;
mod picture;
mod postgres_waiters;
mod python;
mod record;
mod redlock;
mod roles;
mod runner;
mod scale;
mod serve;
mod side;
mod stats;
mod store;
mod stores;
mod times;
mod worker;

use std::process::ExitCode;

use record::Bench;
use roles::Outcome;
use store::Which::{Etcd, Files, Memory, Postgres, Redis, Redlock, ZooKeeper};

macro_rules! benches {
    ($($name:literal $title:literal $what:literal => $run:expr;)*) => {
        &[$(Bench { name: $name, title: $title, what: $what, run: || $run }),*]
    };
}

const BENCHES: &[Bench] = benches! {
    "free-lock" "A free lock" "acquire and release of a free lock, against the bare system calls" => local::free();
    "adaptive" "A ttl that follows the hold times" "a simulation: what a ttl that follows the hold times saves in renewals and after a crash" => adaptive::run();
    "local" "Handovers inside one process, 16 tasks on one key" "handovers inside one process, 16 tasks on one key" => local::handovers();
    "handover" "From one process to another" "from one process to another, against a blocked flock" => handoffs::handover();
    "takeover" "Takeover after SIGKILL of the holder" "after SIGKILL of the holder, against a blocked flock" => handoffs::takeovers();
    "command" "The command, beside flock(1) and etcdctl lock" "a free run of a command, against flock(1) and etcdctl lock" => command::run();
    "crowd" "64 processes waiting" "64 processes waiting: processor time, and how many a release wakes" => handoffs::crowds();
    "redis-free" "Redis: free locks" "free locks on Redis, against the bare commands over the same library, and other locks" => side::free(Redis);
    "redis-contend" "Redis: contention between processes" "8 processes that want one key on Redis, against a client that spins, and other locks" => side::contend(Redis);
    "redis-local" "Redis: contention inside one process" "16 tasks of one process that want one key on Redis, and other locks" => side::local(Redis);
    "redis-handoff" "Redis: hand-off when the holder takes 200 ms" "from one process to another on Redis when the holder takes 200 ms, and other locks" => side::handoff(Redis);
    "redis-held" "Redis: 10,000 held locks" "10,000 held locks on Redis, and other locks that renew" => side::held(Redis);
    "redlock-free" "Redlock: free locks over five servers" "free locks over five servers, against the bare commands to all five, and other locks" => side::free(Redlock);
    "redlock-slow" "Redlock: one server stopped" "one stopped server of five: acquires, and other locks" => redlock::slow();
    "redlock-contend" "Redlock: contention between processes" "8 processes that want one key over five servers, and other locks" => side::contend(Redlock);
    "redlock-splits" "Redlock: split votes" "2, 8 and 32 processes that want one key over five servers: votes that nobody wins" => redlock::splits();
    "redlock-commands" "Redlock: commands of a free cycle" "commands of a free cycle at each of five servers" => redlock::commands();
    "etcd-free" "etcd: free locks" "free locks on etcd, against the bare transactions and a keep-alive, and Go's package" => side::free(Etcd);
    "etcd-contend" "etcd: contention between processes" "8 processes that want one key on etcd, and Go's package" => side::contend(Etcd);
    "etcd-local" "etcd: contention inside one process" "16 tasks of one process that want one key on etcd, and Go's package" => side::local(Etcd);
    "etcd-handoff" "etcd: hand-off when the holder takes 200 ms" "from one process to another on etcd when the holder takes 200 ms, and Go's package" => side::handoff(Etcd);
    "etcd-held" "etcd: 1,000 held locks" "1,000 held locks on etcd, and Go's package" => side::held(Etcd);
    "zookeeper-free" "ZooKeeper: free locks" "free locks on ZooKeeper, against the bare requests of a lock, and other locks" => side::free(ZooKeeper);
    "zookeeper-contend" "ZooKeeper: contention between processes" "8 processes that want one key on ZooKeeper, and other locks" => side::contend(ZooKeeper);
    "zookeeper-local" "ZooKeeper: contention inside one process" "16 tasks of one process that want one key on ZooKeeper, and other locks" => side::local(ZooKeeper);
    "zookeeper-handoff" "ZooKeeper: hand-off when the holder takes 200 ms" "from one process to another on ZooKeeper when the holder takes 200 ms, and other locks" => side::handoff(ZooKeeper);
    "zookeeper-held" "ZooKeeper: 1,000 held locks" "1,000 held locks on ZooKeeper, and other locks" => side::held(ZooKeeper);
    "postgres-free" "PostgreSQL: free locks" "free locks on PostgreSQL, against the bare statements, advisory locks, and other locks" => side::free(Postgres);
    "postgres-contend" "PostgreSQL: contention between processes" "8 processes that want one key on PostgreSQL, and other locks" => side::contend(Postgres);
    "postgres-handoff" "PostgreSQL: hand-off when the holder takes 200 ms" "from one process to another on PostgreSQL when the holder takes 200 ms, and other locks" => side::handoff(Postgres);
    "postgres-waiters" "PostgreSQL: what 64 waiters cost" "64 waiters on one key of PostgreSQL: statements, notifications and the server's processor time" => postgres_waiters::run();
    "postgres-held" "PostgreSQL: 10,000 held locks" "10,000 held locks on PostgreSQL, and ShedLock's that are kept alive" => side::held(Postgres);
    "kubernetes" "Kubernetes: leaders" "leaders on Kubernetes: requests, takeovers, and leaders that were stopped, beside client-go and two crates" => kubernetes::run();
    "slow-link" "A free lock over a slow link" "free locks over a link of 2.5 ms each way, and other locks" => stores::slow_link();
    "stores" "All stores side by side" "all stores side by side: free, contended, hand-off, takeover, and over a slow link" => stores::run();
    "faults" "What a lock survives" "a server of the store is killed in the midst of a contest, on each store" => faults::run();
    "python" "Python: the package beside other locks" "the wheel, for threads and asyncio, beside redis-py, python-redis-lock, pottery, kazoo, etcd3gw, aetcd and filelock" => python::run();
    "serve" "The service under load, on Redis" "`latchwork serve` with 10,000 locks of 1,000 connections, beside the library on Redis" => serve::run();
    "serve-etcd" "The service under load, beside etcd's HTTP gateway" "`latchwork serve` with 10,000 locks of 1,000 connections on etcd, beside the library and etcd's own locks over HTTP" => serve::beside_gateway();
    "serve-sessions" "Many locks by one renewal" "sessions of `latchwork serve` on Redis and etcd, beside tickets and beside leases of etcd's HTTP gateway" => serve::sessions();
    "serve-slow" "The service with slow clients" "1,000 connections that send nothing, or a byte a second: memory, and when they are cut" => serve::slow_clients();
    "scale-costs" "What a cycle costs each store, and at which rate it gives way" "free cycles and renewals on each store: the server's processor time and syncs, and the rates at which they end" => scale::costs::run();
    "scale-beside" "Other work of a server beside locks" "small writes of others on each store, alone and beside locks: their times, and the server's processor time" => scale::beside::run();
    "held" "10,000 held guards" "10,000 held guards: memory and processor time" => side::guards();
};

macro_rules! curves {
    ($($name:literal $title:literal $curve:path, $which:ident;)*) => {
        &[$(Bench {
            name: concat!("growth-", $name),
            title: concat!("How cost grows: ", $title),
            what: concat!($title, ": a curve over sizes, and the exponent of each cost"),
            run: || $curve($which),
        }),*]
    };
}

/// Not among `all`, for they take as long as all the others together.
const CURVES: &[Bench] = curves! {
    "memory-waiters" "waiters inside one process" growth::waiters, Memory;
    "memory-keys" "keys used once in memory" growth::keys, Memory;
    "memory-holds" "holds in memory" growth::holds, Memory;
    "file-waiters" "waiters on files" growth::waiters, Files;
    "file-keys" "keys used once on files" growth::keys, Files;
    "file-holds" "holds on files" growth::holds, Files;
    "file-processes" "processes on files" growth::processes, Files;
    "redis-waiters" "waiters on Redis" growth::waiters, Redis;
    "redis-keys" "keys used once on Redis" growth::keys, Redis;
    "redis-holds" "holds on Redis" growth::holds, Redis;
    "redis-processes" "processes on Redis" growth::processes, Redis;
    "redlock-waiters" "waiters on Redlock" growth::waiters, Redlock;
    "redlock-keys" "keys used once on Redlock" growth::keys, Redlock;
    "redlock-holds" "holds on Redlock" growth::holds, Redlock;
    "redlock-processes" "processes on Redlock" growth::processes, Redlock;
    "redlock-distance" "servers of Redlock that are far" growth::distance::run, Redlock;
    "etcd-waiters" "waiters on etcd" growth::waiters, Etcd;
    "etcd-keys" "keys used once on etcd" growth::keys, Etcd;
    "etcd-holds" "holds on etcd" growth::holds, Etcd;
    "etcd-processes" "processes on etcd" growth::processes, Etcd;
    "etcd-distance" "members of etcd that are apart" growth::distance::run, Etcd;
    "zookeeper-waiters" "waiters on ZooKeeper" growth::waiters, ZooKeeper;
    "zookeeper-keys" "keys used once on ZooKeeper" growth::keys, ZooKeeper;
    "zookeeper-holds" "holds on ZooKeeper" growth::holds, ZooKeeper;
    "zookeeper-processes" "processes on ZooKeeper" growth::processes, ZooKeeper;
    "zookeeper-distance" "servers of ZooKeeper that are apart" growth::distance::run, ZooKeeper;
    "postgres-waiters" "waiters on PostgreSQL" growth::waiters, Postgres;
    "postgres-keys" "keys used once on PostgreSQL" growth::keys, Postgres;
    "postgres-holds" "holds on PostgreSQL" growth::holds, Postgres;
    "postgres-processes" "processes on PostgreSQL" growth::processes, Postgres;
};

/// All measurements, the curves last.
fn benches() -> Vec<Bench> {
    [BENCHES, CURVES].concat()
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done: Outcome<ExitCode> = match args.split_first() {
        Some((word, rest)) if word == worker::CHILD => child::run(rest).map(|()| ExitCode::SUCCESS),
        Some((word, rest)) if word == serve::CHILD => {
            serve::child(rest).map(|()| ExitCode::SUCCESS)
        }
        Some((word, rest)) if word == kubernetes::CHILD => {
            kubernetes::child(rest).map(|()| ExitCode::SUCCESS)
        }
        Some((word, [name])) if word == runner::ROLE => {
            let bench = benches().into_iter().find(|bench| bench.name == name);
            bench
                .map_or_else(|| Err("no such measurement".into()), |it| (it.run)())
                .map(|()| ExitCode::SUCCESS)
        }
        Some((word, rest)) if word == "store" => one_store::run(rest).map(|()| ExitCode::SUCCESS),
        _ => runner::run(&args, &benches()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("bench: {error}");
        ExitCode::FAILURE
    })
}

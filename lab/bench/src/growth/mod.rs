//! How cost grows: curves over sizes, not points, and the exponent of each cost.
//!
//! | file | job |
//! | --- | --- |
//! | `distance.rs` | members that are apart |
//! | `child.rs` | the process whose waiters are measured |
//! | `exponent.rs` `table.rs` | how steeply a cost grows, and the tables |

pub(crate) mod child;
pub(crate) mod distance;
mod exponent;
mod table;

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use latchwork::BlockOn as _;

use self::table::{Budget, Column, Curve, Seen};
use crate::bars::{
    GROWTH_CPU, GROWTH_DRAIN, GROWTH_HOLDS, GROWTH_KEYS, GROWTH_MOVING, GROWTH_PROCESSES,
};
use crate::contest::contest;
use crate::peers::{
    self, ADVISORY, CURATOR, ETCD_CONCURRENCY, Kind, LATCHWORK, REDIS_PY, RSLOCK, WAITERS,
    ZOOKEEPER_CLIENT,
};
use crate::roles::Outcome;
use crate::stats::{is_short, shortened};
use crate::store::{Store, Which};
use crate::times::Times;
use crate::worker::{Worker, of_threads, resident};

const TTL: Duration = Duration::from_secs(30);

/// Connects once, so that what comes with the first connection is not of the keys.
pub(crate) fn open(store: &dyn Store) -> Outcome<String> {
    let address = store.address();
    if address != "mem:" {
        latchwork::init(&address).block_on()?;
    }
    Ok(address)
}

/// Where there is no server, its part is nothing.
fn both(client: f64, server: f64) -> f64 {
    client + if server.is_finite() { server } else { 0.0 }
}

/// Sizes without the last ones in the short form.
fn sizes(all: &[usize], fewer: usize) -> &[usize] {
    &all[..shortened(all.len(), all.len() - fewer)]
}

/// What is done in the background is done by then.
const REST: Duration = Duration::from_secs(2);

/// Keys that are used once: what is left of a thousand to a million of them.
pub(crate) fn keys(which: Which) -> Outcome {
    const COLUMNS: &[Column; 10] = &[
        Column::plain("keys a second", ""),
        Column::each("client CPU a key", "us"),
        Column::each("server CPU a key", "us"),
        Column::each("both", "us").drawn(&GROWTH_KEYS),
        Column::each("commands a key", ""),
        Column::each("p50", "us"),
        Column::each("p99", "us"),
        Column::all("entries left", ""),
        Column::all("left at the server", "kB"),
        Column::all("left in the client", "kB"),
    ];
    let (store, budget) = (which.start()?, Budget::begin()?);
    let mut worker = LATCHWORK.start(&open(&*store)?, TTL.as_millis())?;
    let _limited = worker.limited(2 * budget.left());
    // The first few make what is there once.
    worker.tell("use 0 64")?;
    worker.line()?;
    let (empty, small) = (store.left()?, resident(worker.pid())?);
    println!(
        "A row has the costs of the keys that came since the row before, and what all have left.\n"
    );
    let curve = Curve {
        name: format!("Keys used once on {}", store.name()),
        size: "keys",
        columns: COLUMNS,
        sizes: sizes(&[1_000, 10_000, 100_000, 1_000_000], 2),
        promise: ["every key is had", "keys failed", ""],
        has_goals: true,
    };
    let mut used = 0;
    curve.run(&budget, |size| {
        let (cpu, sent) = (store.cpu(), store.commands(&LATCHWORK)?);
        worker.tell(&format!("use {} {}", 64 + used, 64 + size))?;
        let ([seconds, failed, client], times) = worker.numbers()?;
        let (server, commands) = (store.cpu() - cpu, store.commands(&LATCHWORK)? - sent);
        std::thread::sleep(REST);
        let (left, count) = (store.left()?, (size - used) as f64);
        used = size;
        let server = server * 1e6;
        let values = [
            count / seconds,
            client / count,
            server / count,
            both(client, server) / count,
            commands / count,
            times.quantile(0.5),
            times.quantile(0.99),
            left.entries - empty.entries,
            (left.bytes - empty.bytes) / 1e3,
            resident(worker.pid())? - small,
        ];
        Ok(Seen { values, wrong: Some(failed), fixed: Some(REST) })
    })
}

/// Holds of one process: from a thousand to two hundred thousand.
pub(crate) fn holds(which: Which) -> Outcome {
    const COLUMNS: &[Column; 7] = &[
        Column::all("until all are held", "s"),
        Column::each("client memory a hold", "kB"),
        Column::each("server memory a hold", "kB"),
        Column::all("client CPU a second", "ms"),
        Column::all("server CPU a second", "ms"),
        Column::all("both", "ms").drawn(&GROWTH_HOLDS),
        Column::all("commands a second", ""),
    ];
    let (store, budget) = (which.start()?, Budget::begin()?);
    let ttl = shortened(TTL, TTL / 5);
    let mut worker = LATCHWORK.start(&open(&*store)?, ttl.as_millis())?;
    let _limited = worker.limited(2 * budget.left());
    worker.tell("take 1")?;
    worker.expect("taken")?;
    let (small, before) = (resident(worker.pid())?, store.memory()?);
    println!(
        "A ttl of {} s; watched for a third of it, in which each hold is renewed once.\n",
        ttl.as_secs()
    );
    let curve = Curve {
        name: format!("Holds on {}", store.name()),
        size: "holds",
        columns: COLUMNS,
        sizes: sizes(&[1_000, 10_000, 100_000, 200_000], 2),
        promise: ["none is lost", "holds lost", ""],
        has_goals: true,
    };
    let mut filling = 0.0;
    curve.run(&budget, |size| {
        let begun = Instant::now();
        worker.tell(&format!("take {size} 64"))?;
        worker.expect("taken")?;
        filling += begun.elapsed().as_secs_f64();
        let count = (size - 1) as f64;
        let client = (resident(worker.pid())? - small) / count;
        let server = (store.memory()? - before) / count / 1e3;
        let (start, own, theirs) = (Instant::now(), worker.ask("cpu")?, store.cpu());
        let sent = store.commands(&LATCHWORK)?;
        std::thread::sleep(ttl / 3);
        let seconds = start.elapsed().as_secs_f64();
        let own = (worker.ask("cpu")? - own) / seconds / 1e3;
        let theirs = (store.cpu() - theirs) / seconds * 1e3;
        let sent = (store.commands(&LATCHWORK)? - sent) / seconds;
        let values = [filling, client, server, own, theirs, both(own, theirs), sent];
        let wrong = Some(size as f64 - worker.ask("held")?);
        Ok(Seen { values, wrong, fixed: Some(ttl / 3) })
    })
}

/// Waiters check by themselves each third of the ttl; so long is watched, or not at all if they are few.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_FROM: usize = 1_000;
/// How long each holds the key while the queue moves on, in milliseconds.
const MOVING: u64 = 20;
/// So many handovers at least, for costs that one alone would not show.
const HANDOVERS: usize = 1_000;

/// Waiters on one key: from one to ten thousand.
pub(crate) fn waiters(which: Which) -> Outcome {
    const COLUMNS: &[Column; 12] = &[
        Column::all("until all wait", "ms"),
        Column::each("client memory a waiter", "kB"),
        Column::each("server memory a waiter", "kB"),
        Column::all("commands a second, waiting", ""),
        Column::all("server CPU a second, waiting", "ms"),
        Column::all("server CPU a second, queue moving", "ms").drawn(&GROWTH_MOVING),
        Column::all("time to drain", "ms").drawn(&GROWTH_DRAIN),
        Column::each("server CPU a release", "us").drawn(&GROWTH_CPU),
        Column::each("client CPU a release", "us"),
        Column::each("commands a release", ""),
        Column::each("handover p50", "us"),
        Column::each("handover p99", "us"),
    ];
    let (store, budget) = (which.start()?, Budget::begin()?);
    let url = open(&*store)?;
    println!(
        "Each waiter has a place of its own in the store's queue, but all are of one client; in one \
         process without a store and on Redlock, they share the queue of the process.\n"
    );
    let curve = Curve {
        name: format!("Waiters on {}", store.name()),
        size: "waiters",
        columns: COLUMNS,
        sizes: sizes(&[1, 10, 100, 1_000, 10_000], 1),
        promise: ["nobody starves", "waiters not served", "all can wait"],
        has_goals: true,
    };
    curve.run(&budget, |size| waiting(&*store, &url, size, 2 * budget.left()))
}

fn waiting(store: &dyn Store, url: &str, size: usize, limit: Duration) -> Outcome<Seen<12>> {
    let mut worker = WAITERS.start(url, TTL.as_millis())?;
    let pid = worker.pid();
    let _limited = worker.limited(limit);
    let (small, before) = (resident(pid)?, store.memory()?);
    let (mut memory, mut watching, mut starved) = ([f64::NAN; 2], [f64::NAN; 3], 0.0);
    // Seconds until all wait and until they are served; processor time of both, commands, and how many were served.
    let (mut sums, mut times) = ([0.0; 6], Times::default());
    let drains = shortened(HANDOVERS, HANDOVERS / 5).div_ceil(size);
    // Waiters that are watched before they are served are not counted among the others.
    let watched = usize::from(size >= IDLE_FROM && !is_short());
    for drain in 0..watched + drains {
        let begun = Instant::now();
        worker.tell(&format!("join {size}"))?;
        worker.expect("joined")?;
        let joined = begun.elapsed().as_secs_f64();
        if drain == 0 {
            let each = [resident(pid)? - small, (store.memory()? - before) / 1e3];
            memory = each.map(|kilobytes| kilobytes / size as f64);
        }
        if drain < watched {
            let [commands, cpu] = idle(store)?;
            worker.tell(&format!("move {MOVING}"))?;
            watching = [commands, cpu, idle(store)?[1]];
        }
        let (cpu, own, sent) = (store.cpu(), of_threads(pid), store.commands(&LATCHWORK)?);
        worker.tell("drain")?;
        let ([seconds, served], took) = worker.numbers()?;
        starved += size as f64 - served;
        if drain >= watched {
            let (cpu, own) = (store.cpu() - cpu, of_threads(pid) - own);
            let sent = store.commands(&LATCHWORK)? - sent;
            let more = [joined, seconds, cpu, own, sent, served];
            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
            times.merge(&took);
        }
    }
    let [join, drain, server, client, commands, served] = sums;
    let [waiting, cpu, moving] = watching;
    let values = [
        join / drains as f64 * 1e3,
        memory[0],
        memory[1],
        waiting,
        cpu * 1e3,
        moving * 1e3,
        drain / drains as f64 * 1e3,
        server / served * 1e6,
        client / served * 1e6,
        commands / served,
        times.quantile(0.5),
        times.quantile(0.99),
    ];
    // Below that, each size has as many handovers as the others.
    let fixed = (size >= HANDOVERS).then(|| 2 * IDLE * watched as u32);
    Ok(Seen { values, wrong: Some(starved), fixed })
}

/// Commands and processor time of the server in a second.
fn idle(store: &dyn Store) -> Outcome<[f64; 2]> {
    let (begun, cpu, sent) = (Instant::now(), store.cpu(), store.commands(&LATCHWORK)?);
    std::thread::sleep(IDLE);
    let seconds = begun.elapsed().as_secs_f64();
    Ok([(store.commands(&LATCHWORK)? - sent) / seconds, (store.cpu() - cpu) / seconds])
}

/// More of these take all memory, or minutes to start.
const HEAVY: usize = 16;
/// The least that a round lasts, and how long it lasts for each process: longer than all of them take to begin.
const LENGTH: (Duration, Duration) = (Duration::from_secs(4), Duration::from_millis(80));

/// Processes that want one key all the time: from one to 256.
pub(crate) fn processes(which: Which) -> Outcome {
    const COLUMNS: &[Column; 11] = &[
        Column::plain("holds a second", ""),
        Column::plain("handovers a second", ""),
        Column::each("client CPU a hold", "us"),
        Column::each("server CPU a hold", "us"),
        Column::each("both", "us").drawn(&GROWTH_PROCESSES),
        Column::each("commands a hold", ""),
        Column::each("connections a process", ""),
        Column::all("wait p50", "us"),
        Column::all("wait p99", "us"),
        Column::plain("starved", ""),
        Column::plain("Jain of processes", ""),
    ];
    let others: &[Kind] = match which {
        Which::Memory | Which::Files => &[],
        Which::Redis => &[RSLOCK, REDIS_PY],
        Which::Redlock => &[RSLOCK],
        Which::Etcd => &[ETCD_CONCURRENCY],
        Which::ZooKeeper => &[ZOOKEEPER_CLIENT, CURATOR],
        Which::Postgres => &[ADVISORY],
    };
    let store = which.start()?;
    let (kinds, missing) = peers::install(&[&[LATCHWORK], others].concat());
    let budget = Budget::begin()?;
    for kind in &kinds {
        let mut sizes = sizes(&[1, 4, 16, 64, 256], 2);
        if kind.name == CURATOR.name {
            println!("More than {HEAVY} are left out, each a machine of its own.\n");
            sizes = &sizes[..3];
        }
        let curve = Curve {
            name: format!("{} on {}", kind.name, store.name()),
            size: "processes",
            columns: COLUMNS,
            sizes,
            promise: ["nobody starves", "processes that never held it", "all get answers"],
            has_goals: kind.is_ours(),
        };
        curve.run(&budget, |size| contending(&*store, kind, size))?;
    }
    for (kind, reason) in missing {
        println!("{} is missing: {reason}\n", kind.name);
    }
    Ok(())
}

fn contending(store: &dyn Store, kind: &Kind, size: usize) -> Outcome<Seen<11>> {
    let length = LENGTH.0.max(LENGTH.1 * size as u32);
    let (spent, open, ports) = (RefCell::new(Vec::new()), Cell::new(f64::NAN), store.ports());
    let before = connections(&ports);
    let commands = || {
        if spent.borrow().is_empty() && !ports.is_empty() {
            open.set((connections(&ports) - before) / size as f64);
        }
        spent.borrow_mut().push(store.cpu());
        store.commands(kind)
    };
    let (round, _workers): (_, Vec<Worker>) = contest(store, kind, (size, 1), length, commands)?;
    let holds = round.pairs * shortened(length, length / 2).as_secs_f64();
    let spent = spent.borrow();
    let server = (spent[1] - spent[0]) / holds * 1e6;
    // What a contest tells of a handover, for each hold: a single process has no handovers.
    let client = round.cpu / holds;
    let values = [
        round.pairs,
        round.handovers,
        client,
        server,
        both(client, server),
        round.commands / holds,
        open.get(),
        round.times.quantile(0.5),
        round.times.quantile(0.99),
        round.starved.0 as f64,
        round.fair_processes,
    ];
    // Fewer turns than that and somebody may have none in so short a time.
    let wrong = (holds >= 4.0 * size as f64).then_some(round.starved.0 as f64);
    Ok(Seen { values, wrong, fixed: Some(Duration::ZERO) })
}

/// How many connections are open to servers at these ports.
fn connections(ports: &[u16]) -> f64 {
    let lists = ["tcp", "tcp6"].map(|list| std::fs::read_to_string(format!("/proc/net/{list}")));
    let lines = lists.iter().flatten().flat_map(|text| text.lines().skip(1));
    lines.filter(|line| local_port(line).is_some_and(|port| ports.contains(&port))).count() as f64
}

/// The port on this side of an open connection, from its line in `/proc/net/tcp`.
fn local_port(line: &str) -> Option<u16> {
    const ESTABLISHED: &str = "01";
    let words: Vec<&str> = line.split_whitespace().collect();
    let (_, port) = words.get(1)?.rsplit_once(':')?;
    (words.get(3)? == &ESTABLISHED).then(|| u16::from_str_radix(port, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_connections_are_counted_by_their_port() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(connections(&[port]), 0.0);
        let _clients = [0, 1].map(|_| std::net::TcpStream::connect(("127.0.0.1", port)).unwrap());
        let _accepted = [0, 1].map(|_| listener.accept().unwrap());
        assert_eq!((connections(&[port]), connections(&[])), (2.0, 0.0));
    }
}

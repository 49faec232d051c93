//! The table of the measurements that are made on each store: which locks, on which store, and their goals.

use std::time::Duration;

use crate::contest::{self, APART, Crowd, LOCAL};
use crate::goals::{Goal, Verdict};
use crate::held::Case;
use crate::peers::*;
use crate::roles::Outcome;
use crate::stats::shortened;
use crate::store::{Store, Which, sync};
use crate::{free, handoffs, held};

/// Locks on one Redis server, whatever they can do beside that.
pub(crate) const ON_REDIS: &[Kind] = &[
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    NODE_REDLOCK,
    RSLOCK,
    ASYNC_REDIS_LOCK,
    REDISSON,
    REDSYNC,
    RUEIDISLOCK,
];
/// The others on a store.
fn others(which: Which) -> &'static [Kind] {
    match which {
        Which::Memory | Which::Files => &[],
        Which::Redis => ON_REDIS,
        Which::Redlock => &[RSLOCK, REDLOCK_MUTEX, NODE_REDLOCK],
        Which::Etcd => &[ETCD_CONCURRENCY],
        Which::ZooKeeper => &[ZOOKEEPER_CLIENT, CURATOR, KAZOO],
        Which::Postgres => &[DISTRIBUTED_LOCK, SHEDLOCK, PALS_LOCK],
    }
}

fn start(which: Which) -> Outcome<Box<dyn Store>> {
    let store = which.start()?;
    if which == Which::Postgres {
        println!("Before: a page written and synced to a disk took {:.0} us.\n", sync()?);
    }
    Ok(store)
}

/// What follows in the lines above the tables.
fn setting(which: Which) -> &'static str {
    if which == Which::Redlock { ", 5 servers, commands those of each" } else { "" }
}

/// Free locks with one task and with 64.
pub(crate) fn free(which: Which) -> Outcome {
    let bare: &[Kind] = match which {
        Which::Memory | Which::Files => &[],
        Which::Redis => &[BARE_REDIS, LATCHWORK, TOKEN_REDIS, BARE_REDIS_FAR],
        Which::Redlock => &[BARE_FIVE, LATCHWORK, UNGUARDED],
        Which::Etcd => &[BARE_ETCD, LATCHWORK],
        Which::ZooKeeper => &[BARE_ZOOKEEPER, LATCHWORK],
        Which::Postgres => &[BARE_POSTGRES, LATCHWORK, BARE_POSTGRES_ASYNC, ADVISORY_FREE],
    };
    let is_free = |kind: &&Kind| ![PYTHON_REDIS_LOCK.name, NODE_REDLOCK.name].contains(&kind.name);
    let others = others(which).iter().filter(|it| which != Which::Redis || is_free(it));
    let mut kinds: Vec<Kind> = bare.iter().chain(others).copied().collect();
    if which == Which::Redis {
        kinds.push(THREADS);
    }
    let goals = |kind: &Kind, tasks: usize, table: &free::Table| {
        let is_near = matches!(which, Which::Redis | Which::Redlock);
        let least = match kind.waits {
            _ if kind.name == bare[0].name => (tasks == 1 || !is_near).then_some(0.9),
            _ if kind.name == RSLOCK.name && which == Which::Redis && tasks > 1 => Some(1.0),
            // An advisory lock writes nothing to the disk.
            Waits::Told if which == Which::Postgres => None,
            _ => kind.is_peer().then_some(0.95),
        };
        let goal = least.map(|least| Goal::at_least(least).judge(table.part(kind)));
        let mut verdicts: Vec<Verdict> = goal.into_iter().collect();
        if kind.name == RSLOCK.name && which == Which::Redis && tasks > 1 {
            verdicts.push(Goal::at_most(1.0).of("CPU").judge(table.cpu_part(kind)));
        }
        if let (true, 1, Some(own), Some(other)) =
            (kind.name == THREADS.name, tasks, table.of(THREADS.name), table.of(REDIS_PY.name))
        {
            let goal = Goal::at_least(1.5).of(format!("to {}", REDIS_PY.name));
            verdicts.push(goal.judge(own.rate() / other.rate()));
        }
        verdicts
    };
    let told = |tasks: usize| {
        let tasks = if tasks == 1 { "one task".into() } else { format!("{tasks} tasks") };
        format!("{tasks}, each with a key of its own{}", setting(which))
    };
    let store = start(which)?;
    let tables = free::run(&*store, &kinds, &[1, 64], told, goals)?;
    tables[0].note(&*store);
    Ok(())
}

/// How many times its handovers Latchwork's should be: five times those of a client that polls, and more than those
/// of one that is notified.
fn contended(which: Which, is_apart: bool, kind: &Kind, tasks: usize) -> Option<Goal> {
    let least = match kind.waits {
        _ if kind.is_ours() => return None,
        Waits::Rod if is_apart && kind.name == SPIN.name => {
            if tasks == 1 {
                1.1
            } else {
                1.4
            }
        }
        Waits::Rod => return None,
        _ if kind.name == ZOOKEEPER_CLIENT.name => 1.25,
        _ if which == Which::ZooKeeper => 1.5,
        Waits::Polls => 5.0,
        // Advisory locks are durable for nobody.
        Waits::Told if which == Which::Postgres => return None,
        Waits::Told if which == Which::Redis && is_apart => 2.5,
        Waits::Told => 2.0,
    };
    Some(Goal::at_least(least))
}

/// Between processes.
pub(crate) fn contend(which: Which) -> Outcome {
    let rods: &[Kind] = match which {
        Which::Redis => &[SPIN, PUSH_AND_POP],
        Which::Postgres => &[ADVISORY],
        _ => &[],
    };
    let kinds = [&[LATCHWORK, HANDOVER], rods, others(which)].concat();
    let (crowds, rounds, setting): (&[Crowd], _, _) = match which {
        Which::Redlock => (&APART[..1], (5, 3), ", five servers; commands are those of each"),
        Which::Etcd => (APART, (5, 3), ""),
        Which::ZooKeeper => (APART, (3, 3), ""),
        _ => (APART, (3, 2), ""),
    };
    let rounds = (rounds.0, Duration::from_secs(rounds.1));
    let goal = |kind: &Kind, tasks| contended(which, true, kind, tasks);
    contest::run(&*start(which)?, &kinds, crowds, rounds, setting, goal)
}

/// Inside one process, where Latchwork hands over by itself unless that is switched off.
pub(crate) fn local(which: Which) -> Outcome {
    let rods: &[Kind] = if which == Which::Redis { &[SPIN] } else { &[] };
    let kinds = [&[HANDOVER, LATCHWORK], rods, others(which)].concat();
    let goal = |kind: &Kind, tasks| contended(which, false, kind, tasks);
    contest::run(&*start(which)?, &kinds, LOCAL, (3, Duration::from_secs(2)), "", goal)
}

/// When the holder takes 200 ms.
pub(crate) fn handoff(which: Which) -> Outcome {
    let rods: &[Kind] = match which {
        Which::Redis => &[PUSH_AND_POP, SCRIPT_AND_POP],
        Which::Etcd => &[WATCH_AND_PUT],
        Which::Postgres => &[ADVISORY, COMMIT_AND_NOTIFY],
        _ => &[],
    };
    let kinds = [&[LATCHWORK], rods, others(which)].concat();
    let goal = |kind: &Kind| {
        let most = match which {
            Which::Postgres if kind.name == ADVISORY.name => 1.5,
            _ if !kind.is_peer() => return None,
            Which::Postgres if kind.waits == Waits::Told => return None,
            // Most of the time is two writes on the disk of the server, which each client pays.
            Which::Etcd | Which::ZooKeeper => 0.95,
            _ => 0.5,
        };
        Some(Goal::at_most(most))
    };
    handoffs::run(&*start(which)?, &kinds, goal)
}

const TTL: Duration = Duration::from_secs(30);

/// Many locks of one process, which it renews.
pub(crate) fn held(which: Which) -> Outcome {
    // What each does by itself; redis-semaphore leaves a fifth of the ttl for a renewal. Whole rounds of renewals, or
    // the counts would depend on when one looks.
    let third = |kind: Kind, rounds: f64| (kind, 1.0 / 3.0, rounds);
    // ShedLock keeps nothing alive that is shorter.
    let ttl = if which == Which::Postgres { TTL } else { shortened(TTL, TTL / 5) };
    let (locks, kinds) = match which {
        Which::Redis => {
            let one = (REDIS_SEMAPHORE, 0.8, 2.0);
            let two = (RUEIDISLOCK, 0.5, 2.0);
            let [own, other] = [LATCHWORK, ASYNC_REDIS_LOCK].map(|kind| third(kind, 3.0));
            (10_000, vec![own, other, one, third(REDISSON, 3.0), two])
        }
        Which::Postgres => {
            let rounds = shortened(2.0, 1.0);
            (10_000, vec![third(LATCHWORK, rounds), (SHEDLOCK, 0.5, rounds)])
        }
        Which::ZooKeeper => {
            (1_000, [LATCHWORK, ZOOKEEPER_CLIENT, CURATOR].map(|kind| third(kind, 3.0)).to_vec())
        }
        _ => (1_000, [LATCHWORK, ETCD_CONCURRENCY].map(|kind| third(kind, 3.0)).to_vec()),
    };
    let case = |(kind, every, rounds): (Kind, f64, f64)| {
        let name = kind.name;
        Case { kind, name, ttl, every, rounds, locks }
    };
    let cases: Vec<Case> = kinds.into_iter().map(case).collect();
    let each = if locks == 1_000 { ", each renewed every third of it" } else { "" };
    let setting = format!("{locks} locks with a ttl of {} s{each}", ttl.as_secs());
    let goals = |case: &Case, seen: &held::Measured, part: f64| match which {
        Which::Redis if !case.kind.is_ours() => vec![Goal::below(1.0).of("CPU").judge(part)],
        _ if !case.kind.is_ours() => Vec::new(),
        Which::Redis => vec![Goal::at_most(50.0).of("commands").judge(seen.commands)],
        Which::Postgres => vec![Goal::at_most(10.0).of("statements").judge(seen.commands)],
        // A shorter ttl is renewed more often.
        _ => {
            let most = 5.0 * TTL.as_secs_f64() / ttl.as_secs_f64();
            vec![Goal::below(most).of("CPU").unit("%").judge(seen.cpu)]
        }
    };
    held::run(&setting, &cases, |_| which.start(), goals)
}

/// The same without a server.
pub(crate) fn guards() -> Outcome {
    let rounds = shortened(4.0, 1.0);
    let case =
        |name| Case { kind: LATCHWORK, name, ttl: TTL, every: 1.0 / 3.0, rounds, locks: 10_000 };
    let start = |case: &Case| if case.name == "mem" { Which::Memory } else { Which::Files }.start();
    let goals = |_: &Case, seen: &held::Measured, _| {
        vec![Goal::below(2.0).of("CPU").unit("%").judge(seen.cpu)]
    };
    held::run("", &["mem", "file"].map(case), start, goals)
}

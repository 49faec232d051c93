//! What a lock survives: a server is killed in the midst of it, on each store.

use std::thread::sleep;
use std::time::Duration;

use latchwork_services::{
    Data, EtcdCluster, EtcdOptions, Persistence, PostgresOptions, PostgresServer, RedisOptions,
    RedisServer, SentinelOptions, SentinelSet, ZooKeeperEnsemble, ZooKeeperOptions,
};

use crate::goals::{self, Goal};
use crate::peers::STEADY;
use crate::roles::{Outcome, now};
use crate::stats::{head, median, row, shortened};
use crate::store::{Five, Store as _};

const PROCESSES: usize = 3;
const TTL: Duration = Duration::from_secs(6);
const HOLD: Duration = Duration::from_millis(500);
/// From the beginning to the kill, and from there to the end.
const BEFORE: Duration = Duration::from_secs(4);
const AFTER: Duration = Duration::from_secs(24);
const ROUNDS: usize = 3;

/// A store, what happens to it, and whether nobody may have the key beside another, or this is not promised.
type Scene = (&'static str, &'static str, bool, fn() -> Outcome<(String, Strike)>);

/// Lets it happen. What it owns are the servers.
type Strike = Box<dyn FnMut() -> Outcome>;

const GUARD: &str = "?guard=true&max_ttl=6s";
const AGAIN: &str = "killed, and started again";
const EMPTY: &str = "killed, and started again empty";
const PROMOTED: &str = "the primary killed, the standby promoted";
const LEADER: &str = "the leader killed";
const SCENES: [Scene; 11] = [
    ("Redis, every write on disk", AGAIN, true, || {
        one_redis(Persistence::EveryWrite, Data::Kept, "")
    }),
    ("Redis that keeps nothing", EMPTY, false, || one_redis(Persistence::None, Data::Empty, "")),
    ("Redis that keeps nothing, with the guard", EMPTY, true, || {
        one_redis(Persistence::None, Data::Empty, GUARD)
    }),
    ("Redis behind Sentinels, two replicas", "the master killed", false, sentinels),
    ("Redlock, 5 servers", "one killed", true, || redlock(1)),
    ("Redlock, 5 servers", "two killed", true, || redlock(2)),
    ("etcd, 3 members", LEADER, true, etcd),
    ("ZooKeeper, 3 servers", LEADER, true, zookeeper),
    ("PostgreSQL", AGAIN, true, one_postgres),
    ("PostgreSQL with an asynchronous standby", PROMOTED, false, || standby("")),
    ("PostgreSQL with an asynchronous standby, with the guard", PROMOTED, true, || standby(GUARD)),
];

pub(crate) fn run() -> Outcome {
    let mut all: Vec<Vec<Seen>> = SCENES.iter().map(|_| Vec::new()).collect();
    for number in 0..shortened(ROUNDS, 1) {
        // All at once: nobody has anything to do but to wait.
        let seen = std::thread::scope(|scope| {
            let play = |scene| move || play(scene, number).map_err(|error| error.to_string());
            let started: Vec<_> = SCENES.iter().map(|scene| scope.spawn(play(scene))).collect();
            started.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
        });
        for (rounds, seen) in all.iter_mut().zip(seen) {
            rounds.push(seen?);
        }
    }
    head(
        "Latchwork on | longest time without a holder | hand-offs before, a second | after | two owners at once | holders told | tokens out of order | failed acquires | goal",
    );
    for ((store, fault, is_safe, _), rounds) in SCENES.iter().zip(&all) {
        let sum = |what: fn(&Seen) -> usize| rounds.iter().map(what).sum::<usize>();
        let middle =
            |what: fn(&Seen) -> f64| median(&mut rounds.iter().map(what).collect::<Vec<_>>());
        let (overlaps, disorder) = (sum(|seen| seen.overlaps), sum(|seen| seen.disorder));
        let none = |what: &str, reached: usize| Goal::at_most(0.0).of(what).judge(reached as f64);
        let mut verdicts = vec![none("tokens out of order", disorder)];
        if *is_safe {
            verdicts.insert(0, none("two at once", overlaps));
        }
        row(&[
            format!("{store}: {fault}"),
            format!("{:.2} s", middle(|seen| seen.pause)),
            format!("{:.2}", middle(|seen| seen.rate_before)),
            format!("{:.2}", middle(|seen| seen.rate_after)),
            overlaps.to_string(),
            sum(|seen| seen.told).to_string(),
            disorder.to_string(),
            sum(|seen| seen.failed).to_string(),
            goals::cell(&verdicts),
        ]);
    }
    Ok(())
}

/// One hold.
struct Hold {
    acquired: u64,
    ended: u64,
    token: u64,
}

/// What was seen in one round.
struct Seen {
    /// The longest time in seconds without an owner that ended after the fault.
    pause: f64,
    /// Hand-offs a second until the fault, and in the last third of the time after it.
    rate_before: f64,
    rate_after: f64,
    overlaps: usize,
    /// Who was told that the lock is lost while it held it, or at the release.
    told: usize,
    disorder: usize,
    failed: usize,
}

fn play(scene: &Scene, number: usize) -> Outcome<Seen> {
    let (url, mut strike) = (scene.3)()?;
    let mut workers = STEADY.start_all(&url, TTL.as_millis(), PROCESSES)?;
    let begun = now();
    let until = begun + (BEFORE + AFTER).as_nanos() as u64;
    for worker in &mut workers {
        worker.tell(&format!("{until} {}", HOLD.as_millis()))?;
    }
    // Each time at another moment of a hold.
    let part = (2 * number + 1) as u32;
    sleep(BEFORE + HOLD * part / (2 * ROUNDS as u32));
    let struck = now();
    strike()?;
    let (mut holds, mut told, mut failed) = (Vec::new(), 0, 0);
    for worker in &mut workers {
        loop {
            let line = worker.line()?;
            let numbers: Vec<&str> = line.split(' ').collect();
            match numbers[..] {
                ["failed", count] => {
                    failed += count.parse::<usize>()?;
                    break;
                }
                [acquired, ended, token, was_told] => {
                    told += was_told.parse::<usize>()?;
                    holds.push(Hold {
                        acquired: acquired.parse()?,
                        ended: ended.parse()?,
                        token: token.parse()?,
                    });
                }
                _ => return Err(format!("what is {line:?}?").into()),
            }
        }
    }
    holds.sort_by_key(|hold| hold.acquired);
    let (mut pause, mut overlaps, mut disorder) = (0, 0, 0);
    let (mut free_at, mut highest) = (begun, 0);
    for hold in &holds {
        if hold.acquired > struck {
            pause = pause.max(hold.acquired.saturating_sub(free_at));
        }
        overlaps += usize::from(hold.acquired < free_at);
        disorder += usize::from(hold.token <= highest);
        (free_at, highest) = (free_at.max(hold.ended), highest.max(hold.token));
    }
    let last = AFTER / 3;
    let rate = |from: u64, to: u64| {
        let count = holds.iter().filter(|hold| (from..to).contains(&hold.acquired)).count();
        count as f64 / ((to - from) as f64 / 1e9)
    };
    let rate_after = rate(until - last.as_nanos() as u64, until);
    if rate_after == 0.0 {
        pause = pause.max(until - free_at);
    }
    let (pause, rate_before) = (pause as f64 / 1e9, rate(begun, struck));
    Ok(Seen { pause, rate_before, rate_after, overlaps, told, disorder, failed })
}

fn one_redis(
    persistence: Persistence,
    data: Data,
    options: &'static str,
) -> Outcome<(String, Strike)> {
    let mut server = RedisServer::start(&RedisOptions::new().persistence(persistence))?;
    let url = format!("redis://127.0.0.1:{}{options}", server.port());
    latchwork::block_on(latchwork::init(&url))?;
    Ok((url, Box::new(move || Ok(server.restart(data)?))))
}

fn sentinels() -> Outcome<(String, Strike)> {
    let mut set = SentinelSet::start(&SentinelOptions::default())?;
    let url = set.url();
    latchwork::block_on(latchwork::init(&url))?;
    Ok((url, Box::new(move || Ok(set.kill_master().map(|_| ())?))))
}

fn redlock(killed: usize) -> Outcome<(String, Strike)> {
    let mut five = Five::start()?;
    let url = five.address();
    let strike = move || {
        five.0.iter_mut().take(killed).for_each(|server| server.kill());
        Ok(())
    };
    Ok((url, Box::new(strike)))
}

fn etcd() -> Outcome<(String, Strike)> {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::new())?;
    let url = cluster.url();
    let strike = move || {
        let leader = cluster.leader()?;
        cluster.member_mut(leader).kill();
        Ok(())
    };
    Ok((url, Box::new(strike)))
}

fn zookeeper() -> Outcome<(String, Strike)> {
    let mut ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new())?;
    let url = ensemble.url();
    let strike = move || {
        let leader = ensemble.leader()?;
        ensemble.member_mut(leader).kill();
        Ok(())
    };
    Ok((url, Box::new(strike)))
}

fn one_postgres() -> Outcome<(String, Strike)> {
    let mut server = PostgresServer::start_with(&PostgresOptions::new().setting("fsync=on"))?;
    let url = server.url();
    latchwork::block_on(latchwork::init(&url))?;
    Ok((url, Box::new(move || Ok(server.crash()?))))
}

fn standby(options: &'static str) -> Outcome<(String, Strike)> {
    let mut primary = PostgresServer::start_with(&PostgresOptions::new().setting("fsync=on"))?;
    latchwork::block_on(latchwork::init(&format!("{}{options}", primary.url())))?;
    let standby = primary.copy(true)?;
    let (first, second) = (primary.port(), standby.port());
    let url = format!("postgres://postgres@127.0.0.1:{first},127.0.0.1:{second}/postgres{options}");
    let strike = move || {
        primary.kill();
        Ok(standby.psql("SELECT pg_promote()").map(drop)?)
    };
    Ok((url, Box::new(strike)))
}

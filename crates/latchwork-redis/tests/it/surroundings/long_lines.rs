//! Thousands who wait for one key, dead or alive: no call holds up the server for long.

use latchwork_store::*;

use crate::common::*;

const TTL: Duration = Duration::from_secs(60);
/// How long the server may be busy with one call.
const BUSY: Duration = Duration::from_millis(5);

/// Waiters of processes that this test only pretends to have.
struct Crowd<'a> {
    world: &'a World,
    admin: redis::Connection,
}

impl<'a> Crowd<'a> {
    fn new(world: &'a World) -> Self {
        let url = format!("redis://127.0.0.1:{}", world.server.port());
        let admin = redis::Client::open(url).unwrap().get_connection().unwrap();
        Self { world, admin }
    }

    /// Puts `count` waiters in line, as a try does. `process` names the process of each.
    fn join(&mut self, key: &str, count: usize, mode: &str, process: impl Fn(usize) -> String) {
        // A microsecond after each other, and all before now.
        self.join_then(key, count, mode, process, |now, n| now - count as u64 + n as u64);
    }

    /// As `join`, each at a time (us) of its own.
    fn join_then(
        &mut self,
        key: &str,
        count: usize,
        mode: &str,
        process: impl Fn(usize) -> String,
        joined: impl Fn(u64, usize) -> u64,
    ) {
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut self.admin).unwrap();
        let now = seconds * 1_000 + micros / 1_000;
        let joined = |n| joined(seconds * 1_000_000 + micros, n);
        let line = format!("{key}:lw:line");
        let places: Vec<usize> = (0..count).collect();
        for some in places.chunks(500) {
            let mut push = redis::cmd("RPUSH");
            push.arg(&line);
            for n in some {
                let (id, nonce) = (format!("{:032x}", n + 1), format!("{n:032x}"));
                let (look, ends, process) = (now + 9_000, now + 60_000, process(*n));
                push.arg(format!(
                    "{id}{look}{ends}{seconds}{micros:06}{mode}2000{process:<16}{nonce}{:020}\
                     {:016}0000000000000|a crowd",
                    0,
                    joined(*n)
                ));
            }
            push.query::<()>(&mut self.admin).unwrap();
        }
        redis::cmd("PEXPIRE").arg(&line).arg(60_000).query::<()>(&mut self.admin).unwrap();
        redis::cmd("SETRANGE").arg(key).arg(5).arg("+").query::<()>(&mut self.admin).unwrap();
    }

    /// What the server has done until now: its time on a processor, and the scripts that it ran.
    /// (Not the time that has passed: others keep the machine busy as well.)
    fn done(&self) -> (Duration, u64) {
        let pid = self.world.server.info("process_id").unwrap();
        let spent = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        let spent = spent.split(' ').next().unwrap().parse().unwrap();
        let stats = self.world.text(&["INFO", "commandstats"]);
        let calls = stats.lines().filter(|line| line.starts_with("cmdstat_eval")).map(|line| {
            let calls = line.split_once("calls=").unwrap().1;
            calls.split(',').next().unwrap().parse::<u64>().unwrap()
        });
        (Duration::from_nanos(spent), calls.sum())
    }

    /// How long the server was busy with each script since then, and the number of scripts.
    fn busy(&self, since: (Duration, u64)) -> (Duration, u64) {
        let (spent, calls) = self.done();
        let calls = calls - since.1;
        ((spent - since.0) / calls.max(1) as u32, calls)
    }
}

fn is_short(what: &str, each: Duration) {
    say(format_args!("{what}: {each:?}"));
    assert!(each <= BUSY, "{what}: the server is busy for {each:?} with one call");
}

/// H104: 2,000 dead waiters before a living one: it is served at once, by several short calls.
#[test]
fn h104_a_release_past_2000_dead_waiters_is_short_calls() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let mut crowd = Crowd::new(&world);
        crowd.join("k", 2_000, "x", |n| format!("{n:016x}"));
        let next = subscribed_waiter(&other, "k").await;
        let before = crowd.done();
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, at) = within("admitted", 2 * SLACK, next).await.unwrap();
        let (each, calls) = crowd.busy(before);
        say(format_args!("2000 dead: {calls} scripts, {:?} in all", at - released));
        assert!(calls >= 2_000 / 128, "{calls} calls");
        assert!(guard.ensure_held().is_ok());
        is_short("a release", each);
    });
}

/// H104: without a releaser the first to look serves the line, by short calls too.
#[test]
fn h104_inspecting_2000_dead_waiters_takes_short_calls() {
    run(async {
        let world = World::new();
        let other = Client::warm(&world.server.url(), TTL).await;
        let mut crowd = Crowd::new(&world);
        // A foreign client holds it, and lets it run out.
        world.ask(&["SET", "k", "foreign", "PX", "700"]).ok().unwrap();
        crowd.join("k", 2_000, "x", |n| format!("{n:016x}"));
        world.ask(&["SET", "k", "foreign", "PX", "700"]).ok().unwrap();
        let before = crowd.done();
        let next = waiter(&other, "k");
        let (guard, _) = within("admitted", 10 * SEC, next).await.unwrap();
        assert!(guard.ensure_held().is_ok());
        let (each, calls) = crowd.busy(before);
        assert!(calls >= 2_000 / 128, "{calls} calls");
        is_short("a look", each);
    });
}

/// H104: 5,000 readers who wait for one writer are all served when it goes, and all cleared away
/// when they have died, by short calls.
#[test]
fn h104_thousands_of_readers_are_short_calls() {
    run(async {
        let world = World::new();
        let ears = redis::Client::open(format!("redis://127.0.0.1:{}", world.server.port()));
        let mut ears = ears.unwrap().get_connection().unwrap();
        let mut ears = ears.as_pubsub();
        ears.subscribe("lw:push:00000000000000aa").unwrap();
        let backend = connect(&world.server.url()).await;
        let (writer, last) = (with_mode("k", TTL, Mode::Write), with_mode("k", TTL, Mode::Read));
        granted(&backend, &writer).await;
        let mut crowd = Crowd::new(&world);
        crowd.join("k", 5_000, "r", |_| "00000000000000aa".into());
        let before = crowd.done();
        assert_eq!(release(&backend, &writer).await, Released::Yes);
        until("all are served", 10 * SEC, || world.in_line("k") == 0).await;
        let (each, calls) = crowd.busy(before);
        assert!(calls >= 5_000 / 128, "{calls} calls");
        is_short("serving 5000 readers", each);
        // They die, and one who lives keeps the lock: the next writer has to clear them away.
        admitted(&backend, &last).await;
        pause(2_200 * MS).await;
        let next = with_mode("k", TTL, Mode::Write);
        let before = crowd.done();
        blocked(&backend, &next).await;
        assert_eq!(release(&backend, &last).await, Released::Yes);
        admitted(&backend, &next).await;
        assert_eq!(world.number(&["ZCARD", "k:lw:held"]), 0);
        let (each, _) = crowd.busy(before);
        is_short("clearing 5000 readers away", each);
    });
}

/// H104: in a line of 5,000 the last one keeps its place, gives up and is shown.
#[test]
fn h104_the_end_of_a_line_of_5000_is_short_calls() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let first = claim("k", TTL);
        granted(&backend, &first).await;
        let mut crowd = Crowd::new(&world);
        crowd.join("k", 5_000, "x", |n| format!("{n:016x}"));
        let last = claim("k", TTL);
        blocked(&backend, &last).await;
        let before = crowd.done();
        for _ in 0..5 {
            blocked(&backend, &last).await;
        }
        is_short("keeping a place behind 5000", crowd.busy(before).0);
        let before = crowd.done();
        assert_eq!(release(&backend, &last).await, Released::Yes);
        is_short("giving up behind 5000", crowd.busy(before).0);
        let before = crowd.done();
        let seen = backend.inspect(&Query::Key(first.key.clone())).await.unwrap();
        assert_eq!(seen[0].waiters.len(), 1_000);
        assert!(seen[0].notes.iter().any(|note| note.contains("4000 more wait")), "{seen:?}");
        is_short("showing 5000", crowd.busy(before).0);
        let many: Vec<_> = (0..512).map(|n| with_mode(&format!("r{n}"), TTL, Mode::Read)).collect();
        for one in &many {
            granted(&backend, one).await;
        }
        let before = crowd.done();
        assert!(backend.renew_all(&many).await.iter().all(Result::is_ok));
        is_short("512 renewals of readers", crowd.busy(before).0);
    });
}

/// How often the server was asked for a part of a line, by `LINDEX` and by `LRANGE`.
fn parts_read(world: &World) -> u64 {
    let stats = world.text(&["INFO", "commandstats"]);
    let calls = ["cmdstat_lindex:calls=", "cmdstat_lrange:calls="].map(|name| {
        let calls = stats.lines().find_map(|line| line.strip_prefix(name));
        calls.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    });
    calls.iter().sum()
}

/// A waiter looks every ten seconds, and a line that moves has moved by hundreds of places until then.
#[test]
fn h104_a_place_that_has_moved_is_found_in_a_few_steps() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let mut crowd = Crowd::new(&world);
        for (moved, left) in [(0, 9_000), (300, 8_700), (4_500, 4_500), (8_990, 10)] {
            let key = format!("moved-{moved}");
            granted(&backend, &claim(&key, TTL)).await;
            crowd.join(&key, 9_000, "x", |n| format!("{n:016x}"));
            let last = claim(&key, TTL);
            blocked(&backend, &last).await;
            world
                .ask(&["LTRIM", &format!("{key}:lw:line"), &moved.to_string(), "-1"])
                .ok()
                .unwrap();
            // The first time it may find behind which holder it waits.
            let (before, busy) = (parts_read(&world), crowd.done());
            let seen = blocked(&backend, &last).await;
            let (steps, busy) = (parts_read(&world) - before, crowd.busy(busy).0);
            assert_eq!(seen.ahead, Some(left));
            say(format_args!("moved by {moved} places: {steps} parts read, {busy:?}"));
            assert!(steps <= 20, "{steps} parts read to find a place that has moved by {moved}");
            // It gives up as fast, when others have come after it.
            crowd.join_then(&key, 2_000, "x", |n| format!("{n:016x}"), |now, _| now);
            let before = parts_read(&world);
            assert_eq!(release(&backend, &last).await, Released::Yes);
            let steps = parts_read(&world) - before;
            assert!(steps <= 20, "{steps} parts read to leave a place that has moved by {moved}");
            assert_eq!(world.number(&["LLEN", &format!("{key}:lw:line")]), i64::from(left) + 2_000);
        }
    });
}

/// The line is not in the order of its times then.
#[test]
fn h104_a_place_is_found_whatever_the_servers_clock_did() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let mut crowd = Crowd::new(&world);
        type Joined = fn(u64, usize) -> u64;
        let back: Joined = |now, n| now + 3_600_000_000 - n as u64;
        let same: Joined = |now, _| now;
        for (key, joined) in [("back", back), ("same", same)] {
            granted(&backend, &claim(key, TTL)).await;
            crowd.join_then(key, 500, "x", |n| format!("{n:016x}"), joined);
            let own: Vec<_> = (0..3).map(|_| claim(key, TTL)).collect();
            for (place, one) in own.iter().enumerate() {
                assert_eq!(blocked(&backend, one).await.ahead, Some(500 + place as u32));
            }
            crowd.join_then(key, 500, "x", |n| format!("{n:016x}"), joined);
            for (place, one) in own.iter().enumerate() {
                assert_eq!(blocked(&backend, one).await.ahead, Some(500 + place as u32), "{key}");
            }
            assert_eq!(world.number(&["LLEN", &format!("{key}:lw:line")]), 1_003);
            for one in &own {
                assert_eq!(release(&backend, one).await, Released::Yes);
            }
            assert_eq!(world.number(&["LLEN", &format!("{key}:lw:line")]), 1_000);
        }
    });
}

//! Holders and waiters that die, stop, lose their connection or give up: nobody stalls the line.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::{Guard, HoldState};
use latchwork_services::Cut;
use latchwork_store::*;

const TTL: Duration = Duration::from_secs(10);

/// Plays a part in another test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((role, store)) = role() else { return };
    let mut words = role.split(' ');
    let role = words.next().unwrap();
    let count = words.next().unwrap().parse().unwrap();
    let ttl = words.next().map_or(TTL, |millis| Duration::from_millis(millis.parse().unwrap()));
    run(async {
        match role {
            "hold" => hold(&store, Duration::from_millis(count)).await,
            "wait" => wait(&store, count, ttl).await,
            other => panic!("no such part: {other}"),
        }
    });
}

/// Takes the key with a ttl and keeps it.
async fn hold(store: &str, ttl: Duration) {
    let client = Client::new(store, ttl).await;
    let guard = client.acquire("k").await;
    say("held");
    hear();
    let is_held = guard.ensure_held().is_ok();
    let released = guard.release().await.map_err(|error| error.kind());
    say(format_args!("{is_held} {released:?}"));
}

/// So many clients wait for the key, each with a connection of its own. Who is admitted says
/// whether it finds itself held.
async fn wait(store: &str, count: u64, ttl: Duration) {
    let mut tasks = Vec::new();
    let mut clients = Vec::new();
    for n in 0..count {
        let client = Client::new(store, ttl).await;
        let next = waiter(&client, "k");
        until("it waits for messages", 20 * SEC, || client.story.waiting() >= 2).await;
        tasks.push(tokio::spawn(async move {
            let (guard, _) = next.await.unwrap();
            say(format_args!("{n} {}", guard.ensure_held().is_ok()));
            drop(guard);
        }));
        clients.push(client);
    }
    say("waiting");
    for task in tasks {
        task.await.unwrap();
    }
    hear();
}

/// A holder, behind it waiters in another process, and behind those a client of this process.
struct Queue {
    world: World,
    holder: Client,
    guard: Option<Guard>,
    ahead: Process,
    behind: Client,
}

impl Queue {
    async fn new(ahead: i64, ttl: Duration) -> Self {
        Self::in_world(World::new(), ahead, ttl).await
    }

    async fn in_world(world: World, ahead: i64, ttl: Duration) -> Self {
        let holder = Client::warm(&world.server.url(), ttl).await;
        let behind = Client::warm(&world.server.url(), ttl).await;
        let guard = holder.acquire("k").await;
        let role = format!("dead_waiters::wait {ahead} {}", ttl.as_millis());
        let mut process = Process::start(&role, &world.server.url());
        assert_eq!(process.line(), "waiting");
        world.line_is("k", ahead).await;
        Self { world, holder, guard: Some(guard), ahead: process, behind }
    }

    /// How long the client behind waits after the release, with a fault right before it.
    async fn behind_waits(&mut self, fault: impl FnOnce(&mut Process)) -> Duration {
        let next = subscribed_waiter(&self.behind, "k").await;
        fault(&mut self.ahead);
        let released = Instant::now();
        self.guard.take().unwrap().release().await.unwrap();
        let (guard, at) = next.await.unwrap();
        assert_eq!(guard.ensure_held(), Ok(guard.token()));
        guard.release().await.unwrap();
        at - released
    }
}

/// H76: 50 waiters killed at the head of the line are passed over at once.
#[test]
fn h76_fifty_killed_waiters_are_passed_over() {
    run(async {
        let mut queue = Queue::new(50, TTL).await;
        let took = queue.behind_waits(Process::kill).await;
        in_time(took, SLACK);
        queue.world.empties(TTL + SLACK).await;
    });
}

/// H102: somebody who listens to everything hears what is meant for the dead, and does not make
/// them count as alive.
#[test]
fn h102_a_listener_to_everything_delays_no_hand_off() {
    run(async {
        let mut queue = Queue::new(8, TTL).await;
        let url = format!("redis://127.0.0.1:{}", queue.world.server.port());
        let mut listener = redis::Client::open(url).unwrap().get_connection().unwrap();
        let mut listener = listener.as_pubsub();
        listener.psubscribe("*").unwrap();
        let took = queue.behind_waits(Process::kill).await;
        in_time(took, SLACK);
    });
}

/// H76: a server that does not tell who listens: dead waiters are passed over by what PUBLISH says.
#[test]
fn h76_without_rights_the_publish_count_decides() {
    run(async {
        let options = latchwork_services::RedisOptions::new().config("rename-command PUBSUB \"\"");
        let mut queue = Queue::in_world(World::with(&options), 8, TTL).await;
        let took = queue.behind_waits(Process::kill).await;
        in_time(took, SLACK);
    });
}

/// H28: a stopped waiter at the head of the line costs its probation, no more; when it goes on it
/// does not take itself for the holder, and is served later.
#[test]
fn h28_a_stopped_waiter_costs_its_probation() {
    run(async {
        let mut queue = Queue::new(1, TTL).await;
        let took = queue.behind_waits(|ahead| ahead.stop()).await;
        in_time(took, PROBATION + SLACK);
        let again = queue.holder.acquire("k").await;
        queue.ahead.cont();
        // It may say something only when the key is free again.
        pause(300 * MS).await;
        assert!(
            queue.world.text(&["GET", "k"]).contains(&again.token().grant_number().to_string())
        );
        again.release().await.unwrap();
        assert_eq!(queue.ahead.line(), "0 true");
        queue.world.empties(SEC).await;
    });
}

/// H28: several stopped waiters cost a probation each: the one behind them, who would look after
/// ten seconds by itself, is told to look earlier.
#[test]
fn h28_three_stopped_waiters_cost_a_probation_each() {
    run(async {
        let mut queue = Queue::new(3, 30 * SEC).await;
        let took = queue.behind_waits(|ahead| ahead.stop()).await;
        in_time(took, 3 * PROBATION + SLACK);
    });
}

/// H28: a releaser that dies between its release and the warnings after it, while the next holder is
/// stopped: the waiter behind looks by itself after its own pause, a third of its ttl.
#[test]
fn h28_a_killed_releaser_delays_waiters_by_one_pause() {
    run(async {
        let world = World::new();
        let ttl = 15 * SEC;
        let holder = Client::warm(&world.proxy.url(), 30 * SEC).await;
        let behind = Client::warm(&world.server.url(), ttl).await;
        let guard = holder.acquire("k").await;
        let role = format!("dead_waiters::wait 1 {}", ttl.as_millis());
        let mut ahead = Process::start(&role, &world.server.url());
        assert_eq!(ahead.line(), "waiting");
        let next = subscribed_waiter(&behind, "k").await;
        ahead.stop();
        // It never learns that the key was granted, so it warns nobody. (By its second script: the first one only
        // frees a key that nobody waits for.)
        world.proxy.lose_answer_of("EVALSHA", 2);
        let released = Instant::now();
        let releasing = tokio::spawn(guard.release());
        let (guard, at) = next.await.unwrap();
        let took = at - released;
        in_time(took, ttl / 3 + SLACK);
        assert!(took > PROBATION + SEC, "somebody has warned it: {took:?}");
        assert_eq!(world.proxy.counts().lost, 1);
        guard.release().await.unwrap();
        releasing.abort();
        ahead.kill();
    });
}

/// H76: a waiter that died before it said how to reach it costs its probation, not its ttl.
#[test]
fn h76_a_waiter_that_nobody_can_reach_costs_its_probation() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), 3 * TTL).await;
        let behind = Client::warm(&world.server.url(), 3 * TTL).await;
        let guard = holder.acquire("k").await;
        let dead = connect(&world.server.url()).await;
        blocked(&dead, &claim("k", 3 * TTL)).await;
        drop(dead);
        let next = subscribed_waiter(&behind, "k").await;
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, at) = next.await.unwrap();
        let took = at - released;
        in_time(took, PROBATION + SLACK);
        guard.release().await.unwrap();
    });
}

/// A waiter without a connection is passed over, and keeps its place until its ttl is over.
#[test]
fn a_disconnected_waiter_is_skipped_and_served_later() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let cut_off = Client::warm(&world.proxy.url(), TTL).await;
        let behind = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let first = subscribed_waiter(&cut_off, "k").await;
        let second = subscribed_waiter(&behind, "k").await;
        world.proxy.refuse_connections().unwrap();
        world.proxy.cut(Cut::Reset).unwrap();
        until("the server knows", 5 * SEC, || {
            world.text(&["CLIENT", "LIST"]).lines().filter(|l| l.contains(" sub=1")).count() == 1
        })
        .await;
        guard.release().await.unwrap();
        let (guard, _) = within("the second is admitted", SLACK, second).await.unwrap();
        assert_eq!(world.in_line("k"), 1, "the first keeps its place");
        world.proxy.accept_connections().unwrap();
        guard.release().await.unwrap();
        let (guard, _) = within("the first is admitted", 2 * SLACK, first).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// A waiter that gives up leaves the line at once.
#[test]
fn a_cancelled_waiter_leaves_the_queue() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let mut waiters = Vec::new();
        for _ in 0..5 {
            let client = Client::warm(&world.server.url(), TTL).await;
            let next = subscribed_waiter(&client, "k").await;
            waiters.push((client, next));
        }
        for (_, next) in &waiters[..4] {
            next.abort();
        }
        world.line_is("k", 1).await;
        guard.release().await.unwrap();
        let (guard, _) = within("the last", SLACK, waiters.pop().unwrap().1).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// Another process that holds the key, and a client whose own ttl is long: only the holder's end
/// makes it look.
async fn holder_and_client(world: &World, ttl: Duration) -> (Process, Client) {
    let mut holder =
        Process::start(&format!("dead_waiters::hold {}", ttl.as_millis()), &world.server.url());
    assert_eq!(holder.line(), "held");
    (holder, Client::warm(&world.server.url(), 60 * SEC).await)
}

/// H27: a holder that is killed tells nobody; who waits notices the end of its ttl.
#[test]
fn an_unannounced_expiry_is_noticed() {
    run(async {
        let world = World::new();
        let ttl = 2 * SEC;
        let (mut holder, client) = holder_and_client(&world, ttl).await;
        let next = subscribed_waiter(&client, "k").await;
        holder.kill();
        let killed = Instant::now();
        let (guard, at) = within("admitted", ttl + SLACK, next).await.unwrap();
        in_time(at - killed, ttl + SLACK);
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H1: a holder that is stopped for longer than its ttl: the next is admitted; the first look after
/// it goes on says that it is lost, and its release frees nothing.
#[test]
fn h01_a_resumed_holder_has_lost_the_lock() {
    run(async {
        let world = World::new();
        let ttl = 2 * SEC;
        let (mut holder, client) = holder_and_client(&world, ttl).await;
        let next = subscribed_waiter(&client, "k").await;
        holder.stop();
        let (guard, _) = within("admitted", ttl + SLACK, next).await.unwrap();
        // It is told to go on before it goes on.
        holder.tell("release");
        holder.cont();
        assert_eq!(holder.line(), "false Err(Lost)");
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.unwrap();
    });
}

/// H27: the connection is cut while somebody waits on it: it is made again, and the waiter is
/// reached by the release.
#[test]
fn a_cut_while_waiting_keeps_place_and_messages() {
    run(async {
        let world = World::new();
        let holder = Client::warm(&world.server.url(), 30 * SEC).await;
        let other = Client::warm(&world.proxy.url(), 30 * SEC).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        for how in [Cut::Reset, Cut::Finish] {
            let looks = other.story.waiting();
            world.proxy.cut(how).unwrap();
            until("it waits again", 2 * SEC, || other.story.waiting() >= looks + 2).await;
            assert_eq!(world.in_line("k"), 1);
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, at) = within("admitted", SLACK, next).await.unwrap();
        in_time(at - released, SLACK);
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// A release that finds nobody deletes the key, and a long line leaves no helper keys.
#[test]
fn nothing_stays_after_the_last_release() {
    run(async {
        let world = World::new();
        let client = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        client.acquire("k").await.release().await.unwrap();
        assert!(!world.is_held("k"), "deleted by the release itself");
        let guard = client.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        guard.release().await.unwrap();
        let (guard, _) = next.await.unwrap();
        guard.release().await.unwrap();
        assert_eq!(world.keys(), Vec::<String>::new());
        assert_eq!(world.text(&["DBSIZE"]), "1", "the counter of tokens");
    });
}

/// Readers and permits leave nothing either, released or left to their ttl.
#[test]
fn nothing_stays_of_shared_holds() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let ttl = 400 * MS;
        for mode in [Mode::Read, Mode::Permits { take: 1, of: 3 }] {
            let (one, two) = (with_mode("k", ttl, mode), with_mode("k", ttl, mode));
            granted(&backend, &one).await;
            granted(&backend, &two).await;
            assert_eq!(release(&backend, &one).await, Released::Yes);
            assert_eq!(release(&backend, &two).await, Released::Yes);
            assert_eq!(world.keys(), Vec::<String>::new());
            let left = with_mode("k", ttl, mode);
            granted(&backend, &left).await;
            world.empties(ttl + SLACK).await;
        }
    });
}

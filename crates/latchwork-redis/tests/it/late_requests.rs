//! Requests that are still under way when their connection has ended.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::bare::{Bare, LONG};
use crate::common::*;
use latchwork_services::{Cut, Data, Direction, Proxy, RedisOptions};
use latchwork_store::{Backend, BackendErrorKind, Mode};

/// H20, D10: the try is still under way when the connection breaks, and the release goes ahead of
/// it on the next one. The old connection is ended first, so that nothing comes after the release.
#[test]
fn h20_a_try_cannot_land_after_its_own_release() {
    run(async {
        // Two ways to the server: what is sent on the first can be kept back on the way.
        let world = World::new();
        let front = Proxy::redis(world.proxy.port()).unwrap();
        let client = overtaken(&world, &front, &front.url(), 20 * SEC).await;
        world.proxy.thaw(Direction::ToServer);
        until("the old connection has ended", 5 * SEC, || world.proxy.open_connections() == 0)
            .await;
        assert_eq!(world.keys(), Vec::<String>::new());
        drop(client);
    });
}

/// H20: without the right to end the old connection, the ttl bounds what it left.
#[test]
fn h20_without_the_right_to_end_connections_the_ttl_bounds_it() {
    run(async {
        let user = "app on >pw ~* &* +@all -client|kill";
        let world = World::with(&RedisOptions::new().user(user));
        let front = Proxy::redis(world.proxy.port()).unwrap();
        let url = front.url().replace("://", "://app:pw@");
        let client = overtaken(&world, &front, &url, 12 * SEC).await;
        world.proxy.thaw(Direction::ToServer);
        until("the try lands", 5 * SEC, || world.is_held("k")).await;
        world.empties(12 * SEC + SLACK).await;
        drop(client);
    });
}

/// Leaves a try on its way (behind the world's proxy) and releases on a new connection. After the ttl nobody would.
async fn overtaken(world: &World, front: &Proxy, url: &str, ttl: Duration) -> Client {
    let client = Client::warm(url, ttl).await;
    world.proxy.freeze(Direction::ToServer);
    front.reset_counts();
    world.proxy.reset_counts();
    let task = {
        let mutex = client.mutex("k");
        tokio::spawn(async move { mutex.acquire().await })
    };
    // Through the first of the proxies, which forgets what it has not passed on when it is cut.
    until("the try is under way", 5 * SEC, || world.proxy.counts()["EVALSHA"] == 1).await;
    // Given up: the claim is released, behind the try.
    task.abort();
    let _ = task.await;
    front.reset_counts();
    // Between the two connections there is one that is tried in vain: nobody is there.
    let nowhere = Proxy::redis(world.server.port()).unwrap();
    nowhere.refuse_connections().unwrap();
    front.set_upstream(([127, 0, 0, 1], nowhere.port()).into());
    // With FIN: a reset could take with it what is under way.
    front.cut(Cut::Finish).unwrap();
    let tried_in_vain = || front.counts().connections >= 1 && front.open_connections() == 0;
    until("a connection is tried in vain", 5 * SEC, tried_in_vain).await;
    // What is still under way on the connection that was cut is never answered.
    front.reset_counts();
    front.set_upstream(([127, 0, 0, 1], world.server.port()).into());
    // First as for a key that nobody waits for, unless that was cut, and then, as that is not held, by the whole script.
    let mut last = (0, Instant::now());
    until("the release is answered", 5 * SEC, || {
        let counts = front.counts();
        // A client whose connection broke at once asks whether the server speaks TLS: no command.
        let is_command = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase());
        let commands = counts.commands.iter().filter(|(name, _)| is_command(name));
        let sent = commands.map(|(_, count)| count).sum::<u64>();
        if last.0 != sent {
            last = (sent, Instant::now());
        }
        counts["EVALSHA"] >= 1 && counts.answers >= sent && last.1.elapsed() > 300 * MS
    })
    .await;
    client
}

/// H20: the server stands still for longer than a connection may take to be made, so the client
/// fails to connect before it succeeds.
#[test]
fn h20_a_stopped_server_keeps_no_abandoned_claim() {
    run(async {
        let mut world = World::new();
        let ttl = 6 * SEC;
        let client = Client::warm(&world.proxy.url(), ttl).await;
        world.server.stop().unwrap();
        let mutex = client.mutex("k");
        let tried = tokio::time::timeout(200 * MS, mutex.acquire()).await;
        assert!(tried.is_err());
        world.proxy.cut(Cut::Finish).unwrap();
        pause(2_600 * MS).await;
        world.server.cont().unwrap();
        world.empties(2 * SEC).await;
        pause(300 * MS).await;
        assert_eq!(world.keys(), Vec::<String>::new());
    });
}

/// H20: a client that connects again after a restart ends no connection of another: the numbers of
/// connections begin anew with the server.
#[test]
fn h20_no_client_kill_is_sent_to_a_restarted_server() {
    run(async {
        let mut world = World::new();
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(Client::warm(&world.proxy.url(), 10 * SEC).await);
        }
        world.server.restart(Data::Empty).unwrap();
        world.proxy.cut(Cut::Reset).unwrap();
        world.proxy.reset_counts();
        for (n, client) in clients.iter().enumerate() {
            client.acquire(&format!("k{n}")).await.release().await.unwrap();
        }
        // CLIENT ID, and no KILL; each connects once.
        let counts = world.proxy.counts();
        assert_eq!(counts.connections, 8, "{counts:?}");
        assert_eq!(counts["CLIENT"], 8, "{counts:?}");
    });
}

/// A connection that is reset just when a request is sent: the request ends with an error, at once,
/// and does not wait for the limit of those who ask.
#[test]
fn a_request_at_the_moment_of_a_reset_ends_at_once() {
    run(async {
        let world = World::new();
        let client = Bare::connect(&world.proxy.url()).await.unwrap();
        let claim = client.claim("k", Mode::Exclusive);
        for _ in 0..500 {
            world.proxy.cut(Cut::Reset).unwrap();
            loop {
                let tried = tokio::time::timeout(LONG, client.backend.try_acquire(&claim)).await;
                match tried.expect("an answer or an error") {
                    Ok(_) => break,
                    Err(error) => {
                        assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}")
                    }
                }
            }
        }
    });
}

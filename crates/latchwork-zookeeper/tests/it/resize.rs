//! Changes of the limit of permits, and the data that keeps it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

use crate::common::*;
use latchwork_store::{Backend, BackendErrorKind, Claim, Mode, Resized, Wake};

async fn resize(client: &Client, of: u32) -> Resized {
    client.0.resize(&permits(1, of)).await.unwrap()
}

fn server() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap()
}

fn permits(take: u32, of: u32) -> Claim {
    claim(20 * SEC).with(|it| it.mode = Mode::Permits { take, of })
}

/// Sets the data of the lock's node with another client, if there is some to set, and returns it.
fn data(server: &ZooKeeperServer, set: Option<&str>) -> String {
    let script = "import sys\n\
        from kazoo.client import KazooClient\n\
        client = KazooClient(hosts=sys.argv[1])\n\
        client.start()\n\
        if len(sys.argv) > 2:\n    client.set('/k', sys.argv[2].encode())\n\
        print(client.get('/k')[0].decode(), end='')\n\
        client.stop()";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script, &format!("127.0.0.1:{}", server.port())]).args(set);
    let output = command.output().expect("python3-kazoo is installed");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_change_is_kept_in_the_data_of_the_locks_node() {
    let server = server();
    run(async {
        let (a, b) = (Client::of(&server).await, Client::of(&server).await);
        assert_eq!(resize(&a, 3).await, Resized::Unused);
        let held = [(); 3].map(|()| permits(1, 3));
        for claim in &held {
            a.granted(claim).await;
        }
        b.blocked(&permits(1, 3)).await;
        assert_eq!(resize(&b, 2).await, Resized::Yes { from: 3, to: 2, held: 3 });
        assert_eq!(data(&server, None), "lw1 2 3 - 2");
        assert_eq!(resize(&b, 2).await, Resized::Yes { from: 2, to: 2, held: 3 });
        assert_eq!(resize(&b, 1).await, Resized::Yes { from: 2, to: 1, held: 3 });
        assert_eq!(data(&server, None), "lw1 1 3 - 1,2");
        assert!(a.held(&held[2]).await);
    });
}

/// H382: the node of the lock stays, with its data, until the server removes it. A claim that comes meanwhile has its
/// own limit.
#[test]
fn h382_a_limit_of_claims_that_have_left_counts_for_nobody() {
    let server = server();
    run(async {
        let (a, b) = (Client::of(&server).await, Client::of(&server).await);
        for _ in 0..2 {
            let held = permits(3, 3);
            a.granted(&held).await;
            resize(&b, 1).await;
            a.released(&held).await;
            assert_eq!(resize(&b, 5).await, Resized::Unused);
            let next = [(); 2].map(|()| permits(2, 4));
            for claim in &next {
                b.granted(claim).await;
            }
            let late = permits(1, 4);
            a.blocked(&late).await;
            for claim in &next {
                b.released(claim).await;
            }
            a.granted(&late).await;
            a.released(&late).await;
        }
    });
}

/// H383: a waiter is the next one, and the limit falls below what it takes. The end of the place ahead is no grant
/// then, and a raised limit is one without another request.
#[test]
fn h383_a_hand_off_does_not_exceed_a_lowered_limit() {
    let server = server();
    run(async {
        let (a, b) = (Client::of(&server).await, Client::of(&server).await);
        for round in 0..10 {
            let (held, waiter) = (permits(3, 3), permits(2, 3));
            a.granted(&held).await;
            let blocked = b.blocked(&waiter).await;
            let waits = async { b.0.wait(&waiter, &blocked).await.unwrap() };
            let changes = async {
                assert_eq!(resize(&a, 1).await, Resized::Yes { from: 3, to: 1, held: 3 });
                a.released(&held).await;
            };
            let (woken, ()) = tokio::join!(waits, changes);
            assert!(matches!(woken, Wake::Look), "round {round}: {woken:?}");
            let blocked = b.blocked(&waiter).await;
            assert!(!b.held(&waiter).await);
            let waits = async { b.0.wait(&waiter, &blocked).await.unwrap() };
            let (woken, raised) = tokio::join!(waits, resize(&a, 2));
            assert_eq!(raised, Resized::Yes { from: 1, to: 2, held: 0 });
            assert!(matches!(woken, Wake::Admitted { .. }), "round {round}: {woken:?}");
            assert!(b.held(&waiter).await);
            b.released(&waiter).await;
        }
    });
}

/// H385: the client of a change has died between its steps. No holder is evicted, and no waiter is granted more
/// than the new limit, also after the next change. Views count a waiter as a holder.
#[test]
fn h385_a_change_that_ends_half_way_lowers_the_limit() {
    let server = server();
    run(async {
        let (a, b) = (Client::of(&server).await, Client::of(&server).await);
        let held = [(); 4].map(|()| permits(1, 4));
        for claim in &held {
            a.granted(claim).await;
        }
        let waiters = [(); 2].map(|()| permits(1, 4));
        for waiter in &waiters {
            b.blocked(waiter).await;
        }
        assert_eq!(data(&server, Some("lw1 2 5 0 ")), "lw1 2 5 0 ");
        for claim in &held {
            a.granted(claim).await;
            assert!(a.held(claim).await);
        }
        for claim in &held[..2] {
            a.released(claim).await;
            b.blocked(&waiters[0]).await;
        }
        a.released(&held[2]).await;
        b.granted(&waiters[0]).await;
        b.blocked(&waiters[1]).await;
        assert_eq!(resize(&a, 2).await, Resized::Yes { from: 2, to: 2, held: 3 });
        b.blocked(&waiters[1]).await;
        assert_eq!(resize(&a, 3).await, Resized::Yes { from: 2, to: 3, held: 3 });
        b.granted(&waiters[1]).await;
    });
}

/// A claim that is far behind compares the limit, too.
#[test]
fn a_waiter_far_behind_is_reached_by_a_raised_limit() {
    let server = server();
    run(async {
        let (a, b) = (Client::of(&server).await, Client::of(&server).await);
        a.granted(&permits(1, 1)).await;
        let waiters: Vec<_> = (0..80).map(|_| permits(1, 1)).collect();
        for waiter in &waiters {
            b.blocked(waiter).await;
        }
        let last = b.blocked(&waiters[79]).await;
        assert_eq!(last.ahead, Some(79));
        assert_eq!(resize(&a, 100).await, Resized::Yes { from: 1, to: 100, held: 1 });
        b.granted(&waiters[79]).await;
        b.granted(&waiters[0]).await;
    });
}

/// Data of another program is not overwritten.
#[test]
fn data_of_others_in_the_locks_node_stays() {
    let server = server();
    run(async {
        let client = Client::of(&server).await;
        client.granted(&permits(1, 3)).await;
        data(&server, Some("mine"));
        let error = client.0.resize(&permits(1, 5)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
        let step = "use another key, or remove the data of that node";
        assert_eq!(error.next_step.as_deref(), Some(step));
        assert_eq!(data(&server, None), "mine");
        client.granted(&permits(1, 3)).await;
        let mutex = claim(20 * SEC).with(|it| it.key = latchwork_store::Key::new("m").unwrap());
        client.granted(&mutex).await;
        let other = permits(1, 5).with(|it| it.key = mutex.key.clone());
        let error = client.0.resize(&other).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{error:?}");
    });
}

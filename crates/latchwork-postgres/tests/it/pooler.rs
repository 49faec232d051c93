//! Behind PgBouncer with transaction pooling.

use std::time::Instant;

use crate::common::*;
use latchwork_services::PgBouncer;
use latchwork_store::{Backend, Released};

#[test]
fn a_pooler_is_noticed_when_connecting() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        assert!(bare(&server.url()).await.capabilities().push);
        for _ in 0..5 {
            assert!(!bare(&bouncer.url()).await.capabilities().push);
        }
        assert!(!bare(&format!("{}?pooler=true", server.url())).await.capabilities().push);
        let report = examine(&bouncer.url()).await;
        assert!(report.find("pooler").unwrap().found.contains("one stands"), "{report:?}");
    });
}

/// H150: LISTEN leaks into the pooler's connections, prepared statements collide, settings stay.
#[test]
fn h150_nothing_is_left_in_the_connections_of_a_pooler() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 2).unwrap();
    run(async {
        let (one, two) = (bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        for _ in 0..5 {
            let held = claim("k");
            one.acquired(&held).await;
            let waits = like(&held);
            let release = async {
                tokio::time::sleep(100 * MS).await;
                one.released(&held).await
            };
            let (_, released) = tokio::join!(two.acquired(&waits), release);
            assert_eq!(released, Released::Yes);
            two.released(&waits).await;
        }
        let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()), \
             current_setting('lock_timeout'), current_setting('synchronous_commit')";
        let asked = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", bouncer.port());
        for _ in 0..6 {
            let said = std::process::Command::new("psql")
                .args(["-XAt", &asked, "-c", left])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), "0|0|0|on\n");
        }
        assert_eq!(connections(&server, "LISTEN"), 0);
    });
}

/// H151: the pooler is killed under holders and waiters.
#[test]
fn h151_a_killed_pooler_costs_no_lock() {
    let server = server();
    let mut bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        let (holder, waiter) = (bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let token = holder.granted(&held).await.token;
        let waits = like(&held);
        waiter.blocked(&waits).await;
        bouncer.kill();
        assert!(holder.try_acquire(&claim("other")).await.is_err());
        bouncer.revive().unwrap();
        assert!(holder.held(&held).await);
        let start = Instant::now();
        holder.released(&held).await;
        assert!(waiter.acquired(&waits).await.token > token);
        assert!(start.elapsed() < 5 * SEC, "{:?}", start.elapsed());
    });
}

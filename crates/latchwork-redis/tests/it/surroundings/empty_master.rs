//! A master without persistence that crashes and comes back at once, at the same address: nobody
//! is promoted, and its replicas copy its emptiness.

use latchwork_services::{Data, RedisOptions, RedisServer};

use crate::common::*;
use crate::surroundings::believer::{Believer, TTL, at, init};

/// H92: all replicas have confirmed the lock, and none has it a moment later. `min_replicas` is
/// no help there; the guard is.
#[test]
fn h92_an_empty_master_empties_its_replicas_and_the_guard_waits() {
    run(async {
        let scene = async |options: &str| {
            let mut master = RedisServer::start(&RedisOptions::new()).unwrap();
            let follow = RedisOptions::new().replica_of(master.port());
            let replicas = [(); 2].map(|()| RedisServer::start(&follow).unwrap());
            let in_step = |master: &RedisServer| {
                let field =
                    |server: &RedisServer, name: &str| server.info(name).unwrap_or_default();
                replicas.iter().all(|replica| {
                    field(replica, "master_link_status") == "up"
                        && field(replica, "slave_repl_offset")
                            == field(master, "master_repl_offset")
                })
            };
            until("the replicas follow", 20 * SEC, || in_step(&master)).await;
            if options.contains("guard") {
                init(&at(master.port(), options)).await;
            }
            let first = Believer::hold(master.port(), options, "k").await;
            let has = |server: &RedisServer| ask(server, &["EXISTS", "k"]).text() == "1";
            assert!(replicas.iter().all(has), "all replicas have confirmed it");
            master.restart(Data::Empty).unwrap();
            let emptied = || !replicas.iter().any(has) && in_step(&master);
            until("the replicas are empty", TTL, emptied).await;
            first.is_joined_at(master.port(), options, "k").await
        };
        let (alone, guarded) =
            tokio::join!(scene("min_replicas=2"), scene("min_replicas=2&guard=true&max_ttl=5s"));
        assert!(alone, "without the guard there are two holders");
        assert!(!guarded, "with the guard there is one");
    });
}

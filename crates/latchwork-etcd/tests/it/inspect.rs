//! What `inspect` shows of claims that come and go meanwhile.

use crate::common::*;
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};

/// So many leases end at any moment between the list of the queue and the question how long each of them lasts.
const ROUNDS: usize = 40;

#[test]
fn inspect_shows_no_claim_that_has_ended_meanwhile() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let (holder, looker) = (bare(&server.url()).await, client(&server.url()).await);
        let comes_and_goes = async {
            for _ in 0..ROUNDS {
                let claim = claim("job");
                holder.granted(&claim).await;
                let (port, keys) = (server.port(), keys_of(&server, "job"));
                let revokes = tokio::task::spawn_blocking(move || {
                    let (_, lease) = keys[0].rsplit_once('/').unwrap();
                    etcdctl(port, &["lease", "revoke", lease]).unwrap();
                });
                revokes.await.unwrap();
            }
        };
        let looks = async {
            loop {
                for party in show(&looker, "job").await.holders {
                    assert!(party.remaining > Some(SEC), "it has ended: {party:?}");
                }
            }
        };
        tokio::select! {
            () = comes_and_goes => {}
            () = looks => {}
        }
    });
}

//! What locks cost, as the server counts it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::{Duration, Instant};

use crate::common::*;
use futures_util::future::join_all;
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};
use latchwork_store::{Backend, Renewal, Wake};

fn server() -> EtcdServer {
    EtcdServer::start(&EtcdOptions::new()).unwrap()
}

#[test]
fn a_free_lock_is_one_transaction_and_so_is_its_release() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        // The pool has leases once some were used.
        for _ in 0..3 {
            let first = claim("k");
            client.granted(&first).await;
            client.released(&first).await;
        }
        const ROUNDS: u64 = 20;
        // What is held for a moment too long, since the machine stood still, is watched.
        let mut least = None;
        for _ in 0..5 {
            let before = Requests::of(&server);
            for _ in 0..ROUNDS {
                let next = claim("k");
                client.granted(&next).await;
                client.released(&next).await;
            }
            let asked = Requests::of(&server).since(before);
            least = least.into_iter().chain([asked]).min_by_key(|asked| asked.transactions);
        }
        let asked = least.unwrap();
        assert_eq!(asked.transactions, 2 * ROUNDS, "{asked:?}");
        // Its lease has a second to spare.
        assert!(asked.keep_alives <= 10, "{asked:?}");
        assert_eq!((asked.reads, asked.revoked), (0, 0), "{asked:?}");
        // One is granted ahead now and then, so that there is always another.
        assert!(asked.leases <= ROUNDS, "{asked:?}");
    });
}

/// A lease that was kept alive a moment ago is not kept alive again, but whoever takes a key under it
/// has it for the whole ttl all the same.
#[test]
fn a_claim_under_a_lease_with_time_to_spare_has_its_whole_ttl() {
    const TTL: Duration = Duration::from_secs(10);
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let at = || claim("k").with(|it| it.ttl = TTL);
        let (first, begun) = (at(), Instant::now());
        client.granted(&first).await;
        client.released(&first).await;
        // Nearly as long as it has to spare: a second.
        tokio::time::sleep(Duration::from_millis(700)).await;
        let before = Requests::of(&server);
        let (next, start) = (at(), Instant::now());
        client.granted(&next).await;
        if begun.elapsed() < SEC {
            assert_eq!(Requests::of(&server).since(before).keep_alives, 0);
        }
        while start.elapsed() < TTL {
            assert_eq!(keys_of(&server, "k").len(), 1, "it is gone after {:?}", start.elapsed());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // And without time to spare there is a keep-alive in the same flight.
        let short = || claim("short").with(|it| it.ttl = 5 * SEC);
        for n in 0..3 {
            let before = Requests::of(&server);
            let next = short();
            client.granted(&next).await;
            let asked = Requests::of(&server).since(before);
            assert!(n == 0 || asked.keep_alives == 1, "{asked:?}");
            client.released(&next).await;
        }
    });
}

/// A third of a ttl: so many keep-alives, and as few transactions as the server allows.
#[test]
fn a_thousand_claims_are_renewed_by_eight_transactions() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        // Nobody renews them until all are watched, which takes a busy machine longer than the usual ttl.
        let lasting = |n| claim(&format!("many/{n}")).with(|it| it.ttl = 60 * SEC);
        let claims: Vec<_> = (0..1_000).map(lasting).collect();
        let before = Requests::of(&server);
        for some in claims.chunks(100) {
            join_all(some.iter().map(|claim| client.granted(claim))).await;
        }
        let leases = Requests::of(&server).since(before).leases;
        assert!(leases <= 1_000 + 10, "a lease for each, and one ahead now and then: {leases}");
        // Each is watched, which is a look of its own.
        watches(&server, |n| n >= 1_000.0).await;
        settled(&server).await;
        let before = Requests::of(&server);
        for answer in client.renew_all(&claims).await {
            assert!(matches!(answer, Ok(Renewal::Held { .. })), "{answer:?}");
        }
        let asked = Requests::of(&server).since(before);
        assert_eq!((asked.transactions, asked.reads), (8, 0), "{asked:?}");
        assert_eq!(asked.keep_alives, 1_000, "{asked:?}");
        // Whoever is gone is known among the others.
        etcdctl(server.port(), &["del", &keys_of(&server, "many%2F7")[0]]).unwrap();
        let answers = client.renew_all(&claims).await;
        let lost: Vec<_> = answers.iter().map(|a| *a.as_ref().unwrap() == Renewal::Lost).collect();
        assert_eq!(lost.iter().filter(|lost| **lost).count(), 1);
        assert!(lost[7]);
    });
}

/// Waits until nothing is asked any more.
async fn settled(server: &EtcdServer) {
    let mut before = Requests::of(server);
    loop {
        tokio::time::sleep(SEC / 2).await;
        let now = Requests::of(server);
        if now == before {
            return;
        }
        before = now;
    }
}

#[test]
fn renewals_respect_the_limit_of_operations_per_request() {
    let server = EtcdServer::start(&EtcdOptions::new().arg("--max-txn-ops=5")).unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let long = "n".repeat(60_000);
        let name =
            |n: usize| if n.is_multiple_of(2) { format!("{long}{n}") } else { format!("{n}") };
        let claims: Vec<_> = (0..60).map(|n| claim(&name(n))).collect();
        for claim in &claims {
            client.granted(claim).await;
        }
        for answer in client.renew_all(&claims).await {
            assert!(matches!(answer, Ok(Renewal::Held { .. })), "{answer:?}");
        }
    });
}

/// The place ahead leaves: the one behind holds the key without asking, and the others behind hear
/// nothing.
#[test]
fn a_hand_off_costs_one_release_for_any_number_of_waiters() {
    let mut costs = Vec::new();
    for waiters in [2, 30] {
        let server = server();
        run(async {
            let client = bare(&server.url()).await;
            let first = claim("k");
            client.granted(&first).await;
            let mut line = Vec::new();
            for _ in 0..waiters {
                let next = like(&first, "k");
                let blocked = client.blocked(&next).await;
                let (backend, claim) = (client.shared(), next.clone());
                let wait = tokio::spawn(async move { backend.wait(&claim, &blocked).await });
                line.push((next, wait));
            }
            // One for each place: who stands behind it has the same watch, for it is of this client.
            let all = f64::from(waiters + 1);
            watches(&server, |n| n >= all).await;
            settled(&server).await;
            let before = Requests::of(&server);
            client.released(&first).await;
            let (next, wait) = line.remove(0);
            let Wake::Admitted { grant, stamp, since_try } = wait.await.unwrap().unwrap() else {
                panic!("it was the next");
            };
            assert_eq!((stamp, since_try.as_nanos()), (next.stamp, 0));
            let asked = Requests::of(&server).since(before);
            assert_eq!((asked.transactions, asked.reads), (1, 0), "{asked:?}");
            assert!(asked.keep_alives == 0 && asked.leases <= 1, "{asked:?}");
            costs.push(asked.transactions);
            assert!(client.held(&next).await, "the store says so too");
            assert_eq!(client.granted(&next).await, grant.token);
            assert!(line.iter().all(|(_, wait)| !wait.is_finished()), "nobody else is woken");
            for (_, wait) in line {
                wait.abort();
            }
        });
    }
    assert_eq!(costs[0], costs[1]);
}

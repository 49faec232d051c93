//! H19: the answer to each kind of request is lost after it was applied. Nothing is left behind,
//! nobody believes to hold what is not held, and no lease with a request of unknown effect is used
//! again (D8).

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::future::Future;

use crate::common::*;
use latchwork::HoldState;
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::{
    Backend, BackendError, BackendErrorKind, Claim, Effect, FencingToken, Linger, Query, Released,
    Renewal, Wake,
};

struct World {
    server: EtcdServer,
    proxy: Proxy,
}

impl World {
    fn new(options: &EtcdOptions) -> Self {
        let server = EtcdServer::start(options).unwrap();
        let proxy = Proxy::plain(server.port()).unwrap();
        Self { server, proxy }
    }

    fn url(&self) -> String {
        format!("etcd://127.0.0.1:{}", self.proxy.port())
    }

    /// A client that has leases in its pool.
    async fn client(&self) -> Bare {
        let client = bare(&self.url()).await;
        for _ in 0..3 {
            let first = claim("first");
            client.granted(&first).await;
            client.released(&first).await;
        }
        client
    }

    /// What a request is answered whose answer is lost when it was applied, and whose connection
    /// then ends.
    async fn lost<T>(&self, method: &str, request: impl Future<Output = T>) -> T {
        let cuts = self.cuts_after(method);
        self.proxy.lose_answers(true);
        tokio::join!(request, cuts).0
    }

    /// Ends all connections when one more such request was handled.
    fn cuts_after(&self, method: &str) -> impl Future<Output = ()> {
        let label = format!("grpc_method=\"{method}\"");
        let handled = "grpc_server_handled_total";
        let before = self.server.measure(handled, &label).unwrap();
        async move {
            counted(&self.server, handled, &label, |n| n > before).await;
            self.proxy.begin_anew().unwrap();
        }
    }

    /// As [`Self::lost`], with the answer to another request before it passed on.
    async fn lost_after<T>(
        &self,
        first: &str,
        method: &str,
        request: impl Future<Output = T>,
    ) -> T {
        let handled = "grpc_server_handled_total";
        let label = |method: &str| format!("grpc_method=\"{method}\"");
        let count = |method| self.server.measure(handled, &label(method)).unwrap();
        let before = [count(first), count(method)];
        self.proxy.delay(Direction::ToServer, SEC);
        let cuts = async {
            counted(&self.server, handled, &label(first), |n| n > before[0]).await;
            tokio::time::sleep(SEC / 2).await;
            self.proxy.lose_answers(true);
            counted(&self.server, handled, &label(method), |n| n > before[1]).await;
            self.proxy.begin_anew().unwrap();
            self.proxy.delay(Direction::ToServer, std::time::Duration::ZERO);
        };
        tokio::join!(request, cuts).0
    }

    /// As [`Self::lost`], on a connection that is made for the request: the server's first words pass.
    async fn lost_on_its_way<T>(&self, method: &str, request: impl Future<Output = T>) -> T {
        let cuts = self.cuts_after(method);
        self.proxy.delay(Direction::ToClient, SEC);
        let cuts = async {
            cuts.await;
            self.proxy.delay(Direction::ToClient, std::time::Duration::ZERO);
        };
        tokio::join!(request, cuts).0
    }

    fn keys(&self, name: &str) -> Vec<String> {
        keys_of(&self.server, name)
    }

    fn is_alive(&self, lease: &str) -> bool {
        let told = etcdctl(self.server.port(), &["lease", "timetolive", lease]).unwrap();
        told.contains("remaining")
    }
}

fn unknown<T: std::fmt::Debug>(answer: Result<T, BackendError>) {
    let error = answer.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
}

/// D8: the lease of a try of unknown effect is revoked, so that a put which is still under way fails.
#[test]
fn h19_a_lost_answer_grants_once_and_retires_the_lease() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        unknown(world.lost("Txn", client.try_acquire(&one)).await);
        let keys = world.keys("k");
        assert_eq!(keys.len(), 1, "it was applied");
        // The same name again is the same grant.
        let token = client.granted(&one).await;
        assert_eq!(world.keys("k"), keys);
        assert!(client.held(&one).await);
        assert_eq!(client.released(&one).await, Released::Yes);
        assert_eq!(world.keys("k").len(), 0);
        assert!(!world.is_alive(lease_of(&keys[0])), "it may not be used again");
        let next = claim("k");
        assert!(client.granted(&next).await > token);
        assert_ne!(world.keys("k"), keys);
    });
}

#[test]
fn h19_an_abandoned_try_with_a_lost_answer_leaves_nothing() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        unknown(world.lost("Txn", client.try_acquire(&one)).await);
        let lease = world.keys("k").remove(0);
        assert_eq!(client.released(&one).await, Released::Yes);
        assert_eq!(world.keys("k").len(), 0);
        assert!(!world.is_alive(lease_of(&lease)));
        assert_eq!(client.released(&one).await, Released::NotHeld);
    });
}

/// The lease under which a key is to stay closed ends on the way: nothing is closed, and the hold goes on.
#[test]
fn a_closing_whose_lease_ended_before_is_refused() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        client.granted(&held).await;
        let revoked = "etcd_debugging_lease_revoked_total";
        let before = world.server.measure(revoked, "").unwrap();
        // The answer that names the lease comes when it has ended.
        world.proxy.freeze(Direction::ToClient);
        let ends = async {
            counted(&world.server, revoked, "", |n| n > before).await;
            world.proxy.thaw(Direction::ToClient);
        };
        let (closed, ()) = tokio::join!(client.release(&held, Linger::For(SEC)), ends);
        let error = closed.expect_err("there is no such lease any more");
        let judged = (error.kind, error.effect);
        assert_eq!(judged, (BackendErrorKind::Unreachable, Effect::NotApplied), "{error:?}");
        let step = "check the load of the members and the network between here and them";
        assert_eq!(error.next_step.as_deref(), Some(step), "{error:?}");
        assert!(client.held(&held).await);
        assert_eq!(client.released(&held).await, Released::Yes);
    });
}

/// A lease that nobody knows of holds nothing and ends by itself.
#[test]
fn h19_a_granted_lease_whose_answer_is_lost_leaves_no_key() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = bare(&world.url()).await;
        let mut one = claim("k");
        one.ttl = 7 * SEC; // none of that length is there yet
        let error = world.lost("LeaseGrant", client.try_acquire(&one)).await.unwrap_err();
        assert_eq!(error.effect, Effect::NotApplied);
        assert_eq!(world.keys("k").len(), 0);
        client.granted(&one).await;
        assert_eq!(world.keys("k").len(), 1);
    });
}

#[test]
fn h19_a_renewal_whose_answer_is_lost_changes_nothing() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        client.granted(&one).await;
        let answer =
            world.lost("Txn", client.renew_all(std::slice::from_ref(&one))).await.remove(0);
        unknown(answer);
        assert!(client.held(&one).await, "not knowing is no loss");
        assert_eq!(client.released(&one).await, Released::Yes);
    });
}

/// H24: whatever becomes of the delete, it is the key of that revision; and the lease is not used
/// again, for the delete may still come.
#[test]
fn h24_a_release_whose_answer_is_lost_harms_no_later_lock() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        client.granted(&one).await;
        let lease = world.keys("k").remove(0);
        unknown(world.lost("Txn", client.release(&one, Linger::None)).await);
        assert_eq!(world.keys("k").len(), 0, "it was applied");
        let next = claim("k");
        client.granted(&next).await;
        // Core asks again until it is answered.
        client.released(&one).await;
        assert!(!world.is_alive(lease_of(&lease)));
        assert!(client.held(&next).await);
        assert_eq!(client.released(&next).await, Released::Yes);
    });
}

/// Another process releases a hold that its own process has released before, and whose lease is that of a later lock:
/// also when an answer was lost, it does not end the lease.
#[test]
fn h434_a_repeated_release_of_a_hold_elsewhere_ends_no_later_lock() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let (owner, other) = (bare(&world.server.url()).await, world.client().await);
        let one = claim("k");
        owner.granted(&one).await;
        owner.detach(&one);
        assert!(other.held(&one).await);
        let lease = lease_of(&world.keys("k")[0]).to_owned();
        assert_eq!(owner.released(&one).await, Released::Yes);
        let mut later = Vec::new();
        while world.keys("later").iter().all(|key| lease_of(key) != lease) {
            assert!(later.len() < 9, "the lease is not used again");
            let next = claim("later").with(|it| it.mode = latchwork_store::Mode::Read);
            owner.granted(&next).await;
            later.push(next);
        }
        unknown(world.lost("Txn", other.release(&one, Linger::None)).await);
        assert_eq!(other.released(&one).await, Released::NotHeld);
        assert!(world.is_alive(&lease));
        for next in &later {
            assert!(owner.held(next).await);
        }
    });
}

/// The key that a success has left closed is not deleted by the release of a process that believes to have the claim.
#[test]
fn h432_a_late_release_elsewhere_opens_no_closed_key() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let (owner, other) = (world.client().await, world.client().await);
        let one = claim("k");
        owner.granted(&one).await;
        owner.detach(&one);
        assert!(other.held(&one).await);
        assert_eq!(other.release(&one, Linger::For(60 * SEC)).await.unwrap(), Released::Yes);
        assert_eq!(owner.released(&one).await, Released::NotHeld);
        assert_eq!(world.keys("k").len(), 1);
        owner.blocked(&claim("k")).await;
    });
}

#[test]
fn h19_a_revocation_with_a_lost_answer_is_repeated() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        unknown(world.lost("Txn", client.try_acquire(&one)).await);
        unknown(world.lost_on_its_way("LeaseRevoke", client.release(&one, Linger::None)).await);
        assert_eq!(world.keys("k").len(), 0, "it was applied");
        assert_eq!(client.released(&one).await, Released::NotHeld);
        client.granted(&claim("k")).await;
    });
}

#[test]
fn h19_a_linger_whose_answer_is_lost_keeps_the_key_closed() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let linger = Linger::For(60 * SEC);
        // The lease for it comes first; a machine that stands still may let the other answer by.
        for _ in 0..10 {
            let one = claim("k");
            client.granted(&one).await;
            let closing = world.lost_after("LeaseGrant", "Txn", client.release(&one, linger));
            if let Ok(released) = closing.await {
                assert_eq!(released, Released::Yes);
                etcdctl(world.server.port(), &["del", "k/", "--prefix"]).unwrap();
                continue;
            }
            let released = answered(|| client.release(&one, linger)).await;
            assert_eq!(released, Released::Yes);
            assert_eq!(world.keys("k").len(), 1, "one place keeps it closed");
            client.blocked(&claim("k")).await;
            assert!(!client.held(&one).await);
            return;
        }
        panic!("no answer was lost");
    });
}

#[test]
fn h19_a_linger_whose_lease_is_not_known_has_not_begun() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        client.granted(&one).await;
        let closing = client.release(&one, Linger::For(60 * SEC));
        let error = world.lost("LeaseGrant", closing).await.unwrap_err();
        assert_eq!(error.effect, Effect::NotApplied);
        assert!(client.held(&one).await);
        assert_eq!(client.released(&one).await, Released::Yes);
        client.granted(&claim("k")).await;
    });
}

#[test]
fn h19_a_look_whose_answer_is_lost_changes_nothing() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one = claim("k");
        client.granted(&one).await;
        let query = Query::Key(one.key.clone());
        let error = world.lost("Range", client.inspect(&query)).await.unwrap_err();
        assert_eq!(error.effect, Effect::NotApplied);
        let shown = answered(|| client.inspect(&query)).await;
        assert_eq!(shown[0].holders.len(), 1);
    });
}

#[test]
fn h19_a_login_whose_answer_is_lost_is_made_again() {
    let world = World::new(&EtcdOptions::new().root_password("secret"));
    run(async {
        let url = format!("etcd://root:secret@127.0.0.1:{}", world.proxy.port());
        let error = world.lost_on_its_way("Authenticate", connect(&url)).await.unwrap_err();
        assert_eq!(error.kind(), latchwork_store::ErrorKind::Unreachable, "{error}");
        let locks = client(&url).await;
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    });
}

/// What is told by a watch is lost with its stream: the next look makes up for it.
#[test]
fn h27_a_lost_wake_up_is_recovered() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let (holder, waiter) = (bare(&world.server.url()).await, world.client().await);
        let (first, second) = (claim("k"), claim("k"));
        holder.granted(&first).await;
        let blocked = waiter.blocked(&second).await;
        let leaves = async {
            watches(&world.server, |n| n >= 2.0).await;
            world.proxy.lose_answers(true);
            holder.released(&first).await;
            world.proxy.begin_anew().unwrap();
        };
        let (wake, ()) = tokio::join!(waiter.wait(&second, &blocked), leaves);
        // Either the member was asked again, or core is told to look by itself.
        match wake {
            Ok(Wake::Admitted { grant, .. }) => {
                assert_eq!(waiter.granted(&second).await, grant.token)
            }
            Ok(Wake::Look) => drop(waiter.granted(&second).await),
            Err(error) => {
                assert_eq!(error.kind, BackendErrorKind::Unreachable);
                waiter.granted(&second).await;
            }
        }
        assert!(waiter.held(&second).await);
    });
}

/// What runs with one piece of the answers lost: everything that locks send, by two clients.
async fn session(url: &str, nth: u64, proxy: &Proxy) -> Result<(), latchwork_store::Error> {
    let (first, second) = (client(url).await, client(url).await);
    let name = format!("k{nth}");
    let guard = first.mutex(&name).acquire_within(20 * SEC).await?;
    guard.release().await?;
    proxy.lose_piece(nth);
    let guard = first.mutex(&name).acquire_within(20 * SEC).await?;
    let token: FencingToken = guard.token();
    let mutex = second.mutex(&name);
    let leaves = async {
        // A renewal comes in between.
        tokio::time::sleep(SEC).await;
        assert_eq!(guard.state(), HoldState::Held);
        let _ = guard.release().await; // an answer that is lost does not keep the lock
    };
    let (next, ()) = tokio::join!(mutex.acquire_within(20 * SEC), leaves);
    let next = next?;
    assert!(next.token() > token, "tokens go back");
    assert_eq!(next.state(), HoldState::Held);
    drop(next);
    Ok(())
}

/// For each piece of a whole session the same session with this one lost, by a cut.
#[test]
fn h19_no_lost_answer_leaves_an_orphan_or_a_false_hold() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let sessions = (1..=24).map(|nth| {
            let proxy = Proxy::plain(server.port()).unwrap();
            async move {
                let url = format!("etcd://127.0.0.1:{}", proxy.port());
                session(&url, nth, &proxy).await.unwrap();
                proxy.counts().lost
            }
        });
        let lost: u64 = futures_util::future::join_all(sessions).await.into_iter().sum();
        assert!(lost >= 12, "{lost} of 24 sessions were disturbed");
        let looks = client(&server.url()).await;
        for nth in 1..=24 {
            until(&looks, &format!("k{nth}"), latchwork_store::Snapshot::is_free).await;
        }
    });
}

#[test]
fn a_renewal_of_a_released_claim_is_no_renewal() {
    let world = World::new(&EtcdOptions::new());
    run(async {
        let client = world.client().await;
        let one: Claim = claim("k");
        client.granted(&one).await;
        client.released(&one).await;
        let answer = client.renew_all(std::slice::from_ref(&one)).await.remove(0);
        assert_eq!(answer.unwrap(), Renewal::Lost);
    });
}

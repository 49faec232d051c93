//! A machine whose boot clock stands still for a while: a virtual machine that was paused.

use std::sync::{Arc, Mutex};

use latchwork::LockManager;
use latchwork_store::clock::{boot_time, wall_time};
use latchwork_store::{Backend, Clock, Io, Linger, Moment, Sleep};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

use crate::common::*;

/// The clocks of a machine that can be paused: meanwhile its boot clock and its sleeps stand still,
/// and its wall clock runs on.
#[derive(Debug, Clone, Default)]
struct PausableClock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lost: Duration,
    since: Option<Moment>,
}

impl PausableClock {
    fn pause(&self) {
        self.0.lock().unwrap().since = Some(boot_time());
    }

    fn resume(&self) {
        let mut state = self.0.lock().unwrap();
        let since = state.since.take().unwrap();
        state.lost += boot_time().since(since);
    }
}

impl Clock for PausableClock {
    fn now(&self) -> Moment {
        let state = self.0.lock().unwrap();
        state.since.unwrap_or_else(boot_time).minus(state.lost)
    }

    fn wall(&self) -> Duration {
        wall_time()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::time::sleep(left.min(2 * MS)).await;
            }
        })
    }
}

/// H86: a machine is paused for most of a session, goes on and takes a lock at a follower, which is
/// cut off from the leader right after that. The leader has not heard of the session for as long as
/// the machine was paused and ends it soon: the holder is told before that.
#[test]
fn h86_a_machine_that_was_paused_does_not_hold_on_an_old_proof() {
    const TTL: Duration = Duration::from_secs(6);
    let options = ZooKeeperOptions::new().tick(SEC).sync_limit(20).links();
    let ensemble = ZooKeeperEnsemble::start(3, &options).unwrap();
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    let at = |member: usize| url(ensemble.members()[member].port());
    run(async {
        let clock = PausableClock::default();
        let runtime = tokio::runtime::Handle::current();
        let spawn = move |task| drop(runtime.spawn(task));
        let io = Io::new(spawn, Arc::new(clock.clone()));
        let config = ZooKeeperConfig::parse(&at(follower)).unwrap();
        let backend = ZooKeeperBackend::connect(config, io.clone()).await.unwrap();
        let holder = LockManager::on_io(backend.clone(), io).ttl(TTL);
        let waiter = client(&at(leader)).await;
        // Heart-beats have proven the session for a while.
        holder.mutex("other").acquire().await.unwrap().release().await.unwrap();
        tokio::time::sleep(5 * SEC).await;
        clock.pause();
        tokio::time::sleep(8 * SEC).await;
        clock.resume();
        let tried = claim(TTL);
        let error = backend.try_acquire(&tried).await.expect_err("its session may end soon");
        let step =
            "check the load of the servers, and whether this process or its machine was paused";
        assert_eq!(error.next_step.as_deref(), Some(step), "{error:?}");
        backend.release(&tried, Linger::None).await.unwrap();
        let guard = holder.mutex("k").acquire_within(20 * SEC).await.unwrap();
        let link = ensemble.link(follower, leader).unwrap();
        link.freeze(Direction::ToServer);
        link.freeze(Direction::ToClient);
        let next = waiter.mutex("k").acquire_within(60 * SEC).await.unwrap();
        guard.ensure_held().expect_err("another holds the lock");
        assert!(next.token() > guard.token());
    });
}

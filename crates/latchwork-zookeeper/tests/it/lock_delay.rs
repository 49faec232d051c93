//! A session that its process closes takes all its claims along. A lock delay must outlast that.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;

/// How long a key stays closed after the hold of a manager that is dropped has ended.
async fn closed_for(server: &ZooKeeperServer, name: &str, closes: bool, is_lost: bool) -> Duration {
    let others = client(&server.url()).await;
    let locks = client(&server.url()).await;
    let longest = if is_lost { 200 * MS } else { 60 * SEC };
    let lock = locks.mutex(name).max_hold(longest).lock_delay(3 * SEC);
    let guard = lock.acquire().await.unwrap();
    if is_lost {
        guard.lost().await;
    }
    let ended = Instant::now();
    if closes {
        locks.close().await;
        stalls::in_time(ended, 2 * SEC);
    }
    drop((guard, lock, locks));
    others.mutex(name).acquire_within(20 * SEC).await.unwrap().release().await.unwrap();
    ended.elapsed()
}

#[test]
fn a_lock_delay_outlasts_the_manager_of_the_holder() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let (lost, alive, dropped) = tokio::join!(
            closed_for(&server, "lost", true, true),
            closed_for(&server, "alive", true, false),
            closed_for(&server, "dropped", false, true),
        );
        for closed in [lost, alive, dropped] {
            // The loss is told a little after it happened.
            assert!(closed >= 2_800 * MS, "lost {lost:?}, alive {alive:?}, dropped {dropped:?}");
        }
    });
}

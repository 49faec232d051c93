//! Replicas that start together.

use latchwork_recipes::migration::migrate;
use latchwork_services::program::eventually;
use rustix::process::Signal;

use crate::common::{client, database, folder, number, program};

const ORDERS: &str = "CREATE TABLE orders (id BIGINT PRIMARY KEY)";
const STATE: &str = "ALTER TABLE orders ADD COLUMN state TEXT NOT NULL DEFAULT 'open'";
const VERSION: &str = "SELECT version FROM schema";

#[tokio::test]
async fn one_of_three_replicas_migrates_and_the_others_find_it_done() {
    let (server, (_folder, url)) = (database().await, folder());
    let replicas = (0..3).map(|_| async {
        // A manager each, as processes have.
        let locks = latchwork::connect(&url).await.unwrap();
        migrate(&locks, &mut client(&server).await, &[ORDERS, STATE]).await.unwrap()
    });
    let mut replicas = replicas.collect::<Vec<_>>().into_iter();
    let mut next = || replicas.next().unwrap();
    let (one, two, three) = tokio::join!(next(), next(), next());
    let mut made = [one, two, three];
    made.sort_unstable();
    assert_eq!(made, [0, 0, 2]);
    let db = client(&server).await;
    // A later release has one more.
    let locks = latchwork::connect(&url).await.unwrap();
    let index = "CREATE INDEX ON orders (state)";
    assert_eq!(
        migrate(&locks, &mut client(&server).await, &[ORDERS, STATE, index]).await.unwrap(),
        1
    );
    assert_eq!(number(&db, VERSION).await, 3);
}

/// The replica is killed inside of the second migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_in_the_middle_the_next_replica_goes_on_there() {
    let (server, (_folder, url)) = (database().await, folder());
    let slow = format!("{STATE}; SELECT pg_sleep(1)");
    let mut killed = program(&url, &["migrate", &server.conninfo(), ORDERS, &slow]);
    let sleeps = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually("the second migration", || (server.psql(sleeps).unwrap() == "1").then_some(()));
    killed.signal(Signal::KILL);
    killed.wait();
    let locks = latchwork::connect(&url).await.unwrap();
    let mut db = client(&server).await;
    assert_eq!(migrate(&locks, &mut db, &[ORDERS, STATE]).await.unwrap(), 1);
    assert_eq!(number(&db, VERSION).await, 2);
    assert_eq!(number(&db, "SELECT count(state) FROM orders").await, 0);
}

/// A replica whose lock has passed on while it was paused.
#[tokio::test]
async fn a_replica_that_was_superseded_migrates_nothing() {
    let (server, (_folder, url)) = (database().await, folder());
    let (locks, mut db) = (latchwork::connect(&url).await.unwrap(), client(&server).await);
    assert_eq!(migrate(&locks, &mut db, &[ORDERS]).await.unwrap(), 1);
    let newer = format!("UPDATE schema SET token = {}", i64::MAX);
    db.batch_execute(&newer).await.unwrap();
    let refused = migrate(&locks, &mut db, &[ORDERS, STATE]).await.unwrap_err();
    assert!(refused.to_string().contains("superseded"), "{refused}");
    assert_eq!(number(&db, VERSION).await, 1);
}

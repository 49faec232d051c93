//! Documents in Redis.

use latchwork::LockManager;
use latchwork_recipes::redis_write::update;
use latchwork_services::{RedisOptions, RedisServer};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::sync::oneshot;

use crate::common::{Failure, take_over};

async fn world() -> (RedisServer, MultiplexedConnection, LockManager) {
    let start = || RedisServer::start(&RedisOptions::new()).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let redis = redis::Client::open(server.url()).unwrap();
    let redis = redis.get_multiplexed_async_connection().await.unwrap();
    let locks = latchwork::connect(&server.url()).await.unwrap();
    (server, redis, locks)
}

async fn add(old: Option<String>, word: &str) -> Result<String, Failure> {
    tokio::task::yield_now().await;
    Ok(old.map_or(word.to_owned(), |old| format!("{old} {word}")))
}

#[tokio::test]
async fn concurrent_updates_are_all_kept() {
    let (_server, redis, locks) = world().await;
    let updates = (0..8).map(|_| {
        let (locks, mut redis) = (locks.clone(), redis.clone());
        tokio::spawn(async move {
            update(&locks, &mut redis, "7", async |old| add(old, "x").await).await
        })
    });
    for update in updates.collect::<Vec<_>>() {
        update.await.unwrap().unwrap();
    }
    let text: String = redis.clone().get("{document/7}").await.unwrap();
    assert_eq!(text, ["x"; 8].join(" "));
}

/// Another process takes the lock over while the change is computed, and has written.
#[tokio::test]
async fn a_holder_that_was_superseded_writes_nothing() {
    let (server, mut redis, locks) = world().await;
    let others = latchwork::connect(&server.url()).await.unwrap();
    let mut second = redis.clone();
    let late = update(&locks, &mut redis, "7", async |_| {
        take_over(&others, "document/7").await.release().await?;
        update(&others, &mut second, "7", async |old| add(old, "newer").await).await?;
        Ok("older".to_owned())
    });
    let refused = late.await.unwrap_err();
    assert!(refused.to_string().contains("superseded"), "{refused}");
    assert_eq!(redis.get::<_, String>("{document/7}").await.unwrap(), "newer");
}

/// The next holder has only read so far: a write now would be lost by its own.
#[tokio::test]
async fn a_read_of_the_next_holder_fences_as_well() {
    let (server, mut redis, locks) = world().await;
    let others = latchwork::connect(&server.url()).await.unwrap();
    let mut second = redis.clone();
    let ((begun, begins), (read, reads)) = (oneshot::channel(), oneshot::channel());
    let (refused, refuses) = oneshot::channel();
    let first = async {
        let late = update(&locks, &mut redis, "7", async |_| {
            begun.send(()).unwrap();
            reads.await?;
            Ok("older".to_owned())
        });
        refused.send(late.await.unwrap_err().to_string()).unwrap();
    };
    let next = async {
        begins.await.unwrap();
        take_over(&others, "document/7").await.release().await.unwrap();
        update(&others, &mut second, "7", async |old| {
            read.send(()).unwrap();
            assert!(refuses.await?.contains("superseded"));
            add(old, "newer").await
        })
        .await
        .unwrap();
    };
    tokio::join!(first, next);
    assert_eq!(redis.get::<_, String>("{document/7}").await.unwrap(), "newer");
}

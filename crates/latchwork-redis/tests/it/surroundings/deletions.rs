//! The keys of a namespace are deleted under its holders.

use latchwork_services::{RedisOptions, RedisServer, Value};
use latchwork_store::*;

use crate::common::*;
use crate::surroundings::believer::{Believer, TTL, at, init, locks};

/// What an operator does who clears a namespace: finds its keys, and deletes them at once.
fn scan_and_del(server: &RedisServer, pattern: &str) -> usize {
    let mut names = vec!["DEL".to_owned()];
    let mut cursor = "0".to_owned();
    loop {
        let answer = ask(server, &["SCAN", &cursor, "MATCH", pattern, "COUNT", "1000"]);
        names.extend(answer.list()[1].list().iter().map(Value::text));
        cursor = answer.list()[0].text();
        if cursor == "0" {
            break;
        }
    }
    assert!(names.len() > 1, "nothing to delete");
    ask(server, &names.iter().map(String::as_str).collect::<Vec<_>>());
    names.len() - 1
}

async fn is_older_than(server: &RedisServer, age: Duration) {
    until("the server is old enough", 30 * SEC, || {
        server.info("uptime_in_seconds").unwrap().parse::<u64>().unwrap() > age.as_secs() + 1
    })
    .await;
}

/// H91: the marker goes with the locks. A server that has been up for longer than a quarantine, and
/// saw no FLUSHALL, must not take a namespace without a marker for a new one. With `*` there is no
/// mark left anywhere in its keys.
#[test]
fn h91_a_namespace_deleted_by_scan_and_del_is_not_new() {
    run(async {
        let scene = async |pattern: &'static str, guarded: bool| {
            let server = RedisServer::start(&RedisOptions::new()).unwrap();
            let options = if guarded { "guard=true&max_ttl=5s&namespaces=app" } else { "" };
            let url = at(server.port(), options);
            is_older_than(&server, TTL + SEC).await;
            if guarded {
                init(&url).await;
            }
            let first = Believer::hold(server.port(), options, "app:k").await;
            assert!(scan_and_del(&server, pattern) > usize::from(guarded));
            if guarded {
                let error = locks(&url).await.mutex("app:k").acquire_within(SEC).await;
                let error = error.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                let told = error.to_string();
                assert!(told.contains("quarantine") && told.contains("latchwork init"), "{told}");
            }
            let both = first.is_joined_at(server.port(), options, "app:k").await;
            assert_eq!(both, !guarded, "{pattern}, with the guard: {guarded}");
        };
        tokio::join!(scene("app:*", true), scene("*", true), scene("app:*", false));
    });
}

/// A namespace that no client has used yet waits for one quarantine, however old the server is, and
/// the error names the way around that.
#[test]
fn a_new_namespace_waits_once_or_is_opened_by_init() {
    run(async {
        let server = RedisServer::start(&RedisOptions::new()).unwrap();
        let url = at(server.port(), "guard=true&max_ttl=2s");
        is_older_than(&server, 3 * SEC).await;
        let locks = locks(&url).await;
        let start = Instant::now();
        let error = locks.mutex("app:k").ttl(500 * MS).acquire_within(SEC).await.unwrap_err();
        assert!(error.to_string().contains("latchwork init"), "{error}");
        let mutex = locks.mutex("app:k").ttl(500 * MS);
        drop(within("its end", 8 * SEC, mutex.acquire()).await.unwrap());
        assert!(start.elapsed() >= 2 * SEC, "{:?}", start.elapsed());
        init(&format!("{url}&namespaces=other")).await;
        let mutex = locks.mutex("other:k").ttl(500 * MS);
        assert!(mutex.try_acquire().await.unwrap().is_some());
    });
}

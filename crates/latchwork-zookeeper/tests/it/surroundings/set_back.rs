//! Servers that come back with older data, or without any.

use latchwork::LockManager;
use latchwork_store::{ErrorKind, Snapshot};

use crate::common::*;

async fn locks_of(server: &ZooKeeperServer) -> LockManager {
    let (backend, driver) = backend(&server.url()).await;
    // The shortest with these settings.
    LockManager::new(backend, driver).ttl(2_400 * MS)
}

async fn use_lock(locks: &LockManager, times: u32) -> latchwork_store::FencingToken {
    let mut last = None;
    for _ in 0..times {
        let guard = locks.mutex("k").acquire_within(20 * SEC).await.unwrap();
        last = Some(guard.token());
        guard.release().await.unwrap();
    }
    last.unwrap()
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// What a program that has used the newer data is told, and when it locks again.
async fn is_told_and_goes_on(server: &ZooKeeperServer, locks: &LockManager) {
    let before = use_lock(&locks_of(server).await, 1).await;
    let start = Instant::now();
    let error = loop {
        match locks.mutex("k").acquire_within(10 * SEC).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => break error,
            other => assert!(start.elapsed() < 40 * SEC, "it goes on with {other:?}"),
        }
    };
    let said = error.to_string();
    assert!(said.contains("went back") && said.contains("token"), "{said}");
    assert!(
        error.next_step().is_some_and(|hint| hint.contains("restart this program")),
        "{error:?}"
    );
    // A program that starts anew knows nothing of before, and goes on.
    let anew = locks_of(server).await;
    let after = use_lock(&anew, 1).await;
    assert!(after > before);
    until(&anew, "k", Snapshot::is_free).await;
}

/// H109: the data of a server is replaced by an older copy. A process that runs on is told so, and
/// locks again by itself once the tokens are above those that it has seen.
#[test]
fn h109_after_an_older_copy_a_process_says_why_it_waits() {
    let mut server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    run(async {
        let data = server.folder().join("data/version-2");
        let kept = server.folder().join("kept");
        let locks = locks_of(&server).await;
        use_lock(&locks, 1).await;
        server.kill();
        copy(&data, &kept);
        server.restart().unwrap();
        let newest = use_lock(&locks, 200).await;
        server.kill();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&kept, &data);
        server.restart().unwrap();
        is_told_and_goes_on(&server, &locks).await;
        let other = locks_of(&server).await;
        while use_lock(&other, 10).await <= newest {}
        assert!(use_lock(&locks, 1).await > newest, "it goes on by itself");
    });
}

/// H109: the data of a server is removed.
#[test]
fn h109_after_its_data_was_removed_a_process_says_why_it_waits() {
    let mut server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    run(async {
        let locks = locks_of(&server).await;
        use_lock(&locks, 100).await;
        server.kill();
        std::fs::remove_dir_all(server.folder().join("data/version-2")).unwrap();
        server.restart().unwrap();
        is_told_and_goes_on(&server, &locks).await;
    });
}

/// A server that was away for longer than every session, with its data: nothing is set back.
#[test]
fn a_server_that_was_away_for_long_with_its_data_is_used_again() {
    let mut server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    run(async {
        let locks = locks_of(&server).await;
        let before = use_lock(&locks, 20).await;
        server.kill();
        tokio::time::sleep(8 * SEC).await;
        server.restart().unwrap();
        assert!(use_lock(&locks, 1).await > before);
    });
}

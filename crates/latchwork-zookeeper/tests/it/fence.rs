//! The token as a check in a transaction of the user's own.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

use crate::common::*;
use latchwork::LockManager;
use latchwork_zookeeper::Place;

/// Writes by a transaction of kazoo's; tells what became of it, and what is there then.
fn write(port: u16, place: &Place, value: &str) -> String {
    let output = Command::new("/usr/bin/python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kazoo_write.py"))
        .args([&format!("127.0.0.1:{port}"), &place.path, &place.version.to_string(), value])
        .output()
        .expect("python3 and python3-kazoo are installed");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success() && !said.is_empty(), "{output:?}");
    said
}

#[test]
fn a_checked_transaction_refuses_a_lost_holder() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    let port = server.port();
    run(async {
        // Below a chroot, where a path is longer than the lock's.
        let address = format!("{}/locks", url(port));
        let (first, driver) = backend(&address).await;
        let locks = LockManager::new(first.clone(), driver).ttl(2 * SEC).namespace("shop");
        let (second, driver) = backend(&address).await;
        let others = LockManager::new(second.clone(), driver).ttl(2 * SEC).namespace("shop");
        let guard = locks.mutex("stock/1").acquire().await.unwrap();
        let place = first.place(guard.token()).unwrap();
        assert_eq!(second.place(guard.token()), None, "it is another client's");
        assert_eq!(write(port, &place, "first"), "written first");
        // Taken away by hand; whoever holds it may not know yet.
        others.force_release("stock/1").await.unwrap();
        let next = others.mutex("stock/1").acquire().await.unwrap();
        assert!(next.token() > guard.token());
        assert_eq!(write(port, &place, "late"), "refused first");
        let next_place = second.place(next.token()).unwrap();
        assert_eq!(write(port, &next_place, "second"), "written second");
        let token = next.token();
        next.release().await.unwrap();
        assert_eq!(second.place(token), None);
        assert_eq!(write(port, &next_place, "later"), "refused second");
    });
}

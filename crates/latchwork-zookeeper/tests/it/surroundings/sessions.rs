//! How many connections one process needs.

use std::collections::HashSet;

use latchwork::LockManager;

use crate::common::*;

/// The connections of this process to a server's port. The table may show one twice, while others come and go.
fn connections_to(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let remote = format!("0100007F:{port:04X}");
    const ESTABLISHED: &str = "01";
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let ours = |row: &Vec<&str>| row.get(2) == Some(&&*remote) && row.get(3) == Some(&ESTABLISHED);
    rows.filter(ours).filter_map(|row| row.get(1).copied()).collect::<HashSet<_>>().len()
}

/// H105: a process that holds locks of 200 lengths of ttl has six sessions at most, on a server that
/// takes 60 connections from one host. Sessions that no lock uses are closed.
#[test]
fn h105_two_hundred_ttls_share_six_sessions() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::as_installed()).unwrap();
    run(async {
        let (backend, driver) = backend(&server.url()).await;
        let locks = LockManager::new(backend, driver);
        let mut guards = Vec::new();
        let mut most = 0;
        for n in 0..200 {
            let ttl = 24 * SEC - n * 108 * MS;
            let guard = locks.mutex(format!("k{n}")).ttl(ttl).acquire().await.unwrap();
            assert!(guard.ttl() > ttl * 9 / 10 && guard.ttl() <= ttl, "{ttl:?} {:?}", guard.ttl());
            most = most.max(connections_to(server.port()));
            guards.push(guard);
        }
        assert!((1..=6).contains(&most), "{most} connections");
        for guard in guards {
            guard.release().await.unwrap();
        }
        let start = Instant::now();
        while connections_to(server.port()) > 1 {
            assert!(start.elapsed() < 75 * SEC, "idle sessions stay open");
            tokio::time::sleep(100 * MS).await;
        }
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    });
}

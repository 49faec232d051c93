//! What an administrator sees of a process: its connections, their names, and its statements.

use crate::common::*;
use latchwork_services::PostgresOptions;
use latchwork_store::Backend;
use latchwork_store::Linger;

fn ours(server: &latchwork_services::PostgresServer) -> u32 {
    let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'latchwork%'";
    server.psql(count).unwrap().parse().unwrap()
}

/// H204: a burst makes connections, which nobody needs afterwards.
#[test]
fn h204_connections_of_a_burst_are_closed_afterwards() {
    let server = server();
    run(async {
        let bare = bare(&server.url()).await;
        let claims: Vec<_> = (0..500).map(|n| claim(&format!("k{n}"))).collect();
        while ours(&server) < 6 {
            futures_util::future::join_all(claims.iter().map(|claim| bare.granted(claim))).await;
            futures_util::future::join_all(claims.iter().map(|claim| bare.released(claim))).await;
        }
        let start = std::time::Instant::now();
        // One is in use, the others are not.
        while ours(&server) > 1 {
            assert!(start.elapsed() < 60 * SEC, "{} are open", ours(&server));
            let one = claim("one");
            bare.granted(&one).await;
            bare.release(&one, Linger::None).await.unwrap();
            tokio::time::sleep(500 * MS).await;
        }
        assert!(start.elapsed() > 20 * SEC, "{:?}: they are kept for a while", start.elapsed());
        futures_util::future::join_all(claims.iter().map(|claim| bare.granted(claim))).await;
    });
}

#[test]
fn connections_name_their_host_and_process() {
    let server = server();
    run(async {
        let _one = bare(&server.url()).await;
        let name = "SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'latchwork%'";
        let name = server.psql(name).unwrap();
        let (start, process) = name.rsplit_once(' ').unwrap();
        assert_eq!(process, std::process::id().to_string(), "{name}");
        assert!(start.len() > "latchwork ".len() && name.len() < 64, "{name}");
        let _other = bare(&format!("{}?application_name=shop", server.url())).await;
        let named = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'shop'";
        assert_eq!(server.psql(named).unwrap(), "1");
    });
}

/// The list of docs/postgres.md.
#[test]
fn statements_of_many_processes_are_few_entries() {
    let options = PostgresOptions::new().setting("shared_preload_libraries=pg_stat_statements");
    let server = server_with(&options, "");
    server.psql("CREATE EXTENSION pg_stat_statements").unwrap();
    let entries = || {
        let seen = "SELECT left(query, 60) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_%' ORDER BY 1";
        server.psql(seen).unwrap()
    };
    run(async {
        server.psql("SELECT pg_stat_statements_reset()").unwrap();
        for _ in 0..5 {
            let client = bare(&server.url()).await;
            let held = claim("k");
            client.granted(&held).await;
            assert!(client.held(&held).await);
            client.released(&held).await;
        }
        let seen = entries();
        let count = seen.lines().filter(|line| !line.contains("pg_stat_statements")).count();
        assert!(!seen.lines().any(|line| line.starts_with("SET ")), "{seen}");
        assert!(count <= 8, "{count}:\n{seen}");
    });
}

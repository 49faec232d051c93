//! Passwords that are replaced while locks are held.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::*;
use futures_util::future::join_all;
use latchwork::{Driver, LockManager};
use latchwork_postgres::{PostgresBackend, PostgresConfig};
use latchwork_services::{Folder, PgBouncer, PostgresOptions, PostgresServer};
use latchwork_wire::Source;

const TTL_SECS: u32 = 5;

fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(new, file).unwrap();
}

async fn locks_of(source: &Source) -> LockManager {
    let driver = Driver::start().unwrap();
    let config = PostgresConfig::parse(&source.read_now().unwrap()).unwrap();
    let config = config.source(source.clone());
    let backend = PostgresBackend::connect(config, driver.io()).await.unwrap();
    LockManager::new(backend, driver).ttl(TTL_SECS * SEC)
}

/// PostgreSQL has one password for a role: the new one is valid when the old one is not.
async fn rotated(server: &PostgresServer, source: &Source, replace: impl Fn(&str)) {
    let locks = locks_of(source).await;
    let held = locks.mutex("rotated").acquire().await.unwrap();
    let cut = || {
        let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'";
        server.psql(cut).unwrap();
    };
    for password in ["new", "last"] {
        replace(password);
        server.psql(&format!("ALTER ROLE app PASSWORD '{password}'")).unwrap();
        cut();
        tokio::time::sleep((TTL_SECS + 1) * SEC).await;
        held.ensure_held().unwrap();
    }
    cut();
    tokio::time::sleep((TTL_SECS + 1) * SEC).await;
    held.ensure_held().unwrap();
    held.release().await.unwrap();
    locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
}

fn server_with_password() -> PostgresServer {
    let options = PostgresOptions::new().access("host all app all scram-sha-256");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE app LOGIN PASSWORD 'old'").unwrap();
    let page = include_str!("../../../../docs/postgres.md");
    let start = page.find("GRANT USAGE").expect("the page lists the rights");
    server.psql(page[start..].split("```").next().unwrap()).unwrap();
    server
}

#[test]
fn h272_a_password_replaced_in_the_store_file_loses_no_hold() {
    let (server, folder) = (server_with_password(), Folder::new().unwrap());
    let file = folder.path().join("store");
    let write = |password: &str| {
        let port = server.port();
        replace(&file, &format!("postgres://app:{password}@127.0.0.1:{port}/postgres\n"));
    };
    write("old");
    run(rotated(&server, &Source::file(&*file), write));
}

#[test]
fn h272_a_password_replaced_in_the_passfile_loses_no_hold() {
    let (server, folder) = (server_with_password(), Folder::new().unwrap());
    let file = folder.path().join("pgpass");
    let write = |password: &str| replace(&file, &format!("*:*:*:app:{password}\n"));
    write("old");
    let (port, shown) = (server.port(), file.display());
    let url = format!("postgres://app@127.0.0.1:{port}/postgres?passfile={shown}");
    run(rotated(&server, &Source::text(url), write));
}

/// H319: a pooler reads its users when it starts, and cuts all clients. First it has a second user, then no first one
/// any more; then the one that is left gets another password.
#[test]
fn h319_logins_replaced_at_a_pooler_lose_no_hold() {
    let (server, folder) = (server(), Folder::new().unwrap());
    let file = folder.path().join("store");
    let mut pooler = PgBouncer::start_with_logins(server.port(), 5, &[("app", "old")]).unwrap();
    let port = pooler.port();
    let write = |login: &str| {
        replace(&file, &format!("postgres://{login}@127.0.0.1:{port}/postgres\n"));
    };
    write("app:old");
    run(async {
        let locks = locks_of(&Source::file(&*file)).await;
        let held = locks.mutex("rotated").acquire().await.unwrap();
        for (logins, login) in [
            (&[("app", "old"), ("app2", "new")][..], "app2:new"),
            (&[("app2", "new")], "app2:new"),
            (&[("app2", "last")], "app2:last"),
        ] {
            pooler.replace_logins(logins).unwrap();
            write(login);
            pooler.kill();
            pooler.revive().unwrap();
            tokio::time::sleep((TTL_SECS + 1) * SEC).await;
            held.ensure_held().unwrap();
            locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
        }
        held.release().await.unwrap();
    });
}

/// H552: the role loses its rights, and then is dropped, while its connections live on and the file names another role.
#[test]
fn h552_rights_that_go_to_another_role_lose_no_hold() {
    let (server, folder) = (server_with_password(), Folder::new().unwrap());
    let file = folder.path().join("store");
    let port = server.port();
    let write = |login: &str| {
        replace(&file, &format!("postgres://{login}@127.0.0.1:{port}/postgres\n"));
    };
    // As a manager of passwords does it: a role for each lease, which gets its rights from another one.
    server.psql("ALTER ROLE app NOLOGIN").unwrap();
    let make = |role: &str| {
        server.psql(&format!("CREATE ROLE {role} LOGIN PASSWORD 'x' IN ROLE app")).unwrap();
        write(&format!("{role}:x"));
    };
    make("app1");
    run(async {
        let locks = locks_of(&Source::file(&*file)).await;
        let held = locks.mutex("rotated").acquire().await.unwrap();
        for (old, new, last) in
            [("app1", "app2", "REVOKE app FROM app1"), ("app2", "app3", "DROP ROLE app2")]
        {
            make(new);
            server.psql(last).unwrap();
            // A free key, before a renewal has been refused; then on each connection.
            locks.mutex("another").acquire().await.unwrap().release().await.unwrap();
            let names: Vec<_> = (0..8).map(|n| format!("{old}.{n}")).collect();
            let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
            for guard in join_all(mutexes.iter().map(|mutex| mutex.acquire())).await {
                guard.unwrap().release().await.unwrap();
            }
            tokio::time::sleep((TTL_SECS + 1) * SEC).await;
            held.ensure_held().unwrap();
        }
        held.release().await.unwrap();
    });
}

//! Authentication that is enabled and disabled while locks are held and awaited.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::auth::{lines_of_the_page, make_user_of_the_page};
use crate::common::*;
use futures_util::future::join_all;
use latchwork::LockManager;
use latchwork_services::{EtcdCluster, EtcdOptions, EtcdServer, Folder, etcdctl};
use latchwork_store::doctor::{Report, Severity};
use latchwork_store::{ErrorKind, LostReason};
use latchwork_wire::Source;

const TTL: std::time::Duration = SEC.saturating_mul(3);

async fn examine(url: &str) -> Report {
    let driver = latchwork::Driver::start().unwrap();
    let config = latchwork_etcd::EtcdConfig::parse(url).unwrap();
    latchwork_etcd::doctor(config, driver.io()).await.unwrap()
}

/// Carries out the lines of the page that enable authentication.
fn enable(port: u16) {
    for line in lines_of_the_page("etcdctl user add root") {
        let line = line.replace("user add root", "user add root:secret");
        // The user is there, the second time.
        let _ = etcdctl(port, &line.split(' ').collect::<Vec<_>>());
    }
    etcdctl(port, &["get", "app:k"]).expect_err("it is enabled");
}

/// Carries out the lines of the page that disable it.
fn disable(port: u16) {
    for line in lines_of_the_page("etcdctl --user root auth disable") {
        let line = line.replace("--user root", "--user root:secret");
        etcdctl(port, &line.split(' ').collect::<Vec<_>>()).unwrap();
    }
    etcdctl(port, &["get", "app:k"]).expect("it is disabled");
}

/// A lock is held through each of these changes, and so are the place of a waiter and the
/// observation of an election. Everything works after each.
async fn lives_through(port: u16, url: &str, changes: &[fn(u16)]) {
    let (holder, waiter) = (client(url).await.ttl(TTL), client(url).await.ttl(TTL));
    let idle = client(url).await.ttl(TTL);
    for change in changes {
        let guard = holder.mutex("app:k").acquire().await.unwrap();
        let mutex = waiter.mutex("app:k").fair();
        let leaves = async {
            until(&holder, "app:k", |shown| shown.waiters.len() == 1).await;
            // Its watches are open.
            tokio::time::sleep(SEC / 2).await;
            change(port);
            tokio::time::sleep(TTL * 2).await;
            guard.ensure_held().expect("it was renewed");
            assert_eq!(show(&idle, "app:k").await.waiters.len(), 1, "it kept its place");
            guard.release().await.unwrap();
            std::time::Instant::now()
        };
        let (next, released) = tokio::join!(mutex.acquire_within(20 * SEC), leaves);
        let next = next.unwrap();
        stalls::in_time(released, SEC);
        next.release().await.unwrap();
        // The holder learns at once that a key was deleted by hand, although its watch was opened after the
        // change, on a stream of before. No renewal is due.
        let guard = waiter.mutex("app:w").ttl(SEC * 60).acquire().await.unwrap();
        tokio::time::sleep(SEC).await;
        holder.force_release("app:w").await.unwrap();
        let lost = tokio::time::timeout(SEC, guard.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
        // Nothing was asked by this one since the change.
        works(&idle).await;
        works(&client(url).await).await;
    }
}

/// The first time with new leases, then with those of the first time, which are kept alive on a stream of before.
async fn works(locks: &LockManager) {
    let names = ["app:a", "app:b", "app:c"];
    let mutexes = names.map(|name| locks.mutex(name));
    for _ in 0..2 {
        for guard in join_all(mutexes.iter().map(|mutex| mutex.acquire_within(5 * SEC))).await {
            guard.unwrap().release().await.unwrap();
        }
    }
}

fn both_versions(change: impl Fn(EtcdOptions) -> EtcdOptions) -> Vec<EtcdServer> {
    let versions = [EtcdOptions::new(), EtcdOptions::of_the_system()];
    versions.map(|options| EtcdServer::start(&change(options)).unwrap()).into()
}

fn app_at(port: u16) -> String {
    format!("etcd://app:lkj3@127.0.0.1:{port}")
}

async fn live_through_all(servers: &[EtcdServer]) {
    let all = servers.iter().map(|server| async {
        make_user_of_the_page(server, &[]);
        lives_through(server.port(), &app_at(server.port()), &[enable, disable, enable]).await;
    });
    join_all(all).await;
}

/// H264: with the tokens that etcd has without options.
#[test]
fn h264_holds_outlive_auth_enabled_and_disabled() {
    let servers = both_versions(|options| options);
    run(live_through_all(&servers));
}

/// H264: with tokens that carry a revision, and end with each change of any user.
#[test]
fn h264_holds_outlive_auth_changes_with_jwt() {
    let folder = Folder::new().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "what nobody knows, and long enough").unwrap();
    let token = format!("--auth-token=jwt,priv-key={},sign-method=HS256,ttl=10m", key.display());
    let servers = both_versions(|options| options.arg(token.clone()));
    run(live_through_all(&servers));
}

/// H264: members hear of a change one after the other.
#[test]
fn h264_holds_of_a_cluster_outlive_auth_changes() {
    let cluster = EtcdCluster::start(3, &EtcdOptions::new()).unwrap();
    run(async {
        let server = &cluster.members()[2];
        make_user_of_the_page(server, &[]);
        let url = cluster.url().replace("etcd://", "etcd://app:lkj3@");
        lives_through(server.port(), &url, &[enable, disable]).await;
    });
}

/// H265: a server without authentication takes an address with a user, and `doctor` says that
/// nobody checks it.
#[test]
fn h265_a_login_that_nobody_checks_is_no_obstacle() {
    let servers = both_versions(|options| options);
    run(async {
        for server in &servers {
            works(&client(&app_at(server.port())).await).await;
            let report = examine(&app_at(server.port())).await;
            let login = report.find("login").unwrap();
            assert_eq!(login.severity, Severity::Warning, "{login:?}");
            assert!(login.remedy.contains("etcdctl auth enable"), "{login:?}");
            let report = examine(&format!("etcd://127.0.0.1:{}", server.port())).await;
            assert!(report.find("login").is_none(), "{report:#?}");
            make_user_of_the_page(server, &[]);
            enable(server.port());
            let report = examine(&app_at(server.port())).await;
            assert_eq!(report.find("login").unwrap().severity, Severity::Ok, "{report:#?}");
            // The error of an address without a user has the next step.
            let error = connect(&server.url()).await.expect_err("nobody");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.next_step().unwrap().contains("user:password@"), "{error:?}");
        }
    });
}

async fn client_of(source: &Source) -> LockManager {
    let driver = latchwork::Driver::start().unwrap();
    let config = latchwork_etcd::EtcdConfig::parse(&source.read_now().unwrap()).unwrap();
    let config = config.source(source.clone());
    let backend = latchwork_etcd::EtcdBackend::connect(config, driver.io()).await.unwrap();
    LockManager::new(backend, driver).ttl(TTL)
}

/// Another user is made beside the old one, the file names it, and the old one is removed, which ends its tokens.
/// Then the same user gets another password: etcd has one for each. At last a role is taken away.
#[test]
fn h275_users_and_passwords_replaced_in_the_file_lose_no_hold() {
    let servers = both_versions(|options| options);
    let lives = servers.iter().map(|server| async {
        let port = server.port();
        make_user_of_the_page(server, &[]);
        enable(port);
        let as_root = |words: &str| {
            let words = format!("--user root:secret {words}");
            etcdctl(port, &words.split(' ').collect::<Vec<_>>()).unwrap()
        };
        let role = as_root("user get app").split("Roles:").nth(1).unwrap().trim().to_owned();
        let folder = Folder::new().unwrap();
        let file = folder.path().join("store");
        let write = |login: &str| {
            std::fs::write(&file, format!("etcd://{login}@127.0.0.1:{port}")).unwrap();
        };
        write("app:lkj3");
        let locks = client_of(&Source::file(&*file)).await;
        let held = locks.mutex("app:k").acquire().await.unwrap();
        // It tries every third of its ttl.
        let waiter = client_of(&Source::file(&*file)).await;
        let mutex = waiter.mutex("app:k").fair();
        let changes = async {
            until(&locks, "app:k", |shown| shown.waiters.len() == 1).await;
            for (user, password, last) in [
                ("app2", "two", "user delete app"),
                ("app", "three", "user delete app2"),
                ("app3", "four", ""),
            ] {
                as_root(&format!("user add {user}:{password}"));
                as_root(&format!("user grant-role {user} {role}"));
                write(&format!("{user}:{password}"));
                match last {
                    "" => as_root(&format!("user revoke-role app {role}")),
                    last => as_root(last),
                };
                tokio::time::sleep(TTL + SEC).await;
                held.ensure_held().expect("it was renewed");
                works(&locks).await;
            }
            // At the same time: etcd has one password for each user.
            write("app3:five");
            as_root("user delete app3");
            as_root("user add app3:five");
            as_root(&format!("user grant-role app3 {role}"));
            tokio::time::sleep(TTL + SEC).await;
            held.ensure_held().expect("it was renewed");
            works(&locks).await;
            held.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(60 * SEC), changes);
        next.expect("it has waited through all of it").release().await.unwrap();
    });
    run(join_all(lives));
}

//! Users, passwords, and tokens that end.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use futures_util::future::join_all;
use latchwork_services::{EtcdOptions, EtcdServer, etcdctl};
use latchwork_store::doctor::{Finding, Severity};
use latchwork_store::{Backend, ErrorKind, Linger, LostReason, Mode, Resized};

/// A server whose tokens end when they were not used for a second or two.
fn server_with_short_tokens() -> EtcdServer {
    let options = EtcdOptions::new().arg("--auth-token-ttl=1").root_password("secret");
    EtcdServer::start(&options).unwrap()
}

fn address(server: &EtcdServer) -> String {
    format!("etcd://root:secret@127.0.0.1:{}", server.port())
}

fn logins(server: &EtcdServer) -> u64 {
    let label = "grpc_method=\"Authenticate\"";
    server.measure("grpc_server_handled_total", label).unwrap() as u64
}

#[test]
fn users_are_known_by_their_password() {
    let server = EtcdServer::start(&EtcdOptions::new().root_password("secret")).unwrap();
    run(async {
        let host = format!("127.0.0.1:{}", server.port());
        for address in [format!("etcd://{host}"), format!("etcd://root:wrong@{host}")] {
            let error = connect(&address).await.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.next_step().is_some() && !error.to_string().contains("wrong"), "{error}");
        }
        let locks = client(&format!("etcd://root:secret@{host}")).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        tokio::time::sleep(3 * SEC).await;
        guard.ensure_held().expect("it was renewed");
        guard.release().await.unwrap();
    });
}

/// A login is a tenth of a second of work for the server, so that one is made for all.
#[test]
fn an_expired_token_is_asked_for_anew_and_once_for_all() {
    let server = server_with_short_tokens();
    run(async {
        let locks = client(&address(&server)).await.ttl(30 * SEC);
        for _ in 0..2 {
            // Nothing uses the token, so it ends.
            tokio::time::sleep(4 * SEC).await;
            let before = logins(&server);
            let names: Vec<_> = (0..40).map(|n| format!("many/{n}")).collect();
            let mutexes: Vec<_> = names.iter().map(|name| locks.mutex(name)).collect();
            for guard in join_all(mutexes.iter().map(|mutex| mutex.acquire())).await {
                guard.unwrap().release().await.unwrap();
            }
            let made = logins(&server) - before;
            assert!((1..=2).contains(&made), "{made} logins");
        }
    });
}

/// The streams of keep-alives and watches were opened with a token that has long ended.
#[test]
fn holds_and_waits_outlive_the_token() {
    let server = server_with_short_tokens();
    run(async {
        let (holder, waiter) = (client(&address(&server)).await, client(&address(&server)).await);
        // Renewed every four seconds: the token ends in between.
        let (holder, waiter) = (holder.ttl(12 * SEC), waiter.ttl(12 * SEC));
        let guard = holder.mutex("k").acquire().await.unwrap();
        let token = guard.token();
        let mutex = waiter.mutex("k").fair();
        let leaves = async {
            tokio::time::sleep(16 * SEC).await;
            guard.ensure_held().expect("it was renewed with other tokens");
            assert!(logins(&server) >= 4, "the tokens have ended");
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(40 * SEC), leaves);
        let next = next.unwrap();
        assert!(next.token() > token);
        next.ensure_held().unwrap();
        next.release().await.unwrap();
    });
}

#[test]
fn a_deleted_user_is_denied_and_loses_the_lock() {
    let server = server_with_short_tokens();
    let root = |args: &[&str]| {
        etcdctl(server.port(), &[&["--user=root:secret"], args].concat()).unwrap();
    };
    root(&["user", "add", "app:lkj3"]);
    root(&["user", "grant-role", "app", "root"]);
    run(async {
        let app = format!("etcd://app:lkj3@127.0.0.1:{}", server.port());
        let locks = client(&app).await.ttl(4 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        root(&["user", "delete", "app"]);
        assert_eq!(guard.lost().await.reason, LostReason::Expired);
        let error = locks.mutex("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(!error.to_string().contains("lkj3"), "{error}");
    });
}

/// The calls of `etcdctl` on the page, from this line on to the end of their block.
pub(crate) fn lines_of_the_page(first: &str) -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/etcd.md");
    let page = std::fs::read_to_string(page).unwrap();
    let start = page.find(&format!("```sh\n{first}")).expect("the lines");
    let lines = page[start..].lines().skip(1).take_while(|line| !line.starts_with("```"));
    let calls = lines.map(|line| line.strip_prefix("etcdctl ").expect("a call of etcdctl"));
    calls.map(str::to_owned).collect()
}

/// The lines of the page, as this user's password needs them.
pub(crate) fn make_user_of_the_page(server: &EtcdServer, options: &[&str]) {
    let lines = lines_of_the_page("etcdctl role");
    assert_eq!(lines.len(), 4);
    for line in lines {
        let words = line.replace("user add app", "user add app:lkj3");
        let words: Vec<_> = options.iter().copied().chain(words.split(' ')).collect();
        etcdctl(server.port(), &words).unwrap();
    }
}

#[test]
fn the_documented_rights_are_enough() {
    let server = EtcdServer::start(&EtcdOptions::new().root_password("secret")).unwrap();
    make_user_of_the_page(&server, &["--user=root:secret"]);
    run(async {
        let app = format!("etcd://app:lkj3@127.0.0.1:{}", server.port());
        let (first, second) = (bare(&app).await, bare(&app).await);
        let guard = first.locks().mutex("app:a/b").ttl(3 * SEC).acquire().await.unwrap();
        let token = guard.token();
        let mutex = second.locks().mutex("app:a/b");
        let leaves = async {
            tokio::time::sleep(4 * SEC).await;
            guard.ensure_held().expect("it was renewed");
            guard.release().await.unwrap();
        };
        let (next, ()) = tokio::join!(mutex.acquire_within(20 * SEC), leaves);
        let next = next.unwrap();
        assert!(next.token() > token);
        let listed = first.locks().list("app:").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].holders.len(), 1);
        // Readers, permits, a linger, and what is revoked since its effect is not known.
        for mode in [Mode::Read, Mode::Write, Mode::Permits { take: 1, of: 2 }] {
            let mut shared = claim("app:shared");
            shared.mode = mode;
            first.granted(&shared).await;
            assert!(first.held(&shared).await);
            if mode.limit().is_some() {
                let five = shared.clone().with(|it| it.mode = mode.with_limit(5));
                let from = second.resize(&five).await.unwrap();
                assert_eq!(from, Resized::Yes { from: 2, to: 5, held: 1 });
            }
            first.released(&shared).await;
        }
        let last = claim("app:linger");
        first.granted(&last).await;
        first.release(&last, Linger::For(2 * SEC)).await.unwrap();
        second.blocked(&claim("app:linger")).await;
        for name in ["other", "ap", "other:a"] {
            let error = first.locks().mutex(name).try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{name}: {error}");
            assert!(error.next_step().unwrap().contains("roles"), "{error:?}");
        }
        assert_eq!(first.locks().list("").await.unwrap_err().kind(), ErrorKind::Denied);
        let driver = latchwork::Driver::start().unwrap();
        let config = latchwork_etcd::EtcdConfig::parse(&app).unwrap();
        let report = latchwork_etcd::doctor(config, driver.io()).await.unwrap();
        assert!(report.find("version").is_some() && report.find("reachable").is_none());
    });
}

/// H312: the lines that doctor prints for a user without a role, without a range and with half a right are typed as
/// they are printed. After each, doctor finds all rights, and a lock works.
#[test]
fn h312_the_role_lines_that_doctor_prints_are_enough() {
    let server = EtcdServer::start(&EtcdOptions::new().root_password("secret")).unwrap();
    let root = |line: &str| {
        let words = line.strip_prefix("etcdctl ").expect("a call of etcdctl").split(' ');
        let words: Vec<_> = words.map(|word| word.trim_matches('\'')).collect();
        etcdctl(server.port(), &[&["--user=root:secret"][..], &words].concat()).unwrap();
    };
    root("etcdctl user add app:pw");
    let url = format!("etcd://app:pw@127.0.0.1:{}", server.port());
    run(async {
        let rights = async || {
            let driver = latchwork::Driver::start().unwrap();
            let config = latchwork_etcd::EtcdConfig::parse(&url).unwrap();
            let report = latchwork_etcd::doctor(config, driver.io()).await.unwrap();
            report.find("rights").cloned().expect("they are examined")
        };
        let take = "etcdctl role revoke-permission app app: --prefix";
        for changes in [
            &[][..],
            &[take, "etcdctl role grant-permission app readwrite app:one"],
            &[
                "etcdctl role revoke-permission app app:one",
                take,
                "etcdctl role grant-permission app read app: --prefix",
            ],
            &[take, "etcdctl role grant-permission app write app: app;"],
        ] {
            changes.iter().for_each(|line| root(line));
            let missing = rights().await;
            assert_eq!(missing.severity, Severity::Critical, "{missing:?}");
            missing.remedy.split("; ").for_each(root);
            let last = rights().await;
            assert_eq!(last, Finding::ok("rights", "readwrite app: --prefix"));
            let locks = client(&url).await;
            locks.mutex("app:k").acquire().await.unwrap().release().await.unwrap();
            let denied = locks.mutex("other").try_acquire().await.unwrap_err();
            assert!(denied.next_step().unwrap().contains("role grant-permission"), "{denied}");
        }
    });
}

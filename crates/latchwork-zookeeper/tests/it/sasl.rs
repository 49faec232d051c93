//! Users that a server knows by its JAAS file, and who prove themselves by SASL.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::Driver;
use latchwork_services::Folder;
use latchwork_store::doctor::Report;
use latchwork_store::{Error, ErrorKind};
use latchwork_wire::Source;
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

const USERS: &str = r#"Server {
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_app="se\"cret,x"
    user_other="secret";
};
"#;

/// The request of a login, as a proxy names it.
const SASL: &str = "102";

/// A server in its FIPS mode, which is on by default, and matters from 3.9.6 on.
fn options_in_fips_mode(folder: &Folder) -> ZooKeeperOptions {
    let users = folder.path().join("jaas.conf");
    std::fs::write(&users, USERS).unwrap();
    ZooKeeperOptions::new()
        .setting("authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider")
        .flag(format!("-Djava.security.auth.login.config={}", users.display()))
}

fn options(folder: &Folder) -> ZooKeeperOptions {
    options_in_fips_mode(folder).flag("-Dzookeeper.fips-mode=false")
}

fn server(folder: &Folder) -> ZooKeeperServer {
    ZooKeeperServer::start(&options(folder)).unwrap()
}

/// A server takes seconds to start, which a hold outlasts that is renewed in time.
async fn renewed(held: &latchwork::Guard) {
    let before = held.valid_until();
    while held.valid_until() == before {
        held.ensure_held().expect("it is renewed before it ends");
        tokio::time::sleep(20 * MS).await;
    }
}

fn address(user: &str, port: u16) -> String {
    format!("zk://{user}@127.0.0.1:{port}/app?auth=sasl")
}

async fn examine(url: String) -> Result<Report, Error> {
    let driver = Driver::start().unwrap();
    latchwork_zookeeper::doctor(ZooKeeperConfig::parse(&url).unwrap(), driver.io()).await
}

#[test]
fn sasl_admits_known_users_only() {
    let folder = Folder::new().unwrap();
    let server = server(&folder);
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    let app = "app:se%22cret,x";
    run(async {
        let one = client(&address(app, server.port())).await;
        let two = client(&address(app, proxy.port())).await;
        let guard = one.mutex("k").acquire().await.unwrap();
        assert!(two.mutex("k").try_acquire().await.unwrap().is_none());
        // The next connection of the session proves it anew.
        proxy.cut(Cut::Reset).unwrap();
        until(&two, "k", |shown| shown.holders.len() == 1).await;
        assert!(two.mutex("k").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
        let next = two.mutex("k").acquire().await.unwrap();
        let driver = Driver::start().unwrap();
        let plain = format!("zk://127.0.0.1:{}/app", server.port());
        let wrong = address("app:wrong", server.port());
        for stranger in [wrong, address("other:secret", server.port()), plain] {
            let config = ZooKeeperConfig::parse(&stranger).unwrap();
            let error =
                ZooKeeperBackend::connect(config, driver.io()).await.expect_err("a stranger");
            assert_eq!(error.kind(), ErrorKind::Denied, "{stranger}: {error:?}");
            assert!(error.next_step().is_some() && !error.to_string().contains("wrong"), "{error}");
        }
        next.release().await.unwrap();
        let report = examine(address(app, server.port())).await.unwrap();
        assert!(report.is_fit(), "{report:#?}");
        let error = examine(address("app:wrong", server.port())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    });
}

/// H554: servers from 3.9.6 on refuse DIGEST-MD5 in their FIPS mode. The error names that, and `doctor` warns before the
/// upgrade.
#[test]
fn h554_a_server_in_fips_mode_is_named() {
    let folder = Folder::new().unwrap();
    let server = ZooKeeperServer::start(&options_in_fips_mode(&folder)).unwrap();
    run(async {
        let plain = examine(format!("zk://127.0.0.1:{}/app", server.port())).await.unwrap();
        let version = plain.find("version").unwrap().found.clone();
        let url = address("app:se%22cret,x", server.port());
        let examined = examine(url.clone()).await;
        if version.starts_with("ZooKeeper 3.8.") {
            let report = examined.unwrap();
            let login = report.find("login").unwrap();
            assert!(login.remedy.contains("fips-mode=false before you upgrade"), "{login:?}");
            return;
        }
        let driver = Driver::start().unwrap();
        let config = ZooKeeperConfig::parse(&url).unwrap();
        let opened = ZooKeeperBackend::connect(config, driver.io()).await;
        for error in [examined.unwrap_err(), opened.expect_err("it is refused")] {
            assert_eq!(error.kind(), ErrorKind::Denied, "{version}: {error:?}");
            assert!(error.to_string().contains("refuses SASL's DIGEST-MD5"), "{error}");
            let step = error.next_step().unwrap();
            assert!(
                step.starts_with("start the servers with -Dzookeeper.fips-mode=false"),
                "{step}"
            );
        }
        // With that, the same login is taken.
        drop(server);
        let server = self::server(&folder);
        let report = examine(address("app:se%22cret,x", server.port())).await.unwrap();
        assert_eq!(report.find("login").unwrap().found, "by SASL's DIGEST-MD5");
    });
}

#[test]
fn a_server_that_knows_no_users_is_named() {
    let server = ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap();
    run(async {
        let driver = Driver::start().unwrap();
        let config = ZooKeeperConfig::parse(&address("app:secret", server.port())).unwrap();
        let error = ZooKeeperBackend::connect(config, driver.io()).await.expect_err("no users");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.to_string().contains("SASL"), "{error}");
    });
}

/// H277: a server reads the passwords of its users when it starts. The file is replaced before that, and the next time
/// after it.
#[test]
fn h277_a_sasl_password_replaced_at_a_restart_loses_no_hold() {
    let folder = Folder::new().unwrap();
    let mut server = server(&folder);
    let file = folder.path().join("store");
    let app = |password: &str| address(&format!("app:{password}"), server.port());
    let (old, new, last) = (app("se%22cret,x"), app("new"), app("last"));
    let users = |password: &str| {
        let users = USERS.replace("se\\\"cret,x", password);
        assert_ne!(users, USERS);
        std::fs::write(folder.path().join("jaas.conf"), users).unwrap();
    };
    std::fs::write(&file, old).unwrap();
    run(async {
        let locks = crate::rights::client_of(&Source::file(&*file)).await.ttl(24 * SEC);
        let held = locks.mutex("held").acquire().await.unwrap();
        std::fs::write(&file, new).unwrap();
        users("new");
        server.restart().unwrap();
        locks.mutex("other").acquire_within(30 * SEC).await.unwrap().release().await.unwrap();
        renewed(&held).await;
        users("last");
        server.restart().unwrap();
        // The client logs in with the password before.
        tokio::time::sleep(2 * SEC).await;
        std::fs::write(&file, last).unwrap();
        locks.mutex("other").acquire_within(30 * SEC).await.unwrap().release().await.unwrap();
        renewed(&held).await;
        held.release().await.unwrap();
    });
}

/// H564: a client asks for the shortest session first, which is over before a slow or distant server has taken the login.
#[test]
fn h564_a_login_that_outlasts_the_shortest_session_is_no_refusal() {
    let folder = Folder::new().unwrap();
    let server = server(&folder);
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    // The shortest session is one of 400 ms.
    proxy.set_round_trip(700 * MS);
    let (port, app) = (proxy.port(), "app:se%22cret,x");
    run(async {
        for url in [address(app, port), format!("zk://{app}@127.0.0.1:{port}/other")] {
            let locks = patient_client(&url).await.ttl(12 * SEC);
            locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        }
        let wrong = ZooKeeperConfig::parse(&address("app:wrong", port)).unwrap();
        let driver = Driver::start().unwrap();
        let error = loop {
            let opened = ZooKeeperBackend::connect(wrong.clone(), driver.io()).await;
            let error = opened.expect_err("a stranger");
            if error.kind() != ErrorKind::Unreachable {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    });
}

/// On a busy machine the five round trips of a login may take longer than a connection may.
async fn patient_client(url: &str) -> latchwork::LockManager {
    let config = ZooKeeperConfig::parse(url).unwrap();
    loop {
        let driver = Driver::start().unwrap();
        match ZooKeeperBackend::connect(config.clone(), driver.io()).await {
            Ok(backend) => return latchwork::LockManager::new(backend, driver),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}"),
        }
    }
}

/// H565: the server of the address restarts while a client opens its first session.
#[test]
fn h565_a_server_that_ends_during_the_first_login_is_no_refusal() {
    let folder = Folder::new().unwrap();
    let server = ZooKeeperServer::start(&options(&folder).tick(2 * SEC)).unwrap();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    let url = address("app:se%22cret,x", proxy.port());
    run(async {
        let driver = Driver::start().unwrap();
        let (of, cut) = (Some(SASL.to_owned()), Some(Cut::Finish));
        proxy.lose(Loss { of, nth: 1, what: What::Answer, cut });
        proxy.set_round_trip(600 * MS);
        let config = ZooKeeperConfig::parse(&url).unwrap();
        let restart = async {
            // It has answered the hello, or is about to.
            proxy.counts_reach(|counts| counts.connections == 1).await;
            proxy.refuse_connections().unwrap();
        };
        let (opened, ()) = tokio::join!(ZooKeeperBackend::connect(config, driver.io()), restart);
        let error = opened.expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        proxy.set_round_trip(Duration::ZERO);
        proxy.accept_connections().unwrap();
        let locks = client(&url).await.ttl(12 * SEC);
        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
    });
}

/// H512: the login is fixed, and the connection ends in the middle of it, in each of its steps.
#[test]
fn h512_a_cut_during_the_sasl_login_loses_no_hold() {
    let folder = Folder::new().unwrap();
    let server = server(&folder);
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    run(async {
        let locks = client(&address("app:se%22cret,x", proxy.port())).await.ttl(4 * SEC);
        let held = locks.mutex("held").acquire().await.unwrap();
        for nth in [1, 2] {
            let (of, cut) = (Some(SASL.to_owned()), Some(Cut::Finish));
            proxy.lose(Loss { of, nth, what: What::Answer, cut });
            proxy.cut(Cut::Reset).unwrap();
            proxy.wait_counts(9 * SEC, |counts| counts.lost == nth).unwrap();
        }
        tokio::time::sleep(5 * SEC).await;
        held.ensure_held().expect("it was renewed");
        held.release().await.unwrap();
    });
}

/// H512: the login is fixed, and the server comes back with another file of users for a while.
#[test]
fn h512_a_login_refused_for_a_while_loses_no_hold() {
    let folder = Folder::new().unwrap();
    let mut server = server(&folder);
    let users = |text: &str| std::fs::write(folder.path().join("jaas.conf"), text).unwrap();
    run(async {
        let locks = client(&address("app:se%22cret,x", server.port())).await.ttl(24 * SEC);
        let held = locks.mutex("held").acquire().await.unwrap();
        users(&USERS.replace("se\\\"cret,x", "wrong"));
        server.restart().unwrap();
        // The time limit of a request is longer than the pause between two logins.
        let error = locks.mutex("other").try_acquire().await.expect_err("it is refused");
        assert!(error.to_string().contains("user and password by SASL"), "{error}");
        users(USERS);
        server.restart().unwrap();
        locks.mutex("other").acquire_within(30 * SEC).await.unwrap().release().await.unwrap();
        renewed(&held).await;
        held.release().await.unwrap();
    });
}

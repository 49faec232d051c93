//! Chroots of a team, below nodes where it may do nothing; rights that change.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::process::Command;

use crate::common::*;
use latchwork::{Driver, LockManager};
use latchwork_services::Folder;
use latchwork_store::{Error, ErrorKind};
use latchwork_wire::Source;
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};

/// Everything for the administrator, and nothing for others but to read.
const CLOSED: &str = "admin:secret=crwda,world=r";
/// The rights that the page names.
const OF_THE_TEAM: &str = "admin:secret=crwda,app:pw=cr";

fn server() -> ZooKeeperServer {
    ZooKeeperServer::start(&ZooKeeperOptions::new()).unwrap()
}

/// Carries out orders of the administrator.
fn admin(server: &ZooKeeperServer, orders: &[String]) {
    orders_of("admin:secret", server, orders);
}

fn orders_of(user: &str, server: &ZooKeeperServer, orders: &[String]) {
    let output = Command::new("/usr/bin/python3")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/kazoo_rights.py"))
        .args([&format!("127.0.0.1:{}", server.port()), user])
        .args(orders)
        .output()
        .expect("python3 and python3-kazoo are installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn at(port: u16, chroot: &str) -> String {
    format!("zk://app:pw@127.0.0.1:{port}{chroot}")
}

async fn refused(url: &str) -> Error {
    let driver = Driver::start().unwrap();
    let config = ZooKeeperConfig::parse(url).unwrap();
    ZooKeeperBackend::connect(config, driver.io()).await.expect_err("it is refused")
}

/// What a client does: takes a lock that another one waits for, and lists it.
async fn works(url: &str) {
    let (first, second) = (client(url).await, client(url).await);
    let guard = first.mutex("app:a/b").acquire().await.unwrap();
    let mutex = second.mutex("app:a/b");
    let leaves = async {
        until(&second, "app:a/b", |shown| shown.waiters.len() == 1).await;
        assert_eq!(second.list("app:").await.unwrap().len(), 1);
        guard.release().await.unwrap();
    };
    let (next, ()) = tokio::join!(mutex.acquire(), leaves);
    next.unwrap().release().await.unwrap();
}

/// H316: two users share a chroot. A list has the locks of both, and says which it may not read; a question about one
/// of those is refused.
#[test]
fn h316_a_lock_of_another_user_hides_no_others() {
    let server = server();
    let both = "admin:secret=crwda,app:pw=cr,other:pw=cr";
    admin(&server, &[format!("create /team {both}"), format!("create /team/.latchwork {both}")]);
    run(async {
        let of = |user: &str| format!("zk://{user}:pw@127.0.0.1:{}/team", server.port());
        let (app, other) = (client(&of("app")).await, client(&of("other")).await);
        let held = app.mutex("mine").acquire().await.unwrap();
        let theirs = other.mutex("theirs").acquire().await.unwrap();
        let listed = app.list("").await.unwrap();
        let keys: Vec<_> = listed.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(keys, ["mine", "theirs"]);
        assert!(listed[0].holders[0].token.is_some() && listed[0].notes.is_empty());
        let told = listed[1].notes.iter().any(|note| note.contains("not allowed"));
        assert!(told && listed[1].holders[0].token.is_none(), "{listed:?}");
        assert_eq!(app.inspect("theirs").await.unwrap_err().kind(), ErrorKind::Denied);
        held.release().await.unwrap();
        theirs.release().await.unwrap();
    });
}

/// H260: ZooKeeper checks the right to create a node before it says that the node exists.
#[test]
fn h260_a_chroot_below_closed_nodes_is_usable() {
    let server = server();
    let mut orders = vec![format!("create /one {OF_THE_TEAM}")];
    for (path, acl) in [
        ("/two", CLOSED),
        ("/two/team", OF_THE_TEAM),
        ("/three", CLOSED),
        ("/three/a", "admin:secret=crwda"),
        ("/three/a/team", OF_THE_TEAM),
    ] {
        orders.push(format!("create {path} {acl}"));
    }
    orders.push(format!("acl / {CLOSED}"));
    admin(&server, &orders);
    run(async {
        for chroot in ["/one", "/two/team", "/three/a/team"] {
            let url = at(server.port(), chroot);
            works(&url).await;
            let driver = Driver::start().unwrap();
            let config = ZooKeeperConfig::parse(&url).unwrap();
            let report = latchwork_zookeeper::doctor(config, driver.io()).await.unwrap();
            assert!(report.is_fit(), "{report:?}");
        }
        // What is not there, and may not be made: the error names it and the node that decides.
        for (chroot, missing, above) in [
            ("/new", "/new", "/"),
            ("/two/new/x", "/two/new", "/two"),
            ("/two", "/two/.latchwork", "/two"),
        ] {
            let error = refused(&at(server.port(), chroot)).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains(&format!("{missing}:")), "{error}");
            assert!(error.next_step().unwrap().contains(&format!("ACL of {above} ")), "{error:?}");
        }
    });
}

/// H261: a set-up that was tried while `/` was open, and nodes that the server has removed since.
#[test]
fn h261_rights_that_change_leave_locks_usable() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    admin(&server, &[format!("create /up {CLOSED}"), "create /up/team world=crwda".to_owned()]);
    run(async {
        let url = at(server.port(), "/up/team");
        works(&url).await;
        let holder = client(&at(proxy.port(), "/up/team")).await;
        let guard = holder.mutex("held").ttl(4 * SEC).acquire().await.unwrap();
        // Closed from the top down to the nodes of the locks, while one is held.
        for orders in [
            vec![format!("acl / {CLOSED}")],
            vec!["acl /up admin:secret=crwda".to_owned()],
            vec![format!("acl /up/team {OF_THE_TEAM}")],
        ] {
            admin(&server, &orders);
            works(&url).await;
            proxy.cut(Cut::Reset).unwrap();
            holder.mutex("another").acquire().await.unwrap().release().await.unwrap();
        }
        // Its session goes on at the next connection, although nobody may begin one there.
        orders_of("app:pw", &server, &[format!("acl /up/team/.latchwork {CLOSED}")]);
        proxy.cut(Cut::Reset).unwrap();
        tokio::time::sleep(5 * SEC).await;
        guard.ensure_held().expect("it was renewed");
        guard.release().await.unwrap();
        drop(holder);
        let error = refused(&url).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.next_step().unwrap().contains("ACL of /up/team/.latchwork "), "{error:?}");
        // As after a quiet minute: the server has removed the nodes without children.
        admin(&server, &["delete /up/team/.latchwork".into(), "delete /up/team/app:a%2Fb".into()]);
        works(&url).await;
        // Nor is anything but the node of one lock needed to take it.
        let locks = client(&url).await;
        admin(
            &server,
            &[
                format!("create /up/team/made {OF_THE_TEAM}d"),
                "acl /up/team admin:secret=crwda,app:pw=r".to_owned(),
            ],
        );
        locks.mutex("made").acquire().await.unwrap().release().await.unwrap();
        let error = locks.mutex("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("/up/team/other:"), "{error}");
        assert!(error.next_step().unwrap().contains("ACL of /up/team "), "{error:?}");
    });
}

/// A client that reads its login again from a file.
pub(crate) async fn client_of(source: &Source) -> LockManager {
    let driver = Driver::start().unwrap();
    let config = ZooKeeperConfig::parse(&source.read_now().unwrap()).unwrap();
    let backend = ZooKeeperBackend::connect(config.source(source.clone()), driver.io()).await;
    LockManager::new(backend.unwrap(), driver)
}

/// H276: the ACL of the chroot gets the new user, the file names it, connections are cut, and the ACL loses the old
/// one, on which new locks depend.
#[test]
fn h276_a_digest_replaced_in_four_steps_loses_no_hold() {
    let server = server();
    let proxy = Proxy::zookeeper(server.port()).unwrap();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("store");
    let write = |password: &str| {
        let new = folder.path().join("new");
        std::fs::write(&new, format!("zk://app:{password}@127.0.0.1:{}/team", proxy.port()))
            .unwrap();
        std::fs::rename(new, &file).unwrap();
    };
    let admits = |order: &str, passwords: &[&str]| {
        let users = passwords.iter().map(|password| format!(",app:{password}=crwd"));
        let acl = users.fold("admin:secret=crwda".to_owned(), |acl, user| acl + &user);
        admin(&server, &[format!("{order} /team {acl}")]);
    };
    admits("create", &["old"]);
    write("old");
    run(async {
        let locks = client_of(&Source::file(&*file)).await.ttl(3 * SEC);
        let held = locks.mutex("held").acquire().await.unwrap();
        for (n, (old, new)) in [("old", "new"), ("new", "last")].into_iter().enumerate() {
            admits("acl", &[old, new]);
            write(new);
            proxy.cut(Cut::Reset).unwrap();
            tokio::time::sleep(4 * SEC).await;
            held.ensure_held().expect("it was renewed");
            admits("acl", &[new]);
            // On the connection that stands, and after another cut.
            for cut in [false, true] {
                if cut {
                    proxy.cut(Cut::Reset).unwrap();
                }
                let name = format!("{n} {cut}");
                let guard = locks.mutex(&name).acquire_within(5 * SEC).await.unwrap();
                guard.release().await.unwrap();
            }
            tokio::time::sleep(4 * SEC).await;
            held.ensure_held().expect("it was renewed");
        }
        held.release().await.unwrap();
    });
}

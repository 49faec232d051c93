//! Requests whose effect is not known: what they leave is taken back, and nobody believes to hold
//! what is not held.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork::Period;
use latchwork::once::{Begun, Skipped};
use latchwork_services::{Direction, EtcdOptions, EtcdServer, Proxy, etcdctl};
use latchwork_store::{Backend, BackendErrorKind, Effect, ErrorKind, LostReason, Mode, Renewal};

const ROOT: &str = "--user=root:secret";

/// A server that knows the user `app`, who may do anything to keys of the role `app`.
fn server_with_users(options: EtcdOptions) -> EtcdServer {
    let server = EtcdServer::start(&options.root_password("secret")).unwrap();
    for args in [
        &["user", "add", "app:lkj3"][..],
        &["role", "add", "app"],
        &["user", "grant-role", "app", "app"],
    ] {
        etcdctl(server.port(), &[&[ROOT], args].concat()).unwrap();
    }
    server
}

fn allow(server: &EtcdServer, prefix: &str) {
    let args = [ROOT, "role", "grant-permission", "app", "readwrite", prefix, "--prefix"];
    etcdctl(server.port(), &args).unwrap();
}

fn forbid(server: &EtcdServer, prefix: &str) {
    etcdctl(server.port(), &[ROOT, "role", "revoke-permission", "app", prefix, "--prefix"])
        .unwrap();
}

/// A try that took a place which it cannot give back has had an effect, though the second request
/// certainly had none.
#[test]
fn a_failed_withdrawal_has_an_unknown_effect() {
    let server = server_with_users(EtcdOptions::new());
    allow(&server, "k");
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let root = bare(&format!("etcd://root:secret@127.0.0.1:{}", server.port())).await;
        let app = bare(&format!("etcd://app:lkj3@127.0.0.1:{}", proxy.port())).await;
        let holder = claim("k");
        root.granted(&holder).await;
        // A lease must be there, for its answer would be held back.
        let first = claim("k1");
        app.granted(&first).await;
        app.released(&first).await;
        // As another kind of lock it does not belong into the line.
        let mut other = like(&holder, "k");
        other.mode = Mode::Read;
        proxy.freeze(Direction::ToClient);
        let takes_a_place = async {
            until(root.locks(), "k", |shown| shown.waiters.len() == 1).await;
            forbid(&server, "k");
            proxy.thaw(Direction::ToClient);
        };
        let (tried, ()) = tokio::join!(app.try_acquire(&other), takes_a_place);
        let error = tried.unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Denied, Effect::Unknown));
        // So it is released, and then nothing is left.
        allow(&server, "k");
        app.released(&other).await;
        assert_eq!(keys_with(&server, "k", &[ROOT]).len(), 1);
    });
}

#[test]
fn an_unreadable_key_fails_no_other_renewal() {
    let server = server_with_users(EtcdOptions::new());
    allow(&server, "a");
    allow(&server, "b");
    run(async {
        let app = bare(&format!("etcd://app:lkj3@127.0.0.1:{}", server.port())).await;
        let claims = ["a1", "b1", "a2", "a3", "b2"].map(claim);
        for claim in &claims {
            app.granted(claim).await;
        }
        forbid(&server, "b");
        let answers = app.renew_all(&claims).await;
        for (claim, answer) in claims.iter().zip(answers) {
            match claim.key.as_str().starts_with('a') {
                true => assert!(matches!(answer, Ok(Renewal::Held { .. })), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err().kind, BackendErrorKind::Denied),
            }
        }
    });
}

#[test]
fn an_unwatchable_key_fails_no_other_watch() {
    let server = server_with_users(EtcdOptions::new());
    allow(&server, "a");
    allow(&server, "b");
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let locks = client(&format!("etcd://app:lkj3@127.0.0.1:{}", proxy.port())).await;
        let locks = locks.ttl(60 * SEC);
        let (kept, other) = (locks.mutex("a").acquire().await, locks.mutex("b").acquire().await);
        let (kept, _other) = (kept.unwrap(), other.unwrap());
        watches(&server, |n| n == 2.0).await;
        // Watches that are there go on; these have to be made anew.
        forbid(&server, "b");
        proxy.begin_anew().unwrap();
        watches(&server, |n| n == 1.0).await;
        let key = keys_with(&server, "a", &[ROOT]).remove(0);
        etcdctl(server.port(), &[ROOT, "del", &key]).unwrap();
        // Its next renewal is twenty seconds away.
        let lost = tokio::time::timeout(10 * SEC, kept.lost()).await.expect("it is told");
        assert_eq!(lost.reason, LostReason::Taken);
    });
}

/// A full server: what is held goes on and can be given back; nothing new is granted.
#[test]
fn h412_a_full_server_renews_and_releases_and_grants_nothing() {
    let options = EtcdOptions::new().arg("--quota-backend-bytes=1000000");
    let server = EtcdServer::start(&options).unwrap();
    run(async {
        let locks = client(&server.url()).await.ttl(3 * SEC);
        let guard = locks.mutex("k").acquire().await.unwrap();
        let large = "x".repeat(100_000);
        let fill = |n: usize| etcdctl(server.port(), &["put", &format!("fill{n}"), &large]);
        let refused = (0..100).find_map(|n| fill(n).err()).expect("it is full some time");
        assert!(refused.to_string().contains("space"), "{refused}");
        let error = locks.mutex("other").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("space exceeded"), "{error}");
        assert!(error.next_step().unwrap().contains("defragment"), "{error:?}");
        // H412: the member answers everything else.
        let driver = latchwork::Driver::start().unwrap();
        let config = latchwork_etcd::EtcdConfig::parse(&server.url()).unwrap();
        let report = latchwork_etcd::doctor(config, driver.io()).await.unwrap();
        let alarm = report.find("alarm").expect("an alarm");
        assert!(alarm.found.contains("NOSPACE") && !report.is_fit(), "{report:?}");
        tokio::time::sleep(5 * SEC).await;
        guard.ensure_held().expect("it was renewed");
        guard.release().await.unwrap();
        assert_eq!(keys_of(&server, "k").len(), 0);
    });
}

/// H64: tokens of a store that was restored from a backup would be smaller than those before.
#[test]
fn h64_a_restored_store_grants_nothing_below_a_known_token() {
    let mut server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let snapshot = server.folder().join("snapshot");
    run(async {
        let locks = client(&server.url()).await.ttl(30 * SEC);
        server.save(&snapshot).unwrap();
        let mut last = None;
        for _ in 0..10 {
            let guard = locks.mutex("k").acquire().await.unwrap();
            last = Some(guard.token());
            guard.release().await.unwrap();
        }
        let held = locks.mutex("held").acquire().await.unwrap();
        server.restart_from(&snapshot).unwrap();
        let error = locks.mutex("k").acquire_within(20 * SEC).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("went back from"), "{error}");
        assert!(error.next_step().unwrap().contains("--bump-revision"), "{error:?}");
        assert_eq!(held.lost().await.reason, LostReason::Taken, "the store has forgotten it");
        // Who knows no better would be given a token that a resource has to refuse.
        let newcomer = client(&server.url()).await;
        let guard = newcomer.mutex("k").acquire_within(20 * SEC).await.unwrap();
        assert!(Some(guard.token()) < last);
        guard.release().await.unwrap();
        assert_eq!(keys_of(&server, "k").len(), 0, "what was refused has left nothing");
    });
}

/// A new leader starts leases anew, so a period that was closed for a day can stay closed for the
/// next one too. What should be over counts as over.
#[test]
fn a_key_opens_on_time_although_its_lease_lives() {
    let mut server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    run(async {
        let locks = client(&server.url()).await;
        let every = Period::parse("100y", None).unwrap();
        let Begun::Run(run) = locks.once("k", every.clone()).try_begin().await.unwrap() else {
            panic!("nobody has done it");
        };
        run.succeed().await.unwrap();
        let [key] = &keys_of(&server, "k")[..] else { panic!("one key keeps it closed") };
        let value = etcdctl(server.port(), &["get", key, "--print-value-only"]).unwrap();
        let mut words: Vec<_> = value.trim().splitn(5, ' ').map(str::to_owned).collect();
        let told = locks.once("k", every.clone()).try_begin().await.unwrap();
        assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "{told:?}");
        // It was to be closed until a minute ago, and its lease lives on.
        let now = latchwork_store::clock::wall_time();
        words[3] = (now - 60 * SEC).as_millis().to_string();
        etcdctl(server.port(), &["put", "--ignore-lease", key, &words.join(" ")]).unwrap();
        let told = locks.once("k", every.clone()).try_begin().await.unwrap();
        assert!(matches!(told, Begun::Skipped(Skipped::Done { .. })), "its leader leads: {told:?}");
        server.restart().unwrap();
        let begun = locks.once("k", every).begin_within(20 * SEC).await.unwrap();
        assert!(matches!(begun, Begun::Run(_)), "{begun:?}");
    });
}

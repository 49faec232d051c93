//! Forced releases through the service: who is evicted, and who is not.

use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;

use latchwork_services::{EtcdOptions, EtcdServer, PostgresServer, RedisOptions, RedisServer};
use serde_json::{Value, json};

use super::client::{Address, Answer};
use super::{Service, service::Waiting};
use crate::common::{Running, SOON};
use crate::doctor::at;

/// A service at a store, and the socket of its administrator.
struct Forced {
    service: Service,
    admin: Address,
    url: Option<String>,
    _dir: tempfile::TempDir,
}

impl Forced {
    fn at(url: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket: PathBuf = dir.path().join("http.sock");
        let listen = format!("unix:{}", socket.display());
        let mut options = vec!["--listen", &*listen];
        options.extend(url.iter().flat_map(|url| ["--store", url]));
        let service = Service::start(&options);
        Self { service, admin: Address::Unix(socket), url: url.map(str::to_owned), _dir: dir }
    }

    /// Takes the lock away from its holder.
    fn force(&self, name: &str) -> Answer {
        let line = format!("POST /v1/locks/{name}/force-release");
        self.admin.ask(&line, &[], r#"{"reason": "a trial"}"#)
    }

    /// Another process holds the lock.
    fn outside(&self, name: &str) -> Running {
        let mut command = self.service.store.latchwork(&["run", name, "--", "sleep", "300"]);
        if let Some(url) = &self.url {
            command.env("LATCHWORK_STORE", url);
        }
        let holder = Running::start(command);
        crate::common::eventually("a holder", || self.service.is_held(name).then_some(()));
        holder
    }

    /// Evicts the holder of a lock for which two requests of this form wait: one of them gets it and keeps it.
    fn spares_the_next(&self, name: &str, form: &str) {
        let body = format!(r#"{{"ttl_ms": 20000, "wait_ms": 120000, {form}}}"#);
        let waiters: Vec<_> = (0..2).map(|_| self.service.wait_for(name, &[], &body)).collect();
        let (sender, answers) = mpsc::channel();
        for waiter in waiters {
            let sender = sender.clone();
            thread::spawn(move || sender.send(Waiting::answer(waiter)));
        }
        let forced = self.force(name);
        let evicted = forced.is(200).json()["evicted"].clone();
        assert_eq!(evicted.as_array().unwrap().len(), 1, "{name}: {evicted}");
        let evicted: u64 = evicted[0]["token"].as_str().unwrap().parse().unwrap();
        let first =
            answers.recv_timeout(2 * SOON).unwrap_or_else(|_| panic!("{name}: nobody has it"));
        let token: u64 = first.is(200).get("token").parse().unwrap();
        assert!(token >> 10 > evicted >> 10, "{name}: a grant of before the forced release");
        // It was granted after the forced release, so nothing may end it, and nobody else gets the lock.
        let hold = first.get("hold");
        for _ in 0..5 {
            let renewed = self.service.renew(&hold);
            assert_eq!(
                renewed.status, 200,
                "{name}: an innocent holder lost its lock: {renewed:?}"
            );
            thread::sleep(std::time::Duration::from_millis(60));
            assert!(answers.try_recv().is_err(), "{name}: two clients hold it");
        }
        self.service.release(&hold).is(200);
        let second = answers.recv_timeout(2 * SOON).unwrap();
        assert!(second.is(200).get("token").parse::<u64>().unwrap() > token, "{name}: {second:?}");
        self.service.release(&second.get("hold")).is(200);
    }

    /// Holders inside and outside of the service, and all kinds of waiters.
    fn evicts_nobody_else(&self) {
        let holder = self.outside("outside");
        self.spares_the_next("outside", r#""mode": "mutex""#);
        drop(holder);
        for (name, form) in [
            ("mutex", r#""mode": "mutex""#),
            ("fair", r#""fair": true"#),
            ("write", r#""mode": "write""#),
            ("permits", r#""mode": "permits", "permits": {"take": 1, "of": 1}"#),
        ] {
            let hold = self.service.hold(name, &format!(r#"{{"ttl_ms": 20000, {form}}}"#));
            self.spares_the_next(name, form);
            let renewed = self.service.renew(&hold);
            assert_eq!(renewed.is(410).get("reason"), "forced", "{name}");
        }
        // Of two readers and a lock of several, all are evicted.
        let read = r#"{"ttl_ms": 20000, "mode": "read"}"#;
        let (one, two) = (self.service.hold("read", read), self.service.hold("read", read));
        let wish = r#"{"ttl_ms": 20000, "locks": [{"name": "a"}, {"name": "b"}]}"#;
        let several = self.service.ask("POST /v1/holds", wish).is(200).get("hold");
        for name in ["read", "b"] {
            self.force(name).is(200);
        }
        for hold in [one, two, several] {
            assert_eq!(self.service.renew(&hold).is(410).get("reason"), "forced");
            self.service.release(&hold).is(410).kind("Lost");
        }
    }
}

#[test]
fn h214_a_forced_release_spares_the_next_on_files() {
    Forced::at(None).evicts_nobody_else();
}

#[test]
fn h214_a_forced_release_spares_the_next_on_redis() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    Forced::at(Some(&server.url())).evicts_nobody_else();
}

#[test]
fn h214_a_forced_release_spares_the_next_on_etcd() {
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    Forced::at(Some(&server.url())).evicts_nobody_else();
}

#[test]
fn h214_a_forced_release_spares_the_next_on_postgres() {
    let server = PostgresServer::start().unwrap();
    assert_eq!(at(&server.url(), &["init"]).code(), 0);
    Forced::at(Some(&server.url())).evicts_nobody_else();
}

/// A name that is legal in a body, and longer than a head may be: it is shown, changed and taken away by a body.
#[test]
fn h570_a_name_that_fits_into_no_head_is_taken_away_by_a_body() {
    let it = Forced::at(None);
    let names = ["", "2"].map(|end| "é".repeat(30_000) + end);
    let [name, other] = &names;
    for name in &names {
        let lock = json!({"name": name, "mode": "permits", "permits": {"take": 1, "of": 2}});
        let body = json!({"ttl_ms": 60000, "locks": [lock]}).to_string();
        it.service.ask("POST /v1/holds", &body).is(200);
    }
    let act = |what: &str, body: Value| {
        let line = format!("POST /v1/lock/{what}");
        it.service.ask(&line, &body.to_string()).is(403);
        it.admin.ask(&line, &[], &body.to_string())
    };
    let shown = || it.service.ask("POST /v1/lock/show", &json!({ "name": name }).to_string());
    assert_eq!(shown().is(200).json()["permits"], 2);
    act("resize", json!({"name": name, "limit": 3})).is(200);
    assert_eq!(shown().is(200).json()["permits"], 3);
    // A part of the list ends with it, so the next one is asked for by it.
    let list = |after: Value| {
        let body = json!({"limit": 1, "after": after}).to_string();
        let list = it.service.ask("POST /v1/lock/list", &body).is(200).json();
        (list["locks"][0]["name"].clone(), list["next"].clone())
    };
    assert_eq!(list(Value::Null), (json!(name), json!(name)));
    assert_eq!(list(json!(name)), (json!(other), Value::Null));
    let forced = act("force-release", json!({"name": name, "reason": "a trial"}));
    assert_eq!(forced.is(200).json()["evicted"].as_array().unwrap().len(), 1);
    assert_eq!(shown().is(200).json()["held"], false);
    // The path says where a name can be, and one of both has it.
    let refused = it.service.ask(&format!("GET /v1/lock?name={}", "%C3%A9".repeat(11_000)), "");
    assert!(refused.get("next_step").contains("POST /v1/lock/show"), "{refused:?}");
    for (query, name) in [("", Value::Null), ("?name=x", json!("x"))] {
        let body = json!({"name": name, "reason": "a trial"}).to_string();
        let line = format!("POST /v1/lock/force-release{query}");
        let refused = it.admin.ask(&line, &[], &body);
        assert!(refused.is(400).get("error").starts_with("name: "), "{refused:?}");
    }
}

/// No client can write them in a path, so no administrator could take them away there.
#[test]
fn h219_a_name_that_no_path_can_have_is_refused() {
    let it = Forced::at(None);
    for name in [".", ".."] {
        let body = format!(r#"{{"locks": [{{"name": "x"}}, {{"name": "{name}"}}]}}"#);
        let refused = it.service.ask("POST /v1/holds", &body);
        refused.is(400).kind("Invalid");
        assert!(refused.get("error").starts_with("name: "), "{refused:?}");
        let path = name.replace('.', "%2e");
        it.service.lock(&path, "{}").is(400).kind("Invalid");
        let task = it.service.ask(&format!("POST /v1/once/{path}"), r#"{"every": "1h"}"#);
        let election = it.service.ask(&format!("POST /v1/elections/{path}/campaign"), "{}");
        for refused in [task, election] {
            assert_eq!(refused.is(400).get("key"), name);
        }
        assert!(!it.service.is_held("x"));
        // The command may hold them, and an administrator sees them and takes them away.
        let holder =
            Running::start(it.service.store.latchwork(&["run", name, "--", "sleep", "300"]));
        let line = format!("GET /v1/lock?name={path}");
        crate::common::eventually("a holder", || {
            (it.service.ask(&line, "").is(200).json()["held"] == true).then_some(())
        });
        let line = format!("POST /v1/lock/force-release?name={path}");
        it.service.ask(&line, r#"{"reason": "a trial"}"#).is(403);
        let forced = it.admin.ask(&line, &[], r#"{"reason": "a trial"}"#);
        assert_eq!(forced.is(200).json()["evicted"].as_array().unwrap().len(), 1);
        drop(holder);
    }
    it.service.ask("GET /v1/lock", "").is(400).kind("Invalid");
}

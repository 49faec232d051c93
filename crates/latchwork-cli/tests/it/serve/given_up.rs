//! Releases and successes that are repeated: a repeat tells what the first one did.

use std::thread;

use latchwork_services::{Data, Persistence, RedisOptions, RedisServer};

use super::Service;
use super::client::{Answer, read};
use crate::common::eventually;

impl Service {
    fn succeed(&self, hold: &str) -> Answer {
        self.ask(&format!("POST /v1/holds/{hold}/succeed"), "")
    }

    fn shown(&self, hold: &str) -> Answer {
        self.ask(&format!("GET /v1/holds/{hold}"), "")
    }

    /// Begins a task of an hour.
    fn begin(&self, name: &str, ttl: u32) -> Answer {
        let body = format!(r#"{{"every": "1h", "ttl_ms": {ttl}}}"#);
        let begun = self.ask(&format!("POST /v1/once/{name}"), &body);
        begun.is(200);
        begun
    }

    fn begun(&self, name: &str, ttl: u32) -> String {
        let begun = self.begin(name, ttl);
        assert_eq!(begun.get("outcome"), "begun");
        begun.json()["hold"]["hold"].as_str().unwrap().to_owned()
    }
}

/// A store that keeps what it has written.
fn kept() -> RedisServer {
    RedisServer::start(&RedisOptions::new().persistence(Persistence::EveryWrite)).unwrap()
}

#[test]
fn h216_a_repeated_release_tells_of_the_loss() {
    let service = Service::start(&[]);
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    assert_eq!(service.store.output(&["release", "--force", "x"]).code(), 0);
    assert_eq!(service.store.output(&["run", "x", "--", "true"]).code(), 0);
    let first = service.release(&hold);
    first.is(410).kind("Lost");
    assert_eq!(first.get("reason"), "taken");
    for again in [service.release(&hold), service.release(&hold), service.shown(&hold)] {
        assert_eq!((again.status, again.json()), (410, first.json()));
    }
    service.renew(&hold).is(410).kind("Lost");
}

/// The first one is under way; the store comes back with all that it had.
#[test]
fn h216_a_repeated_release_joins_the_first() {
    let mut server = kept();
    let service = Service::start(&["--store", &server.url()]);
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    server.kill();
    let line = format!("DELETE /v1/holds/{hold}");
    let requests: Vec<_> = (0..3).map(|_| service.address.send(&line, &[], "")).collect();
    for request in requests {
        let answer = read(request).unwrap();
        answer.is(503).kind("Unreachable");
        assert!(answer.head.to_lowercase().contains("retry-after: 1"), "{answer:?}");
    }
    for answer in [service.shown(&hold), service.renew(&hold)] {
        answer.is(410).kind("Unconfirmed");
    }
    server.restart(Data::Kept).unwrap();
    let answer = eventually("the word of the store", || {
        Some(service.release(&hold)).filter(|it| it.status != 503)
    });
    assert_eq!(answer.is(200).json()["released"], true);
    assert_eq!(service.release(&hold).is(200).json(), answer.json());
    service.shown(&hold).is(410).kind("Released");
    assert!(!service.is_held("x"));
}

/// The lease is over before the store comes back: nobody learns what became of the hold, and nothing says that all is well.
#[test]
fn h216_a_release_without_an_answer_is_never_confirmed() {
    let mut server = kept();
    let service = Service::start(&["--store", &server.url()]);
    let lock = service.hold("x", r#"{"ttl_ms": 2000}"#);
    let task = service.begun("job", 2_000);
    server.kill();
    thread::scope(|scope| {
        for succeeds in [false, true] {
            let (address, lock, task) = (&service.address, &lock, &task);
            scope.spawn(move || {
                let line = match succeeds {
                    true => format!("POST /v1/holds/{task}/succeed"),
                    false => format!("DELETE /v1/holds/{lock}"),
                };
                let ask = || address.ask(&line, &[], "");
                let last = eventually("an end", || {
                    let answer = ask();
                    assert_ne!(answer.status, 200, "{answer:?}");
                    Some(answer).filter(|it| it.status != 503)
                });
                last.is(410).kind("Unconfirmed");
                last.step(match succeeds {
                    true => "the task may run again: begin it to see whether it is done",
                    false => {
                        "if an overlap with another holder would do harm, check what was written \
                         under its token"
                    }
                });
                assert!(!last.head.to_lowercase().contains("retry-after"), "{last:?}");
                assert_eq!(ask().is(410).json(), last.json());
            });
        }
    });
    server.restart(Data::Kept).unwrap();
    let begun = eventually("the task is open", || {
        let again = service.ask("POST /v1/once/job", r#"{"every": "1h"}"#);
        // The store may keep the run for a moment longer than its client believes in it.
        (again.status == 200 && again.get("outcome") != "running").then_some(again)
    });
    assert_eq!(begun.get("outcome"), "begun");
    service.succeed(&task).is(410).kind("Unconfirmed");
}

#[test]
fn h217_a_success_after_a_release_is_none() {
    let service = Service::start(&[]);
    let failed = service.begun("job", 60_000);
    let released = service.release(&failed);
    assert_eq!(released.is(200).json()["closed"], false);
    let late = service.succeed(&failed);
    late.is(410).kind("Released");
    late.step("to run the task again, begin it; at its end, succeed instead of DELETE");
    assert_eq!(service.succeed(&failed).json(), late.json());
    let done = service.begun("job", 60_000);
    for again in [service.succeed(&done), service.succeed(&done), service.release(&done)] {
        assert_eq!(again.is(200).json()["closed"], true, "{again:?}");
    }
    assert_eq!(service.begin("job", 60_000).get("outcome"), "done");
}

#[test]
fn h217_a_repeated_success_tells_of_the_loss() {
    let service = Service::start(&[]);
    let task = service.begun("job", 60_000);
    assert_eq!(service.store.output(&["release", "--force", "job"]).code(), 0);
    let first = service.succeed(&task);
    first.is(410).kind("Lost");
    for again in [service.succeed(&task), service.release(&task), service.shown(&task)] {
        assert_eq!((again.status, again.json()), (410, first.json()));
    }
    assert_eq!(service.begin("job", 60_000).get("outcome"), "begun");
}

#[test]
fn h217_a_success_closes_the_task_when_the_store_is_back() {
    let mut server = kept();
    let service = Service::start(&["--store", &server.url()]);
    let task = service.begun("job", 60_000);
    server.kill();
    service.succeed(&task).is(503).kind("Unreachable");
    // It cannot be taken back.
    service.release(&task).is(503);
    server.restart(Data::Kept).unwrap();
    let answer = eventually("the word of the store", || {
        Some(service.succeed(&task)).filter(|it| it.status != 503)
    });
    assert_eq!(answer.is(200).json()["closed"], true);
    assert_eq!(service.begin("job", 60_000).get("outcome"), "done");
}

/// A service that stops does not end before the store has answered its releases, within its bound.
#[test]
fn h216_a_stop_waits_for_an_unanswered_release() {
    let mut server = kept();
    let service = Service::start(&["--store", &server.url()]);
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    server.kill();
    service.release(&hold).is(503);
    service.process.signal(rustix::process::Signal::TERM);
    service.process.stderr.until("stopping");
    service.release(&hold).is(503);
    server.restart(Data::Kept).unwrap();
    let Service { process, .. } = service;
    assert_eq!(process.finish().code(), 0);
    let shown = crate::doctor::at(&server.url(), &["status", "x"]);
    assert_eq!(shown.code(), 1, "not released: {shown:?}");
}

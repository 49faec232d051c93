//! A service of its own for a test.

use std::process::Command;
use std::time::Instant;

use latchwork_services::{Port, ServerClock};

use super::client::{Address, Answer, Connection, read};
use crate::common::{Running, Store, eventually};

/// A running service on files, with a port of its own.
pub(super) struct Service {
    pub process: Running,
    pub address: Address,
    pub store: Store,
    port: Port,
}

impl Service {
    /// Starts `latchwork serve` with these options.
    pub(super) fn start(options: &[&str]) -> Self {
        Self::at(Store::new(), Port::reserve().unwrap(), options)
    }

    /// As [`start`](Self::start), with a wall clock that can be set.
    pub(super) fn with_clock(clock: &ServerClock) -> Self {
        let given = |command: &mut Command| clock.give_to(command);
        Self::launch(Store::new(), Port::reserve().unwrap(), &[], given)
    }

    /// As [`start`](Self::start), with a file that has the address of its store.
    pub(super) fn with_store_file(file: &std::path::Path) -> Self {
        let given = |command: &mut Command| {
            command.env_remove("LATCHWORK_STORE").env("LATCHWORK_STORE_FILE", file);
        };
        Self::launch(Store::new(), Port::reserve().unwrap(), &[], given)
    }

    fn at(store: Store, port: Port, options: &[&str]) -> Self {
        Self::launch(store, port, options, |_| ())
    }

    fn launch(
        store: Store,
        port: Port,
        options: &[&str],
        prepare: impl FnOnce(&mut Command),
    ) -> Self {
        let listen = format!("127.0.0.1:{}", port.number());
        let mut args = vec!["serve", "--listen", &listen];
        args.extend(options);
        let mut command = store.latchwork(&args);
        prepare(&mut command);
        let process = Running::start(command);
        process.stderr.until("ready");
        Self { process, address: Address::Tcp(port.number()), store, port }
    }

    /// Starts it from a line of shell, in which `$SERVE` is the command with its address; nothing of its log is read.
    pub(super) fn by_shell(line: &str) -> Self {
        let (store, port) = (Store::new(), Port::reserve().unwrap());
        let serve = format!("serve --listen 127.0.0.1:{}", port.number());
        let program = env!("CARGO_BIN_EXE_latchwork");
        let line = line.replace("$SERVE", &format!("'{program}' {serve}"));
        let process = Running::start(store.script(&line));
        let connects = || std::net::TcpStream::connect(("127.0.0.1", port.number())).ok();
        eventually("the service", connects);
        Self { process, address: Address::Tcp(port.number()), store, port }
    }

    /// Kills the service, and starts another one at the same store and address.
    pub(super) fn restart(self, options: &[&str]) -> Self {
        let Self { mut process, store, port, .. } = self;
        process.child.kill().unwrap();
        process.wait();
        drop(process);
        Self::at(store, port, options)
    }

    /// Waits until the service has stopped, and starts another one at the same address.
    pub(super) fn restarted(self, options: &[&str]) -> Self {
        let Self { process, store, port, .. } = self;
        assert_eq!(process.finish().code(), 0);
        Self::at(store, port, options)
    }

    /// Starts it again at the same place, after it was killed.
    pub(super) fn revived(self, options: &[&str]) -> Self {
        let Self { mut process, store, port, .. } = self;
        process.wait();
        Self::at(store, port, options)
    }

    /// Sends a request, and reads its answer.
    #[track_caller]
    pub(super) fn ask(&self, line: &str, body: &str) -> Answer {
        self.address.ask(line, &[], body)
    }

    /// Takes a lock.
    #[track_caller]
    pub(super) fn lock(&self, name: &str, body: &str) -> Answer {
        self.ask(&format!("POST /v1/locks/{name}"), body)
    }

    /// Takes a lock that is free, and returns the id of the hold.
    #[track_caller]
    pub(super) fn hold(&self, name: &str, body: &str) -> String {
        self.lock(name, body).is(200).get("hold")
    }

    #[track_caller]
    pub(super) fn renew(&self, hold: &str) -> Answer {
        self.ask(&format!("POST /v1/holds/{hold}/renew"), "")
    }

    #[track_caller]
    pub(super) fn release(&self, hold: &str) -> Answer {
        self.ask(&format!("DELETE /v1/holds/{hold}"), "")
    }

    /// Begins to wait for a lock, and returns when the request is in the queue.
    pub(super) fn wait_for(&self, name: &str, headers: &[(&str, &str)], body: &str) -> Waiting {
        let before = self.waiters(name);
        let stream = self.address.send(&format!("POST /v1/locks/{name}"), headers, body);
        eventually("a waiter", || (self.waiters(name) > before).then_some(()));
        Waiting { stream, since: Instant::now() }
    }

    /// How many wait for a lock at the store.
    #[track_caller]
    pub(super) fn waiters(&self, name: &str) -> usize {
        let lock = self.ask(&format!("GET /v1/locks/{name}"), "");
        lock.is(200).json()["waiters"].as_array().unwrap().len()
    }

    /// Whether somebody holds a lock.
    #[track_caller]
    pub(super) fn is_held(&self, name: &str) -> bool {
        self.ask(&format!("GET /v1/locks/{name}"), "").is(200).json()["held"] == true
    }
}

/// A request that waits.
pub(super) struct Waiting {
    stream: Box<dyn Connection>,
    pub since: Instant,
}

impl Waiting {
    /// Waits for the answer.
    pub(super) fn answer(self) -> Answer {
        read(self.stream).unwrap()
    }
}

//! What is done to one PostgreSQL server that takes writes, and to what it keeps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{PostgresServer, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::faults::Nemesis;
use crate::luck::Luck;
use crate::pause::pause;
use crate::repeated::Repeated;
use crate::stores::the;

/// A store with one server that takes writes.
pub(super) trait Writable: Send + 'static {
    fn writable(&mut self) -> &mut PostgresServer;
}

impl Writable for PostgresServer {
    fn writable(&mut self) -> &mut PostgresServer {
        self
    }
}

/// The fault of this name, if it is one of the server.
pub(super) fn of<S: Writable>(
    server: Arc<Mutex<S>>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    let fault =
        move |name, often, act: fn(&mut PostgresServer, &mut Luck, Duration) -> Result<()>| {
            Repeated::boxed(name, often, move |luck| act(the(&server).writable(), luck, ttl))
        };
    let seldom = ttl / 4..ttl;
    Some(match name {
        "crash" => fault("crash", seldom, |server, _, _| server.crash()),
        "restart" => fault("restart", seldom, |server, _, _| server.restart()),
        "freeze" => fault("freeze", seldom, |server, luck, ttl| {
            let all = server.processes();
            signal(&all, Signal::STOP);
            pause(luck.times(ttl, 0.1..1.3));
            signal(&all, Signal::CONT);
            Ok(())
        }),
        "terminate" => fault("terminate", ttl / 20..ttl / 4, |server, _, _| {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
            server.psql(end).map(drop)
        }),
        "truncate" => fault("truncate", ttl..ttl * 2, |server, _, _| {
            server.psql("TRUNCATE latchwork, latchwork_line").map(drop)
        }),
        "delete" => fault("delete", ttl / 20..ttl / 4, |server, _, _| {
            let delete = "DELETE FROM latchwork WHERE k = (SELECT k FROM latchwork \
                          WHERE claim IS NOT NULL AND k <> '' ORDER BY random() LIMIT 1)";
            server.psql(delete).map(drop)
        }),
        _ => return None,
    })
}

/// Sends a signal to all of them that are there yet.
fn signal(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
        // A process of one client may have ended.
        let _ = kill_process(pid, signal);
    }
}

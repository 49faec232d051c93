//! What a server's settings mean for locks.

use std::time::Duration;

use latchwork_store::doctor::Finding;

use super::Server;
use crate::config::SslMode;

/// The oldest version that has what the functions use.
const OLDEST: i32 = 130_000;
/// A clock that is off by more is reported: tokens go by the clock after a loss of data.
const OFF: f64 = 1.0;
/// More processes that listen than this, and each notification costs more than looks would.
const LISTENERS: i64 = 16;

pub(super) async fn examine(server: &Server<'_>) -> Vec<Finding> {
    let mut findings = vec![version(server), way(server)];
    findings.push(encryption(server).await);
    findings.push(clock(server).await);
    if server.opened.is_standby {
        return findings;
    }
    findings.push(durability(server).await);
    findings.push(replication(server).await);
    findings.push(isolation(server).await);
    findings.push(connections(server).await);
    findings.push(listeners(server).await);
    findings.push(vacuum(server).await);
    findings
}

fn version(server: &Server<'_>) -> Finding {
    let number = server.opened.version;
    let found = format!("{}.{}", number / 10_000, number % 10_000);
    if number >= OLDEST {
        return Finding::ok("version", found);
    }
    Finding::critical("version", found)
        .consequence("the functions need what PostgreSQL has from version 13 on")
        .remedy("use PostgreSQL 13 or newer")
}

fn way(server: &Server<'_>) -> Finding {
    if !server.opened.lane.pooled {
        return Finding::ok("pooler", "none: waiters are notified");
    }
    Finding::info("pooler", "one stands before the server").consequence(
        "waiters cannot be notified: each looks every 50 to 250 ms, and less often further behind in the queue",
    )
}

async fn encryption(server: &Server<'_>) -> Finding {
    let used: Option<bool> =
        server.value("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()").await;
    let is_local = server.at().is_local();
    let config = server.config();
    match used {
        Some(true) if config.tls.insecure => {
            Finding::info("encryption", "TLS, and the certificate is not checked")
                .consequence("who controls the network can pretend to be the server")
                .remedy(
                    "add sslmode=verify-full, and sslrootcert=/path for an authority of your own",
                )
        }
        Some(true) => Finding::ok("encryption", "TLS, and the certificate is checked"),
        _ if is_local => Finding::ok("encryption", "none, on this machine"),
        _ if config.ssl_mode == SslMode::Disable => Finding::info("encryption", "none")
            .consequence("names of locks can be read, and answers forged, on the network")
            .remedy("use sslmode=verify-full"),
        _ => Finding::warning("encryption", "none up to the server, as far as it knows")
            .consequence("names of locks can be read, and answers forged, on the network")
            .remedy("switch ssl on in the server, and use sslmode=verify-full"),
    }
}

async fn clock(server: &Server<'_>) -> Finding {
    let io = &server.access.io;
    let (sent, wall) = (io.now(), io.clock().wall());
    let theirs: Option<f64> = server.value("SELECT date_part('epoch', clock_timestamp())").await;
    let trip: Duration = io.now().since(sent);
    let Some(theirs) = theirs else {
        return Finding::critical("clock", "cannot be read")
            .consequence("leases are counted by it")
            .remedy("see the other findings");
    };
    let doubt = trip.as_secs_f64() / 2.0;
    let ahead = theirs - wall.as_secs_f64() - doubt;
    let found = format!("{ahead:+.3} s from ours, give or take {doubt:.3} s");
    if ahead.abs() - doubt <= OFF {
        return Finding::ok("clock", found);
    }
    Finding::warning("clock", found)
        .consequence("after a loss of data or a failover, tokens may go back by that much")
        .remedy("set both clocks with a time service (NTP)")
}

async fn durability(server: &Server<'_>) -> Finding {
    let (fsync, pages) = (server.setting("fsync").await, server.setting("full_page_writes").await);
    let guard = server.config().guard;
    let lost = match guard {
        true => "a crash loses locks; the guard then grants nothing until all of them have ended",
        false => "after a crash of the machine there may be two holders until the next renewal",
    };
    let make = |found: String| match guard {
        true => Finding::info("durability", found),
        false => Finding::critical("durability", found),
    };
    if fsync == "off" || pages == "off" {
        return make(format!("fsync {fsync}, full_page_writes {pages}"))
            .consequence(lost)
            .remedy("set fsync and full_page_writes to on");
    }
    let found = format!("fsync {fsync}; each grant asks for synchronous_commit itself");
    match server.config().fast {
        true => {
            Finding::info("durability", "fast: grants do not wait for the disk").consequence(lost)
        }
        false => Finding::ok("durability", found),
    }
}

async fn replication(server: &Server<'_>) -> Finding {
    let names = server.setting("synchronous_standby_names").await;
    let standbys: i64 = server.value("SELECT count(*) FROM pg_stat_replication").await.unwrap_or(0);
    match (standbys, names.is_empty(), server.config().guard) {
        (0, true, _) => Finding::info("replication", "no standby")
            .consequence("no lock can be acquired while this server is down"),
        (_, false, _) => Finding::ok("replication", format!("synchronous: {names}")),
        (_, true, true) => {
            Finding::info("replication", format!("{standbys} asynchronous standbys")).consequence(
                "after a promotion the guard grants nothing until all leases have ended",
            )
        }
        (_, true, false) => Finding::warning(
            "replication",
            format!("{standbys} asynchronous standbys"),
        )
        .consequence(
            "a promoted standby may not have the last locks: two holders until the next renewal",
        )
        .remedy("add guard=true to the address of all clients, or set synchronous_standby_names"),
    }
}

async fn isolation(server: &Server<'_>) -> Finding {
    let level = server.setting("default_transaction_isolation").await;
    if level == "read committed" || !server.opened.lane.pooled {
        return Finding::ok("isolation", level);
    }
    Finding::warning("isolation", level)
        .consequence(
            "behind a pooler contended tries fail with serialization errors, and are repeated",
        )
        .remedy("ALTER ROLE user SET default_transaction_isolation = 'read committed'")
}

async fn connections(server: &Server<'_>) -> Finding {
    let most: i64 = server.setting("max_connections").await.parse().unwrap_or(0);
    let used: i64 = server
        .value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
        .await
        .unwrap_or(0);
    let found = format!("{used} of {most} are in use");
    if most == 0 || used * 10 < most * 8 {
        return Finding::ok("connections", found);
    }
    Finding::warning("connections", found)
        .consequence(
            "a process that cannot connect cannot lock; a busy one uses up to ten connections",
        )
        .remedy("raise max_connections, use a pooler, or lower connections= in the addresses")
}

async fn listeners(server: &Server<'_>) -> Finding {
    let text = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {} AND objid <> 0 \
         AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        server.access.statements.class()
    );
    let listen: i64 = server.value(&text).await.unwrap_or(0);
    let found = format!("{listen} processes listen");
    if listen <= LISTENERS {
        return Finding::ok("listeners", found);
    }
    Finding::info("listeners", found)
        .consequence(
            "each notification wakes all of them; other databases of the server have less to do",
        )
        .remedy("keep the locks in a database of their own, or use a pooler for most clients")
}

async fn vacuum(server: &Server<'_>) -> Finding {
    let text = "SELECT concat_ws(', ', \
         (SELECT 'a transaction that is ' || date_trunc('second', max(clock_timestamp() - xact_start)) || ' old' \
          FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND clock_timestamp() - xact_start > interval '10 minutes' \
          HAVING count(*) > 0), \
         (SELECT count(*) || ' prepared transactions' FROM pg_prepared_xacts HAVING count(*) > 0), \
         (SELECT count(*) || ' unused replication slots' FROM pg_replication_slots WHERE NOT active HAVING count(*) > 0))";
    let held: String = server.value(text).await.unwrap_or_default();
    if held.is_empty() {
        return Finding::ok("vacuum", "nothing keeps old rows alive");
    }
    Finding::warning("vacuum", held)
        .consequence("dead rows of busy locks cannot be reused: the tables grow, and each lock becomes slower")
        .remedy("end the old transaction, finish what is prepared, and drop unused slots")
}

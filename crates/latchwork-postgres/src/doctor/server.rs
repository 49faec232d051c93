//! What a server's settings mean for locks.

use std::time::Duration;

use latchwork_store::doctor::{Finding, Tested, untested};

use super::Server;
use crate::config::SslMode;
use crate::names::quoted;
use crate::server::connect::For;

/// A clock that is off by more is reported: tokens go by the clock after a loss of data.
const OFF: f64 = 1.0;
/// A process that holds and waits has so many connections.
const NEEDED: i64 = 3;
const SECOND: Duration = Duration::from_secs(1);
/// More processes that listen than this, and each notification costs more than looks would.
const LISTENERS: i64 = 16;

pub(super) async fn examine(server: &Server<'_>) -> Vec<Finding> {
    let mut findings = version(&server.opened.said.version());
    findings.extend(server.opened.connection.sibling.as_ref().map(|it| untested(&it.name())));
    findings.push(way(server).await);
    findings.push(encryption(server).await);
    findings.push(clock(server).await);
    if server.opened.said.is_standby {
        return findings;
    }
    findings.push(durability(server).await);
    findings.push(replication(server).await);
    findings.push(isolation(server).await);
    findings.push(connections(server).await);
    findings.push(lock_table(server).await);
    findings.push(listeners(server).await);
    findings.push(vacuum(server).await);
    findings
}

fn version(version: &str) -> Vec<Finding> {
    let tested = Tested::POSTGRES.judge(version);
    let found = format!("PostgreSQL {version}");
    let finding = match Tested::POSTGRES.refuse(version) {
        None => Finding::ok("version", found),
        Some(refused) => Finding::critical("version", found)
            .consequence(format!("no lock can be acquired: {}", refused.message))
            .remedy(refused.next_step.unwrap_or_default()),
    };
    std::iter::once(finding).chain(tested).collect()
}

async fn way(server: &Server<'_>) -> Finding {
    let connection = &server.opened.connection;
    if !connection.pooled && !connection.is_through_pooler {
        return Finding::ok("pooler", "none: waiters are notified");
    }
    let keeps = server.access.io.within(SECOND, keeps_sessions(server)).await.flatten();
    if connection.pooled {
        let found = Finding::info("pooler", "one stands before the server").consequence(
            "waiters cannot be notified: each looks every 50 to 250 ms, and less often further behind in the queue",
        );
        return match keeps {
            Some(true) => found.remedy(
                "it seems to pool sessions: if it does, add pooler=false to the address, and waiters are notified",
            ),
            _ => found,
        };
    }
    match keeps {
        Some(false) => Finding::warning(
            "pooler",
            "one of transactions stands before the server, and the address has pooler=false",
        )
        .consequence(
            "waiters are not notified and look seldom; settings of a session reach other clients",
        )
        .remedy("remove pooler=false from the address, or let the pooler pool sessions"),
        _ => {
            Finding::ok("pooler", "one of sessions stands before the server: waiters are notified")
        }
    }
}

/// Whether two clients of the pooler keep a server process each. A pooler of transactions gives the one that is idle to
/// any client.
async fn keeps_sessions(server: &Server<'_>) -> Option<bool> {
    let other = server.access.open(For::Care, None).await.ok()?;
    let other = Server::of(server.access, server.statements, &other);
    let process = "SELECT pg_backend_pid()";
    let first: (i32, i32) = (server.value(process).await?, other.value(process).await?);
    let mut same = first.0 != first.1;
    for _ in 0..2 {
        same &= first == (server.value(process).await?, other.value(process).await?);
    }
    Some(same)
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
            .remedy(match server.setting("ssl").await == "on" && !server.opened.connection.pooled {
                true => "let pg_hba.conf take this user by TLS (hostssl), and use sslmode=verify-full",
                false => "switch ssl on in the server, and use sslmode=verify-full",
            }),
    }
}

async fn clock(server: &Server<'_>) -> Finding {
    let io = &server.access.io;
    let (sent, wall) = (io.now(), io.clock().wall());
    let text = "SELECT (date_part('epoch', clock_timestamp()) * 1000)::bigint";
    let theirs: Option<i64> = server.value(text).await;
    let trip: Duration = io.now().since(sent);
    let Some(theirs) = theirs else {
        return Finding::critical("clock", "cannot be read")
            .consequence("leases are counted by it")
            .remedy("see the other findings");
    };
    let doubt = trip.as_secs_f64() / 2.0;
    let ahead = theirs as f64 / 1_000.0 - wall.as_secs_f64() - doubt;
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
    if level == "read committed" || !server.opened.connection.pooled {
        return Finding::ok("isolation", level);
    }
    Finding::warning("isolation", level)
        .consequence(
            "behind a pooler contended tries fail with serialization errors, and are repeated",
        )
        .remedy("ALTER ROLE user SET default_transaction_isolation = 'read committed'")
}

/// What is used and what may be used: of the server, by this role, of this database.
const SEATS: &str = "WITH a AS (SELECT datid, usesysid FROM pg_stat_activity \
     WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'), \
     me AS (SELECT oid, rolsuper, CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END AS most FROM pg_roles WHERE rolname = current_user), \
     base AS (SELECT d.oid, CASE WHEN me.rolsuper THEN -1 ELSE datconnlimit END AS most FROM pg_database d, me WHERE datname = current_database()) \
     SELECT concat_ws(' ', (SELECT count(*) FROM a), current_setting('max_connections')::int - CASE WHEN me.rolsuper THEN 0 \
     ELSE current_setting('superuser_reserved_connections')::int + coalesce(current_setting('reserved_connections', true)::int, 0) END, \
     (SELECT count(*) FROM a WHERE a.usesysid = me.oid), me.most, (SELECT count(*) FROM a WHERE a.datid = base.oid), base.most) \
     FROM me, base";

async fn connections(server: &Server<'_>) -> Finding {
    let said: String = server.value(SEATS).await.unwrap_or_default();
    let numbers: Vec<i64> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
    let [used, most, by_role, of_role, in_base, of_base] = numbers[..] else {
        return Finding::warning("connections", "they cannot be counted")
            .consequence("a process that cannot connect cannot lock")
            .remedy("look at pg_stat_activity");
    };
    let mut found = format!("{used} of {most} are in use");
    let mut free = most - used;
    let mut is_small = most < NEEDED;
    for (whose, used, most) in [("role", by_role, of_role), ("database", in_base, of_base)] {
        if most >= 0 {
            found = format!("{found}; {used} of the limit of {most} of the {whose}");
            free = free.min(most - used);
            is_small |= most < NEEDED;
        }
    }
    // This one is about to end.
    if !is_small && free + 1 >= NEEDED && used * 10 < most * 8 {
        return Finding::ok("connections", found);
    }
    Finding::warning("connections", found)
        .consequence(
            "a process that cannot connect cannot lock, and one that has a single connection polls; a busy one uses up to ten",
        )
        .remedy(
            "raise max_connections or the CONNECTION LIMIT, use a pooler, or lower connections= in the addresses",
        )
}

/// How much of the table is used in which all sessions of the server have their locks. Anybody who may connect can fill it.
async fn lock_table(server: &Server<'_>) -> Finding {
    let text = "SELECT concat_ws(' ', count(*), current_setting('max_locks_per_transaction')::bigint \
         * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint), \
         (SELECT pid FROM pg_locks WHERE NOT fastpath GROUP BY pid ORDER BY count(*) DESC LIMIT 1)) FROM pg_locks WHERE NOT fastpath";
    let said: String = server.value(text).await.unwrap_or_default();
    let numbers: Vec<i64> = said.split(' ').filter_map(|number| number.parse().ok()).collect();
    let (used, room) = match numbers[..] {
        [used, room, ..] if room > 0 => (used, room),
        _ => return Finding::info("lock-table", "it cannot be counted"),
    };
    let found = format!("{used} locks of all sessions, room for {room} at least");
    if used * 2 < room {
        return Finding::ok("lock-table", found);
    }
    let most =
        numbers.get(2).map_or_else(String::new, |pid| format!("; most are of process {pid}"));
    let found = format!("{found}{most}");
    let found = match used < room {
        true => Finding::warning("lock-table", found),
        false => Finding::critical("lock-table", found),
    };
    found
        .consequence(
            "when it is full, no lock is granted or renewed, in any database of the server",
        )
        .remedy("end that session (pg_terminate_backend), or raise max_locks_per_transaction")
}

async fn listeners(server: &Server<'_>) -> Finding {
    let text = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = {} AND objid <> 0 \
         AND mode = 'ExclusiveLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
        server.config().class()
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
    let sees = "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')";
    if held.is_empty() && server.value(sees).await != Some(true) {
        return Finding::info("vacuum", "the transactions of other users cannot be seen")
            .consequence("one that is old would make the tables grow, and each lock slower")
            .remedy(format!(
                "GRANT pg_monitor TO {}",
                quoted(&server.config().login.current().0.user)
            ));
    }
    if held.is_empty() {
        return Finding::ok("vacuum", "nothing keeps old rows alive");
    }
    Finding::warning("vacuum", held)
        .consequence("dead rows of busy locks cannot be reused: the tables grow, and each lock becomes slower")
        .remedy("end the old transaction, finish what is prepared, and drop unused slots")
}

#[cfg(test)]
mod tests {
    use latchwork_store::doctor::Severity;

    use super::*;

    #[test]
    fn judges_versions() {
        for (number, severity, tested) in [
            ("12.22", Severity::Critical, false),
            ("13.22", Severity::Ok, true),
            ("18.99", Severity::Ok, true),
            ("19.0", Severity::Ok, false),
        ] {
            let findings = version(number);
            assert_eq!(findings[0].severity, severity, "{findings:?}");
            assert_eq!(findings[0].found, format!("PostgreSQL {number}"));
            assert_eq!(findings.len() == 1, tested, "{findings:?}");
        }
    }
}

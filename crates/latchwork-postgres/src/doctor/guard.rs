//! Whether what may have been lost is waited for, and how long that takes yet.

use std::time::Duration;

use latchwork_store::doctor::Finding;

use super::Server;

pub(super) async fn examine(server: &Server<'_>) -> Vec<Finding> {
    let config = server.config();
    let longest: Option<i64> = server.value("SELECT longest FROM @alive@").await;
    let was_guarded: Option<bool> = server
        .value("SELECT EXISTS (SELECT FROM @locks@ WHERE k = '' AND claim IS NOT NULL)")
        .await;
    if !config.guard {
        if was_guarded != Some(true) {
            return vec![
                Finding::info("guard", "off")
                    .consequence(
                        "after a loss of data (an asynchronous standby, a backup, fsync off) there may be two \
                         holders until the next renewal",
                    )
                    .remedy("add guard=true to the address of all clients, unless no data can be lost"),
            ];
        }
        return vec![
            Finding::critical("guard", "off here, and others guard this table")
                .consequence("after a loss of data this client may acquire a lock that is held")
                .remedy("add guard=true, and the max_ttl of the others"),
        ];
    }
    let own = config.max_ttl();
    let found = match longest.map(|micros| Duration::from_micros(micros.unsigned_abs())) {
        None => {
            Finding::warning("guard", format!("on, max_ttl {own:?}; the server may have lost data"))
                .consequence("with the next try a quarantine of that length begins")
                .remedy("wait; or, if you know that nobody holds a lock, run `latchwork init`")
        }
        Some(theirs) if theirs != own => {
            Finding::critical("guard", format!("on, max_ttl {own:?}; the table has {theirs:?}"))
                .consequence("no lock can be acquired with this address")
                .remedy("give all clients the same max_ttl, or change it by `latchwork init`")
        }
        Some(_) => Finding::ok("guard", format!("on, max_ttl {own:?}")),
    };
    let mut findings = vec![found];
    let left: Option<i64> = server
        .value("SELECT (date_part('epoch', opens - clock_timestamp()) * 1000)::bigint FROM @alive@ WHERE opens > clock_timestamp()")
        .await;
    if let Some(left) = left.map(|millis| millis as f64 / 1_000.0) {
        findings.push(
            Finding::warning("quarantine", format!("{left:.1} s more"))
                .consequence(
                    "no lock is granted until then, because a lock that was lost may be held",
                )
                .remedy("wait; or, if you know that nobody holds a lock, run `latchwork init`"),
        );
    }
    findings
}

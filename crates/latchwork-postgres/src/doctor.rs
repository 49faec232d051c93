//! Whether a server is fit for locks.
//!
//! Each host of the address is asked on a connection of its own. What is asked for takes no lock.

mod guard;
mod server;
mod tables;

use std::sync::Arc;
use std::time::Duration;

use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{BackendError, Error, Io};
use tokio_postgres::types::{FromSql, ToSql, Type};

use crate::config::PostgresConfig;
use crate::connect::{Access, For, LOCAL_PATH, Opened};
use crate::host::Host;
use crate::values::column;

/// How long the questions to one server may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Examines the servers of an address: are they fit for locks, what follows if not, and what is
/// to be done.
///
/// # Errors
///
/// `Unreachable` and `Denied` if none of them answers, `Invalid` for what the address names that
/// cannot be read. Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: PostgresConfig, io: Io) -> Result<Report, Error> {
    let store: Arc<str> = config.shown().into();
    let mut report = Report::new(store.clone());
    let (mut problem, mut answered, mut primaries) = (None, false, 0);
    for host in config.hosts.clone() {
        let part = host.to_string();
        let alone = PostgresConfig { hosts: vec![host], ..config.clone() };
        let access = Access::new(alone, io.clone());
        let findings = match access.open(For::Care, None).await {
            Ok(opened) => {
                answered = true;
                primaries += usize::from(!opened.is_standby);
                let limit = io.within(LIMIT, Server::of(&access, &opened).examine()).await;
                limit.unwrap_or_else(|| vec![late()])
            }
            Err(error) => {
                let found = Finding::out_of_reach(&error, "start it, or remove it")
                    .consequence("no lock can be acquired while only this server could grant it");
                problem.get_or_insert(error);
                vec![found]
            }
        };
        for finding in findings {
            report.add(finding.part(part.clone()));
        }
    }
    match problem {
        Some(error) if !answered => return Err(Error::from_backend(error, None, &store)),
        _ if primaries > 1 => report.add(
            Finding::critical("primaries", format!("{primaries} of the servers take writes"))
                .consequence(
                    "clients may lock at different servers, and exclude only those at the same one",
                )
                .remedy("name one primary and its standbys"),
        ),
        _ => {}
    }
    Ok(report)
}

fn late() -> Finding {
    Finding::warning("answers", format!("not all questions were answered within {LIMIT:?}"))
        .consequence("something keeps the server or the tables busy; locks will be late as well")
        .remedy("look at pg_stat_activity and pg_locks for what others wait for")
}

/// A server that is examined.
struct Server<'a> {
    access: &'a Access,
    opened: &'a Opened,
}

impl<'a> Server<'a> {
    fn of(access: &'a Access, opened: &'a Opened) -> Self {
        Self { access, opened }
    }

    fn config(&self) -> &PostgresConfig {
        &self.access.config
    }

    fn at(&self) -> &Host {
        &self.opened.at
    }

    async fn examine(&self) -> Vec<Finding> {
        let mut findings = server::examine(self).await;
        if self.opened.is_standby {
            findings.push(
                Finding::info("role", "a standby, or read-only")
                    .consequence("it grants no locks until it is promoted"),
            );
            return findings;
        }
        let (found, are_there) = tables::examine(self).await;
        findings.extend(found);
        if are_there {
            findings.extend(guard::examine(self).await);
        }
        findings
    }

    /// The value that a statement answers; `None` without rights or rows.
    async fn value<T>(&self, text: &str) -> Option<T>
    where
        T: for<'b> FromSql<'b>,
    {
        self.ask(text, &[]).await.ok().flatten()
    }

    async fn ask<T>(
        &self,
        text: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Option<T>, BackendError>
    where
        T: for<'b> FromSql<'b>,
    {
        let lane = &self.opened.lane;
        let text = self.access.statements.fill(text);
        let asked = lane.client().query_typed(&text, params);
        let rows = match lane.pooled {
            false => lane.send(asked).await?,
            true => {
                lane.send(lane.client().batch_execute(&format!("BEGIN; {LOCAL_PATH}"))).await?;
                let rows = lane.send(asked).await;
                lane.send(lane.client().batch_execute("ROLLBACK")).await?;
                rows?
            }
        };
        rows.first().map(|row| column(row, 0)).transpose().map(Option::flatten)
    }

    async fn setting(&self, name: &str) -> String {
        let text = format!("SELECT current_setting('{name}', true)");
        self.value(&text).await.unwrap_or_default()
    }
}

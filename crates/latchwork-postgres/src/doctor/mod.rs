//! Whether a server is fit for locks.
//!
//! Each host of the address is asked on a connection of its own. What is asked for takes no lock.

mod guard;
mod server;
mod tables;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{Error, Io};
use tokio_postgres::SimpleQueryMessage;

use crate::address::host::Host;
use crate::config::PostgresConfig;
use crate::protocol::statements::{Statements, literal};
use crate::server::connect::{Access, For, LOCAL_PATH, Opened};

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
    let (mut problem, mut answered, mut primaries) = (None, false, Vec::new());
    for host in config.hosts.clone() {
        let part = host.to_string();
        let alone = PostgresConfig { hosts: vec![host], ..config.clone() };
        let statements = Statements::new(&alone);
        let access = Access::new(alone, statements.list(), io.clone());
        let findings = match access.open(For::Care, None).await {
            Ok(opened) => {
                answered = true;
                if !opened.said.is_standby {
                    let timeline = opened.said.lineage.as_ref().map(|it| it.timeline);
                    primaries.push(match timeline {
                        Some(timeline) => format!("{part} on timeline {timeline}"),
                        None => part.clone(),
                    });
                }
                let limit =
                    io.within(LIMIT, Server::of(&access, &statements, &opened).examine()).await;
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
        _ if primaries.len() > 1 => report.add(
            Finding::critical(
                "primaries",
                format!("{} of the servers take writes: {}", primaries.len(), primaries.join(", ")),
            )
            .consequence(
                "clients that reach only one of them, or were connected before, may lock at different servers",
            )
            .remedy("of one system, the smaller timeline was replaced: stop it, or make it a standby"),
        ),
        _ if primaries.is_empty() => report.add(
            Finding::critical("primary", "none of the servers takes writes")
                .consequence("no lock can be acquired")
                .remedy(
                    "name the primary, or all servers, in the address; or set default_transaction_read_only to off",
                ),
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
    access: &'a Arc<Access>,
    statements: &'a Statements,
    opened: &'a Opened,
}

impl<'a> Server<'a> {
    fn of(access: &'a Arc<Access>, statements: &'a Statements, opened: &'a Opened) -> Self {
        Self { access, statements, opened }
    }

    fn config(&self) -> &PostgresConfig {
        &self.access.config
    }

    fn at(&self) -> &Host {
        &self.opened.at
    }

    async fn examine(&self) -> Vec<Finding> {
        let mut findings = server::examine(self).await;
        if self.opened.said.is_standby {
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
    async fn value<T: FromStr>(&self, text: &str) -> Option<T> {
        let connection = &self.opened.connection;
        let asked = self.statements.fill(&format!("SELECT ({text})::text"));
        // Behind a pooler one text, which is one transaction: it need not be one that lets a client begin some.
        let asked = if connection.pooled { format!("{LOCAL_PATH}; {asked}") } else { asked };
        let said = connection.send(connection.client().simple_query(&asked)).await.ok()?;
        said.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
            _ => None,
        })
    }

    /// What the names of a table or an index stand for, as a statement has it in a text.
    fn literal(&self, name: &str) -> String {
        literal(&self.statements.fill(name))
    }

    async fn setting(&self, name: &str) -> String {
        let text = format!("SELECT current_setting('{name}', true)");
        self.value(&text).await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_text_cannot_leave_its_quotation_marks() {
        assert_eq!(super::literal(r"it's \' x"), r"E'it''s \\'' x'");
    }
}

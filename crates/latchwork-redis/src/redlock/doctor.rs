//! Whether the servers of a Redlock are fit for locks, each by itself and all together.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::doctor::{Finding, Report, Severity};
use latchwork_store::{Backend as _, Error, Io, Query};

use super::config::{Config, endpoint};
use super::connect;
use crate::doctor::{on_io, spread};

/// How long the check of all locks may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Findings about one server that do not apply to one of several.
const ALONE: [&str; 2] = ["replicas", "locks"];

/// Examines the servers of a Redlock: is each fit for locks, and are all of them together.
///
/// # Errors
///
/// `Unreachable` and `Denied` if none of them answers. Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: Config, io: Io) -> Result<Report, Error> {
    on_io(&io.clone(), examine(config, io)).await
}

async fn examine(config: Config, io: Io) -> Result<Report, Error> {
    let mut report = Report::new(config.shown());
    let looks =
        config.nodes.iter().map(|node| Box::pin(crate::doctor::examine(node.clone(), io.clone())));
    let (all, majority) = (config.nodes.len(), config.nodes.len() / 2 + 1);
    let (mut down, mut last) = (Vec::new(), None);
    let mut open = 0;
    for (node, look) in config.nodes.iter().zip(join_all(looks).await) {
        let part: Arc<str> = endpoint(node).to_string().into();
        match look {
            Ok(found) => {
                let closed = found.find("quarantine").is_some();
                let broken = found.findings.iter().any(|one| one.severity == Severity::Critical);
                open += usize::from(!closed && !broken);
                let means_nothing = |finding: &Finding| {
                    ALONE.contains(&finding.code) && finding.severity <= Severity::Info
                };
                for finding in found.findings.into_iter().filter(|one| !means_nothing(one)) {
                    report.add(finding.part(part.clone()));
                }
            }
            Err(error) => {
                report.add(
                    Finding::warning("reachable", error.message())
                        .consequence("its vote is missing")
                        .remedy(error.next_step().unwrap_or_default())
                        .part(part.clone()),
                );
                down.push(part);
                last = Some(error);
            }
        }
    }
    if let (Some(error), true) = (last, down.len() == all) {
        return Err(error);
    }
    report.findings.extend(spread(&report).map(|finding| match finding.severity {
        Severity::Ok => finding,
        _ => {
            finding.consequence(
                "after a loss of data on several nodes, tokens may go back by that much",
            )
        }
    }));
    report.add(votes(all, majority, all - down.len(), open));
    report.add(locks(config, io).await);
    Ok(report)
}

/// Whether enough of the nodes can vote.
fn votes(all: usize, majority: usize, up: usize, open: usize) -> Finding {
    let found = format!("{open} of {all} nodes vote, {majority} decide");
    if up < majority {
        return Finding::critical("votes", found)
            .consequence("no lock can be acquired or renewed")
            .remedy("start the nodes that are down");
    }
    if open < majority {
        return Finding::warning("votes", found)
            .consequence(
                "no lock can be acquired until the others are out of quarantine or repaired",
            )
            .remedy("see the findings of each node");
    }
    match (open - majority, all % 2) {
        (0, _) => Finding::warning("votes", found)
            .consequence("if one more fails, no lock can be acquired")
            .remedy("repair the others"),
        (_, 0) => Finding::info("votes", found)
            .consequence(format!("{all} servers tolerate no more failures than {}", all - 1)),
        (spare, _) => Finding::ok("votes", format!("{found}, {spare} may fail")),
    }
}

/// How many locks there are, or why no client can connect.
async fn locks(config: Config, io: Io) -> Finding {
    let look = async {
        // All have just answered, or do not.
        let quorum = connect::within(LIMIT / 2, config, io.clone()).await?;
        let store = quorum.capabilities().store;
        let all = quorum.inspect(&Query::Prefix("".into())).await;
        all.map_err(|error| Error::from_backend(error, None, &store))
    };
    match io.within(LIMIT, look).await {
        Some(Ok(all)) => Finding::ok("locks", format!("{} held, waited for or closed", all.len())),
        None => Finding::info("locks", "not all could be checked in time")
            .consequence("the servers have many keys; the locks were not checked further"),
        Some(Err(error)) => Finding::critical("locks", error.message())
            .consequence("no lock can be acquired")
            .remedy(error.next_step().unwrap_or("see the other findings")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_judged_by_the_failures_they_allow() {
        let severity = |all, majority, up, open| votes(all, majority, up, open).severity;
        assert_eq!(severity(5, 3, 5, 5), Severity::Ok);
        assert_eq!(severity(5, 3, 4, 4), Severity::Ok);
        assert_eq!(severity(5, 3, 3, 3), Severity::Warning);
        assert_eq!(severity(5, 3, 5, 2), Severity::Warning);
        assert_eq!(severity(5, 3, 2, 2), Severity::Critical);
        assert_eq!(severity(4, 3, 4, 4), Severity::Info);
    }
}

//! Whether the members are fit for locks. Each is asked by itself, and nothing is locked.

mod rights;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::server::watch::WatchReports;
use futures_util::future::join_all;
use latchwork_store::doctor::{Finding, Report, Tested};
use latchwork_store::{BackendError, Error, Io};

use crate::config::{Endpoint, EtcdConfig};
use crate::proto::StatusResponse;
use crate::server::errors::{LEARNER_STEP, MAJORITY_STEP, error};
use crate::server::identity::Found;
use crate::server::members::Members;

/// A member that has not answered by then does not answer.
const LIMIT: Duration = Duration::from_secs(3);
/// What to do about a version with a defect that later ones do not have.
const VERSION_STEP: &str = "use etcd 3.4.38, 3.5.23, 3.6.5 or later";

/// Examines the members of an address: are they fit for locks, what follows if not, and what is
/// to be done.
///
/// # Errors
///
/// `Unreachable` and `Denied` if none of them answers. Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: EtcdConfig, io: Io) -> Result<Report, Error> {
    let store: Arc<str> = config.shown().into();
    let mut report = Report::new(store.clone());
    let asked = config.members.iter().map(|member| Box::pin(status(&config, member, &io)));
    let answers = join_all(asked).await;
    let mut problem = None;
    let mut alive = Vec::new();
    for (member, answer) in config.members.iter().zip(answers) {
        match answer {
            Ok(status) => {
                for finding in examine(&status) {
                    report.add(finding.part(member.to_string()));
                }
                alive.push((member.clone(), status));
            }
            Err(error) => {
                report.add(out_of_reach(member, &error));
                problem = Some(error);
            }
        }
    }
    match problem {
        Some(error) if alive.is_empty() => Err(Error::from_backend(error, None, &store)),
        _ => {
            for finding in together(&config, &alive, &io).await? {
                report.add(finding);
            }
            report.add(one_address(config.members.len()));
            report.add(tls(&config));
            Ok(report)
        }
    }
}

async fn status(
    config: &EtcdConfig,
    member: &Endpoint,
    io: &Io,
) -> Result<StatusResponse, BackendError> {
    let only = EtcdConfig { members: vec![member.clone()], ..config.clone() };
    let nobody_told = WatchReports::to_nobody();
    let members = Members::new(&only, io, &nobody_told).map_err(|error| {
        let kind = latchwork_store::BackendErrorKind::Invalid;
        BackendError::new(kind, latchwork_store::Effect::NotApplied, error.message())
    })?;
    let asked = members.ask(|link| async move { link.status().await });
    match io.within(LIMIT, asked).await {
        Some(answer) => answer.map_err(error),
        None => Err(BackendError::no_answer(LIMIT)),
    }
}

/// What the members are that have answered: one cluster, and no proxies.
async fn together(
    config: &EtcdConfig,
    alive: &[(Endpoint, StatusResponse)],
    io: &Io,
) -> Result<Vec<Finding>, Error> {
    let endpoints = alive.iter().map(|(member, _)| member.clone()).collect();
    let nobody_told = WatchReports::to_nobody();
    let config = EtcdConfig { members: endpoints, ..config.clone() };
    let members = Members::new(&config, io, &nobody_told)?;
    let (identity, all) = (members.identity(), Vec::from_iter(0..alive.len()));
    for (n, (_, status)) in alive.iter().enumerate() {
        // What it finds is asked for below.
        let _ = identity.check(n, status.header.as_ref());
    }
    // A lease that no member is asked about costs nothing but the answer.
    io.within(2 * LIMIT, members.examine_with_a_lease(&all)).await;
    let is_front = |n: &usize| identity.found(*n) == Found::Front;
    let mut findings: Vec<_> = all
        .iter()
        .filter(|n| is_front(n))
        .filter_map(|n| Some((n, identity.may_ask(*n).err()?.error)))
        .map(|(n, error)| {
            Finding::critical("proxy", error.message)
                .consequence("connecting is refused")
                .remedy(error.next_step.unwrap_or_default())
                .part(alive[*n].0.to_string())
        })
        .collect();
    let mut others = all.iter().filter(|n| !is_front(n));
    findings.push(match others.find_map(|n| identity.may_ask(*n).err()) {
        Some(failure) => Finding::critical("cluster", failure.error.message)
            .consequence("two clients could hold the same lock, one in each cluster")
            .remedy(failure.error.next_step.unwrap_or_default()),
        None => Finding::ok("cluster", "the members that answer are of one cluster"),
    });
    if let Some(known) = config.login.current().0 {
        let is_unchecked = members.is_login_unchecked();
        findings.push(login(is_unchecked));
        if !is_unchecked {
            let asked = io.within(2 * LIMIT, rights::examine(&members, &known.user)).await;
            findings.extend(asked.flatten());
        }
    }
    Ok(findings)
}

fn examine(status: &StatusResponse) -> Vec<Finding> {
    let leader = match status.leader {
        0 => Finding::critical("leader", "this member has no leader")
            .consequence("it neither grants nor renews locks")
            .remedy(MAJORITY_STEP),
        _ => Finding::ok("leader", "there is one"),
    };
    let learner = status.is_learner.then(|| {
        Finding::warning("learner", "this member is a learner, which has no vote")
            .consequence("it takes no requests of locks: clients have to use another member")
            .remedy(LEARNER_STEP)
    });
    let tested = Tested::ETCD.judge(&status.version);
    let alarms = status.errors.iter().filter_map(|said| alarm(said));
    [version(&status.version), leader]
        .into_iter()
        .chain(learner)
        .chain(alarms)
        .chain(tested)
        .collect()
}

/// What an alarm of the cluster means. A member says one as `memberID:1 alarm:NOSPACE`.
fn alarm(said: &str) -> Option<Finding> {
    let step = match said {
        _ if said.contains("alarm:NOSPACE") => {
            "compact and defragment the members, then etcdctl alarm disarm; or raise the quota"
        }
        _ if said.contains("alarm:CORRUPT") => "replace the member whose data are corrupt",
        _ => return None,
    };
    let consequence = "no lock can be acquired; held locks can be renewed and released";
    Some(Finding::critical("alarm", said.trim()).consequence(consequence).remedy(step))
}

/// What is known of a version.
fn version(text: &str) -> Finding {
    let mut numbers = text.split(['.', '-']).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten().unwrap_or(0);
    let version = (next(), next(), next());
    let found = format!("etcd {text}");
    // The first version of each queue that has the repair; later queues have had it from the start.
    let is_before = |firsts: &[(u32, u32, u32)]| {
        let first = firsts.iter().find(|first| (first.0, first.1) == (version.0, version.1));
        first.map_or(version < firsts[0], |first| version < *first)
    };
    if is_before(&[(3, 4, 0)]) {
        return Finding::critical("version", found)
            .consequence("this version does not support the requests that Latchwork sends")
            .remedy(VERSION_STEP);
    }
    if is_before(&[(3, 4, 31), (3, 5, 13)]) {
        return Finding::critical("version", found)
            .consequence(
                "a leader that was slow or stopped for a while ends healthy leases: two clients \
                 may hold a lock until the first one learns of it",
            )
            .remedy(format!("{VERSION_STEP}, and check tokens at the resource"));
    }
    if is_before(&[(3, 4, 38), (3, 5, 23), (3, 6, 5)]) {
        return Finding::warning("version", found)
            .consequence("a keep-alive may succeed while the lease is being revoked")
            .remedy(VERSION_STEP);
    }
    // From 3.5.16 on a member that has just ticked does not ask whether it still leads.
    Finding::info("version", found)
        .consequence(
            "a leader that was stopped for longer than a ttl can end healthy leases when it \
             resumes; their holders learn of it at once",
        )
        .remedy("check tokens at the resource if two holders for a moment do harm")
}

fn one_address(members: usize) -> Finding {
    match members {
        1 => Finding::info("members", "the address names one member")
            .consequence("if it fails, no lock can be acquired, even if other members are running")
            .remedy("name all members: etcd://h1,h2,h3"),
        _ => Finding::ok("members", format!("the address names {members}")),
    }
}

/// Reports whether the members check the user in the address.
fn login(is_unchecked: bool) -> Finding {
    match is_unchecked {
        false => Finding::ok("login", "the members check the user"),
        true => {
            Finding::warning("login", "the login is not checked: authentication is not enabled")
                .consequence("everyone who reaches the members can read and change the locks")
                .remedy("etcdctl auth enable, or remove the user and the password from the address")
        }
    }
}

fn tls(config: &EtcdConfig) -> Finding {
    let is_here =
        |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    match &config.tls {
        Some(_) => Finding::ok("tls", "on"),
        None if config.members.iter().all(|member| is_here(&member.host)) => {
            Finding::ok("tls", "off, on this machine")
        }
        None => Finding::warning("tls", "off")
            .consequence(
                "anyone on the network can read names, holders and the password, and \
                can take locks away",
            )
            .remedy("use etcds:// or a private network"),
    }
}

fn out_of_reach(member: &Endpoint, error: &BackendError) -> Finding {
    Finding::out_of_reach(error, "start it, or remove it from the address")
        .consequence("if one more fails, a majority may be lost")
        .part(member.to_string())
}

#[cfg(test)]
mod tests {
    use latchwork_store::doctor::Severity;

    use super::*;

    #[test]
    fn judges_versions() {
        let newer = "use etcd 3.4.38, 3.5.23, 3.6.5 or later";
        let and_check = [newer, ", and check tokens at the resource"].concat();
        let rest = "check tokens at the resource if two holders for a moment do harm";
        for (text, severity, remedy) in [
            ("3.3.27", Severity::Critical, newer),
            ("3.4.23", Severity::Critical, &and_check),
            ("3.4.31", Severity::Warning, newer),
            ("3.4.38", Severity::Info, rest),
            ("3.5.12", Severity::Critical, &and_check),
            ("3.5.13", Severity::Warning, newer),
            ("3.5.23", Severity::Info, rest),
            ("3.6.4", Severity::Warning, newer),
            ("3.6.5", Severity::Info, rest),
            ("3.7.0-alpha.1", Severity::Info, rest),
            ("4.0.0", Severity::Info, rest),
        ] {
            let finding = version(text);
            assert_eq!((finding.severity, &*finding.remedy), (severity, remedy), "{text}");
        }
        for (said, is_told) in [
            ("memberID:1 alarm:NOSPACE ", true),
            ("memberID:1 alarm:CORRUPT ", true),
            ("etcdserver: no leader", false),
        ] {
            assert_eq!(alarm(said).is_some(), is_told, "{said}");
        }
        for (text, count) in [("3.7.9", 2), ("3.8.0", 3)] {
            let status = StatusResponse { version: text.into(), leader: 1, ..Default::default() };
            assert_eq!(examine(&status).len(), count, "{text}");
        }
    }
}

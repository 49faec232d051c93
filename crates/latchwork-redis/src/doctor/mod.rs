//! Checks whether the servers are fit for locks.
//!
//! Every server is asked on a separate connection: the master and the replicas that the Sentinels know,
//! and all nodes of a Cluster, because any replica may become the master. The checks take no lock. Rights
//! are tried on the name `lw:probe`.
//!
//! | file | what it checks |
//! | --- | --- |
//! | `settings.rs` | the version and the settings of one server |
//! | `failover.rs` | when a replaced master stops |
//! | `clock.rs`, `rights.rs` | the clock of one server, and the user's rights there |
//! | `sentinels.rs`, `cluster.rs` | whether the Sentinels, or the nodes of a Cluster, agree |
//! | `scripts.rs`, `locks.rs` | whether the scripts run, and the state of locks and markers |
//! | `server.rs` | the connection to one server |
//!
//! This room imports `server/`, `protocol/` and `backend.rs`. Only the root of the crate and `redlock/` import it.

mod clock;
mod cluster;
mod failover;
mod locks;
mod rights;
mod scripts;
mod sentinels;
mod server;
mod settings;

pub(crate) use clock::spread;

use std::sync::Arc;

use futures_util::future::join_all;
use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{BackendError, BackendErrorKind, Effect, Error, Io};
use tokio::sync::oneshot;

use crate::config::{Deployment, Endpoint, RedisConfig};

use failover::Placement;
use server::Server;

/// Examines the servers of an address: whether they are fit for locks, and if not, what follows from
/// that and what to do.
///
/// # Errors
///
/// `Unreachable` and `Denied` if none of them answers, `Invalid` for what the address names that
/// cannot be read. Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: RedisConfig, io: Io) -> Result<Report, Error> {
    on_io(&io.clone(), examine(config, io)).await
}

/// Examines on the threads of the `Io`, where connections are made. Ends when the caller is dropped.
pub(crate) async fn on_io(
    io: &Io,
    examination: impl Future<Output = Result<Report, Error>> + Send + 'static,
) -> Result<Report, Error> {
    let (mut sender, report) = oneshot::channel();
    io.spawn(async move {
        let report = tokio::select! {
            report = examination => report,
            () = sender.closed() => return,
        };
        let _ = sender.send(report);
    });
    report.await.unwrap_or_else(|_| {
        Err(Error::new(latchwork_store::ErrorKind::Closed, "store: the driver was shut down"))
    })
}

pub(crate) async fn examine(config: RedisConfig, io: Io) -> Result<Report, Error> {
    let store: Arc<str> = config.shown().into();
    let mut report = Report::new(store.clone());
    let mut problems = Vec::new();
    let alone = |servers| Placement { servers, ..Placement::default() };
    let placement = match &config.deployment {
        Deployment::Single(endpoint) => alone(vec![endpoint.clone()]),
        Deployment::Sentinel { sentinels, service } => {
            sentinels::examine(&config, sentinels, service, &io, &mut report, &mut problems).await
        }
        Deployment::Cluster(seeds) => {
            alone(cluster::nodes(&config, seeds, &io, &mut problems).await)
        }
    };
    let endpoints = &placement.servers;
    let opening = endpoints.iter().map(|at| Box::pin(Server::open(at, &config, &io)));
    let mut servers = Vec::new();
    for (endpoint, opened) in endpoints.iter().zip(join_all(opening).await) {
        match opened {
            Ok(server) => servers.push(server),
            Err(error) => {
                report.add(out_of_reach(endpoint, &error));
                problems.push(error);
            }
        }
    }
    if servers.is_empty() && !report.findings.iter().any(|one| one.code == "sentinels") {
        let problem = problems.into_iter().next().unwrap_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                "no server of this address was found",
            )
        });
        return Err(Error::from_backend(problem, None, &store));
    }
    let examined = servers.iter().map(|one| Box::pin(examine_one(one, &config, &placement, &io)));
    for findings in join_all(examined).await {
        report.findings.extend(findings);
    }
    report.findings.extend(spread(&report));
    if let Deployment::Cluster(_) = config.deployment {
        report.findings.extend(cluster::examine(&servers, &config).await);
    }
    if !servers.is_empty() {
        report.findings.push(scripts::examine(&config, &io).await);
        report.findings.extend(locks::examine(&config, &io).await);
    }
    Ok(report)
}

fn out_of_reach(endpoint: &Endpoint, error: &BackendError) -> Finding {
    Finding::out_of_reach(error, "start it, or remove it")
        .consequence("locks on this server, also after a failover to it, cannot be acquired")
        .part(endpoint.to_string())
}

/// The findings about one server.
async fn examine_one(
    server: &Server,
    config: &RedisConfig,
    placement: &Placement,
    io: &Io,
) -> Vec<Finding> {
    let mut findings = settings::examine(server, config).await;
    if matches!(config.deployment, Deployment::Sentinel { .. }) && server.no_info.is_none() {
        // Any replica may become the master.
        findings.push(failover::examine(server, config, placement).await);
    }
    findings.extend(clock::examine(server, config, io).await);
    findings.extend(rights::examine(server, config).await);
    findings.into_iter().map(|finding| finding.part(server.part.clone())).collect()
}

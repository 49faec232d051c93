//! Checks that a Cluster serves all slots, and that its nodes agree.

use futures_util::future::join_all;
use latchwork_store::doctor::Finding;
use latchwork_store::{BackendError, Io};

use super::failover;
use super::rights::{CLUSTER, acl};
use super::server::{Server, info, open};
use crate::config::{Endpoint, RedisConfig};
use crate::server::access::Access;
use crate::server::connection::command;
use crate::server::hosts::Host;
use crate::server::reply::text;
use crate::server::slot::SLOTS;

/// All nodes that the first seed to answer knows, without those that have no address.
pub(super) async fn nodes(
    config: &RedisConfig,
    seeds: &[Endpoint],
    io: &Io,
    problems: &mut Vec<BackendError>,
) -> Vec<Endpoint> {
    let access = Access::to_servers(config, None, None);
    for seed in seeds {
        let asked = async {
            let link = open(seed, &access, io).await?;
            link.send(&command(&["CLUSTER", "NODES"])).await.map_err(|failure| failure.error)
        };
        match asked.await {
            Ok(answer) => {
                let lines = text(&answer).unwrap_or_default();
                return lines.lines().filter_map(|line| endpoint(line, seed)).collect();
            }
            Err(error) => problems.push(error),
        }
    }
    Vec::new()
}

/// `<id> <host>:<port>@<bus>[,<name>] <flags> ...`
fn endpoint(line: &str, seed: &Endpoint) -> Option<Endpoint> {
    let mut words = line.split(' ');
    let (address, flags) = (words.nth(1)?, words.next()?);
    if flags.split(',').any(|flag| flag == "noaddr" || flag == "handshake") {
        return None;
    }
    let (host, port) = address.split('@').next()?.rsplit_once(':')?;
    let host = Host::read(Some(host)).name().unwrap_or_else(|| seed.host.clone());
    Some(Endpoint { host, port: port.parse().ok()? })
}

pub(super) async fn examine(servers: &[Server], config: &RedisConfig) -> Vec<Finding> {
    let timeouts = servers.iter().map(|server| server.setting("cluster-node-timeout"));
    let timeouts = join_all(timeouts).await.into_iter().flatten();
    // Nodes with a shorter one replace a master before it stops.
    let shortest = timeouts.filter_map(|millis| millis.parse().ok()).min().unwrap_or(u64::MAX);
    let asked: Vec<_> =
        servers.iter().map(|server| Box::pin(one(server, shortest, config))).collect();
    join_all(asked).await.into_iter().flatten().collect()
}

async fn one(server: &Server, shortest: u64, config: &RedisConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    let info = match server.ask(&["CLUSTER", "INFO"]).await {
        Ok(answer) => info(&answer),
        Err(said) => {
            return vec![
                Finding::critical("cluster-state", said)
                    .consequence("the slots of the Cluster cannot be read")
                    .remedy(format!(
                        "for a server that is not in a Cluster, use redis:// or valkey://; else {}",
                        acl(config, CLUSTER)
                    ))
                    .part(server.part.clone()),
            ];
        }
    };
    let number = |name: &str| info.get(name).and_then(|text| text.parse().ok()).unwrap_or(0_u32);
    let state = info.get("cluster_state").map_or("unknown", String::as_str);
    let (assigned, good) = (number("cluster_slots_assigned"), number("cluster_slots_ok"));
    let found = format!("{state}, {assigned} of {SLOTS} slots assigned, {good} good");
    let finding = if state == "ok" && good == u32::from(SLOTS) {
        Finding::ok("cluster-state", found)
    } else {
        let whole = server.setting("cluster-require-full-coverage").await;
        let consequence = match whole.as_deref() {
            Some("no") => "locks in slots without a node cannot be acquired",
            _ if state == "ok" => "locks in slots without a node cannot be acquired",
            _ => "no lock can be acquired at this node, whatever its slot",
        };
        Finding::critical("cluster-state", found).consequence(consequence).remedy(
            "see CLUSTER NODES; assign the slots (redis-cli --cluster fix) or start \
                their masters",
        )
    };
    findings.push(finding);
    if let Some(timeout) = server.setting("cluster-node-timeout").await {
        findings.push(failover::node_timeout(&timeout, shortest, config));
    }
    findings.into_iter().map(|finding| finding.part(server.part.clone())).collect()
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;

    #[test]
    fn hostile_lines_about_nodes_are_read_or_left() {
        let seed = Endpoint { host: "here".into(), port: 9 };
        let sample = "07c37df 127.0.0.1:30004@31004,name slave e7d1 0 1426238317239 4 connected\n\
            e7d1 :30001@31001 myself,master - 0 0 1 connected 0-5460\n";
        let read = |text: &str| text.lines().filter_map(|line| endpoint(line, &seed)).count();
        assert_eq!(read(sample), 2);
        survives("CLUSTER NODES", &[sample.as_bytes()], |bytes| {
            read(&String::from_utf8_lossy(bytes));
        });
    }
}

//! Whether the Sentinels can agree, and on whom.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use latchwork_core::doctor::{Finding, Report};
use latchwork_core::{BackendError, Io};
use redis::Value;

use super::open;
use crate::answers::{pairs, text};
use crate::config::{Endpoint, RedisConfig};
use crate::connect::{Access, Probe};
use crate::link::command;

/// What a Sentinel knows.
struct Word {
    master: Endpoint,
    quorum: usize,
    others: usize,
    servers: Vec<Endpoint>,
    can_fail_over: Result<(), String>,
}

/// Asks all Sentinels; gives the servers that they know, the master first.
pub(super) async fn examine(
    config: &RedisConfig,
    sentinels: &[Endpoint],
    service: &str,
    io: &Io,
    report: &mut Report,
    problems: &mut Vec<BackendError>,
) -> Vec<Endpoint> {
    let access = Arc::new(Access {
        credentials: config.sentinel_credentials.clone(),
        database: 0,
        tls: config.tls.clone(),
        detours: config.detours.clone(),
        probe: Probe::No,
    });
    let asked = sentinels.iter().map(|at| Box::pin(ask(at, &access, service, io)));
    let mut words = Vec::new();
    let mut missing = Vec::new();
    for (endpoint, word) in sentinels.iter().zip(join_all(asked).await) {
        match word {
            Ok(Ok(word)) => words.push((endpoint, word)),
            Ok(Err(said)) => missing.push(format!("{endpoint}: {said}")),
            Err(error) => {
                missing.push(format!("{endpoint} does not answer"));
                problems.push(error);
            }
        }
    }
    if problems.len() == sentinels.len() {
        return Vec::new();
    }
    report.add(reached(sentinels.len(), &words, &missing, service));
    let Some((_, first)) = words.first() else { return Vec::new() };
    let masters: Vec<_> = words.iter().map(|(at, word)| (at, &word.master)).collect();
    report.add(if masters.iter().all(|(_, master)| **master == first.master) {
        Finding::ok("sentinel-master", format!("all name {}", first.master))
    } else {
        let said: Vec<_> = masters.iter().map(|(at, master)| format!("{at} says {master}")).collect();
        Finding::critical("sentinel-master", said.join(", "))
            .consequence("a failover is under way, or a Sentinel is cut off and sends clients to a master of the past")
            .remedy("wait for the failover; then look at the Sentinel that names the old one (SENTINEL RESET)")
    });
    report.add(quorum(&words));
    let mut servers = Vec::new();
    for (_, word) in words {
        for server in std::iter::once(word.master).chain(word.servers) {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
    }
    servers
}

fn reached(all: usize, words: &[(&Endpoint, Word)], missing: &[String], service: &str) -> Finding {
    let found = format!("{} of {all} answer and know {service:?}", words.len());
    let majority = all / 2 + 1;
    if missing.is_empty() {
        return match all {
            0..3 => Finding::warning("sentinels", found)
                .consequence("with fewer than three, the loss of one ends failovers")
                .remedy("run three, on three machines, and name all of them in the address"),
            _ => Finding::ok("sentinels", found),
        };
    }
    let found = format!("{found}: {}", missing.join(", "));
    if words.len() < majority {
        return Finding::critical("sentinels", found)
            .consequence("no failover can happen, and who the master is cannot be trusted")
            .remedy("start the others, or take those that are gone out of the address");
    }
    Finding::warning("sentinels", found)
        .consequence("the loss of more of them ends failovers")
        .remedy("start it, or take it out of the address if it is gone")
}

fn quorum(words: &[(&Endpoint, Word)]) -> Finding {
    let asked = |word: &Word| format!("{} of {} must agree", word.quorum, word.others + 1);
    let found = words.first().map(|(_, word)| asked(word)).unwrap_or_default();
    for (at, word) in words {
        if let Err(said) = &word.can_fail_over {
            return Finding::critical("sentinel-quorum", format!("{at} says: {said}"))
                .consequence("when the master fails, nobody takes over")
                .remedy("start the Sentinels that are missing, or lower the quorum to a majority");
        }
    }
    if words.iter().any(|(_, word)| word.quorum <= word.others.div_ceil(2)) {
        return Finding::info("sentinel-quorum", found).consequence(
            "a minority may call the master dead; a majority must still agree to the failover",
        );
    }
    Finding::ok("sentinel-quorum", found)
}

async fn ask(
    at: &Endpoint,
    access: &Arc<Access>,
    service: &str,
    io: &Io,
) -> Result<Result<Word, String>, BackendError> {
    let link = open(at, access, io).await?;
    let question = async |words: &[&str]| {
        link.send(&command(words)).await.map_err(|failure| failure.error.message)
    };
    let word = async {
        let master = fields(&question(&["SENTINEL", "MASTER", service]).await?);
        let replicas = question(&["SENTINEL", "REPLICAS", service]).await?;
        let checked = question(&["SENTINEL", "CKQUORUM", service]).await;
        let Value::Array(replicas) = replicas else { return Err("a strange answer".into()) };
        let number = |name: &str| master.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
        Ok(Word {
            master: endpoint(&master).ok_or("it names no master")?,
            quorum: number("quorum"),
            others: number("num-other-sentinels"),
            servers: replicas.iter().filter_map(|replica| endpoint(&fields(replica))).collect(),
            can_fail_over: checked.map(drop),
        })
    };
    Ok(word.await)
}

fn endpoint(fields: &HashMap<String, String>) -> Option<Endpoint> {
    Some(Endpoint { host: fields.get("ip")?.clone(), port: fields.get("port")?.parse().ok()? })
}

fn fields(answer: &Value) -> HashMap<String, String> {
    let pairs = pairs(answer).unwrap_or_default().into_iter();
    pairs.filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

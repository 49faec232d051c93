//! Checks that the Sentinels can agree on a master.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use latchwork_store::doctor::{Finding, Report};
use latchwork_store::{BackendError, Io};
use redis::Value;

use super::failover::Placement;
use super::server::open;
use crate::config::{Endpoint, RedisConfig};
use crate::server::access::Access;
use crate::server::connection::command;
use crate::server::reply::{pairs, text};

/// The set as one Sentinel sees it.
struct View {
    master: Endpoint,
    quorum: usize,
    others: usize,
    servers: Vec<Endpoint>,
    /// The other Sentinels, by the addresses that they have for one another.
    peers: Vec<Endpoint>,
    can_fail_over: Result<(), String>,
}

/// Asks all Sentinels; returns the servers that they know, the master first, and where they are.
pub(super) async fn examine(
    config: &RedisConfig,
    sentinels: &[Endpoint],
    service: &str,
    io: &Io,
    report: &mut Report,
    problems: &mut Vec<BackendError>,
) -> Placement {
    let access = Access::to_sentinels(config);
    let asked = sentinels.iter().map(|at| Box::pin(ask(at, &access, service, io)));
    let mut views = Vec::new();
    let mut missing = Vec::new();
    for (endpoint, view) in sentinels.iter().zip(join_all(asked).await) {
        match view {
            Ok(Ok(view)) => views.push((endpoint, view)),
            Ok(Err(said)) => missing.push(format!("{endpoint}: {said}")),
            Err(error) => {
                missing.push(format!("{endpoint} does not answer"));
                problems.push(error);
            }
        }
    }
    if problems.len() == sentinels.len() {
        return Placement::default();
    }
    report.add(reached(sentinels.len(), &views, &missing, service));
    let Some((_, first)) = views.first() else { return Placement::default() };
    let masters: Vec<_> = views.iter().map(|(at, view)| (at, &view.master)).collect();
    report.add(if masters.iter().all(|(_, master)| **master == first.master) {
        Finding::ok("sentinel-master", format!("all name {}", first.master))
    } else {
        let said: Vec<_> =
            masters.iter().map(|(at, master)| format!("{at} says {master}")).collect();
        Finding::critical("sentinel-master", said.join(", "))
            .consequence(
                "a failover is under way, or an isolated Sentinel sends clients to an \
                old master",
            )
            .remedy(
                "wait for the failover; then check the Sentinel that names the old master \
                (SENTINEL RESET)",
            )
    });
    report.add(quorum(&views));
    placement(views)
}

/// All servers and Sentinels that the Sentinels know. They may name one another differently than the
/// address does, so a Sentinel that only the address names has no known place.
fn placement(views: Vec<(&Endpoint, View)>) -> Placement {
    let all = views.iter().map(|(_, view)| view.others.saturating_add(1)).max().unwrap_or(0);
    let mut placement = Placement::default();
    let add = |list: &mut Vec<Endpoint>, one: Endpoint| {
        if !list.contains(&one) {
            list.push(one);
        }
    };
    for (_, view) in views {
        for server in std::iter::once(view.master).chain(view.servers) {
            add(&mut placement.servers, server);
        }
        view.peers.into_iter().for_each(|peer| add(&mut placement.sentinels, peer));
    }
    placement.unnamed = all.saturating_sub(placement.sentinels.len());
    placement
}

fn reached(all: usize, views: &[(&Endpoint, View)], missing: &[String], service: &str) -> Finding {
    let found = format!("{} of {all} answer and know {service:?}", views.len());
    let majority = all / 2 + 1;
    if missing.is_empty() {
        return match all {
            0..3 => Finding::warning("sentinels", found)
                .consequence("with fewer than three, there are no failovers after one has failed")
                .remedy("run three, on three machines, and name all of them in the address"),
            _ => Finding::ok("sentinels", found),
        };
    }
    let found = format!("{found}: {}", missing.join(", "));
    if views.len() < majority {
        return Finding::critical("sentinels", found)
            .consequence("no failover can happen, and the name of the master is not reliable")
            .remedy("start the others, or remove those that no longer exist from the address");
    }
    Finding::warning("sentinels", found)
        .consequence("if more of them fail, there are no failovers")
        .remedy("start it, or remove it from the address if it no longer exists")
}

fn quorum(views: &[(&Endpoint, View)]) -> Finding {
    let asked =
        |view: &View| format!("{} of {} must agree", view.quorum, view.others.saturating_add(1));
    let found = views.first().map(|(_, view)| asked(view)).unwrap_or_default();
    if let Some(said) = views.iter().find_map(|(_, view)| view.can_fail_over.as_ref().err()) {
        return Finding::critical("sentinel-quorum", said.as_str())
            .consequence("if the master fails, no replica takes over")
            .remedy("start the Sentinels that are missing, or lower the quorum to a majority");
    }
    if views.iter().any(|(_, view)| view.quorum <= view.others.div_ceil(2)) {
        return Finding::info("sentinel-quorum", found).consequence(
            "a minority can declare the master dead; a majority must still agree to the failover",
        );
    }
    Finding::ok("sentinel-quorum", found)
}

async fn ask(
    at: &Endpoint,
    access: &Arc<Access>,
    service: &str,
    io: &Io,
) -> Result<Result<View, String>, BackendError> {
    let link = open(at, access, io).await?;
    let question = async |words: &[&str]| {
        link.send(&command(words)).await.map_err(|failure| failure.error.message)
    };
    let view = async {
        let master = fields(&question(&["SENTINEL", "MASTER", service]).await?);
        let replicas = question(&["SENTINEL", "REPLICAS", service]).await?;
        let checked = question(&["SENTINEL", "CKQUORUM", service]).await;
        let peers = question(&["SENTINEL", "SENTINELS", service]).await;
        let known = |answer: Value| match answer {
            Value::Array(all) => all.iter().filter_map(|one| endpoint(&fields(one))).collect(),
            _ => Vec::new(),
        };
        let peers = peers.map(known).unwrap_or_default();
        let view = view(&master, known(replicas), peers, checked.map(drop));
        view.ok_or_else(|| "it names no master".into())
    };
    Ok(view.await)
}

fn view(
    master: &HashMap<String, String>,
    servers: Vec<Endpoint>,
    peers: Vec<Endpoint>,
    can_fail_over: Result<(), String>,
) -> Option<View> {
    let number = |name: &str| master.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
    Some(View {
        master: endpoint(master)?,
        quorum: number("quorum"),
        others: number("num-other-sentinels"),
        servers,
        peers,
        can_fail_over,
    })
}

fn endpoint(fields: &HashMap<String, String>) -> Option<Endpoint> {
    Some(Endpoint { host: fields.get("ip")?.clone(), port: fields.get("port")?.parse().ok()? })
}

fn fields(answer: &Value) -> HashMap<String, String> {
    let pairs = pairs(answer).unwrap_or_default().into_iter();
    pairs.filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;
    use crate::server::values::value_of;

    #[test]
    fn hostile_words_of_sentinels_are_placed_or_left() {
        let sample = b"*10\r\n$2\r\nip\r\n$8\r\n10.0.0.1\r\n$4\r\nport\r\n$4\r\n6379\r\n\
            $6\r\nquorum\r\n$1\r\n2\r\n$19\r\nnum-other-sentinels\r\n$1\r\n2\r\n\
            $5\r\nflags\r\n$6\r\nmaster\r\n";
        let read = |bytes: &[u8]| {
            let master = fields(&value_of(bytes)?);
            let at = endpoint(&master)?;
            Some((at.clone(), view(&master, vec![at.clone()], vec![at], Ok(()))?))
        };
        let most = String::from_utf8_lossy(sample)
            .replace("$1\r\n2\r\n", "$20\r\n18446744073709551615\r\n");
        survives("SENTINEL MASTER", &[sample, most.as_bytes()], |bytes| {
            let Some((at, view)) = read(bytes) else { return };
            let views = [(&at, view)];
            let judged = quorum(&views);
            placement(views.into()).may_stay(&at);
            drop(judged);
        });
        assert_eq!(read(sample).unwrap().1.others, 2);
    }
}

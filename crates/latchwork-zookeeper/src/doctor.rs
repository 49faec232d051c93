//! Whether the servers are fit for locks. Each is asked by itself, and nothing is locked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::doctor::{Finding, Report, Tested};
use latchwork_store::{BackendError, Error, Io};
use tokio::sync::{Notify, oneshot};

use crate::config::{Endpoint, Scheme, ZooKeeperConfig};
use crate::names::Names;
use crate::server::errors::{MAJORITY_STEP, READ_ONLY, not_sent, refused, strange};
use crate::server::session::messages::{self, Refusal, Request};
use crate::server::session::{Ensemble, ask_word, is_read_only, say_hello};
use crate::server::sessions::{Sessions, USUAL_TTL, ttl_of};

/// A server that has not answered by then does not answer.
const LIMIT: Duration = Duration::from_secs(3);
/// The shortest session, in ms: the server grants the shortest of its own.
const SHORTEST: i32 = 1;
/// May create, delete and write: what it takes to disturb a lock.
const CHANGES: i32 = 2 | 4 | 8;

/// Examines the servers of an address: are they fit for locks, what follows if not, and what is
/// to be done.
///
/// # Errors
///
/// `Unreachable` and `Denied` if none of them answers. Whatever else is wrong is a finding.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn doctor(config: ZooKeeperConfig, io: Io) -> Result<Report, Error> {
    let store: Arc<str> = config.shown().into();
    let mut report = Report::new(store.clone());
    let asked = config.servers.iter().map(|server| status(server, &config, &io));
    let answers = join_all(asked).await;
    for (server, answer) in config.servers.iter().zip(answers) {
        let findings = match answer {
            Ok(status) => examine(&status, config.scheme),
            Err(error) => vec![out_of_reach(&error)],
        };
        for finding in findings {
            report.add(finding.part(server.to_string()));
        }
    }
    // Whether a majority answers, and knows us.
    let ensemble = Arc::new(Ensemble::new(config));
    let config = &ensemble.config;
    let examined = async {
        let sessions = Sessions::find_out(ensemble.clone(), io, Arc::new(Notify::new())).await?;
        let (shortest, longest) = sessions.ttls();
        let session = sessions.any();
        session.up().await?;
        let names = Names::new(&config.chroot);
        let mut landed = session.fly(vec![Request::access_of(names.root())]).await;
        let access = match landed.next()? {
            Ok(body) => Some(messages::access(&body).ok_or_else(|| strange("an ACL"))?),
            Err(Refusal::NO_NODE) => None,
            Err(refusal) => return Err(refused(refusal, names.root())),
        };
        Ok((shortest, longest, access))
    };
    let (shortest, longest, access) =
        examined.await.map_err(|error| Error::from_backend(error, None, &store))?;
    report.add(sessions_are(shortest, longest));
    report.add(access_is(access.as_deref(), config));
    report.add(one_address(config.servers.len()));
    Ok(report)
}

/// What a server says of itself; `None` where it does not want to.
struct Status {
    server: Option<String>,
    settings: Option<HashMap<String, u64>>,
}

/// Asks a server what it says of itself, by the same way in that the locks have.
async fn status(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    io: &Io,
) -> Result<Status, BackendError> {
    let (answer, told) = oneshot::channel();
    let (server, config, limits) = (server.clone(), config.clone(), io.clone());
    io.spawn(async move {
        let words = |word| limits.within(LIMIT, ask_word(&server, &config, word, &limits));
        let told = |said: Option<Result<String, _>>| {
            said.map(|said| said.ok().filter(|said| is_told(said)))
        };
        let said = match told(words("srvr").await) {
            Some(Some(said)) => Ok(Some(said)),
            // A proxy may keep it to itself. Whether the server serves is known by a session.
            asked => {
                let hello = say_hello(&server, &config, SHORTEST, &limits);
                match limits.within(LIMIT, hello).await {
                    // It was slow, as after its start.
                    Some(Ok(_)) if asked.is_none() => Ok(told(words("srvr").await).flatten()),
                    Some(Ok(_)) => Ok(None),
                    Some(Err(trouble)) => Err(trouble.error(&server)),
                    None => Err(not_sent(format!("{server}: no answer within {LIMIT:?}"))),
                }
            }
        };
        let settings = match (&said, words("conf")) {
            (Ok(Some(_)), asked) => asked.await.and_then(Result::ok).map(|said| pairs_of(&said)),
            _ => None,
        };
        let _ = answer.send(said.map(|server| Status { server, settings }));
    });
    told.await.unwrap_or_else(|_| Err(BackendError::no_answer(LIMIT)))
}

/// Whether this is an answer to `srvr`.
fn is_told(said: &str) -> bool {
    said.contains("Zookeeper version:") || said.contains("not currently serving")
}

/// The numbers among the settings.
fn pairs_of(said: &str) -> HashMap<String, u64> {
    let pairs = said.lines().filter_map(|line| line.split_once('='));
    pairs.filter_map(|(name, value)| Some((name.into(), value.parse().ok()?))).collect()
}

fn examine(status: &Status, scheme: Scheme) -> Vec<Finding> {
    let Some(said) = &status.server else {
        return vec![
            Finding::info("version", "the server does not answer `srvr`")
                .consequence("its version and its role cannot be checked")
                .remedy("allow srvr and conf in 4lw.commands.whitelist, and in proxies before it"),
            Finding::ok("serving", "it grants sessions"),
        ];
    };
    let field = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let mode = match field("Mode:") {
        _ if is_read_only(said) => Finding::critical("serving", READ_ONLY)
            .consequence("it neither grants nor renews locks")
            .remedy(MAJORITY_STEP),
        None => Finding::critical("serving", "the server does not serve requests")
            .consequence("it neither grants nor renews locks")
            .remedy(MAJORITY_STEP),
        Some("standalone") => Finding::info("serving", "it is alone, not a member of an ensemble")
            .consequence("if it fails, no lock can be acquired")
            .remedy("use an ensemble of three or five"),
        Some("observer") => Finding::ok("serving", "as observer, which has no vote"),
        Some(mode) => Finding::ok("serving", format!("as {mode}")),
    };
    let is_member = field("Mode:") != Some("standalone");
    let said = field("Zookeeper version:").unwrap_or("unknown");
    let mut findings = vec![version(said), mode];
    findings.extend(transactions(said).filter(|_| is_member));
    findings.extend(Tested::ZOOKEEPER.judge(short(said)));
    findings.extend((scheme == Scheme::Sasl).then(|| login(said)));
    findings.extend(status.settings.as_ref().and_then(ticks));
    findings.extend(status.settings.as_ref().and_then(connections));
    findings
}

/// A version without what follows its numbers.
fn short(text: &str) -> &str {
    text.split(['-', ',']).next().unwrap_or(text)
}

/// The numbers of a version, which are 0 where it has none.
fn numbers(text: &str) -> (u32, u32, u32) {
    let mut numbers = text.split(['.', '-', ',', ' ']).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten().unwrap_or(0);
    (next(), next(), next())
}

/// What is known of a version.
fn version(text: &str) -> Finding {
    let version = numbers(text);
    let found = format!("ZooKeeper {}", short(text));
    match version {
        (0, 0, 0) => Finding::info("version", found)
            .consequence("it cannot be checked")
            .remedy("use ZooKeeper 3.5.3 or later"),
        _ if version < (3, 5, 3) => Finding::critical("version", found)
            .consequence("this version does not support the requests that Latchwork sends")
            .remedy("use ZooKeeper 3.5.3 or later"),
        _ => Finding::ok("version", found),
    }
}

/// Whether members of this version keep all transactions when one comes back to the others: not before ZOOKEEPER-4785
/// was mended, and not with ZOOKEEPER-4925.
fn transactions(version: &str) -> Option<Finding> {
    let is_affected = match numbers(version) {
        (3, 9, patch) => matches!(patch, 0 | 1 | 3),
        version => ((3, 5, 3)..(3, 8, 4)).contains(&version),
    };
    is_affected.then(|| {
        let version = short(version);
        let found = format!("members of version {version} may lose transactions when one comes back");
        Finding::warning("transactions", found)
            .consequence("such a member does not know who holds a key: a hold may end early, or a free key stay blocked for clients of that member")
            .remedy("upgrade to ZooKeeper 3.8.4, 3.9.4 or later; a member that has lost some gets all data from the leader if its own is removed before it starts")
    })
}

/// Whether the next version takes the login by SASL. No server tells whether its FIPS mode is on.
fn login(version: &str) -> Finding {
    const FOUND: &str = "by SASL's DIGEST-MD5";
    if numbers(version) >= (3, 9, 6) {
        return Finding::ok("login", FOUND);
    }
    Finding::info("login", FOUND)
        .consequence("from 3.9.6 on, ZooKeeper refuses it in its FIPS mode, which is on by default: an upgrade ends holds")
        .remedy("start the servers with -Dzookeeper.fips-mode=false before you upgrade them")
}

/// The shortest session must be two ticks: that is what the proof that a session lives rests on.
fn ticks(settings: &HashMap<String, u64>) -> Option<Finding> {
    let (tick, least) = (settings.get("tickTime")?, settings.get("minSessionTimeout")?);
    let found = format!("tickTime {tick} ms, minSessionTimeout {least} ms");
    Some(if *least >= tick * 2 {
        Finding::ok("ticks", found)
    } else {
        Finding::critical("ticks", found)
            .consequence(
                "a session of less than two ticks may end while its holder relies on the lock",
            )
            .remedy("set minSessionTimeout to at least two ticks")
    })
}

/// How many processes of one host may have locks at a time.
fn connections(settings: &HashMap<String, u64>) -> Option<Finding> {
    const NONE: u64 = 0;
    const MANY: u64 = 200;
    let most = *settings.get("maxClientCnxns")?;
    let found = format!("maxClientCnxns {most}");
    Some(match most {
        NONE | MANY.. => Finding::ok("connections", found),
        _ => Finding::info("connections", found)
            .consequence(format!(
                "at most {most} processes of one host can have locks at a time; more have to \
                 wait"
            ))
            .remedy("set maxClientCnxns to what your hosts need; a process uses six at most"),
    })
}

fn sessions_are(shortest: Duration, longest: Duration) -> Finding {
    let found = format!("locks may have a ttl from {shortest:?} to {longest:?}");
    if longest >= USUAL_TTL {
        return Finding::ok("sessions", found);
    }
    let timeout = ttl_of(Duration::from_secs(100)).as_secs() as u32;
    let needed = USUAL_TTL * 100 / timeout;
    Finding::info("sessions", found)
        .consequence(format!("a lock without an explicit ttl has {longest:?}"))
        .remedy(format!(
            "set maxSessionTimeout to {} ms or more for a ttl of 30 s",
            needed.as_millis()
        ))
}

fn access_is(access: Option<&[(i32, String, String)]>, config: &ZooKeeperConfig) -> Finding {
    let Some(access) = access else {
        return Finding::ok("access", "the first lock creates the chroot");
    };
    let is_open = |(rights, scheme, id): &(i32, String, String)| {
        scheme == "world" && id == "anyone" && rights & CHANGES != 0
    };
    match access.iter().any(is_open) {
        true => {
            Finding::info("access", "every client that can reach the servers can change the locks")
                .consequence("a client that deletes a node ends the lock of its holder")
                .remedy(acl_line(config))
        }
        false => Finding::ok("access", "the chroot has an ACL"),
    }
}

/// The line of `zkCli.sh` that keeps others away from the chroot. The nodes of the locks have ACLs of their own.
fn acl_line(config: &ZooKeeperConfig) -> String {
    let Some(login) = config.login.current().0.now else {
        return "write user:password@ in the address, and set an ACL on the chroot (setAcl)".into();
    };
    let path = if config.chroot.is_empty() { "/" } else { &config.chroot };
    match config.scheme {
        Scheme::Digest => format!(
            "in zkCli.sh, after addauth digest {}:password: setAcl {path} auth::cdrwa",
            login.user
        ),
        Scheme::Sasl => format!("in zkCli.sh: setAcl {path} sasl:{}:cdrwa", login.user),
    }
}

fn one_address(servers: usize) -> Finding {
    match servers {
        1 => Finding::info("servers", "the address names one server")
            .consequence("if it fails, no lock can be acquired, even if other members are running")
            .remedy("name all servers: zk://h1,h2,h3"),
        _ => Finding::ok("servers", format!("the address names {servers}")),
    }
}

fn out_of_reach(error: &BackendError) -> Finding {
    Finding::out_of_reach(error, "start it, or remove it from the address")
        .consequence("if one more fails, a majority may be lost")
}

#[cfg(test)]
mod tests {
    use latchwork_store::doctor::Severity;

    use super::*;

    #[test]
    fn judges_versions_and_ticks() {
        for (text, severity) in [
            ("3.4.14-4c25d480e66aadd371de8bd2fd8da255ac140bcf, built on x", Severity::Critical),
            ("3.5.2-alpha-x, built on y", Severity::Critical),
            ("3.5.3-beta, built on y", Severity::Ok),
            ("3.8.0-${mvngit.commit.id}, built on 2023", Severity::Ok),
            ("unknown", Severity::Info),
        ] {
            assert_eq!(version(text).severity, severity, "{text}");
        }
        for (text, is_affected) in [
            ("3.8.0-${mvngit.commit.id}, built on 2023", true),
            ("3.8.3-x, built on y", true),
            ("3.8.4-x, built on y", false),
            ("3.9.1-x, built on y", true),
            ("3.9.2-x, built on y", false),
            ("3.9.3-x, built on y", true),
            ("3.9.6-x, built on y", false),
            ("unknown", false),
        ] {
            for (mode, is_member) in [("follower", true), ("standalone", false)] {
                let server = Some(format!("Zookeeper version: {text}\nMode: {mode}\n"));
                let findings = examine(&Status { server, settings: None }, Scheme::Sasl);
                let lost = findings.iter().find(|one| one.code == "transactions");
                assert_eq!(lost.is_some(), is_affected && is_member, "{text}, {mode}: {lost:?}");
            }
        }
        for (text, tested) in [("3.9.5-x, built on y", true), ("3.10.0-x, built on y", false)] {
            let server = Some(format!("Zookeeper version: {text}\nMode: follower\n"));
            let findings = examine(&Status { server, settings: None }, Scheme::Sasl);
            let login = findings.iter().find(|one| one.code == "login").unwrap();
            assert_eq!(login.severity == Severity::Info, tested, "{login:?}");
            assert!(!tested || login.consequence.contains("an upgrade ends holds"), "{login:?}");
            let outside = findings.iter().find(|one| one.code == "untested-version");
            assert_eq!(outside.is_none(), tested, "{findings:?}");
            assert!(outside.is_none_or(|one| one.found.starts_with("ZooKeeper 3.10.0 is newer")));
        }
        for (tick, least, severity) in
            [(2_000, 4_000, Severity::Ok), (2_000, 3_999, Severity::Critical)]
        {
            let settings = [("tickTime", tick), ("minSessionTimeout", least)];
            let settings = settings.map(|(name, value)| (name.to_owned(), value));
            assert_eq!(ticks(&settings.into()).unwrap().severity, severity);
        }
    }

    #[test]
    fn each_mode_has_its_finding() {
        for (mode, severity) in [
            ("follower", Severity::Ok),
            ("observer", Severity::Ok),
            ("standalone", Severity::Info),
            ("read-only", Severity::Critical),
        ] {
            let server = Some(format!("Zookeeper version: 3.9.5-x, built on y\nMode: {mode}\n"));
            let findings = examine(&Status { server, settings: None }, Scheme::Digest);
            assert!(findings.iter().all(|one| one.code != "login"), "{findings:?}");
            let serving = findings.iter().find(|one| one.code == "serving").unwrap();
            assert_eq!(serving.severity, severity, "{serving:?}");
            assert_eq!(mode == "observer", serving.found.contains("no vote"));
        }
    }

    #[test]
    fn the_line_for_the_acl_has_the_user_and_never_the_password() {
        for (url, line) in [
            (
                "zk://h/team",
                "write user:password@ in the address, and set an ACL on the chroot (setAcl)",
            ),
            (
                "zk://app:lkj3@h/team",
                "in zkCli.sh, after addauth digest app:password: setAcl /team auth::cdrwa",
            ),
            ("zk://app:lkj3@h/team?auth=sasl", "in zkCli.sh: setAcl /team sasl:app:cdrwa"),
        ] {
            assert_eq!(acl_line(&ZooKeeperConfig::parse(url).unwrap()), line);
        }
    }

    #[test]
    fn says_how_many_connections_a_host_has() {
        for (most, severity) in [(60, Severity::Info), (0, Severity::Ok), (1_000, Severity::Ok)] {
            let settings = [("maxClientCnxns".to_owned(), most)].into();
            assert_eq!(connections(&settings).unwrap().severity, severity, "{most}");
        }
    }

    #[test]
    fn the_session_limits_are_explained() {
        let usual = sessions_are(Duration::from_millis(2_400), Duration::from_secs(24));
        assert_eq!(usual.severity, Severity::Info);
        let longer = sessions_are(Duration::from_millis(2_400), Duration::from_secs(30));
        assert_eq!(longer.severity, Severity::Ok);
    }
}

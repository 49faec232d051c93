//! `doctor` at real servers that are good, and at others that were made bad on purpose.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use latchwork::Driver;
use latchwork_redis::RedisConfig;
use latchwork_services::{
    ClusterOptions, Persistence, Proxy, RedisCluster, RedisOptions, RedisServer, SentinelOptions,
    SentinelSet,
};
use latchwork_store::doctor::{Finding, Report, Severity};
use latchwork_store::{Error, ErrorKind};

const LONG: Duration = Duration::from_secs(60);

async fn examine(url: &str) -> Result<Report, Error> {
    let driver = Driver::start().unwrap();
    let report = latchwork_redis::doctor(RedisConfig::parse(url).unwrap(), driver.io()).await?;
    for one in &report.findings {
        let told = (!one.found.is_empty(), !one.consequence.is_empty(), !one.remedy.is_empty());
        let right = match one.severity {
            Severity::Ok => told == (true, false, false),
            Severity::Info => told.0 && told.1,
            Severity::Warning | Severity::Critical => told == (true, true, true),
        };
        assert!(right, "{one:?}");
        let lines = [&one.found, &one.consequence, &one.remedy];
        assert!(lines.iter().all(|line| line.lines().count() <= 1), "{one:?}");
    }
    Ok(report)
}

async fn report(url: &str) -> Report {
    examine(url).await.unwrap()
}

#[track_caller]
fn found<'a>(report: &'a Report, code: &str, severity: Severity, text: &str) -> &'a Finding {
    let all: Vec<_> = report.findings.iter().filter(|one| one.code == code).collect();
    let one = all.iter().find(|one| one.severity == severity && one.found.contains(text));
    one.unwrap_or_else(|| panic!("no {severity} {code} with {text:?} in {report:#?}"))
}

/// Asks again and again until it is so: the server itself takes its time to notice.
async fn until(url: &str, what: &str, done: impl Fn(&Report) -> bool) -> Report {
    let start = std::time::Instant::now();
    loop {
        let report = report(url).await;
        if done(&report) {
            return report;
        }
        assert!(start.elapsed() < LONG, "{what}: {report:#?}");
    }
}

#[tokio::test]
async fn a_good_server_is_fit_and_nothing_is_left_on_it() {
    let options = RedisOptions::new().persistence(Persistence::EveryWrite);
    let server = RedisServer::start(&options).unwrap();
    let report = report(&server.url()).await;
    assert!(report.is_fit());
    assert_eq!(&*report.store, server.url());
    for code in [
        "version",
        "eviction-policy",
        "protocol",
        "tls",
        "clock",
        "clock-rate",
        "rights",
        "rights-channels",
        "persistence",
        "locks",
    ] {
        let one = found(&report, code, Severity::Ok, "");
        let part = one.part.as_deref().unwrap_or_default();
        assert!(code == "locks" || part == format!("127.0.0.1:{}", server.port()), "{one:?}");
    }
    assert_eq!(server.command(&["DBSIZE"]).unwrap().text(), "0");
}

/// It says that its version is 7.2.4 as well, for clients that know Redis alone.
#[tokio::test]
async fn a_valkey_is_named_with_its_own_version() {
    let server = RedisServer::start(&RedisOptions::valkey()).unwrap();
    let own = server.info("valkey_version").unwrap();
    for compatible in ["no", "yes"] {
        let set = ["CONFIG", "SET", "extended-redis-compatibility", compatible];
        server.command(&set).unwrap().ok().unwrap();
        let report = report(&server.url()).await;
        assert!(report.is_fit() && report.store.starts_with("valkey://"), "{report:?}");
        let name = format!("Valkey {own}, compatible with Redis 7.2.4");
        assert_eq!(found(&report, "version", Severity::Ok, "").found, name);
        assert_eq!(report.find("untested-version"), None);
    }
}

#[tokio::test]
async fn a_cache_is_unfit() {
    let options =
        RedisOptions::new().config("maxmemory 64mb").config("maxmemory-policy allkeys-lru");
    let server = RedisServer::start(&options).unwrap();
    let report = report(&server.url()).await;
    let one = found(&report, "eviction-policy", Severity::Critical, "allkeys-lru");
    assert!(one.remedy.contains("noeviction"));
    assert!(!report.is_fit());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap().ok().unwrap();
    found(&self::report(&server.url()).await, "eviction-policy", Severity::Ok, "without a limit");
}

#[tokio::test]
async fn doctor_says_what_a_restart_loses_without_the_guard() {
    let mut server = RedisServer::start(&RedisOptions::new()).unwrap();
    let one = report(&server.url()).await;
    let one = found(&one, "persistence", Severity::Warning, "none");
    assert!(one.consequence.contains("all locks"), "{one:?}");
    assert!(one.remedy.contains("guard=true"), "{one:?}");
    let guarded = report(&format!("{}?guard=true", server.url())).await;
    found(&guarded, "persistence", Severity::Info, "none");
    for (name, value, text) in [
        ("save", "60 1", "rdb"),
        ("appendonly", "yes", "everysec"),
        ("appendfsync", "no", "fsync no"),
    ] {
        server.command(&["CONFIG", "SET", name, value]).unwrap().ok().unwrap();
        found(&report(&server.url()).await, "persistence", Severity::Warning, text);
    }
    server.kill();
    let gone = examine(&server.url()).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_full_server_is_critical() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    server.command(&["CONFIG", "SET", "maxmemory", "100kb"]).unwrap().ok().unwrap();
    let report = report(&server.url()).await;
    found(&report, "memory", Severity::Critical, "KiB");
    found(&report, "eviction-policy", Severity::Ok, "noeviction");
}

#[tokio::test]
async fn a_server_that_cannot_save_is_critical() {
    let options = RedisOptions::new().persistence(Persistence::Snapshot);
    let server = RedisServer::start(&options).unwrap();
    std::fs::remove_dir_all(server.folder().join("data")).unwrap();
    server.command(&["BGSAVE"]).unwrap();
    let report = until(&server.url(), "the save fails", |it| it.find("disk").is_some()).await;
    let disk = found(&report, "disk", Severity::Critical, "rdb_last_bgsave_status is err");
    assert_eq!(disk.remedy, "check the server's disk and its log");
}

/// H412: a server that takes no write for want of replicas answers every read.
#[tokio::test]
async fn h412_a_server_without_the_replicas_that_it_needs_is_unfit() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]).unwrap().ok().unwrap();
    let alone = report(&server.url()).await;
    found(&alone, "writes", Severity::Critical, "NOREPLICAS");
    assert!(!alone.is_fit(), "{alone:?}");
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]).unwrap().ok().unwrap();
    let report = report(&server.url()).await;
    assert!(report.find("writes").is_none() && report.is_fit(), "{report:?}");
}

#[tokio::test]
async fn a_replica_without_its_master_is_reported() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap().ok().unwrap();
    let report = report(&server.url()).await;
    let link = found(&report, "replication", Severity::Warning, "127.0.0.1:1, the link is down");
    assert_eq!(link.remedy, "check its connection to the master");
}

#[tokio::test]
async fn a_proxy_without_resp3_is_reported() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let proxy = Proxy::redis(server.port()).unwrap();
    proxy.refuse("HELLO", "ERR unknown command 'HELLO'");
    let report = report(&proxy.url()).await;
    let one = found(&report, "protocol", Severity::Warning, "RESP2");
    assert_eq!(one.remedy, "use Redis 6.0 or newer, or Valkey, without a proxy");
}

#[tokio::test]
async fn the_doctor_reports_wrong_stopped_and_fast_clocks() {
    let server = RedisServer::start(&RedisOptions::new().with_clock()).unwrap();
    let clock = server.clock().unwrap();
    // A busy machine reads it early or late.
    clock.step_forward(Duration::from_millis(5_500)).unwrap();
    let ahead = report(&server.url()).await;
    let one = found(&ahead, "clock", Severity::Warning, "+5.");
    assert_eq!(one.remedy, "set both clocks with a time service (NTP)");
    found(&ahead, "clock-rate", Severity::Ok, "");
    clock.reset().unwrap();
    clock.rate(-1_000_000).unwrap();
    let still = report(&server.url()).await;
    let one = found(&still, "clock-rate", Severity::Critical, "0.000 s passed");
    assert!(one.consequence.contains("does not advance"));
    assert_eq!(one.remedy, "check the server's clock source (the TSC of a virtual machine)");
    clock.rate(500_000).unwrap();
    let fast = report(&server.url()).await;
    let one = found(&fast, "clock-rate", Severity::Critical, "passed there");
    let step = "check the server's clock: it was set just now, or it runs at another rate";
    assert_eq!(one.remedy, step);
}

#[tokio::test]
async fn missing_rights_are_named_by_command() {
    let options = RedisOptions::new()
        .user("reader on >pw ~* &* +@all -set -eval -evalsha")
        .user("mute on >pw ~* resetchannels +@all")
        .user("blind on >pw ~* &* +@all -info -config -scan -client")
        .user("shop on >pw ~shop:* &shop:* +@all -@admin")
        .user("quiet on >pw ~shop:* resetchannels +@all");
    let server = RedisServer::start(&options).unwrap();
    let at = |user: &str| format!("redis://{user}:pw@127.0.0.1:{}", server.port());
    let reader = report(&at("reader")).await;
    let one = found(&reader, "rights", Severity::Critical, "SET, EVALSHA, EVAL");
    assert!(one.remedy.contains("+set +evalsha +eval"), "{one:?}");
    let mute = report(&at("mute")).await;
    found(&mute, "rights", Severity::Ok, "");
    let one = found(&mute, "rights-channels", Severity::Warning, "channel");
    assert!(one.consequence.contains("waiters"), "{one:?}");
    let blind = report(&at("blind")).await;
    found(&blind, "info", Severity::Warning, "INFO");
    found(&blind, "rights-looking", Severity::Warning, "SCAN");
    found(&blind, "rights-client", Severity::Info, "CLIENT|ID, CLIENT|KILL");
    let shop = report(&at("shop")).await;
    found(&shop, "rights", Severity::Ok, "");
    let one = found(&shop, "rights-names", Severity::Critical, "lw:probe");
    assert!(one.remedy.contains("namespaces=shop") && one.remedy.ends_with("ACL SETUSER shop ~*"));
    found(&shop, "rights-channels", Severity::Info, "lw:push:probe");
    found(&report(&at("quiet")).await, "rights-channels", Severity::Warning, "");
    let denied = examine(&at("nobody")).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(!denied.to_string().contains("pw"), "{denied}");
    assert_eq!(server.command(&["DBSIZE"]).unwrap().text(), "0");
}

/// Types the `ACL SETUSER` lines of a report at the server, as they are printed.
fn type_lines(server: &RedisServer, report: &Report) -> usize {
    let remedies = report.findings.iter().map(|one| one.remedy.as_str());
    let lines: Vec<_> = remedies.filter(|line| line.starts_with("ACL SETUSER app ")).collect();
    for line in &lines {
        let words: Vec<_> = line.split(' ').collect();
        server.command(&words).unwrap().ok().unwrap();
    }
    lines.len()
}

/// Whether the user has all rights that doctor asks for.
fn has_all_rights(report: &Report) -> bool {
    let mut about = report.findings.iter().filter(|one| {
        ["info", "scripts", "locks"].contains(&one.code) || one.code.starts_with("rights")
    });
    about.all(|one| one.severity == Severity::Ok)
}

/// H310: a user without any right gets all of them by the lines that are printed, and its locks work.
#[tokio::test]
async fn h310_the_acl_lines_that_doctor_prints_give_all_rights() {
    let server = RedisServer::start(&RedisOptions::new().user("app on >pw")).unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}?namespaces=shop,web", server.port());
    let mut rounds = 0;
    while type_lines(&server, &report(&url).await) > 0 {
        rounds += 1;
        assert!(rounds <= 2, "{:?}", report(&url).await);
    }
    let last = report(&url).await;
    assert!(has_all_rights(&last), "{last:#?}");
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(&url).unwrap();
    let backend = latchwork_redis::RedisBackend::connect(config, driver.io()).await.unwrap();
    let locks = latchwork::LockManager::new(backend, driver);
    for name in ["shop:a", "web:b"] {
        locks.mutex(name).acquire().await.unwrap().release().await.unwrap();
    }
}

/// H310: a command that is not there by its name needs no right.
#[tokio::test]
async fn h310_a_renamed_info_asks_for_no_right() {
    let options = RedisOptions::new().config("rename-command INFO \"\"");
    let server = RedisServer::start(&options).unwrap();
    let report = report(&format!("redis://127.0.0.1:{}", server.port())).await;
    let found = report.find("info").unwrap();
    assert!(found.found.contains("unknown command"), "{report:#?}");
    assert!(found.remedy.contains("rename-command hides it"), "{report:#?}");
}

/// H310: each right in turn is taken away, and the line that is printed for it restores it.
#[tokio::test]
async fn h310_the_acl_line_of_each_missing_right_gives_it() {
    let page = include_str!("../../../../docs/redis.md");
    let block = page.split("```acl\n").nth(1).unwrap().split("```").next().unwrap();
    let rights: Vec<_> =
        block.split_whitespace().chain(["+info", "+client|id", "+client|kill"]).collect();
    let server =
        RedisServer::start(&RedisOptions::new().user(format!("app on >pw {}", rights.join(" "))))
            .unwrap();
    let url = format!("redis://app:pw@127.0.0.1:{}?namespaces=app", server.port());
    assert!(has_all_rights(&report(&url).await));
    for right in rights {
        let take = match right.strip_prefix('+') {
            Some(command) => format!("-{command}"),
            None if right.starts_with('~') => "resetkeys".into(),
            None => "resetchannels".into(),
        };
        server.command(&["ACL", "SETUSER", "app", &take]).unwrap().ok().unwrap();
        let missing = report(&url).await;
        assert!(!has_all_rights(&missing), "{right}: {missing:#?}");
        assert!(type_lines(&server, &missing) > 0, "{right}: {missing:#?}");
        let last = report(&url).await;
        assert!(has_all_rights(&last), "{right}: {last:#?}");
    }
}

#[tokio::test]
async fn a_foreign_lock_without_an_end_is_named() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    server.command(&["SET", "shop:stuck", "4711"]).unwrap().ok().unwrap();
    let locks = {
        let driver = Driver::start().unwrap();
        let config = RedisConfig::parse(&server.url()).unwrap();
        let backend = latchwork_redis::RedisBackend::connect(config, driver.io()).await.unwrap();
        latchwork::LockManager::new(backend, driver)
    };
    let waiter = tokio::spawn({
        let lock = locks.mutex("shop:stuck");
        async move { lock.acquire().await.map(drop) }
    });
    let report =
        until(&server.url(), "the waiter", |report| report.find("foreign-locks").is_some()).await;
    found(&report, "foreign-locks", Severity::Warning, "shop:stuck");
    waiter.abort();
}

#[tokio::test]
async fn the_doctor_checks_every_server_under_sentinel() {
    let options =
        SentinelOptions { redis: RedisOptions::new().with_clock(), ..SentinelOptions::default() };
    let mut set = SentinelSet::start(&options).unwrap();
    let url = set.url();
    // A master calls a replica online only when that has reported for the first time.
    let good = until(&url, "the replicas are online", |report| {
        let fine = |one: &Finding| one.code != "replicas" || one.severity == Severity::Ok;
        report.findings.iter().all(fine)
    })
    .await;
    let parts =
        |report: &Report, code: &str| report.findings.iter().filter(|one| one.code == code).count();
    for code in ["version", "rights", "clock", "rights-channels"] {
        assert_eq!(parts(&good, code), 3, "{code}: {good:#?}");
    }
    found(&good, "sentinels", Severity::Ok, "3 of 3");
    found(&good, "sentinel-master", Severity::Ok, "all name");
    found(&good, "sentinel-quorum", Severity::Ok, "2 of 3");
    found(&good, "replicas", Severity::Ok, "2, none is late");
    found(&good, "replication", Severity::Ok, "up");
    found(&good, "min-replicas", Severity::Warning, "is 0");
    found(&good, "clock-spread", Severity::Ok, "apart");
    for node in set.nodes() {
        node.command(&["CONFIG", "SET", "min-replicas-to-write", "2"]).unwrap().ok().unwrap();
    }
    set.nodes()[1].clock().unwrap().step_forward(Duration::from_secs(120)).unwrap();
    set.sentinel_mut(2).kill();
    let worse = report(&url).await;
    let one =
        found(&worse, "min-replicas", Severity::Info, "min-replicas-to-write 2, max-lag 10 s");
    assert!(one.consequence.contains("after a failover"), "{one:?}");
    assert_eq!(parts(&worse, "min-replicas"), 3);
    // The clock is 120 s ahead, and two looks are never exactly at the same time.
    let spread = found(&worse, "clock-spread", Severity::Warning, "apart");
    assert!(spread.found.contains(" 119.9") || spread.found.contains(" 120.0"), "{spread:?}");
    let one = found(&worse, "sentinels", Severity::Warning, "2 of 3");
    assert_eq!(one.remedy, "start it, or remove it from the address if it no longer exists");
    set.node_mut(2).stop().unwrap();
    let stopped = until(&url, "the replica is late", |report| {
        report.find("replicas").is_some_and(|one| one.severity == Severity::Warning)
    })
    .await;
    let late = found(&stopped, "replicas", Severity::Warning, "heard of");
    assert_eq!(late.remedy, "check the replica and the network between the two servers");
    found(&stopped, "reachable", Severity::Critical, "cannot connect");
    set.sentinel_mut(1).kill();
    let alone = report(&url).await;
    found(&alone, "sentinels", Severity::Critical, "1 of 3");
    // The last one calls the others down after a while.
    let none = until(&url, "no failover can be agreed", |report| {
        report.find("sentinel-quorum").is_some_and(|one| one.severity == Severity::Critical)
    })
    .await;
    let one = found(&none, "sentinel-quorum", Severity::Critical, "NOQUORUM");
    let step = "start the Sentinels that are missing, or lower the quorum to a majority";
    assert_eq!(one.remedy, step);
    let gone = examine("redis+sentinel://127.0.0.1:1/main").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Unreachable);
    let unknown = url.replace("/latchwork", "/other");
    found(&report(&unknown).await, "sentinels", Severity::Critical, "0 of 3");
}

/// H84: what the guard waits for, what a master needs to write, and how many replicas may stay with
/// one that was replaced. These servers are on machines of their own as far as anybody knows.
#[tokio::test]
async fn h84_a_set_that_leaves_the_guard_a_gap_is_unfit() {
    let set = SentinelSet::start(&SentinelOptions::default()).unwrap();
    for (least, lag, options, severity, text) in [
        ("0", "10", "guard=true", Severity::Critical, "min-replicas-to-write is 0"),
        ("1", "10", "guard=true", Severity::Critical, "1 of 2 replicas may stay"),
        ("1", "10", "", Severity::Warning, "1 of 2 replicas may stay"),
        ("2", "10", "guard=true", Severity::Info, "min-replicas-to-write 2"),
        ("2", "0", "guard=true", Severity::Critical, "min-replicas-max-lag is 0"),
        ("2", "11", "guard=true", Severity::Critical, "stops after 13s, and deposed is 12s"),
        ("2", "11", "guard=true&deposed=13s", Severity::Info, "max-lag 11 s"),
        ("2", "10", "guard=true&deposed=11s", Severity::Critical, "deposed is 11s"),
    ] {
        for node in set.nodes() {
            for (name, value) in [("min-replicas-to-write", least), ("min-replicas-max-lag", lag)] {
                node.command(&["CONFIG", "SET", name, value]).unwrap().ok().unwrap();
            }
        }
        let report = report(&format!("{}?{options}", set.url())).await;
        let all = report.findings.iter().filter(|one| one.code == "min-replicas");
        let all: Vec<_> = all.collect();
        assert_eq!(all.len(), 3, "the master of today and those of tomorrow: {all:?}");
        for one in all {
            let fits = one.severity == severity && one.found.contains(text);
            assert!(fits, "{least} {lag} {options}: {one:?}");
        }
    }
}

/// H92: replicas that have confirmed a lock forget it with a master that comes back empty.
#[tokio::test]
async fn h92_min_replicas_without_persistence_or_guard_is_unfit() {
    let server = RedisServer::start(&RedisOptions::new()).unwrap();
    let with = |options: &str| format!("{}?min_replicas=1{options}", server.url());
    let alone = report(&with("")).await;
    let one = found(&alone, "persistence", Severity::Critical, "none");
    assert!(one.consequence.contains("min_replicas"), "{one:?}");
    found(&report(&with("&guard=true")).await, "persistence", Severity::Info, "none");
    server.command(&["CONFIG", "SET", "appendonly", "yes"]).unwrap().ok().unwrap();
    found(&report(&with("")).await, "persistence", Severity::Warning, "everysec");
    server.command(&["CONFIG", "SET", "appendfsync", "always"]).unwrap().ok().unwrap();
    found(&report(&with("")).await, "persistence", Severity::Ok, "always");
}

#[tokio::test]
async fn doctor_checks_every_slot_of_a_cluster() {
    let cluster = RedisCluster::start(&ClusterOptions::default()).unwrap();
    let good = until(&cluster.url(), "the replicas are online", |report| {
        let fine = |one: &Finding| one.code != "replicas" || one.severity == Severity::Ok;
        report.findings.iter().all(fine)
    })
    .await;
    let count = |code: &str, severity: Severity| {
        good.findings.iter().filter(|one| one.code == code && one.severity == severity).count()
    };
    assert_eq!(count("cluster-state", Severity::Ok), 6, "{good:#?}");
    assert_eq!(count("rights", Severity::Ok), 6);
    assert_eq!(count("cluster-node-timeout", Severity::Info), 6);
    for (options, severity) in
        [("?guard=true", Severity::Ok), ("?guard=true&deposed=1s", Severity::Critical)]
    {
        let guarded = report(&format!("{}{options}", cluster.url())).await;
        found(&guarded, "cluster-node-timeout", severity, "deposed");
    }
    // One that goes on after the others, with their short timeouts, have replaced it.
    let slow =
        |millis| cluster.nodes()[0].command(&["CONFIG", "SET", "cluster-node-timeout", millis]);
    slow("15000").unwrap().ok().unwrap();
    let guarded = report(&format!("{}?guard=true", cluster.url())).await;
    found(&guarded, "cluster-node-timeout", Severity::Critical, "15000 ms");
    slow("1500").unwrap().ok().unwrap();
    assert_eq!(count("replication", Severity::Ok), 3);
    assert_eq!(count("replicas", Severity::Ok), 3);
    for node in cluster.nodes() {
        assert_eq!(node.command(&["DBSIZE"]).unwrap().text(), "0");
    }
    for node in cluster.nodes() {
        let _ = node.command(&["CLUSTER", "DELSLOTS", "7"]).unwrap();
    }
    let bad = until(&cluster.url(), "the slot is missed", |report| {
        report.find("cluster-state").is_some_and(|one| one.severity == Severity::Critical)
    })
    .await;
    assert!(!bad.is_fit());
    found(&bad, "cluster-state", Severity::Critical, "16383 of 16384");
}

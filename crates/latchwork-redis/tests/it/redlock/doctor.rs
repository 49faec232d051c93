//! What `doctor` and `init` say of several servers.

use latchwork_redis::redlock;
use latchwork_services::Data;
use latchwork_store::doctor::{Finding, Report, Severity};

use crate::common::*;
use crate::redlock::world::*;

async fn examined(five: &Five) -> Report {
    redlock::doctor(redlock::Config::parse(&five.url()).unwrap(), io()).await.unwrap()
}

fn votes(report: &Report) -> &Finding {
    report.find("votes").unwrap_or_else(|| panic!("{report:?}"))
}

/// The parts that have a finding of this code.
fn parts(report: &Report, code: &str) -> Vec<String> {
    let with = report.findings.iter().filter(|finding| finding.code == code);
    with.filter_map(|finding| Some(finding.part.as_ref()?.to_string())).collect()
}

fn at(five: &Five, node: usize) -> String {
    format!("127.0.0.1:{}", five.servers[node].port())
}

/// From all well to no majority: each step is told, and what may fail yet.
#[test]
fn doctor_names_unavailable_nodes_and_the_margin() {
    run(async {
        let mut five = Five::new("max_ttl=5s").await;
        let all = examined(&five).await;
        assert!(all.is_fit(), "{all:?}");
        let vote = votes(&all);
        assert_eq!(vote.severity, Severity::Ok, "{vote:?}");
        assert_eq!(vote.found, "5 of 5 nodes vote, 3 decide, 2 may fail");

        five.kill(&[0]);
        five.kill(&[1]);
        five.restart(&[1], Data::Empty);
        // The quarantine begins with the first try.
        let client = five.client(5 * SEC).await;
        client.acquire("k").await.release().await.unwrap();
        let some = examined(&five).await;
        assert_eq!(parts(&some, "reachable"), [at(&five, 0)]);
        let closed = some.find("quarantine").unwrap();
        assert_eq!(closed.part.as_deref(), Some(&*at(&five, 1)));
        assert!(closed.found.contains(" more") && !closed.remedy.is_empty(), "{closed:?}");
        let vote = votes(&some);
        assert_eq!(vote.severity, Severity::Warning, "{vote:?}");
        assert!(vote.found.starts_with("3 of 5 nodes vote"), "{vote:?}");
        assert!(vote.consequence.contains("one more"), "{vote:?}");
        assert!(some.is_fit(), "locks can be had: {some:?}");

        five.kill(&[2, 3]);
        let few = examined(&five).await;
        assert_eq!(parts(&few, "reachable"), [at(&five, 0), at(&five, 2), at(&five, 3)]);
        assert_eq!(votes(&few).severity, Severity::Critical);
        assert_eq!(votes(&few).remedy, "start the nodes that are down");
        assert!(!few.is_fit());
    });
}

#[test]
fn two_names_of_one_server_are_critical() {
    run(async {
        let five = Five::new("max_ttl=5s").await;
        let port = five.servers[0].port();
        let url = format!("redlock://127.0.0.1:{port},localhost:{port},{}", at(&five, 1));
        let report = redlock::doctor(redlock::Config::parse(&url).unwrap(), io()).await.unwrap();
        let found = report.find("locks").unwrap();
        assert_eq!(found.severity, Severity::Critical, "{report:?}");
        assert!(found.found.contains("the same server"), "{found:?}");
    });
}

//! A set under Sentinel: it settles, and promotes a replica when the master is gone.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::time::Duration;

use latchwork_services::{Cut, Data, SentinelOptions, SentinelSet, redis_cli};

type Test = Result<(), Box<dyn std::error::Error>>;

const LONG: Duration = Duration::from_secs(60);

fn options() -> SentinelOptions {
    SentinelOptions { down_after: Duration::from_millis(500), ..SentinelOptions::default() }
}

#[test]
fn a_killed_master_is_replaced_and_comes_back_as_a_replica() -> Test {
    let mut set = SentinelSet::start(&options())?;
    assert_eq!((set.master()?, set.replicas()?), (0, vec![1, 2]));
    let ports = set.sentinel_ports();
    let named = redis_cli(ports[0], &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", set.name()])?;
    assert_eq!(named, format!("127.0.0.1\n{}", set.nodes()[0].port()));
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!(set.url(), format!("redis+sentinel://{}/latchwork", hosts.join(",")));
    assert_eq!(set.kill_master()?, 0);
    let new = set.wait_for_new_master(0, LONG)?;
    assert_ne!(new, 0);
    set.nodes()[new].command(&["SET", "k", "1"])?.ok()?;
    set.node_mut(0).restart(Data::Kept)?;
    set.wait_settled(LONG)?;
    assert_eq!(set.nodes()[0].command(&["GET", "k"])?.text(), "1");
    Ok(())
}

#[test]
fn a_failover_can_be_ordered() -> Test {
    let mut set = SentinelSet::start(&options())?;
    set.failover()?;
    let new = set.wait_for_new_master(0, LONG)?;
    set.wait_settled(LONG)?;
    assert_eq!(set.master()?, new);
    assert_eq!(set.nodes()[0].info("role")?, "slave");
    Ok(())
}

#[test]
fn a_master_behind_a_frozen_proxy_is_replaced() -> Test {
    let set = SentinelSet::start(&SentinelOptions { proxies: true, ..options() })?;
    let old = &set.nodes()[0];
    let proxy = old.proxy().ok_or("no proxy")?;
    redis_cli(proxy.port(), &["SET", "k", "1"])?;
    assert_eq!(proxy.counts()["SET"], 1);
    assert_eq!(proxy.counts()["INFO"], 0, "the sentinels' commands do not count");
    assert!(proxy.counts().between_servers > 0);
    proxy.silence(true);
    let new = set.wait_for_new_master(0, LONG)?;
    assert_eq!(old.info("role")?, "master", "nobody could tell it");
    assert_eq!(set.nodes()[new].command(&["GET", "k"])?.text(), "1");
    proxy.cut(Cut::Reset)?;
    Ok(())
}

//! A Redis Cluster: every redirection that a client may meet, and a master that dies.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::net::Ipv4Addr;
use std::time::Duration;

use latchwork_services::{ClusterOptions, Data, RedisCluster, Value, redis_cli};

type Test = Result<(), Box<dyn std::error::Error>>;

const LONG: Duration = Duration::from_secs(60);

fn error(value: Value) -> String {
    match value {
        Value::Error(text) => text,
        other => format!("no error: {other:?}"),
    }
}

#[test]
fn a_slot_on_its_way_sends_clients_to_the_right_node() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    let slot = cluster.slot_of("{k}1")?;
    let from = cluster.node_of_slot(slot)?;
    let to = (from + 1) % 3;
    let ports: Vec<u16> = cluster.nodes().iter().map(|node| node.port()).collect();
    let ask = |node: usize, words: &[&str]| cluster.nodes()[node].command(words);
    assert_eq!(ask(from, &["MSET", "{k}1", "1", "{k}2", "2"])?.text(), "OK");
    let moved = format!("MOVED {slot} 127.0.0.1:{}", ports[from]);
    assert_eq!(error(ask(to, &["GET", "{k}1"])?), moved);

    let migration = cluster.begin_migration(slot, to)?;
    assert_eq!(ask(from, &["GET", "{k}1"])?.text(), "1");
    cluster.move_keys(migration, &["{k}1"])?;
    let asked = format!("ASK {slot} 127.0.0.1:{}", ports[to]);
    assert_eq!(error(ask(from, &["GET", "{k}1"])?), asked);
    assert_eq!(error(ask(to, &["GET", "{k}1"])?), moved);
    let both = error(ask(from, &["MGET", "{k}1", "{k}2"])?);
    assert!(both.starts_with("TRYAGAIN"), "{both}");

    cluster.finish_migration(migration)?;
    let moved = format!("MOVED {slot} 127.0.0.1:{}", ports[to]);
    assert_eq!(error(ask(from, &["GET", "{k}1"])?), moved);
    assert_eq!(redis_cli(ports[from], &["-c", "MGET", "{k}1", "{k}2"])?, "1\n2");
    Ok(())
}

#[test]
fn the_replica_of_a_killed_master_takes_its_slots() -> Test {
    let mut cluster = RedisCluster::start(&ClusterOptions::default())?;
    let slot = cluster.slot_of("k")?;
    let old = cluster.node_of_slot(slot)?;
    cluster.nodes()[old].command(&["SET", "k", "1"])?.ok()?;
    cluster.nodes()[old].command(&["WAIT", "1", "5000"])?.ok()?;
    cluster.node_mut(old).kill();
    let new = cluster.wait_for_new_master(slot, old, LONG)?;
    assert_eq!(new, old + 3);
    assert_eq!(cluster.nodes()[new].command(&["GET", "k"])?.text(), "1");
    cluster.node_mut(old).restart(Data::Empty)?;
    cluster.wait_ok(LONG)?;
    assert_eq!(cluster.node_of_slot(slot)?, new);
    assert_eq!(cluster.nodes()[old].info("role")?, "slave");
    Ok(())
}

#[test]
fn clients_are_sent_to_the_proxies_of_the_nodes() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions { proxies: true, ..Default::default() })?;
    let node = cluster.node_of_slot(cluster.slot_of("k")?)?;
    let proxies: Vec<_> = cluster.nodes().iter().filter_map(|node| node.proxy()).collect();
    let other = proxies[(node + 1) % 3];
    assert_eq!(redis_cli(other.port(), &["-c", "SET", "k", "1"])?, "OK");
    assert_eq!(other.counts()["SET"], 1);
    assert_eq!(proxies[node].counts()["SET"], 1);
    let hosts: Vec<String> = proxies.iter().map(|p| format!("127.0.0.1:{}", p.port())).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", hosts.join(",")));
    Ok(())
}

#[test]
fn an_isolated_master_loses_its_late_writes() -> Test {
    let partitions = ClusterOptions { partitions: true, replicas: 2, ..Default::default() };
    let cluster = RedisCluster::start(&partitions)?;
    let slot = cluster.slot_of("k")?;
    let old = cluster.node_of_slot(slot)?;
    let replicas = cluster.replicas_of(old)?;
    assert_eq!(replicas, [old + 3, old + 6]);
    let at = |node: usize| &cluster.nodes()[node];
    let side = cluster.side(Ipv4Addr::new(127, 0, 2, 9))?;
    // Word of where a slot is names no address: clients stay on their side.
    let moved = redis_cli(side[(old + 1) % 3].port(), &["GET", "k"])?;
    assert_eq!(moved, format!("MOVED {slot} :{}", side[old].port()));
    at(old).command(&["CONFIG", "SET", "cluster-node-timeout", "6000"])?.ok()?;

    cluster.isolate(&[old, replicas[0]])?;
    let new = loop {
        match cluster.node_of_slot(slot)? {
            node if node == old => std::thread::sleep(Duration::from_millis(20)),
            node => break node,
        }
    };
    assert_eq!(new, replicas[1]);
    // Both serve, and each has its own data.
    assert!(cluster.serves(old, slot)? && cluster.serves(new, slot)?);
    at(old).command(&["MSET", "k", "old", "{k}1", "old"])?.ok()?;
    at(new).command(&["SET", "k", "new"])?.ok()?;
    let keys = |node: usize| at(node).command(&["DBSIZE"]).map(|count| count.text());
    while keys(replicas[0])? != "2" {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!((keys(old)?, keys(new)?), ("2".into(), "1".into()));
    while cluster.serves(old, slot)? {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(error(at(old).command(&["SET", "k", "old"])?).starts_with("CLUSTERDOWN"));

    cluster.reunite();
    cluster.wait_ok(LONG)?;
    assert_eq!(cluster.node_of_slot(slot)?, new);
    assert_eq!(cluster.replicas_of(new)?.len(), 2);
    assert_eq!(at(new).command(&["GET", "k"])?.text(), "new");
    assert_eq!((keys(old)?, keys(replicas[0])?), ("1".into(), "1".into()));
    Ok(())
}

#[test]
fn a_cluster_without_proxies_cannot_be_parted() -> Test {
    let cluster = RedisCluster::start(&ClusterOptions::default())?;
    assert!(cluster.isolate(&[0]).is_err());
    assert!(cluster.side(Ipv4Addr::new(127, 0, 2, 9)).is_err());
    Ok(())
}

//! Lists while a server of several is down, silent, behind or new.

use std::time::{Duration, Instant};

use latchwork::{Guard, LockManager, connect};
use latchwork_services::{
    Data, EtcdCluster, EtcdOptions, PostgresOptions, PostgresServer, Proxy, SentinelOptions,
    SentinelSet, Silent, ZooKeeperEnsemble, ZooKeeperOptions,
};

use super::stores;

const TTL: Duration = Duration::from_secs(20);
/// A list may wait for a server that does not answer, and for no second one.
const SOON: Duration = Duration::from_secs(4);
/// So long an election of a leader may take.
const ELECTED: Duration = Duration::from_secs(15);

/// A holder of two locks.
async fn holder(url: &str) -> (LockManager, [Guard; 2]) {
    let locks = connect(url).await.unwrap();
    let one = locks.mutex("a").ttl(TTL).acquire().await.unwrap();
    let other = locks.mutex("b").ttl(TTL).acquire().await.unwrap();
    (locks, [one, other])
}

/// What a reader, and a new one, list: both locks with their tokens. Returns the notes of the first.
async fn both_are_listed(
    url: &str,
    reader: &LockManager,
    guards: &[Guard; 2],
    what: &str,
) -> Vec<String> {
    let fresh = connect(url).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    let mut notes = Vec::new();
    for reader in [reader, &fresh] {
        let start = Instant::now();
        let listed = reader.list("").await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
        let seen: Vec<_> =
            listed.iter().map(|one| (one.key.as_str(), one.holders[0].token.is_some())).collect();
        assert_eq!(seen, [("a", true), ("b", true)], "{what}: {listed:?}");
        assert!(guards.iter().all(|guard| guard.ensure_held().is_ok()), "{what}");
        notes = listed[0].notes.clone();
    }
    notes
}

/// Lists until it is answered: while no leader is known, a list says so.
async fn listed_again(reader: &LockManager, what: &str) {
    let start = Instant::now();
    while let Err(error) = reader.list("").await {
        assert_eq!(error.kind(), latchwork::ErrorKind::Unreachable, "{what}: {error}");
        assert!(error.next_step().is_some(), "{what}: {error}");
        assert!(start.elapsed() < ELECTED, "{what}: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// H315, and so do the others here.
#[tokio::test]
async fn h315_lists_go_on_while_a_member_of_etcd_is_down() {
    let mut cluster = EtcdCluster::start(3, &EtcdOptions::new()).unwrap();
    let url = cluster.url();
    let (reader, guards) = holder(&url).await;
    for member in 0..3 {
        let leads = cluster.leader().unwrap() == member;
        cluster.member_mut(member).kill();
        let what = format!("member {member} is down, leads: {leads}");
        if leads {
            listed_again(&reader, &what).await;
        }
        both_are_listed(&url, &reader, &guards, &what).await;
        cluster.member_mut(member).restart().unwrap();
        cluster.await_healthy().unwrap();
    }
}

/// A member that hears nothing of the others is behind: it answers no list, and the others do.
#[tokio::test]
async fn h315_lists_are_of_members_of_etcd_that_are_not_behind() {
    let cluster = EtcdCluster::start_with_proxies(3, &EtcdOptions::new()).unwrap();
    let url = cluster.url();
    let reader = connect(&url).await.unwrap();
    let (_locks, guards) = holder(&url).await;
    for member in 0..3 {
        cluster.silence(member, true);
        let what = format!("member {member} is behind");
        listed_again(&reader, &what).await;
        both_are_listed(&url, &reader, &guards, &what).await;
        cluster.silence(member, false);
    }
}

#[tokio::test]
async fn h315_lists_go_on_while_a_server_of_zookeeper_is_down() {
    let mut ensemble = ZooKeeperEnsemble::start(3, &ZooKeeperOptions::new()).unwrap();
    let url = ensemble.url();
    let (reader, guards) = holder(&url).await;
    for member in 0..3 {
        let leads = ensemble.leader().unwrap() == member;
        ensemble.member_mut(member).kill();
        let what = format!("server {member} is down, leads: {leads}");
        listed_again(&reader, &what).await;
        both_are_listed(&url, &reader, &guards, &what).await;
        ensemble.member_mut(member).restart().unwrap();
        ensemble.await_serving().unwrap();
    }
}

#[tokio::test]
async fn h315_lists_are_of_the_primary_of_postgres() {
    let options = PostgresOptions::new().setting("fsync=on");
    let primary = PostgresServer::start_with(&options).unwrap();
    latchwork::init(&primary.url()).await.unwrap();
    // It was copied before the locks were taken, and replays nothing: it is behind.
    let standby = primary.copy(true).unwrap();
    standby.psql("SELECT pg_wal_replay_pause()").unwrap();
    let silent = std::net::SocketAddr::from(([127, 0, 0, 77], primary.port()));
    let _silent = Silent::at(silent).unwrap();
    let url = format!(
        "postgres://postgres@{silent},127.0.0.1:{},127.0.0.1:{}/postgres",
        standby.port(),
        primary.port()
    );
    let (reader, guards) = holder(&url).await;
    both_are_listed(&url, &reader, &guards, "a silent host and a standby come first").await;
}

#[tokio::test]
async fn h315_lists_are_of_the_master_behind_sentinel() {
    let mut set = SentinelSet::start(&SentinelOptions::default()).unwrap();
    let url = format!("{}?min_replicas=1", set.url());
    let (reader, guards) = holder(&url).await;
    let replica = set.replicas().unwrap()[0];
    set.node_mut(replica).kill();
    both_are_listed(&url, &reader, &guards, "a replica is down").await;
    set.node_mut(replica).restart(Data::Empty).unwrap();
    set.wait_settled(ELECTED).unwrap();
    let old = set.kill_master().unwrap();
    listed_again(&reader, "the master is down").await;
    set.wait_for_new_master(old, ELECTED).unwrap();
    both_are_listed(&url, &reader, &guards, "another master").await;
}

#[tokio::test]
async fn h315_lists_of_redlock_name_the_node_that_is_away() {
    let (mut servers, url) = stores::redlock();
    let (reader, guards) = holder(&url).await;
    let notes = both_are_listed(&url, &reader, &guards, "all are there").await;
    assert_eq!(notes, [""; 0]);
    let named = |notes: &[String], port: u16| {
        notes.iter().any(|note| note.contains(&format!("127.0.0.1:{port}")))
    };
    let port = servers[0].port();
    servers[2].stop().unwrap();
    let notes = both_are_listed(&url, &reader, &guards, "one is silent").await;
    assert!(named(&notes, servers[2].port()), "{notes:?}");
    servers[2].cont().unwrap();
    servers[0].kill();
    let notes = both_are_listed(&url, &reader, &guards, "one is down").await;
    assert!(named(&notes, port), "{notes:?}");
    servers[0].restart(Data::Empty).unwrap();
    both_are_listed(&url, &reader, &guards, "one has lost what it had").await;
    // What one of three has may be held with the vote of another that does not answer.
    servers[2].stop().unwrap();
    let listed = reader.list("").await.unwrap();
    let keys: Vec<_> = listed.iter().map(|one| one.key.as_str()).collect();
    assert_eq!(keys, ["a", "b"], "{listed:?}");
    let told = |notes: &[String]| notes.iter().any(|note| note.contains("others decide"));
    assert!(listed.iter().all(|one| told(&one.notes)), "{listed:?}");
    servers[2].cont().unwrap();
}

/// A list of many locks of a server that is far away takes a few round trips, not one for each lock.
async fn far_away(url: &str, ports: &[u16], through: impl Fn(&[u16]) -> String) {
    const LOCKS: usize = 200;
    const TRIP: Duration = Duration::from_millis(50);
    let proxies: Vec<_> = ports.iter().map(|port| Proxy::plain(*port).unwrap()).collect();
    let (holder, ports) = (connect(url).await.unwrap(), proxies.iter().map(Proxy::port));
    let reader = connect(&through(&ports.collect::<Vec<_>>())).await.unwrap();
    let names: Vec<_> = (0..LOCKS).map(|n| format!("lock {n:03}")).collect();
    let taken = names.iter().map(|name| {
        let lock = holder.mutex(name).ttl(4 * TTL);
        async move { lock.acquire().await }
    });
    let _guards = futures_util::future::try_join_all(taken).await.unwrap();
    // What a list takes of the processors is no part of the way.
    let start = Instant::now();
    reader.list("").await.unwrap();
    let near = start.elapsed();
    proxies.iter().for_each(|proxy| proxy.set_round_trip(TRIP));
    let start = Instant::now();
    let listed = reader.list("lock ").await.unwrap();
    let took = start.elapsed();
    assert_eq!(listed.iter().map(|one| one.key.as_str()).collect::<Vec<_>>(), names);
    assert!(listed.iter().all(|one| one.holders.len() == 1 && one.notes.is_empty()), "{listed:?}");
    assert!(took < 2 * near + TRIP * LOCKS as u32 / 2, "{took:?}, and {near:?} without the way");
}

#[tokio::test]
async fn h563_a_list_of_many_locks_on_a_distant_redis_takes_a_few_round_trips() {
    let (server, url) = stores::redis();
    far_away(&url, &[server.port()], |ports| format!("redis://127.0.0.1:{}", ports[0])).await;
}

/// All nodes of Redlock together.
#[tokio::test]
async fn h563_a_list_of_many_locks_on_a_distant_redlock_takes_a_few_round_trips() {
    let (servers, url) = stores::redlock();
    let ports: Vec<_> = servers.iter().map(|server| server.port()).collect();
    far_away(&url, &ports, |ports| {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redlock://{}?guard=false", hosts.join(","))
    })
    .await;
}

#[tokio::test]
async fn h563_a_list_of_many_locks_on_a_distant_etcd_takes_a_few_round_trips() {
    let (server, url) = stores::etcd();
    far_away(&url, &[server.port()], |ports| format!("etcd://127.0.0.1:{}", ports[0])).await;
}

#[tokio::test]
async fn h563_a_list_of_many_locks_on_a_distant_zookeeper_takes_a_few_round_trips() {
    let (server, url) = stores::zookeeper();
    far_away(&url, &[server.port()], |ports| format!("zk://127.0.0.1:{}", ports[0])).await;
}

#[tokio::test]
async fn h563_a_list_of_many_locks_on_a_distant_postgres_takes_a_few_round_trips() {
    let (server, url) = stores::postgres();
    far_away(&url, &[server.port()], |ports| {
        format!("postgres://postgres@127.0.0.1:{}/postgres", ports[0])
    })
    .await;
}

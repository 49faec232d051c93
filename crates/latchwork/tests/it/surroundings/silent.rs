//! Addresses that drop packets: a host of a name or of a list that is off.
//!
//! Each server stands behind a proxy at 127.0.0.1; at the same port of other addresses nobody answers.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use latchwork::connect;
use latchwork_services::{Cut, Proxy, SentinelOptions, SentinelSet, Silent};
use latchwork_wire::testing::name_host;
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]
use latchwork_wire::testing::{lookups_of, name_host_slowly};

use super::stores;

/// What a silent address may cost.
const COST: Duration = Duration::from_millis(400);
/// The shortest ttl that all stores take.
const TTL: Duration = Duration::from_secs(3);
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An address that this process has not met before.
fn unmet() -> IpAddr {
    static NEXT: AtomicU8 = AtomicU8::new(2);
    Ipv4Addr::new(127, 0, 0, NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// A name of its own, with these addresses.
fn name(addresses: &[IpAddr]) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("silent-{}.test", NEXT.fetch_add(1, Ordering::Relaxed));
    name_host(&name, addresses);
    name
}

/// A connection and a grant, and how long both took.
async fn first_grant(url: &str) -> Duration {
    let start = Instant::now();
    let locks = connect(url).await.unwrap();
    let guard = locks.mutex("first").ttl(TTL).acquire().await.unwrap();
    let took = start.elapsed();
    guard.release().await.unwrap();
    locks.close().await;
    took
}

/// What an address costs beyond another one of the same server. On a busy machine each costs more, so the least of some
/// counts, each through a silent address that this process has not met before.
async fn costs_little(plain: &str, port: u16, silent: impl Fn(IpAddr) -> String) {
    let (mut usual, mut took) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        let address = unmet();
        let _silent = Silent::at((address, port).into()).unwrap();
        usual = usual.min(first_grant(plain).await);
        took = took.min(first_grant(&silent(address)).await);
    }
    assert!(took < usual + COST, "{plain}: {took:?}; without the silent address {usual:?}");
}

/// A hold whose connections are cut: the next ones meet a silent address first, which this process has not met before.
async fn outlives(ttl: Duration, url: &str, name: &str, silent: IpAddr, proxy: &Proxy) {
    let locks = connect(url).await.unwrap();
    let guard = locks.mutex("held").ttl(ttl).acquire().await.unwrap();
    name_host(name, &[silent, HERE]);
    for _ in 0..3 {
        proxy.cut(Cut::Reset).unwrap();
        tokio::time::sleep(ttl / 2).await;
        guard.ensure_held().unwrap();
    }
    guard.release().await.unwrap();
}

async fn a_name_and_a_list(server_port: u16, url: impl Fn(&str, u16) -> String, has_lists: bool) {
    let proxy = Proxy::plain(server_port).unwrap();
    let port = proxy.port();
    let plain = url("127.0.0.1", port);
    costs_little(&plain, port, |silent| url(&name(&[silent, HERE]), port)).await;
    if has_lists {
        let listed = |silent| url(&format!("{silent}:{port},127.0.0.1"), port);
        costs_little(&plain, port, listed).await;
    }
    let (other, silent) = (name(&[HERE]), unmet());
    let _silent = Silent::at((silent, port).into()).unwrap();
    outlives(TTL, &url(&other, port), &other, silent, &proxy).await;
}

/// A name whose every lookup takes longer than a connection may: the first name server is off. A hold is taken, and its
/// connections are cut.
#[cfg(any(feature = "redis", feature = "etcd", feature = "zookeeper", feature = "postgres"))]
async fn a_slow_name(server_port: u16, url: impl Fn(&str, u16) -> String) {
    let (proxy, host) = (Proxy::plain(server_port).unwrap(), name(&[HERE]));
    name_host_slowly(&host, &[HERE], Duration::from_secs(5));
    let locks = connect(&url(&host, proxy.port())).await.unwrap();
    let guard = locks.mutex("held").ttl(TTL).acquire().await.unwrap();
    for _ in 0..2 {
        proxy.cut(Cut::Reset).unwrap();
        tokio::time::sleep(TTL).await;
        guard.ensure_held().unwrap();
    }
    guard.release().await.unwrap();
    let lookups = lookups_of(&host);
    assert!(lookups <= 4, "{lookups} lookups");
}

/// A hold whose connections are cut, while the first address of its name takes connections and says nothing on them.
#[cfg(any(feature = "redis", feature = "zookeeper"))]
async fn a_mute_address(server_port: u16, url: impl Fn(&str, u16) -> String) {
    let (proxy, host, mute) = (Proxy::plain(server_port).unwrap(), name(&[HERE]), unmet());
    let _mute = std::net::TcpListener::bind((mute, proxy.port())).unwrap();
    outlives(TTL * 3 / 2, &url(&host, proxy.port()), &host, mute, &proxy).await;
}

/// What takes connections at an address and says nothing on them costs a first grant less than that, by a name and in
/// a list; and a hold whose connections are cut outlives it.
#[cfg(any(feature = "etcd", feature = "postgres"))]
async fn passes_a_mute(server_port: u16, cost: Duration, url: impl Fn(&str, u16) -> String) {
    let (proxy, other) = (Proxy::plain(server_port).unwrap(), name(&[HERE]));
    let port = proxy.port();
    let usual = first_grant(&url("127.0.0.1", port)).await;
    let at = |mute: IpAddr| std::net::TcpListener::bind((mute, port)).unwrap();
    let (one, two) = (unmet(), unmet());
    let _mute = (at(one), at(two));
    for hosts in [name(&[one, HERE]), format!("{two}:{port},127.0.0.1")] {
        let took = first_grant(&url(&hosts, port)).await;
        assert!(took < usual + cost, "{hosts}: {took:?}; without the mute address {usual:?}");
    }
    let mute = unmet();
    let _held_up = at(mute);
    // The second cut comes when the attempt beside the mute one has just begun (H549).
    outlives(TTL * 2, &url(&other, port), &other, mute, &proxy).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h513_a_slow_name_of_redis_loses_no_hold() {
    let (server, _) = stores::redis();
    a_slow_name(server.port(), |host, port| format!("redis://{host}:{port}")).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn h513_a_slow_name_of_etcd_loses_no_hold() {
    let (server, _) = stores::etcd();
    a_slow_name(server.port(), |host, port| format!("etcd://{host}:{port}")).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn h513_a_slow_name_of_zookeeper_loses_no_hold() {
    let (server, _) = stores::zookeeper();
    a_slow_name(server.port(), |host, port| format!("zk://{host}:{port}")).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn h513_a_slow_name_of_postgres_loses_no_hold() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    latchwork::init(&server.url()).await.unwrap();
    a_slow_name(server.port(), |host, port| {
        format!("postgres://postgres@{host}:{port}/postgres?connect_timeout=1")
    })
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h513_a_slow_name_of_a_sentinel_is_waited_for() {
    let set = SentinelSet::start(&SentinelOptions::default()).unwrap();
    let (port, host) = (set.sentinel_ports()[0], name(&[HERE]));
    name_host_slowly(&host, &[HERE], Duration::from_secs(5));
    first_grant(&format!("redis+sentinel://{host}:{port}/{}", set.name())).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h513_a_slow_name_of_a_cluster_is_waited_for() {
    let (_cluster, plain) = stores::cluster();
    let (_, port) = plain.rsplit_once(':').unwrap();
    let host = name(&[HERE]);
    name_host_slowly(&host, &[HERE], Duration::from_secs(5));
    first_grant(&format!("redis+cluster://{host}:{port}")).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h514_a_mute_address_of_redis_loses_no_hold() {
    let (server, _) = stores::redis();
    a_mute_address(server.port(), |host, port| format!("redis://{host}:{port}")).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn h514_a_mute_address_of_zookeeper_loses_no_hold() {
    let (server, _) = stores::zookeeper();
    a_mute_address(server.port(), |host, port| format!("zk://{host}:{port}")).await;
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn h528_a_mute_address_of_etcd_costs_little_and_no_hold() {
    let (server, _) = stores::etcd();
    let url = |host: &str, port: u16| format!("etcd://{host}:{port}");
    passes_a_mute(server.port(), Duration::from_secs(1), url).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn h528_a_mute_address_of_postgres_costs_little_and_no_hold() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    latchwork::init(&server.url()).await.unwrap();
    let url = |host: &str, port: u16| format!("postgres://postgres@{host}:{port}/postgres");
    // Each of two connections waits for the other host for a second. Without that it would be the timeout, 5 s.
    passes_a_mute(server.port(), Duration::from_millis(3_500), url).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h246_a_silent_address_of_redis_costs_little() {
    let (server, _) = stores::redis();
    a_name_and_a_list(server.port(), |host, port| format!("redis://{host}:{port}"), false).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h246_a_silent_sentinel_costs_little() {
    let set = SentinelSet::start(&SentinelOptions::default()).unwrap();
    let port = set.sentinel_ports()[0];
    let url = |hosts: &str| format!("redis+sentinel://{hosts}/{}", set.name());
    let plain = url(&format!("127.0.0.1:{port}"));
    costs_little(&plain, port, |silent| url(&format!("{silent}:{port},127.0.0.1:{port}"))).await;
    let two = |silent| url(&format!("{}:{port}", name(&[silent, HERE])));
    costs_little(&plain, port, two).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn h246_a_silent_seed_of_a_cluster_costs_little() {
    let (_cluster, plain) = stores::cluster();
    let hosts = plain.strip_prefix("redis+cluster://").unwrap();
    let (_, port) = hosts.split(',').next().unwrap().rsplit_once(':').unwrap();
    let two = |silent| format!("redis+cluster://{silent}:{port},127.0.0.1:{port}");
    costs_little(&plain, port.parse().unwrap(), two).await;
}

/// H314: whichever of the members it is, a majority of the others decides, at the start and from some moment on under
/// a hold.
#[cfg(feature = "redis")]
#[tokio::test]
async fn h314_a_silent_member_of_redlock_costs_the_others_nothing() {
    let (servers, _) = stores::redlock();
    let at = |member: usize, host: &str, port: u16| {
        let hosts = servers.iter().enumerate().map(|(n, server)| match n == member {
            true => format!("{host}:{port}"),
            false => format!("127.0.0.1:{}", server.port()),
        });
        format!("redlock://{}?guard=false", hosts.collect::<Vec<_>>().join(","))
    };
    for member in [0, 2] {
        let port = servers[member].port();
        let plain = at(member, "127.0.0.1", port);
        costs_little(&plain, port, |silent| at(member, &silent.to_string(), port)).await;
    }
    let proxy = Proxy::redis(servers[1].port()).unwrap();
    let (other, silent) = (name(&[HERE]), unmet());
    let _silent = Silent::at((silent, proxy.port()).into()).unwrap();
    let locks = connect(&at(1, &other, proxy.port())).await.unwrap();
    let guard = locks.mutex("held").ttl(TTL).acquire().await.unwrap();
    name_host(&other, &[silent]);
    proxy.cut(Cut::Reset).unwrap();
    let (start, mut longest) = (Instant::now(), Vec::new());
    while start.elapsed() < TTL * 2 {
        let asked = Instant::now();
        let beside = locks.mutex("beside").ttl(TTL).acquire().await.unwrap();
        beside.release().await.unwrap();
        longest.push(asked.elapsed());
        guard.ensure_held().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // A busy machine delays some of them, and a member that is waited for delays all.
    longest.sort_unstable();
    assert!(longest[longest.len() / 2] < Duration::from_millis(100), "{longest:?}");
    guard.release().await.unwrap();
}

#[cfg(feature = "etcd")]
#[tokio::test]
async fn h246_a_silent_address_of_etcd_costs_little() {
    let (server, _) = stores::etcd();
    a_name_and_a_list(server.port(), |host, port| format!("etcd://{host}:{port}"), true).await;
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn h246_a_silent_address_of_zookeeper_costs_little() {
    let (server, _) = stores::zookeeper();
    a_name_and_a_list(server.port(), |host, port| format!("zk://{host}:{port}"), true).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn h246_a_silent_address_of_postgres_costs_little() {
    let server = latchwork_services::PostgresServer::start().unwrap();
    latchwork::init(&server.url()).await.unwrap();
    let url = |host: &str, port: u16| format!("postgres://postgres@{host}:{port}/postgres");
    a_name_and_a_list(server.port(), url, true).await;
}

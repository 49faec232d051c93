//! The table "What it prevents" of docs/guard.md, row by row, with one to three replicas.

use std::sync::Mutex;

use latchwork::HoldState;
use latchwork_services::{Data, Direction, Persistence, Proxy, RedisOptions, RedisServer, Value};

use crate::common::turning::Turning;
use crate::common::*;
use crate::surroundings::believer::{Believer, TTL, at, granted_at_last, init, locks};

const PAGE: &str = include_str!("../../../../../docs/guard.md");
const GUARDED: &str = "guard=true&max_ttl=5s";
/// A master whose replicas are away stops within two seconds and two.
const LAG: &str = "2";
const DEPOSED: &str = "guard=true&max_ttl=5s&deposed=4s";
/// So many disasters are played at a time.
const AT_ONCE: usize = 16;

/// A row of the table, by its first cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Restart(Data),
    Flush,
    SwapBack,
    Crash,
    ToAndFro,
    FastClock,
    OtherServer,
    EmptyMaster,
    Deletion,
    /// So many replicas stay with the master that was replaced.
    Partition(usize),
}

impl Row {
    fn cell(self) -> &'static str {
        match self {
            Self::Restart(_) => "restart without data, or with old data (H35, H36)",
            Self::Flush => "`FLUSHALL`, `FLUSHDB`, `SWAPDB` (H38)",
            Self::SwapBack => "`SWAPDB` and back (H228)",
            Self::Crash => "crash of the master, failover to a replica that lacks the lock (H33)",
            Self::ToAndFro => "failover and back (H37)",
            Self::FastClock => {
                "failover to a replica whose clock is ahead, which ends locks early (H47)"
            }
            Self::OtherServer => "another server behind the same connection (H52)",
            Self::EmptyMaster => {
                "a master that comes back empty at once and empties its replicas (H92)"
            }
            Self::Deletion => "all keys of a namespace deleted by one command (H91)",
            Self::Partition(_) => {
                "partition that leaves clients and replicas with the replaced master (H34, H84)"
            }
        }
    }

    fn all(replicas: usize) -> Vec<Self> {
        let mut rows = vec![
            Self::Restart(Data::Empty),
            Self::Restart(Data::OldSnapshot),
            Self::Flush,
            Self::SwapBack,
            Self::Crash,
            Self::ToAndFro,
            Self::FastClock,
            Self::OtherServer,
            Self::EmptyMaster,
            Self::Deletion,
        ];
        rows.extend((0..replicas).map(Self::Partition));
        rows
    }
}

/// A master and its replicas, each behind a link that can be cut.
struct Set {
    master: RedisServer,
    replicas: Vec<RedisServer>,
    links: Vec<Proxy>,
}

impl Set {
    async fn start(options: RedisOptions, count: usize) -> Self {
        let master = RedisServer::start(&options).unwrap();
        let links: Vec<_> = (0..count).map(|_| Proxy::plain(master.port()).unwrap()).collect();
        let follow =
            |link: &Proxy| RedisServer::start(&options.clone().replica_of(link.port())).unwrap();
        let replicas = links.iter().map(follow).collect();
        let set = Self { master, replicas, links };
        set.in_step().await;
        set
    }

    async fn in_step(&self) {
        for replica in &self.replicas {
            follows(replica, &self.master).await;
        }
    }

    fn cut(&self, links: impl IntoIterator<Item = usize>) {
        for link in links {
            self.links[link].freeze(Direction::ToServer);
            self.links[link].freeze(Direction::ToClient);
        }
    }

    /// The last replica becomes the master; those from `first` on follow it.
    fn promote_last(&self, first: usize) -> u16 {
        let (last, others) = self.replicas.split_last().unwrap();
        ask(last, &["REPLICAOF", "NO", "ONE"]).ok().unwrap();
        for other in others.iter().skip(first) {
            ask(other, &["REPLICAOF", "127.0.0.1", &last.port().to_string()]).ok().unwrap();
        }
        last.port()
    }

    /// How many replicas a master needs to go on writing.
    fn write_with(&self, least: usize) {
        for server in self.replicas.iter().chain([&self.master]) {
            for (name, value) in
                [("min-replicas-max-lag", LAG), ("min-replicas-to-write", &least.to_string())]
            {
                ask(server, &["CONFIG", "SET", name, value]).ok().unwrap();
            }
        }
    }
}

async fn follows(replica: &RedisServer, master: &RedisServer) {
    let field = |server: &RedisServer, name: &str| server.info(name).unwrap_or_default();
    until("the replica follows", 30 * SEC, || {
        field(replica, "master_link_status") == "up"
            && field(replica, "slave_repl_offset") == field(master, "master_repl_offset")
    })
    .await;
}

/// Plays a disaster with the guard on; tells whether there were two holders.
async fn two_hold(row: Row, count: usize) -> bool {
    let plain = RedisOptions::new();
    match row {
        Row::Restart(data) => {
            let mut set = Set::start(plain.persistence(Persistence::Snapshot), count).await;
            init(&at(set.master.port(), GUARDED)).await;
            // A replica that has just come may still be the cause of another save.
            until("a snapshot", 10 * SEC, || set.master.save_snapshot().is_ok()).await;
            let first = Believer::hold(set.master.port(), GUARDED, "k").await;
            set.master.restart(data).unwrap();
            first.is_joined_at(set.master.port(), GUARDED, "k").await
        }
        Row::Flush => {
            let set = Set::start(plain, count).await;
            let port = set.master.port();
            init(&at(port, GUARDED)).await;
            // Another database with a good marker of its own.
            init(&at(port, GUARDED).replace('?', "/1?")).await;
            let first = Believer::hold(port, GUARDED, "k").await;
            let flush = [&["FLUSHALL"][..], &["FLUSHDB"], &["SWAPDB", "0", "1"]][count - 1];
            ask(&set.master, flush).ok().unwrap();
            first.is_joined_at(port, GUARDED, "k").await
        }
        Row::SwapBack => {
            let set = Set::start(plain, count).await;
            let port = set.master.port();
            init(&at(port, GUARDED)).await;
            ask(&set.master, &["SWAPDB", "0", "1"]).ok().unwrap();
            init(&at(port, GUARDED)).await;
            let first = Believer::hold(port, GUARDED, "k").await;
            ask(&set.master, &["SWAPDB", "0", "1"]).ok().unwrap();
            first.is_joined_at(port, GUARDED, "k").await
        }
        Row::Crash | Row::FastClock => {
            let fast = row == Row::FastClock;
            let mut set = Set::start(if fast { plain.with_clock() } else { plain }, count).await;
            init(&at(set.master.port(), GUARDED)).await;
            set.in_step().await;
            if fast {
                for replica in &set.replicas {
                    replica.clock().unwrap().step_forward(120 * SEC).unwrap();
                }
            } else {
                set.cut(0..count);
            }
            let first = Believer::hold(set.master.port(), GUARDED, "k").await;
            if fast {
                set.in_step().await;
            }
            set.master.kill();
            let port = set.promote_last(0);
            first.is_joined_at(port, GUARDED, "k").await
        }
        Row::ToAndFro => {
            let set = Set::start(plain, count).await;
            init(&at(set.master.port(), GUARDED)).await;
            set.in_step().await;
            let promoted = set.promote_last(0);
            let back = Proxy::plain(promoted).unwrap();
            let to = back.port().to_string();
            ask(&set.master, &["REPLICAOF", "127.0.0.1", &to]).ok().unwrap();
            follows(&set.master, set.replicas.last().unwrap()).await;
            back.freeze(Direction::ToClient);
            back.freeze(Direction::ToServer);
            let first = Believer::hold(promoted, GUARDED, "k").await;
            ask(&set.master, &["REPLICAOF", "NO", "ONE"]).ok().unwrap();
            first.is_joined_at(set.master.port(), GUARDED, "k").await
        }
        Row::OtherServer => {
            let (set, other) =
                (Set::start(plain.clone(), count).await, Set::start(plain, count).await);
            let options = format!("{GUARDED}&via_proxy=true");
            init(&at(set.master.port(), &options)).await;
            init(&at(other.master.port(), &options)).await;
            // As good a marker as there can be: that of the first server.
            let marker = ask(&set.master, &["GET", "lw:guard"]).text();
            let own = |name| (set.master.info(name).unwrap(), other.master.info(name).unwrap());
            let (theirs, ours) = own("master_replid");
            let marker = marker.replace(&theirs, &ours);
            ask(&other.master, &["SET", "lw:guard", &marker]).ok().unwrap();
            let proxy = Turning::start(set.master.port()).await;
            let next = locks(&at(proxy.port, &options)).await;
            assert!(next.inspect("k").await.unwrap().is_free());
            let first = Believer::hold(set.master.port(), &options, "k").await;
            proxy.turn_to(other.master.port()).await;
            let _second = granted_at_last(&next, "k").await;
            first.believes()
        }
        Row::EmptyMaster => {
            let options = format!("{GUARDED}&min_replicas={count}");
            let mut set = Set::start(plain, count).await;
            init(&at(set.master.port(), &options)).await;
            let first = Believer::hold(set.master.port(), &options, "k").await;
            set.master.restart(Data::Empty).unwrap();
            set.in_step().await;
            first.is_joined_at(set.master.port(), &options, "k").await
        }
        Row::Deletion => {
            let set = Set::start(plain, count).await;
            let port = set.master.port();
            init(&at(port, GUARDED)).await;
            let first = Believer::hold(port, GUARDED, "k").await;
            let keys = ask(&set.master, &["KEYS", "*"]);
            let names: Vec<String> = keys.list().iter().map(Value::text).collect();
            let names = names.iter().map(String::as_str);
            ask(&set.master, &["DEL"].into_iter().chain(names).collect::<Vec<_>>()).ok().unwrap();
            first.is_joined_at(port, GUARDED, "k").await
        }
        Row::Partition(stay) => partition(count, stay, count, DEPOSED).await,
    }
}

/// A partition: so many replicas stay with the master, with its client; the last one is promoted on
/// the other side, where the others and another client are. A master writes with so many replicas
/// at least; the client with the master has these options. Tells whether both clients hold the key in
/// the end.
async fn partition(count: usize, stay: usize, least: usize, options: &str) -> bool {
    let set = Set::start(RedisOptions::new(), count).await;
    let port = set.master.port();
    init(&at(port, DEPOSED)).await;
    set.in_step().await;
    set.write_with(least);
    let near = locks(&at(port, options)).await;
    let first = granted_at_last(&near, "k").await;
    assert!(first.ensure_held().is_ok());
    set.in_step().await;
    set.cut(stay..count);
    let promoted = set.promote_last(stay);
    // On the other side nobody may be missing, or it would not write either: there the operator
    // has added servers.
    ask(set.replicas.last().unwrap(), &["CONFIG", "SET", "min-replicas-to-write", "0"]);
    let far = locks(&at(promoted, DEPOSED)).await;
    let second = granted_at_last(&far, "k").await;
    let both = first.state() == HoldState::Held && second.state() == HoldState::Held;
    let beside = near.mutex("k").ttl(TTL).try_acquire().await;
    assert!(both || !matches!(beside, Ok(Some(_))), "the replaced master still grants");
    both
}

/// The rows of the table, by their first cells.
fn rows_of_the_page() -> Vec<&'static str> {
    let table = PAGE.split_once("## What it prevents").unwrap().1;
    let lines = table.lines().skip_while(|line| !line.starts_with("| fault"));
    let rows = lines.skip(2).take_while(|line| line.starts_with("| "));
    rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect()
}

/// H84: what the page says, and no row of it is left out.
#[test]
fn h84_the_guards_table_holds_for_1_to_3_replicas() {
    let mut played: Vec<_> = Row::all(1).into_iter().map(Row::cell).collect();
    played.dedup();
    assert_eq!(played, rows_of_the_page());
    let scenes = (1..=3).flat_map(|count| Row::all(count).into_iter().map(move |row| (row, count)));
    let scenes = Mutex::new(scenes.collect::<Vec<_>>());
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let next = scenes.lock().unwrap().pop();
                    let Some((row, count)) = next else { return };
                    let played = std::panic::catch_unwind(|| {
                        run(async { assert!(!two_hold(row, count).await, "two holders") });
                    });
                    if played.is_err() {
                        failed.lock().unwrap().push((row, count));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "rows, each with the number of replicas: {failed:?}");
}

/// H84, without the remedy: where the replaced master keeps as many replicas as it needs to write,
/// it goes on for as long as the partition lasts, and the guard does not help.
#[test]
fn h84_a_master_that_keeps_enough_replicas_makes_two_holders() {
    run(async {
        let (two, three, most) = tokio::join!(
            partition(2, 1, 1, DEPOSED),
            partition(3, 1, 1, DEPOSED),
            partition(3, 2, 2, DEPOSED)
        );
        assert!(two && three && most, "{two} {three} {most}");
    });
}

/// H84: the other way. A lock that counts only when more replicas have it than may stay does not
/// outlive its validity on a replaced master, whatever the servers' settings are.
#[test]
fn h84_min_replicas_of_all_stops_a_replaced_master() {
    run(async {
        let (two, three) =
            (format!("{DEPOSED}&min_replicas=2"), format!("{DEPOSED}&min_replicas=3"));
        let (two, three) = tokio::join!(partition(2, 1, 0, &two), partition(3, 2, 0, &three));
        assert!(!two && !three, "{two} {three}");
    });
}

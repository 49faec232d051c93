//! What locks cost: trips over a slow way, and statements as the server logs them.

use std::fs;
use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::{Direction, PostgresOptions, PostgresServer, Proxy};
use latchwork_store::{Backend, Linger, Mode, Released, Renewal};

const TRIP: Duration = Duration::from_millis(120);

/// How many trips the quickest of several rounds took: the machine makes some slower, none faster.
fn trips(rounds: &[Duration]) -> u32 {
    let quickest = rounds.iter().min().expect("some rounds");
    (quickest.as_millis() / TRIP.as_millis()) as u32
}

fn through(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
}

/// The engine above it, as a program uses it.
#[test]
fn a_free_lock_is_one_trip_and_so_is_its_release() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let bare = bare(&through(&proxy)).await;
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, TRIP / 2);
        }
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        for _ in 0..5 {
            let start = Instant::now();
            let guard = bare.locks().mutex("k").acquire().await.unwrap();
            acquires.push(start.elapsed());
            let start = Instant::now();
            guard.release().await.unwrap();
            releases.push(start.elapsed());
        }
        assert_eq!((trips(&acquires), trips(&releases)), (1, 1), "{acquires:?} {releases:?}");
    });
}

/// A server that logs each statement.
pub(crate) fn logging() -> PostgresServer {
    server_with(&PostgresOptions::new().setting("log_statement=all"), "")
}

/// The statements that a connection of Latchwork has sent since the log had this length.
pub(crate) fn statements(server: &PostgresServer, from: usize) -> Vec<String> {
    let log = fs::read_to_string(server.folder().join("log")).unwrap();
    let sent = log[from..].lines().filter(|line| line.contains("LOG:  execute "));
    sent.map(|line| line.chars().skip(line.find("execute").unwrap()).take(90).collect()).collect()
}

pub(crate) fn length(server: &PostgresServer) -> usize {
    fs::read_to_string(server.folder().join("log")).unwrap().len()
}

#[test]
fn a_free_lock_is_one_statement_and_so_is_its_release() {
    let server = logging();
    run(async {
        let bare = bare(&server.url()).await;
        // The first call of a function in a session plans its statements (`h191_...`).
        let reader = claim("first").with(|it| it.mode = Mode::Read);
        bare.granted(&reader).await;
        bare.released(&reader).await;
        let modes = [Mode::Exclusive, Mode::Write, Mode::Read, Mode::Permits { take: 1, of: 3 }];
        for (key, mode) in ["x", "w", "r", "p"].into_iter().zip(modes) {
            let claim = claim(key).with(|it| it.mode = mode);
            // The first use of a key makes its row; the second one finds it.
            for _ in 0..2 {
                let from = length(&server);
                bare.granted(&claim).await;
                let taken = statements(&server, from);
                assert_eq!(taken.len(), 1, "{mode:?}: {taken:?}");
                let from = length(&server);
                assert_eq!(bare.released(&claim).await, Released::Yes);
                let ended = statements(&server, from);
                // Members share a key: their end is a call of the function alone.
                let is_alone = matches!(mode, Mode::Exclusive | Mode::Write);
                assert_eq!(ended.len(), 1, "{mode:?} {is_alone}: {ended:?}");
            }
        }
    });
}

/// The releaser's statement hands on; one more wakes the other process, and nobody polls.
#[test]
fn a_hand_off_is_a_release_a_notification_and_no_try() {
    let server = logging();
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let (held, waits) = (claim("k"), like(&claim("k")));
        one.granted(&held).await;
        let blocked = two.blocked(&waits).await;
        // The first wait ends when the process listens; the place in the queue then names its channel.
        two.wait(&waits, &blocked).await.unwrap();
        let blocked = two.blocked(&waits).await;
        let wait = two.wait(&waits, &blocked);
        let release = async {
            tokio::time::sleep(300 * MS).await;
            let from = length(&server);
            one.released(&held).await;
            from
        };
        let (wake, from) = tokio::join!(wait, release);
        assert!(matches!(wake, Ok(latchwork_store::Wake::Admitted { .. })), "{wake:?}");
        let sent = statements(&server, from);
        // The free release finds a queue and does nothing.
        assert_eq!(sent.len(), 3, "{sent:#?}");
        assert!(sent[0].contains("Ends a claim") && sent[2].contains("Notifies"), "{sent:#?}");
        assert!(two.held(&waits).await);
        // Who has come from the queue asks for it at once.
        let third = like(&held);
        let blocked = one.blocked(&third).await;
        one.wait(&third, &blocked).await.unwrap();
        one.blocked(&third).await;
        let from = length(&server);
        two.released(&waits).await;
        until(&server, "SELECT count(*) FROM latchwork_line", |n| n == "0").await;
        // Nobody waits for the notification to be sent.
        let start = std::time::Instant::now();
        while statements(&server, from).len() < 2 && start.elapsed() < 5_000 * MS {
            tokio::time::sleep(20 * MS).await;
        }
        let sent = statements(&server, from);
        assert_eq!(sent.len(), 2, "{sent:#?}");
    });
}

/// The notification goes out with the release, and not after its answer.
#[test]
fn a_hand_off_takes_the_releaser_half_a_trip() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let (far, near) = (bare(&through(&proxy)).await, bare(&server.url()).await);
        for direction in [Direction::ToServer, Direction::ToClient] {
            proxy.delay(direction, TRIP / 2);
        }
        let mut took = Vec::new();
        for round in 0..5 {
            let (first, waits) = (claim(&format!("k{round}")), like(&claim(&format!("k{round}"))));
            near.granted(&first).await;
            let from_the_line = like(&first);
            let release = async {
                until(&server, "SELECT count(*) FROM latchwork_line", |n| n == "1").await;
                near.released(&first).await;
            };
            tokio::join!(far.acquired(&from_the_line), release);
            let release = async {
                let listens = "SELECT count(*) FROM latchwork_line WHERE process IS NOT NULL";
                until(&server, listens, |n| n == "1").await;
                let start = Instant::now();
                far.released(&from_the_line).await;
                start
            };
            let admitted = async {
                near.acquired(&waits).await;
                Instant::now()
            };
            let (admitted, start) = tokio::join!(admitted, release);
            took.push(admitted.saturating_duration_since(start));
            near.released(&waits).await;
        }
        let quickest = took.iter().min().unwrap();
        assert!((TRIP / 2..TRIP).contains(quickest), "{took:?}");
    });
}

/// What a process has delivered to its own waiters is not kept in the session: each release would read and send it again.
#[test]
fn handovers_inside_a_process_keep_no_messages() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let bare = bare(&format!("{}?connections=1", through(&proxy))).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        bare.granted(&held).await;
        let claims: Vec<_> = (0..100).map(|_| like(&held)).collect();
        let blocked = bare.blocked(&claims[0]).await;
        bare.wait(&claims[0], &blocked).await.unwrap();
        for claim in &claims {
            bare.blocked(claim).await;
        }
        proxy.reset_counts();
        bare.released(&held).await;
        for claim in &claims {
            bare.acquired(claim).await;
            bare.released(claim).await;
        }
        let [_, received] = proxy.counts().bytes;
        let each = received / claims.len() as u64;
        println!("{each} bytes for each handover");
        assert!(each < 1_500, "{each} bytes for each handover");
    });
}

#[test]
fn a_thousand_holds_are_renewed_by_two_statements() {
    let server = logging();
    run(async {
        let bare = bare(&server.url()).await;
        let claims: Vec<_> = (0..1_000).map(|n| claim(&format!("k{n}"))).collect();
        for claim in &claims {
            bare.granted(claim).await;
        }
        // Renewals have a connection of their own, which the first one makes.
        assert!(bare.held(&claims[0]).await);
        let from = length(&server);
        let renewed = bare.renew_all(&claims).await;
        assert!(renewed.iter().all(|it| matches!(it, Ok(Renewal::Held { .. }))));
        assert_eq!(statements(&server, from).len(), 2);
    });
}

/// Counted at the proxy, with all that belongs to the protocol.
#[test]
fn a_renewal_sends_64_bytes_and_the_key_for_each_claim() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let bare = bare(&through(&proxy)).await;
        let claims: Vec<_> = (0..1_000).map(|n| claim(&format!("stock/{n:06}"))).collect();
        for claim in &claims {
            bare.granted(claim).await;
        }
        assert!(bare.held(&claims[0]).await);
        // The connection for renewals, which need not wait for it.
        let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'latchwork%' AND query NOT LIKE '-- What a new%'";
        until(&server, open, |n| n == "2").await;
        proxy.reset_counts();
        let renewed = bare.renew_all(&claims).await;
        assert!(renewed.iter().all(|it| matches!(it, Ok(Renewal::Held { .. }))));
        let [sent, _] = proxy.counts().bytes;
        let keys: usize = claims.iter().map(|claim| claim.key.as_str().len()).sum();
        let most = 64 * claims.len() + keys;
        assert!((keys..=most).contains(&(sent as usize)), "{sent} bytes, {most} at most");
    });
}

/// A look at a held key that leaves nothing waits for no disk and locks nothing.
#[test]
fn a_blocked_look_writes_nothing() {
    let server = server();
    run(async {
        let bare = bare(&server.url()).await;
        bare.granted(&claim("k")).await;
        let looks = claim("k").with(|it| it.waits = false);
        bare.blocked(&looks).await;
        let written = || server.psql("SELECT pg_current_wal_insert_lsn() - '0/0'").unwrap();
        until(&server, "CHECKPOINT", |_| true).await;
        let before = written();
        for _ in 0..50 {
            bare.blocked(&looks).await;
        }
        let grown = written().parse::<u64>().unwrap() - before.parse::<u64>().unwrap();
        assert!(grown < 5_000, "{grown} bytes of log for 50 looks");
        bare.release(&looks, Linger::None).await.unwrap();
    });
}

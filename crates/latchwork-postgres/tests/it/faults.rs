//! Servers and connections that break.

use std::time::Instant;

use crate::common::*;
use latchwork_services::{Cut, Direction, PostgresOptions, Proxy};
use latchwork_store::{Attempt, Backend, BackendErrorKind, Effect, Released, Renewal};

fn through(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port())
}

/// H136: the server is killed and comes back with what it has committed.
#[test]
fn h136_a_killed_server_keeps_its_locks_and_waiters() {
    let mut server = server();
    run(async {
        let (holder, waiter) = (bare(&server.url()).await, bare(&server.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let token = holder.granted(&held).await.token;
        let waits = like(&held);
        waiter.blocked(&waits).await;
        server.crash().unwrap();
        assert!(holder.held(&held).await, "it was committed");
        waiter.blocked(&waits).await;
        holder.released(&held).await;
        assert!(waiter.acquired(&waits).await.token > token);
    });
}

/// H137: `kill -9` of one server process takes all of them down, and the server recovers.
#[test]
fn h137_a_killed_server_process_loses_no_lock() {
    let server = server();
    run(async {
        let holder = bare(&server.url()).await;
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let token = holder.granted(&held).await.token;
        let pid: i32 = server
            .psql(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'latchwork%' LIMIT 1",
            )
            .unwrap()
            .parse()
            .unwrap();
        kill(pid);
        match holder.renewed(&held).await {
            Renewal::Held { token: kept, .. } => assert_eq!(kept, token),
            Renewal::Lost => panic!("it was committed"),
        }
        assert_eq!(holder.released(&held).await, Released::Yes);
    });
}

pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// H138: an administrator ends the connections.
#[test]
fn h138_ended_connections_are_replaced_and_lose_nothing() {
    let server = server();
    run(async {
        let holder = bare(&server.url()).await;
        let held = claim("k");
        holder.granted(&held).await;
        for _ in 0..5 {
            let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                 WHERE application_name LIKE 'latchwork%'";
            server.psql(end).unwrap();
            assert!(holder.held(&held).await);
            holder.blocked(&like(&held).with(|it| it.waits = false)).await;
        }
        assert_eq!(holder.released(&held).await, Released::Yes);
    });
}

/// H139: the answer of a grant is lost; the claim's id settles it.
#[test]
fn h139_a_retry_after_a_lost_answer_gets_the_same_grant() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let (client, other) = (bare(&through(&proxy)).await, bare(&server.url()).await);
        for round in 0..5 {
            let claim = claim(&format!("k{round}"));
            proxy.lose_answers(true);
            let lost = tokio::time::timeout(300 * MS, client.try_acquire(&claim)).await;
            assert!(lost.is_err(), "{lost:?}");
            until(&server, "SELECT count(*) FROM latchwork WHERE claim IS NOT NULL", |n| n == "1")
                .await;
            proxy.begin_anew().unwrap();
            let token = other.show(claim.key.as_str()).await.token;
            assert_eq!(client.granted(&claim).await.token, token);
            assert_eq!(client.released(&claim).await, Released::Yes);
            assert!(other.show(claim.key.as_str()).await.is_free());
        }
    });
}

/// H155: a try lands after its own release, which came on another connection.
#[test]
fn h155_a_try_that_lands_after_its_release_is_refused() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let (client, other) = (bare(&through(&proxy)).await, bare(&server.url()).await);
        let claim = claim("k");
        proxy.lose_answers(true);
        let lost = tokio::time::timeout(300 * MS, client.try_acquire(&claim)).await;
        assert!(lost.is_err(), "{lost:?}");
        proxy.begin_anew().unwrap();
        client.released(&claim).await;
        // What is still under way is the same request as this one.
        let late = other.try_acquire(&claim).await.expect_err("it was released");
        assert_eq!(late.effect, Effect::NotApplied, "{late:?}");
        assert_eq!(late.next_step.as_deref(), Some("use each claim once"), "{late:?}");
        let next = like(&claim);
        other.granted(&next).await;
        assert!(other.show("k").await.waiters.is_empty());
        assert_eq!(other.released(&next).await, Released::Yes);
        assert!(other.show("k").await.is_free());
    });
}

/// H140: a connection that is cut in the middle of a verb, again and again.
#[test]
fn h140_cut_connections_leave_one_holder_and_then_none() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let (client, other) = (bare(&through(&proxy)).await, bare(&server.url()).await);
        for round in 0..12_u64 {
            let claim = claim("k");
            proxy.delay(Direction::ToClient, 2 * MS);
            let cut = async {
                tokio::time::sleep(MS * (round as u32 % 6)).await;
                proxy.cut(if round % 2 == 0 { Cut::Reset } else { Cut::Abandon }).unwrap();
            };
            let (tried, ()) =
                tokio::join!(tokio::time::timeout(SEC, client.try_acquire(&claim)), cut);
            if let Ok(Err(error)) = &tried {
                assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
            }
            client.granted(&claim).await;
            other.blocked(&like(&claim).with(|it| it.waits = false)).await;
            assert_eq!(client.released(&claim).await, Released::Yes);
            assert!(other.show("k").await.is_free(), "round {round}");
        }
    });
}

/// Far clients: each trip takes 100 ms, and nothing is lost by that.
#[test]
fn delayed_connections_cost_time_and_no_lock() {
    let server = server();
    let proxy = Proxy::plain(server.port()).unwrap();
    for direction in [Direction::ToServer, Direction::ToClient] {
        proxy.delay(direction, 50 * MS);
    }
    run(async {
        let (one, two) = (bare(&through(&proxy)).await, bare(&through(&proxy)).await);
        let (mut last, mut waited) = (0, Vec::new());
        for round in 0..6 {
            let (from, to) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
            let held = from.locks().mutex("k").ttl(2 * SEC).acquire().await.unwrap();
            let (next, released) = tokio::join!(
                async {
                    let next = to.locks().mutex("k").ttl(2 * SEC).acquire().await.unwrap();
                    (next, Instant::now())
                },
                async {
                    // Longer than the ttl: it is renewed over the slow way.
                    tokio::time::sleep(3 * SEC).await;
                    held.ensure_held().expect("it was renewed in time");
                    let released = Instant::now();
                    held.release().await.unwrap();
                    released
                }
            );
            let (next, acquired) = next;
            waited.push(acquired.duration_since(released));
            assert!(next.token().get() > last);
            last = next.token().get();
            // The short lease of a pushed grant is renewed as well.
            tokio::time::sleep(500 * MS).await;
            next.release().await.unwrap();
        }
        waited.sort();
        assert!(waited[2] < 800 * MS, "no timer had to wake it: {waited:?}");
    });
}

/// H141: the server stands still; nothing hangs for ever.
#[test]
fn h141_a_stopped_server_costs_the_lock_by_the_holders_clock() {
    let server = server();
    run(async {
        let bare = bare(&server.url()).await;
        let guard = bare.locks().mutex("k").ttl(3 * SEC).acquire().await.unwrap();
        let all = server.processes();
        signal(&all, rustix::process::Signal::STOP);
        let start = Instant::now();
        let lost = tokio::time::timeout(10 * SEC, guard.lost()).await;
        signal(&all, rustix::process::Signal::CONT);
        assert!(lost.is_ok(), "the holder is told by its own clock");
        stalls::in_time(start, 4 * SEC);
        drop(guard);
        let next = bare.locks().mutex("k").acquire_within(20 * SEC).await.unwrap();
        next.release().await.unwrap();
    });
}

/// H141: only the server processes that serve the client stand still: it takes others.
#[test]
fn h141_stopped_server_processes_cost_no_hold() {
    let server = server();
    run(async {
        let bare = bare(&server.url()).await;
        let guard = bare.locks().mutex("k").ttl(6 * SEC).acquire().await.unwrap();
        let ours = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'latchwork%'";
        let ours = server.psql(ours).unwrap();
        let ours: Vec<i32> = ours.lines().map(|pid| pid.parse().unwrap()).collect();
        signal(&ours, rustix::process::Signal::STOP);
        let lost = tokio::time::timeout(9 * SEC, guard.lost()).await;
        signal(&ours, rustix::process::Signal::CONT);
        assert!(lost.is_err(), "it is renewed on another connection");
        guard.release().await.unwrap();
    });
}

fn signal(pids: &[i32], signal: rustix::process::Signal) {
    for pid in pids {
        let pid = rustix::process::Pid::from_raw(*pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

/// The server has no more connections: those that there are do the work, and it is not asked again and again.
#[test]
fn a_full_server_is_not_stormed_with_connections() {
    let options = PostgresOptions::new()
        .setting("max_connections=6")
        .setting("superuser_reserved_connections=3");
    let server = server_with(&options, "");
    server.psql("CREATE ROLE app LOGIN; GRANT pg_monitor TO app").unwrap();
    server.psql("GRANT ALL ON ALL TABLES IN SCHEMA public TO app").unwrap();
    run(async {
        let url = format!("postgres://app@127.0.0.1:{}/postgres", server.port());
        let client = bare(&url).await;
        let start = Instant::now();
        let users = (0..32).map(|n| {
            let client = &client;
            async move {
                while start.elapsed() < 2 * SEC {
                    let claim = claim(&format!("k{n}"));
                    client.granted(&claim).await;
                    client.released(&claim).await;
                }
            }
        });
        futures_util::future::join_all(users).await;
        let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
        let refused = log.matches("connection slots").count();
        assert!((1..=24).contains(&refused), "{refused} connections were refused");
    });
}

/// H142: somebody's transaction keeps a key's row locked.
#[test]
fn h142_a_locked_row_delays_its_own_key_and_no_other() {
    let server = server();
    run(async {
        let client = bare(&server.url()).await;
        let (stuck, free) = (claim("stuck"), claim("free"));
        client.granted(&stuck).await;
        client.granted(&free).await;
        let hold =
            "BEGIN; SELECT FROM latchwork WHERE k = 'stuck' FOR UPDATE; SELECT pg_sleep(8); COMMIT";
        let both = [stuck.clone(), free.clone()];
        let (locked, renewed) = std::thread::scope(|scope| {
            let locked = scope.spawn(|| server.psql(hold));
            let renewed = run_beside(async {
                until(&server, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'BEGIN%' AND wait_event = 'PgSleep'", |n| n == "1").await;
                let start = Instant::now();
                let renewed =
                    tokio::time::timeout(10 * SEC, client.renew_all(&both)).await.unwrap();
                let try_it = client.try_acquire(&like(&stuck)).await;
                (renewed, try_it, start.elapsed())
            });
            (locked.join().unwrap(), renewed)
        });
        locked.unwrap();
        let (answers, tried, took) = renewed;
        assert!(matches!(answers[1], Ok(Renewal::Held { .. })), "{answers:?}");
        let error = answers[0].as_ref().expect_err("its row is locked");
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
        // A look first: a held key needs no lock of its row to be found held, but a place in line does.
        assert!(matches!(tried, Ok(Attempt::Blocked(_))), "{tried:?}");
        assert!(took < stalls::widened(7 * SEC, took), "{took:?}");
        assert!(client.held(&stuck).await, "no error ends a hold");
    });
}

/// On a runtime of its own: the caller's is busy.
fn run_beside<F: Future + Send>(test: F) -> F::Output
where
    F::Output: Send,
{
    std::thread::scope(|scope| scope.spawn(|| run(test)).join().unwrap())
}

/// H143: a server that cancels statements, or waits for locks no longer, or serializes.
#[test]
fn h143_settings_of_the_server_do_no_harm() {
    let options = PostgresOptions::new()
        .setting("default_transaction_isolation=serializable")
        .setting("statement_timeout=1s")
        .setting("lock_timeout=50ms")
        .setting("synchronous_commit=off")
        .setting("idle_in_transaction_session_timeout=100ms");
    let server = server_with(&options, "");
    run(async {
        let (one, two) = (bare(&server.url()).await, bare(&server.url()).await);
        let users = (0..8).map(|n| {
            let bare = if n % 2 == 0 { &one } else { &two };
            async move {
                for _ in 0..10 {
                    let claim = claim("k");
                    bare.acquired(&claim).await;
                    bare.released(&claim).await;
                }
            }
        });
        futures_util::future::join_all(users).await;
        assert!(one.show("k").await.is_free());
    });
}

/// H144: the server's clock is set.
#[test]
fn h144_tokens_grow_whatever_the_clock_does() {
    let server = server_with(&PostgresOptions::new().with_clock(), "");
    let clock = server.clock().unwrap();
    run(async {
        let client = bare(&server.url()).await;
        let mut last = 0;
        for step in [0_i32, 3_600, -7_200, 86_400, -200_000] {
            match u32::try_from(step) {
                Ok(step) => clock.step_forward(SEC * step).unwrap(),
                Err(_) => clock.step_back(SEC * step.unsigned_abs()).unwrap(),
            }
            let claim = claim("k");
            let token = client.granted(&claim).await.token;
            assert!(token > last, "{token} after {last}");
            last = token;
            assert!(client.held(&claim).await);
            client.released(&claim).await;
        }
        // Set forward under a holder: the next renewal says so, and the next token is larger.
        let held = claim("k");
        let token = client.granted(&held).await.token;
        clock.step_forward(60 * SEC).unwrap();
        assert_eq!(client.renewed(&held).await, Renewal::Lost);
        assert!(client.granted(&like(&held)).await.token > token);
    });
}

/// H145: a synchronous standby is away, and somebody ends the wait for it.
#[test]
fn h145_a_grant_that_no_standby_has_confirmed_is_not_known() {
    // Whatever the server's default is, a grant waits for the standby, and a release does not.
    let server = server_with(&PostgresOptions::new().setting("synchronous_commit=off"), "");
    run(async {
        let client = bare(&server.url()).await;
        server.psql("ALTER SYSTEM SET synchronous_standby_names = 'away'").unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
        until(&server, "SHOW synchronous_standby_names", |said| said == "away").await;
        let claim = claim("k");
        let cancel = async {
            let waits = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            until(&server, waits, |n| n == "1").await;
        };
        let (tried, ()) = tokio::join!(client.try_acquire(&claim), cancel);
        let error = tried.expect_err("the server reports success with a warning");
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
        let released = tokio::time::timeout(5 * SEC, client.released(&claim)).await;
        assert_eq!(released.expect("it need not be durable"), Released::Yes);
        server.psql("ALTER SYSTEM RESET synchronous_standby_names").unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
        until(&server, "SHOW synchronous_standby_names", |said| said.is_empty()).await;
        match client.try_acquire(&claim).await.unwrap() {
            Attempt::Granted(_) => assert_eq!(client.released(&claim).await, Released::Yes),
            blocked => panic!("{blocked:?}"),
        }
    });
}

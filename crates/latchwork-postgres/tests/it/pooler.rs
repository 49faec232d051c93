//! Behind PgBouncer with transaction pooling.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::*;
use latchwork_services::{Cut, PgBouncer, PostgresOptions, Proxy};
use latchwork_store::{Attempt, Backend, Effect, ErrorKind, Linger, Released, Renewal};

#[test]
fn a_pooler_is_noticed_when_connecting() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        assert!(bare(&server.url()).await.capabilities().push);
        for _ in 0..5 {
            assert!(!bare(&bouncer.url()).await.capabilities().push);
        }
        assert!(!bare(&format!("{}?pooler=true", server.url())).await.capabilities().push);
        let report = examine(&bouncer.url()).await;
        assert!(report.find("pooler").unwrap().found.contains("one stands"), "{report:?}");
    });
}

/// H324: a client stops at once where a pooler refuses for good, and the error names what to change.
#[test]
fn h324_a_database_that_a_pooler_does_not_have_is_named() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 2).unwrap();
    let at =
        |database: &str| format!("postgres://postgres@127.0.0.1:{}/{database}", bouncer.port());
    run(async {
        for (database, step) in
            [("pgbouncer", "console of PgBouncer"), ("none", "create the database")]
        {
            let start = Instant::now();
            let error = connect(&at(database)).await.err().expect("there are no locks");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.next_step().unwrap().contains(step), "{error}");
            stalls::in_time(start, 2 * SEC);
        }
    });
}

/// H582: an acquire whose task does something else meanwhile holds up no other request of its process, whether it is
/// under way or the next one.
#[test]
fn h582_what_nobody_polls_holds_up_no_other_request() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        let (one, two) = (bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        let held = claim("k");
        one.acquired(&held).await;
        let claims: Vec<_> = (0..20).map(|_| like(&held)).collect();
        let mut waiting: Vec<_> =
            claims.iter().map(|claim| Box::pin(two.try_acquire(claim))).collect();
        for waiting in &mut waiting {
            let _ = tokio::time::timeout(Duration::ZERO, waiting).await;
        }
        let start = Instant::now();
        assert_eq!(two.show("k").await.holders.len(), 1);
        two.acquired(&claim("another")).await;
        stalls::in_time(start, SEC);
        for waiting in waiting {
            assert!(matches!(waiting.await, Ok(Attempt::Blocked(_))));
        }
    });
}

/// H150: LISTEN leaks into the pooler's connections, prepared statements collide, settings stay.
#[test]
fn h150_nothing_is_left_in_the_connections_of_a_pooler() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 2).unwrap();
    run(async {
        let (one, two) = (bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        for _ in 0..5 {
            let held = claim("k");
            one.acquired(&held).await;
            let waits = like(&held);
            let release = async {
                tokio::time::sleep(100 * MS).await;
                one.released(&held).await
            };
            let (_, released) = tokio::join!(two.acquired(&waits), release);
            assert_eq!(released, Released::Yes);
            two.released(&waits).await;
        }
        let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()), \
             current_setting('lock_timeout'), current_setting('synchronous_commit')";
        let asked = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", bouncer.port());
        for _ in 0..6 {
            let said = std::process::Command::new("psql")
                .args(["-XAt", &asked, "-c", left])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), "0|0|0|on\n");
        }
        assert_eq!(connections(&server, "LISTEN"), 0);
    });
}

/// H568: a pooler of sessions that resets none hands on what the last client, of any program, has prepared.
#[test]
fn h568_what_another_client_has_prepared_is_no_hindrance() {
    let server = server();
    let mode = "session\nserver_reset_query =";
    let bouncer = PgBouncer::start_in_mode(server.port(), 1, mode).unwrap();
    let asked = format!("host=127.0.0.1 port={} user=postgres dbname=postgres", bouncer.port());
    let said = std::process::Command::new("psql")
        .args(["-Xq", "-v", "ON_ERROR_STOP=1", &asked])
        .args(["-c", "DO $$ BEGIN FOR n IN 0..9999 LOOP EXECUTE format('PREPARE s%s AS SELECT 1', n); END LOOP; END $$"])
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    let address = format!("{}?pooler=false", bouncer.url());
    run(async {
        let client = bare(&address).await;
        let held = claim("k");
        client.granted(&held).await;
        assert_eq!(client.released(&held).await, Released::Yes);
    });
    assert!(run(examine(&address)).find("functions").unwrap().found.contains("this client's"));
}

/// H151: the pooler is killed under holders and waiters.
#[test]
fn h151_a_killed_pooler_costs_no_lock() {
    let server = server();
    let mut bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        let (holder, waiter) = (bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        let held = claim("k").with(|it| it.ttl = 60 * SEC);
        let token = holder.granted(&held).await.token;
        let waits = like(&held);
        waiter.blocked(&waits).await;
        bouncer.kill();
        assert!(holder.try_acquire(&claim("other")).await.is_err());
        bouncer.revive().unwrap();
        assert!(holder.held(&held).await);
        let start = Instant::now();
        holder.released(&held).await;
        assert!(waiter.acquired(&waits).await.token > token);
        stalls::in_time(start, 5 * SEC);
    });
}

/// H182: a client's connection ends between the answers to two of its requests, and the pooler gives the process of
/// the server to the next client. It makes no difference whether the client still waited for the first answer.
#[test]
fn h182_no_client_of_a_pooler_reads_anothers_answer() {
    for patience in [5 * SEC, 50 * MS] {
        let server = server();
        let bouncer = PgBouncer::start(server.port(), 1).unwrap();
        let proxy = Proxy::plain(bouncer.port()).unwrap();
        run(async {
            let url = through(&proxy);
            let (gone, other) = (bare(&url).await, bare(&bouncer.url()).await);
            let (held, first, second) = (claim("held"), claim("first"), claim("second"));
            other.granted(&held).await;
            for claim in [&first, &second] {
                other.granted(claim).await;
                other.released(claim).await;
            }
            let locked = [
                Locked::row(&server, "second", 3.0).await,
                Locked::row(&server, "first", 0.3).await,
            ];
            let (first, second) = (like(&first), like(&second));
            let one = tokio::time::timeout(patience, gone.try_acquire(&first));
            let two = async {
                tokio::time::sleep(100 * MS).await;
                gone.try_acquire(&second).await
            };
            let ends = async {
                tokio::time::sleep(550 * MS).await;
                proxy.refuse_connections().unwrap();
                proxy.cut(Cut::Reset).unwrap();
            };
            let (one, two, ()) = tokio::join!(one, two, ends);
            assert!(one.is_err() == (patience < SEC) && two.is_err(), "{one:?} {two:?}");
            // What the server says about the second one from now on is for nobody.
            let ended = tokio::time::timeout(5 * SEC, other.release(&held, Linger::For(MS))).await;
            assert_eq!(ended.unwrap().unwrap(), Released::Yes);
            locked.into_iter().for_each(Locked::ends);
            for n in 0..5 {
                let claim = claim(&format!("later{n}"));
                other.granted(&claim).await;
                assert_eq!(other.released(&claim).await, Released::Yes);
            }
        });
    }
}

/// A request that was given up keeps its connection until its answer is there, and then the next one goes out.
#[test]
fn a_request_that_was_given_up_costs_no_connection() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    let proxy = Proxy::plain(bouncer.port()).unwrap();
    run(async {
        let one = bare(&through(&proxy)).await;
        let (slow, quick) = (claim("slow"), claim("quick"));
        one.granted(&quick).await;
        one.granted(&slow).await;
        one.released(&slow).await;
        let locked = Locked::row(&server, "slow", 0.8).await;
        let waits = like(&slow);
        let given_up = tokio::time::timeout(50 * MS, one.try_acquire(&waits)).await;
        assert!(given_up.is_err(), "{given_up:?}");
        let start = Instant::now();
        assert_eq!(one.released(&quick).await, Released::Yes);
        assert!(start.elapsed() > 300 * MS, "{:?}", start.elapsed());
        locked.ends();
        // The end of the claim comes after its try.
        one.released(&waits).await;
        one.granted(&like(&slow)).await;
        assert_eq!(proxy.open_connections(), 1);
    });
}

/// No session has a limit of its own there, so each statement sets one.
#[test]
fn behind_a_pooler_no_statement_waits_for_long() {
    let server = server();
    let bouncer = PgBouncer::start(server.port(), 5).unwrap();
    run(async {
        let (one, two, three) =
            (bare(&bouncer.url()).await, bare(&bouncer.url()).await, bare(&bouncer.url()).await);
        let (held, free) = ([claim("held").with(|it| it.ttl = 60 * SEC)], claim("free"));
        one.granted(&held[0]).await;
        one.granted(&free).await;
        one.released(&free).await;
        assert!(three.held(&held[0]).await);
        let locked =
            [Locked::row(&server, "held", 6.0).await, Locked::row(&server, "free", 6.0).await];
        let start = Instant::now();
        let again = like(&free);
        let try_free = async { one.try_acquire(&again).await };
        let release = async { two.release(&held[0], Linger::None).await.map(drop) };
        let renew = async { three.renew_all(&held).await.remove(0).map(drop) };
        let (try_free, release, renew) = tokio::join!(try_free, release, renew);
        stalls::in_time(start, 5_500 * MS);
        assert!(matches!(try_free, Ok(Attempt::Blocked(_))), "{try_free:?}");
        for answer in [release, renew] {
            let error = answer.expect_err("the row is locked");
            assert!(error.message.contains("55P03"), "{error:?}");
            assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
        }
        locked.into_iter().for_each(Locked::ends);
        assert!(one.held(&held[0]).await);
    });
}

/// How long the clients of [`h192_sixty_four_clients_of_a_pooler_contend_without_an_error`] go on.
/// `LATCHWORK_POOLED_SECONDS=300` makes it five minutes.
fn length() -> Duration {
    let seconds = std::env::var("LATCHWORK_POOLED_SECONDS").ok();
    Duration::from_secs(seconds.map_or(20, |seconds| seconds.parse().expect("a number")))
}

/// The answer, within the time that the engine waits for it.
async fn within<T>(verb: impl Future<Output = T>) -> T {
    tokio::time::timeout(2 * SEC, verb).await.expect("an answer within 2 s")
}

/// H192: the server's sessions change hands, and each of them may be a new one, which has planned nothing.
#[test]
fn h192_sixty_four_clients_of_a_pooler_contend_without_an_error() {
    let server = server_with(&PostgresOptions::new().setting("max_connections=100"), "");
    let bouncer = PgBouncer::start(server.port(), 20).unwrap();
    let holds = AtomicU32::new(0);
    let held = AtomicBool::new(false);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let url = bouncer.url();
        let all = futures_util::future::join_all((0..64).map(|_| bare(&url))).await;
        let end = Instant::now() + length();
        let (held, holds) = (&held, &holds);
        let clients = all.iter().map(|bare| async move {
            while Instant::now() < end {
                let claim = claim("k").with(|it| it.ttl = 20 * SEC);
                loop {
                    let tried = within(bare.try_acquire(&claim)).await;
                    let blocked = match tried.expect("no error") {
                        Attempt::Granted(_) => break,
                        Attempt::Blocked(blocked) => blocked,
                    };
                    let pace = blocked.retry_after.unwrap_or(SEC).min(SEC);
                    let _ = tokio::time::timeout(pace, bare.wait(&claim, &blocked)).await;
                }
                assert!(!held.swap(true, Ordering::SeqCst), "two hold the key");
                let claims = [claim];
                let renewed = within(bare.renew_all(&claims)).await;
                assert!(matches!(renewed[0], Ok(Renewal::Held { .. })), "{renewed:?}");
                held.store(false, Ordering::SeqCst);
                let ended = within(bare.release(&claims[0], Linger::None)).await;
                assert_eq!(ended.expect("no error"), Released::Yes);
                holds.fetch_add(1, Ordering::Relaxed);
            }
        });
        futures_util::future::join_all(clients).await;
    });
    let holds = holds.into_inner();
    println!("{holds} holds in {:?}", length());
    assert!(holds > 64, "{holds} holds");
}

/// A client with one connection, whose way to the pooler can be cut.
fn through(proxy: &Proxy) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres?connections=1", proxy.port())
}

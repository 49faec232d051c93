//! Free keys that many callers take and free by one statement.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::common::*;
use crate::costs::{length, logging, statements};
use latchwork_services::{PgBouncer, PostgresOptions, PostgresServer};
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Claim, Effect, Linger, Released,
};

/// So many statements of one kind go out alone, and so many more for several callers.
const COMMANDS: usize = 8;
/// Before the end of somebody's lock of a row.
const PROMPT: Duration = Duration::from_millis(600);

fn claims(count: usize) -> Vec<Claim> {
    (0..count).map(|n| claim(&format!("k{n:02}"))).collect()
}

async fn tries(bare: &Bare, claims: &[Claim]) -> Vec<Result<Attempt, BackendError>> {
    join_all(claims.iter().map(|claim| bare.try_acquire(claim))).await
}

/// The releases, and how long each has taken.
async fn releases(bare: &Bare, claims: &[Claim]) -> Vec<(Duration, Released)> {
    let start = Instant::now();
    let ended = claims.iter().map(|claim| async {
        let released = bare.release(claim, Linger::None).await.unwrap();
        (start.elapsed(), released)
    });
    join_all(ended).await
}

fn is_granted(attempt: &Result<Attempt, BackendError>) -> bool {
    matches!(attempt, Ok(Attempt::Granted(_)))
}

/// Connects, and makes all connections that the following requests use.
async fn ready(url: &str) -> Bare {
    let bare = bare(url).await;
    for _ in 0..2 {
        let claims: Vec<_> = (0..32).map(|n| claim(&format!("early{n}"))).collect();
        tries(&bare, &claims).await;
        releases(&bare, &claims).await;
        tokio::time::sleep(200 * MS).await;
    }
    bare
}

/// A trigger of the owner of the tables.
fn trigger(server: &PostgresServer, when: &str, what: &str) {
    let statement = format!(
        "CREATE FUNCTION disturbs() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {what}; RETURN new; END$$; \
         CREATE TRIGGER disturbs BEFORE {when} EXECUTE FUNCTION disturbs()"
    );
    server.psql(&statement).unwrap();
}

/// A pooler makes no difference.
#[test]
fn many_free_locks_and_releases_share_statements() {
    let server = logging();
    let bouncer = PgBouncer::start(server.port(), 20).unwrap();
    run(async {
        for url in [server.url(), bouncer.url()] {
            let bare = ready(&url).await;
            // The first use of a key makes its row; the second one finds it.
            for _ in 0..2 {
                let claims = claims(64);
                let from = length(&server);
                assert!(tries(&bare, &claims).await.iter().all(is_granted));
                let sent = statements(&server, from);
                assert!(sent.len() <= COMMANDS, "{} tries: {sent:#?}", sent.len());
                for claim in &claims {
                    assert!(bare.held(claim).await, "{}", claim.key);
                }
                let from = length(&server);
                let ended = releases(&bare, &claims).await;
                assert!(ended.iter().all(|(_, ended)| *ended == Released::Yes), "{ended:?}");
                let sent = statements(&server, from);
                assert!(sent.len() <= COMMANDS, "{} releases: {sent:#?}", sent.len());
            }
        }
    });
}

/// One row is locked by somebody's transaction, and one key is held.
#[test]
fn a_key_that_is_not_free_holds_up_no_other() {
    let server = server();
    run(async {
        let bare = ready(&server.url()).await;
        let claims = claims(32);
        tries(&bare, &claims).await;
        releases(&bare, &claims).await;
        let holder = like(&claims[21]);
        bare.granted(&holder).await;
        let locked = Locked::row(&server, "k20", 1.5).await;
        let start = Instant::now();
        let took = claims.iter().map(|claim| async {
            let attempt = bare.try_acquire(claim).await;
            (start.elapsed(), attempt)
        });
        for (claim, (took, attempt)) in claims.iter().zip(join_all(took).await) {
            let (key, is_granted) = (claim.key.as_str(), is_granted(&attempt));
            match key {
                // A try waits for half a second.
                "k20" => assert!(!is_granted && took > 300 * MS, "{took:?} {attempt:?}"),
                "k21" => assert!(!is_granted && took < PROMPT, "{took:?} {attempt:?}"),
                _ => assert!(is_granted && took < PROMPT, "{key} {took:?} {attempt:?}"),
            }
        }
        locked.ends();
        bare.granted(&claims[20]).await;
        let locked = Locked::row(&server, "k20", 0.85).await;
        for (claim, (took, ended)) in claims.iter().zip(releases(&bare, &claims).await) {
            let key = claim.key.as_str();
            match key {
                "k20" => assert!(ended == Released::Yes && took > 300 * MS, "{took:?} {ended:?}"),
                // It has left its place in the queue.
                "k21" => assert!(took < PROMPT, "{took:?}"),
                _ => assert!(ended == Released::Yes && took < PROMPT, "{key} {took:?} {ended:?}"),
            }
        }
        locked.ends();
        assert!(bare.held(&holder).await);
    });
}

#[test]
fn one_of_several_claims_for_a_key_gets_it() {
    let server = server();
    run(async {
        let bare = ready(&server.url()).await;
        // The first use of the keys makes their rows; the second one finds them.
        for _ in 0..2 {
            // Those that do not get it leave nothing.
            let mut all: Vec<_> =
                claims(20).into_iter().map(|it| it.with(|it| it.waits = false)).collect();
            let twins: Vec<_> = all.iter().map(like).collect();
            all.extend(twins);
            let attempts = tries(&bare, &all).await;
            let granted: Vec<_> =
                all.iter().zip(&attempts).filter(|(_, it)| is_granted(it)).collect();
            let mut keys: Vec<_> = granted.iter().map(|(claim, _)| claim.key.as_str()).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!((granted.len(), keys.len()), (20, 20), "{attempts:?}");
            for (claim, _) in granted {
                assert!(bare.held(claim).await, "{}", claim.key);
            }
            releases(&bare, &all).await;
        }
    });
}

#[test]
fn a_claim_that_fails_fails_no_other_of_its_statement() {
    let server = server();
    run(async {
        let bare = ready(&server.url()).await;
        let when = "INSERT OR UPDATE ON latchwork FOR EACH ROW WHEN (new.k = 'k20')";
        trigger(&server, when, "RAISE EXCEPTION 'not this one'");
        let claims = claims(32);
        for (claim, attempt) in claims.iter().zip(tries(&bare, &claims).await) {
            if claim.key.as_str() == "k20" {
                let error = attempt.unwrap_err();
                assert_eq!(
                    (error.kind, error.effect),
                    (BackendErrorKind::Unreachable, Effect::NotApplied)
                );
            } else {
                assert!(is_granted(&attempt), "{} {attempt:?}", claim.key);
            }
        }
    });
}

/// Each inserts slowly what the other one inserts as well, and lists it the other way round.
#[test]
fn statements_for_the_same_new_keys_do_not_deadlock() {
    let server = server();
    run(async {
        let (one, two) = (ready(&server.url()).await, ready(&server.url()).await);
        trigger(&server, "INSERT ON latchwork FOR EACH ROW", "PERFORM pg_sleep(0.02)");
        let ours = claims(40);
        let theirs: Vec<_> = ours.iter().rev().map(like).collect();
        let (ours, theirs) = tokio::join!(tries(&one, &ours), tries(&two, &theirs));
        for (n, (one, other)) in ours.iter().zip(theirs.iter().rev()).enumerate() {
            assert!(is_granted(one) != is_granted(other), "k{n:02}: {one:?} {other:?}");
        }
        let log = std::fs::read_to_string(server.folder().join("log")).unwrap();
        assert!(!log.contains("deadlock"), "{log}");
    });
}

/// The statements are under way when half of the callers give up. Their releases must not overtake them.
#[test]
fn a_caller_that_gives_up_leaves_nothing_of_many() {
    let server = server();
    run(async {
        let (far, near) = (&ready(&server.url()).await, bare(&server.url()).await);
        let when = "INSERT ON latchwork FOR EACH STATEMENT";
        trigger(&server, when, "PERFORM pg_sleep(0.5)");
        let claims = claims(32);
        let attempts = claims.iter().enumerate().map(|(n, claim)| async move {
            let limit = if n % 2 == 0 { 100 * MS } else { 5 * SEC };
            tokio::time::timeout(limit, far.try_acquire(claim)).await
        });
        let given_up = async {
            tokio::time::sleep(150 * MS).await;
            let ended = claims.iter().step_by(2).map(|claim| far.release(claim, Linger::None));
            join_all(ended).await
        };
        let (attempts, ended) = tokio::join!(join_all(attempts), given_up);
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        server.psql("DROP TRIGGER disturbs ON latchwork").unwrap();
        for (n, attempt) in attempts.into_iter().enumerate() {
            assert_eq!(attempt.is_err(), n % 2 == 0, "{n}");
            // The next claim on a key that was given up gets it.
            let is_free =
                matches!(near.try_acquire(&like(&claims[n])).await, Ok(Attempt::Granted(_)));
            assert_eq!(is_free, n % 2 == 0, "{n}");
        }
    });
}

/// H145: a synchronous standby is away, and somebody ends the wait for it. Whatever the server's default is, grants wait
/// for the standby, and releases do not.
#[test]
fn unconfirmed_grants_of_one_statement_are_all_unknown() {
    let server = server_with(&PostgresOptions::new().setting("synchronous_commit=off"), "");
    run(async {
        let bare = ready(&server.url()).await;
        let held: Vec<_> = (0..32).map(|n| claim(&format!("h{n}"))).collect();
        assert!(tries(&bare, &held).await.iter().all(is_granted));
        server.psql("ALTER SYSTEM SET synchronous_standby_names = 'away'").unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
        until(&server, "SHOW synchronous_standby_names", |said| said == "away").await;
        let ended = tokio::time::timeout(5 * SEC, releases(&bare, &held)).await;
        let ended = ended.expect("they need not be durable");
        assert!(ended.iter().all(|(_, ended)| *ended == Released::Yes), "{ended:?}");
        let claims = claims(32);
        let cancel = async {
            let waits = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
            loop {
                server.psql(waits).unwrap();
                tokio::time::sleep(20 * MS).await;
            }
        };
        let attempts = tokio::select! {
            attempts = tries(&bare, &claims) => attempts,
            () = cancel => unreachable!("it goes on"),
        };
        for attempt in attempts {
            let error = attempt.expect_err("the server reports success with a warning");
            assert_eq!(
                (error.kind, error.effect),
                (BackendErrorKind::Unreachable, Effect::Unknown)
            );
        }
        server.psql("ALTER SYSTEM RESET synchronous_standby_names").unwrap();
        server.psql("SELECT pg_reload_conf()").unwrap();
        until(&server, "SHOW synchronous_standby_names", |said| said.is_empty()).await;
        // Each claim settles its own.
        assert!(tries(&bare, &claims).await.iter().all(is_granted));
        let ended = releases(&bare, &claims).await;
        assert!(ended.iter().all(|(_, ended)| *ended == Released::Yes), "{ended:?}");
    });
}

/// The guard's identity is gone, as after a crash.
#[test]
fn many_free_locks_wait_for_the_quarantine() {
    let options = "?guard=true&max_ttl=1h";
    let server = server_with(&PostgresOptions::new(), options);
    run(async {
        let bare = ready(&format!("{}{options}", server.url())).await;
        let claims = claims(32);
        assert!(tries(&bare, &claims).await.iter().all(is_granted));
        releases(&bare, &claims).await;
        server.psql("TRUNCATE latchwork_alive").unwrap();
        for attempt in tries(&bare, &claims).await {
            assert!(matches!(attempt, Ok(Attempt::Blocked(_))), "{attempt:?}");
        }
    });
}

/// Something else writes the guard's identity, as the other one of two servers would have another one.
#[test]
fn an_identity_of_the_guard_that_never_lasts_is_named() {
    let options = "?guard=true&max_ttl=1h";
    let server = server_with(&PostgresOptions::new(), options);
    run(async {
        let bare = ready(&format!("{}{options}", server.url())).await;
        let when = "INSERT OR UPDATE ON latchwork_alive FOR EACH ROW";
        trigger(&server, when, "new.nonce := gen_random_uuid()");
        server.psql("TRUNCATE latchwork_alive").unwrap();
        let error = bare.try_acquire(&claim("k")).await.expect_err("each look draws another one");
        let judged = (error.kind, error.effect);
        assert_eq!(judged, (BackendErrorKind::Unreachable, Effect::NotApplied), "{error:?}");
        let step = error.next_step.unwrap();
        let begin =
            "check that the address leads to one server, and that nothing but Latchwork writes to ";
        assert_eq!(step.strip_prefix(begin), Some("latchwork_alive"), "{step}");
    });
}

//! Rare ways through the scripts: a holder that asks again, keys that others have spoilt, waiters
//! of both kinds behind the same holder, counters that a failover has set back.

#![allow(clippy::disallowed_methods, reason = "tests")]

use crate::common::*;
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::*;

const TTL: Duration = Duration::from_secs(10);

/// B2: whoever holds the key is told so when it asks again, also while others stand in line.
#[test]
fn a_repeated_try_does_not_queue_behind_itself() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let other = connect(&world.server.url()).await;
        // A connection takes free keys by the short way after its first grant.
        let first = claim("warm", TTL);
        granted(&backend, &first).await;
        release(&backend, &first).await;
        let holder = claim("k", TTL);
        let token = granted(&backend, &holder).await;
        let next = claim("k", TTL);
        in_line(&other, &next).await;
        assert_eq!(granted(&backend, &holder).await, token);
        assert_eq!(world.in_line("k"), 1);
        assert_eq!(release(&backend, &holder).await, Released::Yes);
        admitted(&other, &next).await;
        assert_eq!(release(&other, &next).await, Released::Yes);
        assert_eq!(world.keys(), Vec::<String>::new());
    });
}

/// What has become of one key does not cost the others their renewal.
#[test]
fn a_damaged_key_loses_only_its_own_hold() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let (alone, spoilt) = (claim("alone", TTL), claim("spoilt", TTL));
        let (reader, bare) =
            (with_mode("reader", TTL, Mode::Read), with_mode("bare", TTL, Mode::Read));
        let mixed = with_mode("mixed", TTL, Mode::Read);
        for claim in [&alone, &spoilt, &reader, &bare, &mixed] {
            granted(&backend, claim).await;
        }
        world.ask(&["DEL", "spoilt"]);
        world.ask(&["HSET", "spoilt", "a", "1"]);
        world.ask(&["DEL", "bare:lw:claims"]);
        world.ask(&["DEL", "mixed:lw:held"]);
        world.ask(&["SET", "mixed:lw:held", "1"]);
        let claims = [spoilt, bare, mixed, alone, reader];
        let renewals = backend.renew_all(&claims).await;
        for (claim, renewal) in claims.iter().zip(renewals) {
            let good = ["alone", "reader"].contains(&claim.key.as_str());
            match renewal {
                Ok(Renewal::Held { .. }) => assert!(good, "{claim:?}"),
                Ok(Renewal::Lost) => assert!(!good, "{claim:?}"),
                Err(error) => panic!("{claim:?}: {error:?}"),
            }
        }
        // Who asks again, or releases, is answered too.
        let [_, bare, ..] = &claims;
        let _ = backend.try_acquire(bare).await.unwrap();
        let _ = backend.release(bare, Linger::None).await.unwrap();
    });
}

/// H40: on a full server a reader is renewed also when another one outlasts it.
#[test]
fn a_full_server_renews_the_shorter_of_two_readers() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let long = with_mode("k", 60 * SEC, Mode::Read);
        let short = with_mode("k", TTL, Mode::Read);
        for claim in [&long, &short] {
            granted(&backend, claim).await;
        }
        world.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(matches!(renew(&backend, &short).await, Ok(Renewal::Held { .. })));
        assert_eq!(release(&backend, &short).await, Released::Yes);
        assert_eq!(release(&backend, &long).await, Released::Yes);
    });
}

/// B7: a waiter that is gone and still stands in line does not keep word from those who only left
/// a mark: they would be admitted.
#[test]
fn barging_waiters_are_woken_past_a_dead_waiter() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let gone = connect(&world.server.url()).await;
        let holder = claim("k", 60 * SEC);
        granted(&backend, &holder).await;
        let dead = claim("k", 60 * SEC);
        in_line(&gone, &dead).await;
        let mark = claim("k", 60 * SEC).with(|it| it.order = Order::Barging);
        let answer = in_line(&backend, &mark).await;
        drop(gone);
        let clients = || world.text(&["CLIENT", "LIST"]).matches("sub=1").count();
        until("the waiter's connection has ended", 5 * SEC, || clients() == 1).await;
        assert_eq!(release(&backend, &holder).await, Released::Yes);
        let wake = within("word of the free key", 2 * SEC, backend.wait(&mark, &answer)).await;
        assert_eq!(wake.unwrap(), Wake::Look);
        granted(&backend, &mark).await;
    });
}

/// B7: the first waiter of a key tries once if its process is subscribed already. The holder's process knows
/// of no waiter, and its release finds this one.
#[test]
fn a_release_wakes_a_waiter_after_its_first_try() {
    run(async {
        let world = World::new();
        let holder = connect(&world.server.url()).await;
        let other = connect(&world.server.url()).await;
        granted(&holder, &claim("busy", 60 * SEC)).await;
        in_line(&other, &claim("busy", 60 * SEC)).await;
        let (held, next) = (claim("k", 60 * SEC), claim("k", 60 * SEC));
        granted(&holder, &held).await;
        let answer = blocked(&other, &next).await;
        assert_eq!(release(&holder, &held).await, Released::Yes);
        let wake = within("the grant", 2 * SEC, other.wait(&next, &answer)).await.unwrap();
        assert!(matches!(wake, Wake::Admitted { .. }), "it looked by itself");
    });
}

/// B8: a new connection may lead to a server that lacks the last tokens. That a claim is held
/// there already says nothing of the counter.
#[test]
fn a_repeated_try_does_not_confirm_the_counter() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let held = claim("held", TTL);
        granted(&backend, &held).await;
        let other = claim("other", TTL);
        let before = granted(&backend, &other).await;
        release(&backend, &other).await;
        // What a replica may not have got when it took over.
        let behind = (before - 1_000_000).to_string();
        world.ask(&["SET", "lw:token", &behind]).ok().unwrap();
        world.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let start = Instant::now();
        while backend.try_acquire(&held).await.is_err() {
            assert!(start.elapsed() < 30 * SEC, "not connected again");
            pause(5 * MS).await;
        }
        let after = granted(&backend, &claim("other", TTL)).await;
        assert!(after > before, "{after} after {before}");
    });
}

/// B8 in plain mode: the counter that a server has kept may lack the last tokens.
#[test]
fn tokens_of_plain_mode_keep_up_with_the_clock() {
    run(async {
        let world = World::with(&RedisOptions::new());
        let url = format!("{}?plain=true", world.server.url());
        let backend = connect(&url).await;
        let first = claim("k", TTL);
        let before = granted(&backend, &first).await;
        release(&backend, &first).await;
        let behind = (before - 1_000_000).to_string();
        world.ask(&["SET", "lw:token", &behind]).ok().unwrap();
        let after = granted(&backend, &claim("k", TTL)).await;
        assert!(after > before, "{after} after {before}");
    });
}

/// Among many that ask at the same time what one is refused is not told to the others.
#[test]
fn many_at_once_are_refused_one_by_one() {
    run(async {
        let server =
            RedisServer::start(&RedisOptions::new().user("app on >pw ~* &* +@all")).unwrap();
        let url = server.url().replace("://", "://app:pw@") + "?namespaces=a,b";
        let backend = connect(&url).await;
        for key in ["a:warm", "b:warm"] {
            let warm = claim(key, TTL);
            granted(&backend, &warm).await;
            release(&backend, &warm).await;
        }
        let rights = ["ACL", "SETUSER", "app", "resetkeys", "~a:lw:*", "~a:may/*"];
        ask(&server, &rights).ok().unwrap();
        let mut claims = Vec::new();
        for n in 0..32 {
            for name in ["a:may/", "a:not/", "b:not/"] {
                claims.push(claim(&format!("{name}{n}"), TTL));
            }
        }
        let all = async |releases: bool| {
            let mut tasks = tokio::task::JoinSet::new();
            for claim in claims.clone() {
                let backend = backend.clone();
                tasks.spawn(async move {
                    let done = if releases {
                        backend.release(&claim, Linger::None).await.map(drop)
                    } else {
                        backend.try_acquire(&claim).await.map(drop)
                    };
                    (claim, done)
                });
            }
            for (claim, done) in tasks.join_all().await {
                let kind = done.map_err(|error| error.kind);
                let may = claim.key.as_str().contains("may");
                assert_eq!(
                    kind,
                    if may { Ok(()) } else { Err(BackendErrorKind::Denied) },
                    "{claim:?}"
                );
            }
        };
        all(false).await;
        assert_eq!(ask(&server, &["KEYS", "a:may/*"]).list().len(), 32);
        all(true).await;
        assert_eq!(ask(&server, &["KEYS", "a:may/*"]).list().len(), 0);
    });
}

/// What is asked for and cannot be had is refused, not left out.
#[test]
fn plain_mode_takes_no_guard_and_waits_for_no_replica() {
    run(async {
        let world = World::new();
        for option in ["guard=true", "min_replicas=1"] {
            let url = format!("{}?plain=true&{option}", world.server.url());
            let config = latchwork_redis::RedisConfig::parse(&url).unwrap();
            let refused = latchwork_redis::RedisBackend::connect(config, io()).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unsupported);
        }
    });
}

/// What doctor tries is what the page asks for.
#[test]
fn the_doctor_checks_the_documented_rights() {
    run(async {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
        let page = std::fs::read_to_string(page).unwrap();
        let block = page.split("```acl\n").nth(1).unwrap().split("```").next().unwrap();
        let rights: Vec<&str> = block.split_whitespace().collect();
        let user = format!("app on >pw {} +info +client|id +client|kill", rights.join(" "));
        let server = RedisServer::start(&RedisOptions::new().user(user)).unwrap();
        let url = server.url().replace("://", "://app:pw@");
        let refused = async || {
            let config = latchwork_redis::RedisConfig::parse(&url).unwrap();
            let report = latchwork_redis::doctor(config, io()).await.unwrap();
            let about =
                |code: &str| ["rights", "rights-looking", "rights-channels"].contains(&code);
            let found = report.findings.iter().filter(|one| about(one.code));
            found.filter_map(|one| Some(one.found.strip_prefix("refused: ")?.to_owned())).collect()
        };
        let nothing: Vec<String> = refused().await;
        assert!(nothing.is_empty(), "{nothing:?}");
        for name in rights.iter().filter_map(|right| right.strip_prefix('+')) {
            // Without these it does not come so far.
            if ["eval", "time"].contains(&name) {
                continue;
            }
            ask(&server, &["ACL", "SETUSER", "app", &format!("-{name}")]).ok().unwrap();
            let told: Vec<String> = refused().await;
            assert_eq!(told, [name.to_uppercase()], "{name}");
            ask(&server, &["ACL", "SETUSER", "app", &format!("+{name}")]).ok().unwrap();
        }
    });
}

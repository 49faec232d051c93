//! What a server refuses: each word of it ends in the right kind of error and the right effect, and
//! a lock that is held outlives it.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::*;
use latchwork::{Guard, HoldState};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Data, Direction, Persistence, RedisOptions};
use latchwork_store::*;

const TTL: Duration = Duration::from_secs(3);

async fn refused(backend: &RedisBackend, claim: &Claim) -> BackendError {
    match backend.try_acquire(claim).await {
        Err(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

fn is(error: &BackendError, kind: BackendErrorKind, effect: Effect, word: &str) {
    assert_eq!((error.kind, error.effect), (kind, effect), "{error:?}");
    assert!(error.message.contains(word), "{error:?}");
}

/// H40: a server without memory refuses new locks; those that are held are renewed and released,
/// also to somebody who waits.
#[test]
fn h40_a_full_server_renews_and_releases_and_grants_nothing() {
    use BackendErrorKind::Unreachable;
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let (alone, awaited) = (claim("alone", TTL), claim("awaited", TTL));
        let reader = with_mode("read", TTL, Mode::Read);
        for claim in [&alone, &awaited, &reader] {
            granted(&backend, claim).await;
        }
        let next = claim("awaited", TTL);
        let answer = in_line(&backend, &next).await;
        world.ask(&["CONFIG", "SET", "maxmemory", "1"]);
        is(&refused(&backend, &passing("new", TTL)).await, Unreachable, Effect::NotApplied, "OOM");
        is(
            &refused(&backend, &with_mode("new", TTL, Mode::Read)).await,
            Unreachable,
            Effect::NotApplied,
            "OOM",
        );
        assert_eq!(world.number(&["EXISTS", "new"]), 0);
        for claim in [&alone, &awaited, &reader] {
            assert!(matches!(renew(&backend, claim).await, Ok(Renewal::Held { .. })), "{claim:?}");
        }
        for claim in [&alone, &awaited, &reader] {
            assert_eq!(release(&backend, claim).await, Released::Yes, "{claim:?}");
        }
        match backend.wait(&next, &answer).await.unwrap() {
            Wake::Admitted { .. } => {}
            Wake::Look => panic!("the waiter was not granted the key"),
        }
        assert_eq!(release(&backend, &next).await, Released::Yes);
        assert_eq!(world.keys(), Vec::<String>::new());
        world.ask(&["CONFIG", "SET", "maxmemory", "0"]);
        granted(&backend, &claim("new", TTL)).await;
    });
}

#[test]
fn a_floor_above_the_last_token_is_refused() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        let above = claim("k", TTL).with(|it| it.floor = FencingToken::LAST_GRANT + 1);
        let error = refused(&backend, &above).await;
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Invalid, Effect::NotApplied));
        let step = "use a lower floor: no greater token can be granted";
        assert_eq!(error.next_step.as_deref(), Some(step));
        assert_eq!(world.keys(), Vec::<String>::new());
    });
}

/// A server that has failed to save, and refuses writes for that.
async fn cannot_save() -> World {
    let options = RedisOptions::new()
        .persistence(Persistence::Snapshot)
        .config("enable-protected-configs yes");
    let world = World::with(&options);
    let data = world.server.folder().join("data");
    std::fs::remove_dir_all(&data).unwrap();
    world
}

async fn misconf(world: &World) {
    world.ask(&["BGSAVE"]);
    until("the save has failed", 5 * SEC, || {
        world.server.info("rdb_last_bgsave_status").unwrap().trim() == "err"
    })
    .await;
}

/// A lock that was taken before the server found out that it cannot save.
async fn hold_that_cannot_be_saved() -> (World, Client, Guard) {
    let world = cannot_save().await;
    let client = Client::warm(&world.server.url(), TTL).await;
    let guard = client.acquire("k").await;
    misconf(&world).await;
    (world, client, guard)
}

async fn can_save_again(world: &World) {
    let data = world.server.folder().join("data");
    std::fs::create_dir_all(&data).unwrap();
    world.ask(&["CONFIG", "SET", "dir", data.to_str().unwrap()]).ok().unwrap();
    world.ask(&["SAVE"]).ok().unwrap();
}

/// H41: the server refuses writes because it cannot save. In time again, the lock is held on.
#[test]
fn h41_a_hold_outlives_a_server_that_could_not_save_for_a_while() {
    run(async {
        let (world, client, guard) = hold_that_cannot_be_saved().await;
        let backend = connect(&world.server.url()).await;
        let error = refused(&backend, &passing("new", TTL)).await;
        is(&error, BackendErrorKind::Unreachable, Effect::NotApplied, "MISCONF");
        until("a renewal fails", TTL, || client.story.tells_of("MISCONF")).await;
        assert_eq!(guard.state(), HoldState::Held);
        let renewed = client.story.renewed();
        can_save_again(&world).await;
        until("it is renewed again", TTL, || client.story.renewed() > renewed).await;
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.unwrap();
    });
}

/// H41: not in time, the holder is told at the end of its validity, and the cause before; what
/// the store still has of it is freed when that works again.
#[test]
fn h41_an_unrenewable_hold_ends_and_names_the_cause() {
    run(async {
        let (world, client, guard) = hold_that_cannot_be_saved().await;
        let lost = within("the validity ends", TTL + SLACK, guard.lost()).await;
        assert_eq!(lost.reason, LostReason::Expired);
        assert!(client.story.tells_of("MISCONF"));
        can_save_again(&world).await;
        world.empties(TTL + SLACK).await;
    });
}

/// Has a script block the server until it is killed there.
fn keep_busy(world: &World) -> std::process::Child {
    std::process::Command::new("redis-cli")
        .args(["-p", &world.server.port().to_string(), "EVAL", "while true do end", "0"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// H42: BUSY: a script blocks the server.
#[test]
fn h42_busy_is_no_effect_and_passes() {
    run(async {
        let world = World::with(&RedisOptions::new().config("busy-reply-threshold 50"));
        let backend = connect(&world.server.url()).await;
        granted(&backend, &claim("warm", TTL)).await;
        let mut busy = keep_busy(&world);
        until("it is busy", 5 * SEC, || world.ask(&["GET", "k"]).ok().is_err()).await;
        let error = refused(&backend, &passing("k", TTL)).await;
        is(&error, BackendErrorKind::Unreachable, Effect::NotApplied, "BUSY");
        world.ask(&["SCRIPT", "KILL"]);
        busy.wait().unwrap();
        granted(&backend, &claim("k", TTL)).await;
    });
}

/// H42: a lock whose renewals meet a busy server is held on.
#[test]
fn h42_a_hold_outlives_a_busy_server() {
    run(async {
        let world = World::with(&RedisOptions::new().config("busy-reply-threshold 50"));
        let client = Client::warm(&world.server.url(), TTL).await;
        let guard = client.acquire("k").await;
        let mut busy = keep_busy(&world);
        until("a renewal is refused", TTL, || client.story.tells_of("BUSY")).await;
        world.ask(&["SCRIPT", "KILL"]);
        busy.wait().unwrap();
        let renewed = client.story.renewed();
        until("it is renewed again", TTL, || client.story.renewed() > renewed).await;
        assert_eq!(guard.state(), HoldState::Held);
    });
}

/// H42: LOADING: the server reads its data after a restart.
#[test]
fn h42_loading_is_no_effect_and_passes() {
    run(async {
        let options = RedisOptions::new()
            .persistence(Persistence::Snapshot)
            .config("loading-process-events-interval-bytes 1024");
        let mut world = World::with(&options);
        world.ask(&["DEBUG", "POPULATE", "3000", "filler", "100"]);
        world.ask(&["CONFIG", "SET", "key-load-delay", "500"]);
        world.ask(&["CONFIG", "REWRITE"]);
        world.ask(&["SAVE"]);
        let url = world.server.url();
        let backend = connect(&url).await;
        granted(&backend, &claim("warm", TTL)).await;
        world.server.kill();
        let restart = tokio::task::spawn_blocking(move || {
            world.server.restart(Data::Kept).unwrap();
            world
        });
        let mut told = false;
        let claim = passing("k", TTL);
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < 60 * SEC, "it loads for ever");
            match backend.try_acquire(&claim).await {
                Ok(Attempt::Granted(_)) => break,
                Ok(other) => panic!("{other:?}"),
                Err(error) => {
                    assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
                    if error.message.contains("LOADING") {
                        assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
                        told = true;
                    }
                    pause(5 * MS).await;
                }
            }
        }
        assert!(told, "it was never found loading");
        drop(restart.await.unwrap());
    });
}

/// H42: READONLY and MASTERDOWN: a replica is no place for locks.
#[test]
fn h42_a_replica_grants_nothing() {
    run(async {
        let master = World::new();
        let options = RedisOptions::new().replica_of(master.server.port());
        let replica = World::with(&options.clone().config("replica-serve-stale-data no"));
        let link_is = |state| replica.server.info("master_link_status").unwrap().trim() == state;
        until("it follows", 10 * SEC, || link_is("up")).await;
        let backend = connect(&replica.server.url()).await;
        for claim in [passing("k", TTL), claim("k", TTL), with_mode("k", TTL, Mode::Read)] {
            let error = refused(&backend, &claim).await;
            is(&error, BackendErrorKind::Unreachable, Effect::NotApplied, "READONLY");
        }
        drop(master);
        until("it notices", 10 * SEC, || link_is("down")).await;
        let error = refused(&backend, &passing("k", TTL)).await;
        is(&error, BackendErrorKind::Unreachable, Effect::NotApplied, "MASTERDOWN");
    });
}

/// The address for the user `app`.
fn url_of_user(world: &World) -> String {
    world.server.url().replace("://", "://app:pw@")
}

/// H42: NOPERM: a user that may not touch the key, or not run scripts.
#[test]
fn h42_missing_rights_are_denied_without_effect() {
    run(async {
        let options = RedisOptions::new().user("app on >pw ~app:* &* +@all");
        let world = World::with(&options);
        let backend = connect(&format!("{}?namespaces=app", url_of_user(&world))).await;
        granted(&backend, &claim("app:k", TTL)).await;
        for claim in [passing("other:k", TTL), claim("other:k", TTL)] {
            let error = refused(&backend, &claim).await;
            is(&error, BackendErrorKind::Denied, Effect::NotApplied, "NOPERM");
        }
        world.ask(&["ACL", "SETUSER", "app", "-@scripting"]);
        let error = refused(&backend, &passing("app:k2", TTL)).await;
        is(&error, BackendErrorKind::Denied, Effect::NotApplied, "NOPERM");
        assert_eq!(world.keys(), ["app:k"]);
    });
}

/// H515: a login counts no more on an open connection, or a proxy leads it to a server that cannot serve. A new
/// connection can.
#[test]
fn h515_a_refusal_on_an_open_connection_makes_a_new_one() {
    for refusal in [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM User app has no permissions to run the 'evalsha' command",
        "LOADING Redis is loading the dataset in memory",
    ] {
        run(async {
            let world = World::new();
            let is_old = Arc::new(AtomicBool::new(false));
            let client = Client::warm(&world.proxy.url(), TTL).await;
            let guard = client.acquire("k").await;
            let (refused, renewed) = (is_old.clone(), is_old.clone());
            world.proxy.refuse_if("EVALSHA", refusal, move |_| refused.load(Ordering::SeqCst));
            world.proxy.refuse_if("HELLO", refusal, move |_| {
                renewed.store(false, Ordering::SeqCst);
                false
            });
            is_old.store(true, Ordering::SeqCst);
            until("another connection is made", TTL, || !is_old.load(Ordering::SeqCst)).await;
            let renewed = client.story.renewed();
            until("it is renewed again", TTL, || client.story.renewed() > renewed).await;
            guard.release().await.unwrap();
        });
    }
}

/// H515: a user without a right makes no more than one connection a second.
#[test]
fn h515_refusals_make_one_connection_a_second() {
    run(async {
        let world = World::new();
        let backend = connect(&world.proxy.url()).await;
        granted(&backend, &claim("k", TTL)).await;
        let denied = "NOPERM User app has no permissions to run the 'evalsha' command";
        for refusal in [denied, "READONLY You can't write against a read only replica."] {
            world.proxy.refuse("EVALSHA", refusal);
            let (before, start) = (world.proxy.counts(), Instant::now());
            while start.elapsed() < 2 * SEC {
                refused(&backend, &passing("other", TTL)).await;
                pause(10 * MS).await;
            }
            let made = world.proxy.counts().connections - before.connections;
            assert!((1..=3).contains(&made), "{refusal}: {made} connections");
            world.proxy.allow("EVALSHA");
        }
    });
}

/// H42: a wrong password is told at connect.
#[test]
fn h42_a_wrong_password_is_denied() {
    run(async {
        let world = World::with(&RedisOptions::new().requirepass("right"));
        for login in ["", ":wrong@", "nobody:right@"] {
            let url = world.server.url().replace("://", &format!("://{login}"));
            let config = RedisConfig::parse(&url).unwrap();
            let error = RedisBackend::connect(config, io()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
    });
}

/// A server whose user `app` may use no channel.
fn without_channels() -> World {
    World::with(&RedisOptions::new().user("app on >pw ~* resetchannels +@all"))
}

/// H29: without rights on channels nobody can be told; the key is not left to a claim that does
/// not know of it, and who waits looks by itself.
#[test]
fn h29_a_user_without_channels_stalls_no_queue() {
    run(async {
        let world = without_channels();
        let url = url_of_user(&world);
        let holder = Client::warm(&url, 2 * TTL).await;
        let other = Client::warm(&url, 2 * TTL).await;
        let guard = holder.acquire("k").await;
        let next = waiter(&other, "k");
        world.line_is("k", 1).await;
        until("it looks now and then", 5 * SEC, || other.story.waiting() >= 3).await;
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", 250 * MS + SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H29: only the one who releases has no right to publish: the key is free then, and the waiter
/// comes when it looks.
#[test]
fn h29_a_release_without_publish_rights_frees_the_key() {
    run(async {
        let world = without_channels();
        let url = url_of_user(&world);
        let ttl = 3 * SEC;
        let mute = Client::warm(&url, ttl).await;
        let other = Client::warm(&world.proxy.url(), ttl).await;
        // The default user may everything.
        let guard = mute.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        guard.release().await.unwrap();
        assert!(!world.is_held("k") || next.is_finished());
        let (guard, _) = within("admitted", ttl / 3 + SLACK, next).await.unwrap();
        guard.release().await.unwrap();
        world.empties(SEC).await;
    });
}

/// H42, H29: WRONGTYPE: the name, or a helper's, is in use by something else: nothing is changed.
#[test]
fn h42_a_key_of_another_type_is_a_mismatch() {
    run(async {
        let world = World::new();
        let backend = connect(&world.server.url()).await;
        world.ask(&["HSET", "k", "field", "1"]);
        for claim in [passing("k", TTL), claim("k", TTL), with_mode("k", TTL, Mode::Read)] {
            let error = refused(&backend, &claim).await;
            is(&error, BackendErrorKind::Mismatch, Effect::NotApplied, "WRONGTYPE");
            assert_eq!(release(&backend, &claim).await, Released::NotHeld);
        }
        assert_eq!(world.keys(), ["k"]);
        for helper in ["line", "claims", "held", "marks"] {
            let (key, helper) = (format!("of {helper}"), format!("of {helper}:lw:{helper}"));
            world.ask(&["SET", &helper, "x"]);
            let reader = with_mode(&key, TTL, Mode::Read);
            let error = refused(&backend, &reader).await;
            is(&error, BackendErrorKind::Mismatch, Effect::NotApplied, "WRONGTYPE");
            assert_eq!(world.number(&["EXISTS", &key]), 0, "nothing is left half-way");
        }
    });
}

/// H284: a user loses its keys for a moment while it waits. From the start, that is an error at once; for long, too.
#[test]
fn h284_a_waiter_outlasts_rights_that_are_being_changed() {
    run(async {
        let options = RedisOptions::new().user("app on >pw ~* &* +@all");
        let world = World::with(&options);
        let holder = Client::alone(&world.server.url(), 20 * SEC).await;
        let waiter = Client::alone(&url_of_user(&world), TTL).await;
        let (held, kept) = (holder.acquire("k").await, holder.acquire("kept").await);
        let [waits, in_vain] = ["k", "kept"].map(|name| waiter.mutex(name).ttl(TTL));
        let released = async {
            until("both wait", 5 * SEC, || waiter.story.waiting() >= 2).await;
            world.ask(&["ACL", "SETUSER", "app", "resetkeys"]);
            until("the refusal is reported", 5 * SEC, || waiter.story.tells_of("NOPERM")).await;
            let asked = Instant::now();
            let error = waiter.mutex("other").acquire_within(20 * SEC).await.unwrap_err();
            in_time(asked.elapsed(), SEC);
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            world.ask(&["ACL", "SETUSER", "app", "~k", "~k:*", "~lw:*"]);
            held.release().await.unwrap();
        };
        let (got, given_up, ()) = tokio::join!(
            waits.acquire_within(20 * SEC),
            in_vain.acquire_within(20 * SEC),
            released
        );
        got.expect("its rights are back").release().await.unwrap();
        let error = given_up.expect_err("its rights stay away");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.next_step().unwrap().contains("it prints the ACL SETUSER lines"), "{error}");
        drop(kept);
    });
}

/// H289: the server says it to a new connection, and closes it.
#[test]
fn h289_a_server_that_is_full_is_named() {
    run(async {
        let world = World::new();
        let _client = connect(&world.server.url()).await;
        world.ask(&["CONFIG", "SET", "maxclients", "1"]);
        let config = RedisConfig::parse(&world.server.url()).unwrap();
        let error = RedisBackend::connect(config, io()).await.expect_err("it is full");
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("max number of clients"), "{error}");
        assert!(error.next_step().unwrap().contains("raise maxclients"), "{error}");
    });
}

/// A server that stands still after its first answer to a new connection.
#[test]
fn a_server_that_stops_during_the_handshake_is_named() {
    run(async {
        let world = World::new();
        world.proxy.delay(Direction::ToClient, SEC);
        let config = RedisConfig::parse(&world.proxy.url()).unwrap();
        let (connected, ()) = tokio::join!(RedisBackend::connect(config, io()), async {
            pause(1500 * MS).await;
            world.proxy.freeze(Direction::ToClient);
        });
        let error = connected.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert_eq!(error.next_step().unwrap(), "check that the server is running and not stopped");
    });
}

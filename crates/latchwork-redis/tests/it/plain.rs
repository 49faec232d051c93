//! Stores that cannot do everything: what is found out, what is promised, and what is refused.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::bare::{Bare, LONG};
use latchwork::{Driver, LockManager};
use latchwork_redis::{RedisBackend, RedisConfig};
use latchwork_services::{Cut, Direction, Proxy, RedisOptions, RedisServer};
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Cause, Claim, Effect, Error, ErrorKind,
    Fencing, Linger, Mode, Query,
};

/// A client whose claims do not wait.
async fn connect(url: &str) -> Result<Bare, Error> {
    Ok(Bare { waits: false, ..Bare::connect(url).await? })
}

impl Bare {
    async fn cause(&self, claim: &Claim) -> Cause {
        self.blocked(claim).await.unwrap().cause
    }
}

fn server() -> RedisServer {
    RedisServer::start(&RedisOptions::new()).unwrap()
}

/// Refuses scripts of several keys from now on.
fn one_key_only(proxy: &Proxy) {
    let several = |words: &[&[u8]]| words.get(2) != Some(&b"1".as_slice());
    proxy.refuse_if("EVAL", "ERR wrong number of keys for 'EVAL'", several);
    proxy.refuse("EVALSHA", "ERR unknown command 'EVALSHA'");
}

fn plain_url(server: &RedisServer) -> String {
    format!("{}?plain=true", server.url())
}

#[tokio::test]
async fn the_probes_cost_no_extra_round_trip() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    let client = connect(&proxy.url()).await.unwrap();
    let counts = proxy.counts();
    let count = |name| counts[name];
    let asked =
        ["HELLO", "CLIENT", "INFO", "EVAL", "SUBSCRIBE", "UNSUBSCRIBE", "PUBSUB"].map(count);
    assert_eq!(asked, [1, 1, 1, 2, 1, 1, 1], "{counts:?}");
    assert_eq!(counts.total(), 8, "{counts:?}");
    assert!(counts.round_trips <= 2, "{counts:?}");
    let can = client.backend.capabilities();
    assert!(can.shared && can.permits && can.fifo && can.linger && can.push);
    let names = server.command(&["DBSIZE"]).unwrap().text();
    assert_eq!(names, "0", "the probes leave something");
}

#[tokio::test]
async fn plain_and_whole_clients_share_locks_and_tokens() {
    let server = server();
    let whole = connect(&server.url()).await.unwrap();
    let plain = connect(&plain_url(&server)).await.unwrap();
    let can = plain.backend.capabilities();
    assert!(!can.shared && !can.permits && !can.fifo && !can.linger && !can.push);
    assert_eq!(can.fencing, Fencing::WhileDataSurvives);
    let mut last = 0;
    for _ in 0..5 {
        for (one, other) in [(&whole, &plain), (&plain, &whole), (&plain, &plain)] {
            let held = one.claim("app:k", Mode::Exclusive);
            let token = one.granted(&held).await.unwrap();
            assert!(token > last, "{token} after {last}");
            last = token;
            assert_eq!(other.cause(&other.claim("app:k", Mode::Exclusive)).await, Cause::Held);
            let query = Query::Key(held.key.clone());
            let shown = other.backend.inspect(&query).await.unwrap().remove(0);
            assert_eq!(shown.holders[0].id, Some(held.id));
            assert_eq!(shown.holders[0].token, Some(token));
            assert_eq!(&*shown.holders[0].holder.text, "a test");
            // The id is all that a release needs, in any mode.
            other.released(&held).await.unwrap();
        }
    }
    for mode in [Mode::Read, Mode::Write, Mode::Permits { take: 1, of: 2 }] {
        let held = whole.claim("app:k", mode);
        whole.granted(&held).await.unwrap();
        let own = plain.claim("app:k", Mode::Exclusive);
        let error = plain.backend.try_acquire(&own).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Mismatch, "{mode:?}");
        let shown = plain.backend.inspect(&Query::Key(own.key.clone())).await.unwrap().remove(0);
        assert_eq!(shown.shape, Some(mode.shape()));
        assert_eq!(shown.holders.len(), 1);
        whole.released(&held).await.unwrap();
    }
}

/// Nobody tells of the release of a holder in plain mode; who waits in line for it looks.
#[tokio::test]
async fn a_holder_in_plain_mode_is_followed_at_once() {
    let server = server();
    let plain = connect(&plain_url(&server)).await.unwrap();
    let driver = Driver::start().unwrap();
    let config = RedisConfig::parse(&server.url()).unwrap();
    let backend = RedisBackend::connect(config, driver.io()).await.unwrap();
    let locks = LockManager::new(backend, driver);
    let mut best = Duration::MAX;
    for _ in 0..10 {
        let held = plain.claim("k", Mode::Exclusive);
        plain.granted(&held).await.unwrap();
        let mutex = locks.mutex("k");
        let waiting = tokio::spawn(async move {
            let guard = mutex.acquire().await.unwrap();
            (Instant::now(), guard)
        });
        tokio::time::sleep(Duration::from_millis(333)).await;
        assert!(!waiting.is_finished());
        let freed = Instant::now();
        plain.released(&held).await.unwrap();
        let (taken, guard) = waiting.await.unwrap();
        guard.release().await.unwrap();
        best = best.min(taken.duration_since(freed));
        if best <= Duration::from_millis(250) {
            return;
        }
    }
    panic!("followed only after {best:?}");
}

#[tokio::test]
async fn plain_mode_refuses_unsupported_calls_locally() {
    const ELSEWHERE: &str = "connect to the servers themselves, or use another store for this lock";
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    one_key_only(&proxy);
    let client = connect(&proxy.url()).await.unwrap();
    proxy.reset_counts();
    for mode in [Mode::Read, Mode::Write, Mode::Permits { take: 1, of: 2 }] {
        let error = client.backend.try_acquire(&client.claim("k", mode)).await.unwrap_err();
        clear(&error, "plain mode", ELSEWHERE);
    }
    let floor = client.claim("k", Mode::Exclusive).with(|it| it.floor = 7);
    clear(&client.backend.try_acquire(&floor).await.unwrap_err(), "plain mode", ELSEWHERE);
    let linger = Linger::For(LONG);
    let own = client.claim("k", Mode::Exclusive);
    clear(&client.backend.release(&own, linger).await.unwrap_err(), "plain mode", ELSEWHERE);
    assert_eq!(proxy.counts().total(), 0);
    let Bare { backend, driver, .. } = client;
    let locks = LockManager::new(backend, driver);
    let error = locks.mutex("k").fair().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
}

fn clear(error: &BackendError, why: &str, step: &str) {
    assert_eq!(error.kind, BackendErrorKind::Unsupported, "{error:?}");
    assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
    assert!(error.message.contains(why), "{error:?}");
    assert_eq!(error.next_step.as_deref(), Some(step), "{error:?}");
}

#[tokio::test]
async fn without_scripts_at_all_connecting_is_refused_with_the_reason() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    proxy.refuse("EVAL", "ERR unknown command 'EVAL'");
    proxy.refuse("EVALSHA", "ERR unknown command 'EVALSHA'");
    let Err(error) = connect(&proxy.url()).await else { panic!("connected") };
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("compare and delete"), "{error}");
    assert!(error.next_step().unwrap().contains("EVAL"), "{error}");
}

#[tokio::test]
async fn a_store_that_lists_no_keys_says_so_and_shows_one() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    one_key_only(&proxy);
    proxy.refuse("SCAN", "ERR unknown command 'SCAN'");
    let client = connect(&proxy.url()).await.unwrap();
    let held = client.claim("k", Mode::Exclusive);
    client.granted(&held).await.unwrap();
    let error = client.backend.inspect(&Query::Prefix("".into())).await.unwrap_err();
    clear(&error, "list its keys", "ask for a single key by its name");
    let shown = client.backend.inspect(&Query::Key(held.key.clone())).await.unwrap();
    assert_eq!(shown[0].holders[0].id, Some(held.id));
    client.released(&held).await.unwrap();
}

/// What was promised at the connect is not taken back in silence.
#[tokio::test]
async fn a_downgraded_store_is_reported_after_reconnect() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    let client = connect(&proxy.url()).await.unwrap();
    let promised = client.backend.capabilities();
    one_key_only(&proxy);
    proxy.refuse("SUBSCRIBE", "ERR unknown command 'SUBSCRIBE'");
    proxy.cut(Cut::Reset).unwrap();
    let own = client.claim("k", Mode::Exclusive);
    let start = Instant::now();
    let error = loop {
        assert!(start.elapsed() < LONG, "it never comes back");
        let tried = client.backend.try_acquire(&own);
        match tokio::time::timeout(LONG, tried).await.expect("an answer or an error") {
            Ok(attempt) => panic!("{attempt:?}"),
            // The cut, if it was not noticed before.
            Err(error) if error.kind == BackendErrorKind::Unreachable => {}
            Err(error) => break error,
        }
    };
    let step = "connect again: the store's capabilities are determined when connecting";
    clear(&error, "EVALSHA", step);
    assert_eq!(client.backend.capabilities(), promised);
    // A new connect takes what there is.
    let again = connect(&proxy.url()).await.unwrap();
    assert!(!again.backend.capabilities().shared);
    again.granted(&own).await.unwrap();
    again.released(&own).await.unwrap();
}

/// The answer to any of the three steps is lost: the same id gives one grant, and one release ends it.
#[tokio::test]
async fn a_retry_under_the_same_id_settles_any_lost_answer() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    let client = connect(&format!("{}?plain=true", proxy.url())).await.unwrap();
    let other = connect(&plain_url(&server)).await.unwrap();
    let mut last = 0;
    for step in 1..=3 {
        for again in [true, false] {
            let own = client.claim("k", Mode::Exclusive);
            proxy.lose_answer_of("EVAL", step);
            let error = client.backend.try_acquire(&own).await.unwrap_err();
            assert_eq!(error.kind, BackendErrorKind::Unreachable, "{error:?}");
            if again {
                let token = client.granted(&own).await.unwrap();
                assert!(token > last, "{token} after {last}");
                assert_eq!(client.granted(&own).await.unwrap(), token);
                last = token;
                client.released(&own).await.unwrap();
            } else {
                client.backend.release(&own, Linger::None).await.unwrap();
            }
            let next = other.claim("k", Mode::Exclusive);
            last = last.max(other.granted(&next).await.unwrap());
            other.released(&next).await.unwrap();
        }
    }
}

/// The key is taken from a claim that has not drawn its token yet. The token that it draws then is
/// greater than that of the one who has the key: it must not be granted.
#[tokio::test]
async fn a_claim_that_lost_its_key_before_its_token_is_not_granted() {
    let server = server();
    let proxy = Arc::new(Proxy::redis(server.port()).unwrap());
    let slow = Arc::new(connect(&format!("{}?plain=true", proxy.url())).await.unwrap());
    let quick = connect(&plain_url(&server)).await.unwrap();
    proxy.reset_counts();
    proxy.hold_answers(true);
    let late = slow.claim("k", Mode::Exclusive);
    let trying = tokio::spawn({
        let (slow, late) = (slow.clone(), late.clone());
        async move { slow.backend.try_acquire(&late).await }
    });
    proxy.counts_reach(|counts| counts["EVAL"] == 1).await;
    // The script has run when the key is there.
    while server.command(&["EXISTS", "k"]).unwrap().text() == "0" {
        tokio::task::yield_now().await;
    }
    server.command(&["DEL", "k"]).unwrap();
    let held = quick.claim("k", Mode::Exclusive);
    let token = quick.granted(&held).await.unwrap();
    proxy.hold_answers(false);
    match trying.await.unwrap().unwrap() {
        Attempt::Blocked(blocked) => assert_eq!(blocked.cause, Cause::Held),
        granted => panic!("two holders: {granted:?}"),
    }
    assert_eq!(quick.granted(&held).await.unwrap(), token, "its token was touched");
    quick.released(&held).await.unwrap();
}

/// The key ends each time before the client has its token, as a short ttl and a slow network make it.
#[tokio::test]
async fn a_key_that_ends_before_its_token_is_named() {
    let server = server();
    let proxy = Proxy::redis(server.port()).unwrap();
    let client = connect(&format!("{}?plain=true", proxy.url())).await.unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(20));
    let short = client.claim("k", Mode::Exclusive).with(|it| it.ttl = Duration::from_millis(2));
    let error = client.backend.try_acquire(&short).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::Unknown));
    assert_eq!(
        error.next_step.as_deref().unwrap(),
        "use a longer ttl, or find out which client deletes the key"
    );
    proxy.delay(Direction::ToClient, Duration::ZERO);
    let usual = client.claim("k", Mode::Exclusive);
    client.granted(&usual).await.unwrap();
    client.released(&usual).await.unwrap();
}

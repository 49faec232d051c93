//! Servers with TLS and with users that may do little.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::fs;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::common::bare::{Bare, LONG};
use crate::common::io;
use latchwork_redis::RedisConfig;
use latchwork_services::{RedisOptions, RedisServer};
use latchwork_store::{
    Attempt, Backend, BackendError, BackendErrorKind, Blocked, Claim, ClaimId, Error, ErrorKind,
    Linger, Mode, Order, Query, Released, Renewal, Wake,
};

const SECRET: &str = "very-secret-word";

impl Bare {
    async fn held(&self, claim: &Claim) -> Result<(), BackendError> {
        let answer = self.backend.renew_all(std::slice::from_ref(claim)).await.remove(0)?;
        assert!(matches!(answer, Renewal::Held { .. }), "{:?} is lost", claim.key);
        Ok(())
    }

    /// Waits and tries as core does, until the key is had; tells whether the grant was pushed.
    async fn admitted(
        &self,
        claim: &Claim,
        mut blocked: Blocked,
        looks: &AtomicU32,
    ) -> Result<bool, BackendError> {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < LONG, "never admitted");
            let pause = blocked.retry_after.unwrap_or(LONG / 3).min(claim.ttl / 3);
            let wake = tokio::time::timeout(pause, self.backend.wait(claim, &blocked)).await;
            if let Wake::Admitted { .. } = wake.unwrap_or(Ok(Wake::Look))? {
                return Ok(true);
            }
            match self.backend.try_acquire(claim).await? {
                Attempt::Granted(_) => return Ok(false),
                Attempt::Blocked(again) => blocked = again,
            }
            looks.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Everything that a namespace can be used for.
pub(crate) async fn round(url: &str, pushes: bool) -> Result<(), Error> {
    let (a, b) = (Bare::connect(url).await?, Bare::connect(url).await?);
    let store = a.backend.capabilities().store;
    let done = async {
        many_at_once(&a).await?;
        mutex_with_a_line(&a, &b, pushes).await?;
        shared_and_permits(&a, &b).await?;
        marks_linger_and_lists(&a, &b).await
    };
    done.await.map_err(|error| Error::from_backend(error, None, &store))
}

/// So many at the same time that one script takes, and one frees, several keys.
async fn many_at_once(client: &Bare) -> Result<(), BackendError> {
    let warm = client.claim("app:warm", Mode::Exclusive);
    client.granted(&warm).await?;
    client.released(&warm).await?;
    for releases in [false, true] {
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..32 {
            let mut claim = client.claim(&format!("app:many/{n}"), Mode::Exclusive);
            claim.id = ClaimId::from_u128(n + 1);
            let backend = client.backend.clone();
            tasks.spawn(async move {
                if releases {
                    backend.release(&claim, Linger::None).await.map(drop)
                } else {
                    backend.try_acquire(&claim).await.map(drop)
                }
            });
        }
        for done in tasks.join_all().await {
            done?;
        }
    }
    Ok(())
}

async fn mutex_with_a_line(a: &Bare, b: &Bare, pushes: bool) -> Result<(), BackendError> {
    let first = a.claim("app:mutex", Mode::Exclusive);
    let token = a.granted(&first).await?;
    assert_eq!(a.granted(&first).await?, token);
    a.held(&first).await?;
    let second = b.claim("app:mutex", Mode::Exclusive);
    let blocked = b.blocked(&second).await?;
    let looks = AtomicU32::new(0);
    let waiting = b.admitted(&second, blocked, &looks);
    let release = async {
        // It has subscribed and looked again, so the store knows where to reach it; or it looks now
        // and then.
        while looks.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        a.released(&first).await
    };
    let (mut waiting, mut release) = (pin!(waiting), pin!(release));
    let pushed = tokio::select! {
        pushed = &mut waiting => {
            let pushed = pushed?;
            release.await?;
            pushed
        }
        released = &mut release => {
            released?;
            waiting.await?
        }
    };
    assert_eq!(pushed, pushes, "pushed");
    b.held(&second).await?;
    b.released(&second).await
}

async fn shared_and_permits(a: &Bare, b: &Bare) -> Result<(), BackendError> {
    for (one, other, rival) in [
        (Mode::Read, Mode::Read, Mode::Write),
        (
            Mode::Permits { take: 1, of: 2 },
            Mode::Permits { take: 1, of: 2 },
            Mode::Permits { take: 2, of: 2 },
        ),
    ] {
        let (one, other) = (a.claim("app:shared", one), b.claim("app:shared", other));
        a.granted(&one).await?;
        b.granted(&other).await?;
        a.held(&one).await?;
        let rival = a.claim("app:shared", rival);
        a.blocked(&rival).await?;
        a.blocked(&rival).await?;
        a.released(&one).await?;
        b.released(&other).await?;
        if !matches!(a.backend.try_acquire(&rival).await?, Attempt::Granted(_)) {
            panic!("all have left");
        }
        a.released(&rival).await?;
    }
    let (read, other) = (a.claim("app:shared", Mode::Read), b.claim("app:shared", Mode::Read));
    a.granted(&read).await?;
    b.granted(&other).await?;
    let upgrade = a.claim("app:shared", Mode::Write).with(|it| it.beside = Some(read.id));
    a.blocked(&upgrade).await?;
    b.released(&other).await?;
    a.granted(&upgrade).await?;
    a.released(&read).await?;
    a.released(&upgrade).await?;
    // A member that has run out is cleared by who comes next.
    let brief = a.claim("app:shared", Mode::Read).with(|it| it.ttl = Duration::from_millis(20));
    let lasting = b.claim("app:shared", Mode::Read);
    a.granted(&brief).await?;
    b.granted(&lasting).await?;
    tokio::time::sleep(Duration::from_millis(40)).await;
    b.granted(&lasting).await?;
    b.released(&lasting).await
}

async fn marks_linger_and_lists(a: &Bare, b: &Bare) -> Result<(), BackendError> {
    let first = a.claim("app:other", Mode::Exclusive);
    let barging = b.claim("app:other", Mode::Exclusive).with(|it| it.order = Order::Barging);
    a.granted(&first).await?;
    b.blocked(&barging).await?;
    let listed = a.backend.inspect(&Query::Prefix("".into())).await?;
    let names: Vec<_> = listed.iter().map(|shown| shown.key.as_str()).collect();
    assert_eq!(names, ["app:other"]);
    assert_eq!(listed[0].waiters.len(), 1);
    b.released(&barging).await?;
    let (linger, start) = (Duration::from_millis(30), Instant::now());
    let closing = a.backend.release(&first, Linger::For(linger)).await?;
    assert_eq!(closing, Released::Yes);
    let late = b.claim("app:other", Mode::Exclusive).with(|it| it.waits = false);
    if let Attempt::Granted(_) = b.backend.try_acquire(&late).await? {
        assert!(start.elapsed() > linger, "it was to be closed");
        b.released(&late).await?;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let query = Query::Key(first.key.clone());
    assert!(a.backend.inspect(&query).await?[0].is_free());
    Ok(())
}

/// The words of a block of docs/redis.md.
fn page(block: &str) -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/redis.md");
    let page = fs::read_to_string(page).unwrap();
    let start = page.find(&format!("```{block}\n")).expect("the block") + block.len() + 4;
    let length = page[start..].find("```").unwrap();
    page[start..start + length].split_whitespace().map(str::to_owned).collect()
}

fn server_with(rights: &str) -> RedisServer {
    let user = format!("app on >{SECRET} {rights}");
    let server = RedisServer::start(&RedisOptions::new().user(user)).unwrap();
    // Names of others, which this user may not even look at.
    for name in ["other:x", "job", "other:y:lw:line"] {
        server.command(&["SET", name, "lw:x:-:"]).unwrap().ok().unwrap();
    }
    server
}

fn url_of(server: &RedisServer) -> String {
    format!("redis://app:{SECRET}@127.0.0.1:{}?namespaces=app", server.port())
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let needed = page("acl").join(" ");
    let server = server_with(&needed);
    round(&url_of(&server), true).await.unwrap();
    let all = format!("{needed} {}", page("optional").join(" "));
    let server = server_with(&all);
    round(&url_of(&server), true).await.unwrap();
    let log = server.command(&["ACL", "LOG"]).unwrap();
    // Refused were the probes and the names of others, and nothing of ours.
    for entry in log.list() {
        let object = entry.field("object").unwrap();
        assert!(
            ["lw:probe", "lw:push:probe", "other:", "job"].iter().any(|n| object.contains(n)),
            "{entry:?}"
        );
    }
}

/// Without any one of them something is `Denied`, or nothing is pushed; and nothing is left held by
/// nobody.
#[tokio::test]
async fn every_documented_right_is_needed() {
    let rights = page("acl");
    // With those that help, for without them some of the needed ones are not asked for.
    let server = server_with(&format!("{} {}", rights.join(" "), page("optional").join(" ")));
    let url = url_of(&server);
    for right in rights.iter().filter(|right| right.starts_with('+')) {
        let take = right.replacen('+', "-", 1);
        server.command(&["ACL", "SETUSER", "app", &take]).unwrap().ok().unwrap();
        let pushes = !matches!(&**right, "+publish" | "+subscribe");
        let outcome = round(&url, pushes).await;
        if pushes {
            let error = outcome.expect_err(&format!("{right} is not needed"));
            assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
            assert!(error.to_string().contains("\"app\""), "{error}");
            assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        } else {
            outcome.unwrap();
        }
        // What the round has left when it was stopped belongs to a claim that it can release.
        server.command(&["ACL", "SETUSER", "app", right]).unwrap().ok().unwrap();
        let client = Bare::connect(&url).await.unwrap();
        for shown in client.backend.inspect(&Query::Prefix("app:".into())).await.unwrap() {
            for party in shown.holders.iter().chain(&shown.waiters) {
                let id = party.id.unwrap_or_else(|| panic!("{right}: nobody's: {shown:?}"));
                let claim = client.claim(shown.key.as_str(), party.mode).with(|it| it.id = id);
                // The mark of a process that has gone goes when the key is free.
                client.backend.release(&claim, Linger::None).await.unwrap();
            }
        }
        let left = client.backend.inspect(&Query::Prefix("app:".into())).await.unwrap();
        assert!(left.is_empty(), "{right}: {left:?}");
    }
}

/// H29: the release may not publish. It frees the key all the same, grants it to nobody who was not
/// told, and the waiters come by themselves.
#[tokio::test]
async fn h29_locks_work_without_channel_rights() {
    let rights: Vec<_> = page("acl").into_iter().filter(|r| !r.starts_with('&')).collect();
    let server = server_with(&rights.join(" "));
    server
        .command(&["ACL", "SETUSER", "able", "on", ">word", "~app:*", "&app:*", "+@all"])
        .unwrap()
        .ok()
        .unwrap();
    round(&url_of(&server), false).await.unwrap();

    let mute = Bare::connect(&url_of(&server)).await.unwrap();
    let able = format!("redis://able:word@127.0.0.1:{}?namespaces=app", server.port());
    let able = Bare::connect(&able).await.unwrap();
    let holder = mute.claim("app:k", Mode::Exclusive);
    mute.granted(&holder).await.unwrap();
    // This one can hear, and is in line.
    let ttl = Duration::from_secs(3);
    let waiter = able.claim("app:k", Mode::Exclusive).with(|it| it.ttl = ttl);
    let blocked = able.blocked(&waiter).await.unwrap();
    let subscribed = able.backend.wait(&waiter, &blocked).await.unwrap();
    assert_eq!(subscribed, Wake::Look);
    let blocked = able.blocked(&waiter).await.unwrap();
    mute.released(&holder).await.unwrap();
    let value = server.command(&["EXISTS", "app:k"]).unwrap().text();
    assert_eq!(value, "0", "granted to somebody who was not told");
    able.admitted(&waiter, blocked, &AtomicU32::new(0)).await.unwrap();
    able.released(&waiter).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_names_the_user() {
    let server = server_with(&page("acl").join(" "));
    let port = server.port();
    let wrong = format!("redis://app:{SECRET}-not@127.0.0.1:{port}");
    let unknown = format!("redis://nobody:{SECRET}@127.0.0.1:{port}");
    for (url, user) in [(wrong, "\"app\""), (unknown, "\"nobody\"")] {
        let Err(error) = Bare::connect(&url).await else { panic!("let in") };
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(user), "{error}");
        assert!(error.next_step().unwrap().contains("password"));
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    }
    let options = RedisOptions::new().requirepass(SECRET);
    let server = RedisServer::start(&options).unwrap();
    for url in [server.url(), format!("redis://:wrong@127.0.0.1:{}", server.port())] {
        let Err(error) = Bare::connect(&url).await else { panic!("let in") };
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("\"default\""), "{error}");
    }
    let client = Bare::connect(&format!("redis://:{SECRET}@127.0.0.1:{}", server.port())).await;
    let client = client.unwrap();
    let shown = format!("{:?} {:?}", client.backend, client.backend.capabilities());
    assert!(!shown.contains(SECRET), "{shown}");
    // The password is changed under a client that is connected: what it may is asked anew.
    server.command(&["CONFIG", "SET", "requirepass", "another"]).unwrap().ok().unwrap();
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < LONG, "never denied");
        match client.granted(&client.claim("app:k", Mode::Exclusive)).await {
            Err(BackendError { kind: BackendErrorKind::Denied, message, .. }) => {
                assert!(message.contains("\"default\"") && !message.contains(SECRET), "{message}");
                break;
            }
            // The connection has just gone.
            Err(error) => assert_eq!(error.kind, BackendErrorKind::Unreachable),
            Ok(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn tls_trusts_the_authority_that_is_named_and_no_other() {
    let server = RedisServer::start(&RedisOptions::new().tls()).unwrap();
    let other = RedisServer::start(&RedisOptions::new().tls()).unwrap();
    let ca = |server: &RedisServer| server.certificates().unwrap().ca_cert.display().to_string();
    let good = format!("{}?ca={}", server.url(), ca(&server));
    round(&good, true).await.unwrap();

    let unnamed = server.url();
    let wrong = format!("{}?ca={}", server.url(), ca(&other));
    for url in [unnamed, wrong] {
        let Err(error) = Bare::connect(&url).await else { panic!("trusted: {url}") };
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("certificate"), "{error}");
        assert!(error.next_step().unwrap().contains("ca="), "{error}");
    }
    // The other word for the same.
    let valkeys = server.url().replacen("rediss", "valkeys", 1);
    let insecure = format!("{valkeys}?insecure=true");
    round(&insecure, true).await.unwrap();
    let config = RedisConfig::parse(&insecure).unwrap();
    let report = latchwork_redis::doctor(config, io()).await.unwrap();
    let tls = report.find("tls").unwrap();
    assert_eq!(tls.remedy, "leave insecure out, and name the authority with ca=/path");
    let missing = format!("{}?ca=/nowhere/ca.pem", server.url());
    let Err(error) = Bare::connect(&missing).await else { panic!("no file") };
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("/nowhere/ca.pem"), "{error}");
    // The address says no TLS, the server says TLS.
    let Err(error) = Bare::connect(&server.url().replacen("rediss", "redis", 1)).await else {
        panic!("spoke without TLS")
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_asked_for() {
    let options = RedisOptions::new().tls().config("tls-auth-clients yes");
    let server = RedisServer::start(&options).unwrap();
    let files = server.certificates().unwrap();
    let ca = files.ca_cert.display();
    let without = format!("{}?ca={ca}", server.url());
    let Err(error) = Bare::connect(&without).await else { panic!("let in") };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    // The server's own certificate is as good as any that the authority has signed.
    let (cert, key) = (files.server_cert.display(), files.server_key.display());
    round(&format!("{without}&cert={cert}&key={key}"), true).await.unwrap();
    let Err(error) = Bare::connect(&format!("{without}&cert={cert}")).await else {
        panic!("half a pair")
    };
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

//! Services that check the text of scripts before they run them.

use latchwork_services::{Proxy, refused_script, script_of};
use latchwork_store::doctor::{Report, Severity};
use latchwork_store::*;

use crate::common::bare::{Bare, LONG};
use crate::common::*;
use crate::guard::init;

/// Refuses what such a service refuses; all else passes.
fn checks(proxy: &Proxy) {
    for command in ["EVAL", "SCRIPT", "FUNCTION"] {
        for words in [
            "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the \
             KEYS array, and KEYS should not be in expression",
            "ERR bad lua script for redis cluster, first parameter of redis.call/redis.pcall must be a single \
             literal string",
            "ERR bad lua script for redis cluster, unpack is not supported",
            "ERR bad lua script for redis cluster, nested redis.call/redis.pcall are not supported",
        ] {
            proxy.refuse_if(command, words, move |said| {
                script_of(said).and_then(refused_script) == Some(words)
            });
        }
    }
}

/// Refuses all scripts by their text but those that contain none of these words.
fn refuses(proxy: &Proxy, words: &'static [&'static str]) {
    let error = "ERR bad lua script for redis cluster, this one is not liked";
    proxy.refuse_if("EVAL", error, |said| {
        script_of(said).is_some_and(|text| words.iter().any(|word| text.contains(word)))
    });
    proxy.refuse("EVALSHA", "NOSCRIPT No matching script. Please use EVAL.");
}

async fn doctor(url: &str) -> Report {
    latchwork_redis::doctor(latchwork_redis::RedisConfig::parse(url).unwrap(), io()).await.unwrap()
}

#[track_caller]
fn scripts<'a>(
    report: &'a Report,
    severity: Severity,
    words: &str,
) -> &'a latchwork_store::doctor::Finding {
    let one = report.find("scripts").unwrap_or_else(|| panic!("{report:#?}"));
    assert!(one.severity == severity && one.found.contains(words), "{one:?}");
    one
}

/// H250: all kinds of locks, queues, `once`, the guard, namespaces and plain mode.
#[test]
fn h250_every_verb_works_where_scripts_are_checked_by_text() {
    run(async {
        let world = World::new();
        checks(&world.proxy);
        let url = world.proxy.url();
        let toy = world.proxy.port();
        let mut redis = redis::Client::open(format!("redis://127.0.0.1:{toy}"))
            .unwrap()
            .get_connection()
            .unwrap();
        let mut refused = redis::cmd("EVAL");
        refused.arg("local k = KEYS[1] return redis.call('GET', k)").arg(1).arg("k");
        refused.query::<()>(&mut redis).unwrap_err();
        let guarded = format!("{url}?guard=true&max_ttl=30s&namespaces=app");
        init(&guarded).await;
        for options in ["", "?namespaces=app", "?guard=true&max_ttl=30s&namespaces=app"] {
            let url = format!("{url}{options}");
            let bare = Bare::connect(&url).await.unwrap();
            let two = Mode::Permits { take: 1, of: 2 };
            for mode in [Mode::Exclusive, Mode::Write, Mode::Read, two] {
                let (first, second) =
                    (bare.claim("app:k", mode), bare.claim("app:k", Mode::Exclusive));
                bare.granted(&first).await.unwrap();
                if !mode.is_alone() {
                    let beside = bare.claim("app:k", mode);
                    bare.granted(&beside).await.unwrap();
                    bare.released(&beside).await.unwrap();
                }
                let renewed = bare.backend.renew_all(std::slice::from_ref(&first)).await.remove(0);
                assert!(matches!(renewed, Ok(Renewal::Held { .. })), "{mode:?}: {renewed:?}");
                let shown = bare.backend.inspect(&Query::Key(first.key.clone())).await.unwrap();
                assert_eq!(shown[0].holders[0].id, Some(first.id));
                if mode == Mode::Exclusive {
                    bare.blocked(&second).await.unwrap();
                    bare.released(&second).await.unwrap();
                }
                let closed = bare.backend.release(&first, Linger::For(5 * SEC)).await.unwrap();
                assert_eq!(closed, Released::Yes, "{mode:?}");
                assert_eq!(bare.blocked(&first).await.unwrap().cause, Cause::Linger, "{mode:?}");
                bare.released(&first).await.unwrap();
                bare.backend.release(&first, Linger::End).await.unwrap();
            }
            // Requests that come together share a script; a waiter gets its turn by a message.
            let client = Client::new(&url, LONG).await;
            let many = (0..40).map(|n| client.locks.mutex(format!("app:{n}")));
            let guards =
                futures_util::future::join_all(many.map(|it| async move { it.acquire().await }))
                    .await;
            let released = guards.into_iter().map(|guard| guard.unwrap().release());
            for released in futures_util::future::join_all(released).await {
                released.unwrap();
            }
            let held = client.acquire("app:q").await;
            let next = Client::new(&url, LONG).await;
            let waiting = subscribed_waiter(&next, "app:q").await;
            held.release().await.unwrap();
            let (guard, _) = within("the next", 20 * SEC, waiting).await.unwrap();
            guard.release().await.unwrap();
            assert!(client.story.failures.lock().unwrap().is_empty());
            let report = doctor(&url).await;
            scripts(&report, Severity::Ok, "all 9");
        }
        let plain = format!("{url}?plain=true");
        let bare = Bare { waits: false, ..Bare::connect(&plain).await.unwrap() };
        let held = bare.claim("p", Mode::Exclusive);
        bare.granted(&held).await.unwrap();
        assert!(matches!(renew(&bare.backend, &held).await, Ok(Renewal::Held { .. })));
        bare.released(&held).await.unwrap();
        scripts(&doctor(&plain).await, Severity::Ok, "all 6");
    });
}

/// H251: where the text of the scripts is refused there are no locks, and where only that of those with several
/// keys is, there is plain mode. Both are said with the server's words.
#[test]
fn h251_a_refused_text_is_found_when_connecting_and_by_doctor() {
    run(async {
        let world = World::new();
        let url = world.proxy.url();
        // Not those of one key.
        refuses(&world.proxy, &["PUBLISH"]);
        let bare = Bare { waits: false, ..Bare::connect(&url).await.unwrap() };
        assert!(!bare.backend.capabilities().shared);
        let held = bare.claim("k", Mode::Exclusive);
        bare.granted(&held).await.unwrap();
        bare.released(&held).await.unwrap();
        let report = doctor(&url).await;
        scripts(&report, Severity::Warning, "is not liked");

        // Found out too late for connecting: by the verb itself.
        let world = World::new();
        let url = world.proxy.url();
        refuses(&world.proxy, &["'ZCARD'"]);
        let bare = Bare::connect(&url).await.unwrap();
        let error = bare.backend.try_acquire(&bare.claim("k", Mode::Exclusive)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Unsupported, "{error:?}");
        assert_eq!(error.effect, Effect::NotApplied, "{error:?}");
        assert!(error.next_step.unwrap().contains("plain=true"));
        let report = doctor(&url).await;
        let one = scripts(&report, Severity::Critical, "is not liked");
        assert!(one.found.contains("try") && one.remedy.contains("plain=true"), "{one:?}");
        assert!(!report.is_fit());

        let world = World::new();
        refuses(&world.proxy, &["redis.call"]);
        let Err(error) = Bare::connect(&world.proxy.url()).await else { panic!("connected") };
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("is not liked"), "{error}");
        assert!(error.next_step().unwrap().contains("the text of scripts"), "{error}");
        let report = doctor(&world.proxy.url()).await;
        scripts(&report, Severity::Critical, "is not liked");
    });
}

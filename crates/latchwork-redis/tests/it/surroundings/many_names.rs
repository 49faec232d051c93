//! Keys with names of all kinds: what they leave at the server does not grow with their number.

use latchwork_services::RedisOptions;
use latchwork_store::*;

use crate::common::*;

/// Takes, waits for and releases a thousand keys whose names all begin differently.
async fn a_thousand_keys(url: &str) {
    let (one, other) =
        (Client::warm(url, Duration::from_secs(20)).await, Client::warm(url, 20 * SEC).await);
    for n in 0..1_000 {
        let name = format!("order-{n}:stock");
        let guard = one.acquire(&name).await;
        if n % 20 == 0 {
            let looks = other.story.waiting();
            let next = waiter(&other, &name);
            until("it waits", 5 * SEC, || other.story.waiting() > looks).await;
            guard.release().await.unwrap();
            next.await.unwrap().0.release().await.unwrap();
        } else {
            guard.release().await.unwrap();
        }
    }
}

fn left(world: &World) -> (Vec<String>, usize) {
    let list = |words: &[&str]| world.ask(words).list().iter().map(|one| one.text()).collect();
    let mut keys: Vec<String> = list(&["KEYS", "*"]);
    keys.sort();
    let channels: Vec<String> = list(&["PUBSUB", "CHANNELS", "*"]);
    (keys, channels.len())
}

/// H103: a thousand names leave one counter, and one channel for each process.
#[test]
fn h103_a_thousand_names_leave_one_counter_and_channel() {
    run(async {
        let world = World::new();
        a_thousand_keys(&world.server.url()).await;
        let (keys, channels) = left(&world);
        assert_eq!(keys, ["lw:token"]);
        assert!(channels <= 2, "{channels} channels");
    });
}

/// H103: with the guard they leave one marker as well, and wait for one quarantine.
#[test]
fn h103_a_thousand_names_leave_one_marker() {
    run(async {
        let world = World::new();
        let url = format!("{}?guard=true&max_ttl=20s&namespaces=shop", world.server.url());
        let config = latchwork_redis::RedisConfig::parse(&url).unwrap();
        latchwork_redis::init(config, io()).await.unwrap();
        let before = Instant::now();
        a_thousand_keys(&url).await;
        assert!(before.elapsed() < 20 * SEC, "no quarantine for each");
        let (keys, _) = left(&world);
        assert_eq!(keys, ["lw:guard", "lw:token", "shop:lw:guard"]);
    });
}

/// H103: a user that is limited to a namespace needs no right but those on its names and channels.
#[test]
fn h103_a_user_limited_to_a_namespace_names_it() {
    run(async {
        let user = "app on >pw resetkeys resetchannels ~app:* &app:* +@all";
        let world = World::with(&RedisOptions::new().user(user));
        let at = format!("redis://app:pw@127.0.0.1:{}", world.server.port());
        let url = format!("{at}?namespaces=app");
        let (one, other) = (connect(&url).await, connect(&url).await);
        let (first, second) = (claim("app:k", 20 * SEC), claim("app:k", 20 * SEC));
        granted(&one, &first).await;
        let blocked = in_line(&other, &second).await;
        assert_eq!(release(&one, &first).await, Released::Yes);
        assert!(matches!(other.wait(&second, &blocked).await, Ok(Wake::Admitted { .. })));
        assert_eq!(release(&other, &second).await, Released::Yes);
        let without = connect(&at).await;
        let error = without.try_acquire(&claim("app:k", SEC)).await.unwrap_err();
        assert_eq!(error.kind, BackendErrorKind::Denied, "{error:?}");
        assert!(error.next_step.as_deref().is_some_and(|step| step.contains("namespaces=")));
    });
}

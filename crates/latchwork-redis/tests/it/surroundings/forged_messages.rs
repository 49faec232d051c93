//! A user of the server who may publish and listen, and nothing else: what it publishes changes no
//! lock.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use latchwork::Guard;
use latchwork_services::RedisOptions;

use crate::common::*;

const TTL: Duration = Duration::from_secs(30);
const LARGEST: u64 = (1 << 53) - 1;

/// A server on its default settings, with a user `pub` who may publish and listen everywhere.
fn world() -> World {
    let user = "pub on >pw resetkeys resetchannels &* -@all +publish +psubscribe";
    World::with(&RedisOptions::new().user(user))
}

/// A connection of that user.
struct Publisher(redis::Connection);

impl Publisher {
    fn new(world: &World) -> Self {
        let url = format!("redis://pub:pw@127.0.0.1:{}", world.server.port());
        let client = redis::Client::open(url).expect("a good address");
        Self(client.get_connection().expect("the server runs"))
    }

    /// Publishes all of these to a channel.
    fn say(&mut self, channel: &str, messages: &[String]) {
        for some in messages.chunks(500) {
            let mut pipeline = redis::pipe();
            for message in some {
                pipeline.cmd("PUBLISH").arg(channel).arg(message).ignore();
            }
            pipeline.query::<()>(&mut self.0).expect("it may publish");
        }
    }
}

/// Reads everything that is published, on a thread of its own.
struct Listener {
    heard: Arc<Mutex<Vec<(String, String)>>>,
    is_over: Arc<AtomicBool>,
}

impl Listener {
    /// `answer` is called with each message as soon as it comes, and publishes what it returns.
    fn start(world: &World, answer: impl Fn(&str) -> Vec<String> + Send + 'static) -> Self {
        let (mut ears, mut mouth) = (Publisher::new(world), Publisher::new(world));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let is_over = Arc::new(AtomicBool::new(false));
        let (all, ended) = (heard.clone(), is_over.clone());
        let (begun, begins) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut forged = HashSet::new();
            let mut listening = ears.0.as_pubsub();
            listening.psubscribe("*").expect("it may listen");
            listening.set_read_timeout(Some(100 * MS)).unwrap();
            begun.send(()).unwrap();
            while !ended.load(Ordering::SeqCst) {
                let Ok(message) = listening.get_message() else { continue };
                let Ok(text) = message.get_payload::<String>() else { continue };
                let channel = message.get_channel_name().to_owned();
                if forged.contains(&text) {
                    continue;
                }
                let copies = answer(&text);
                forged.extend(copies.iter().cloned());
                mouth.say(&channel, &copies);
                all.lock().unwrap().push((channel, text));
            }
        });
        begins.recv().unwrap();
        Self { heard, is_over }
    }

    fn heard(&self) -> Vec<(String, String)> {
        self.heard.lock().unwrap().clone()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// The claim that waits at this place, and the name of its process.
fn waiting_at(world: &World, key: &str, place: i64) -> (String, String) {
    let entry = world.text(&["LINDEX", &format!("{key}:lw:line"), &place.to_string()]);
    (entry[..32].to_owned(), entry[79..95].trim_end().to_owned())
}

/// Everything that the server has of a key, but the time that is left.
fn state(world: &World, key: &str) -> Vec<String> {
    let line = format!("{key}:lw:line");
    [&["GET", key][..], &["GET", "lw:token"], &["LLEN", &line]]
        .iter()
        .map(|words| format!("{:?}", world.ask(words)))
        .collect()
}

/// Every kind of message, with right and wrong parts.
fn all_messages(ids: &[String], stamps: &[String], token: u64) -> Vec<String> {
    let texts = |numbers: &[u64]| numbers.iter().map(u64::to_string).collect::<Vec<_>>();
    let tokens = texts(&[0, 1, token, token + 1, LARGEST, u64::MAX]);
    let ttls = texts(&[0, 1, 2_000, 86_400_000, u64::MAX]);
    let since = texts(&[0, 9_000_000_000_000_000]);
    let mut messages = Vec::new();
    for id in ids {
        for stamp in stamps {
            for token in &tokens {
                for ttl in &ttls {
                    for since in &since {
                        for lock in ["k", "other"] {
                            let said = format!("g {id} {token} {ttl} {stamp} {since} {lock}");
                            messages.push(said);
                        }
                    }
                }
            }
        }
        messages.extend(ttls.iter().map(|after| format!("l {id} {after}")));
    }
    messages
}

/// H83: each kind of message, with right and wrong ids, stamps, ttls and tokens, from a user who
/// reads all that is broadcast: nobody is granted anything by it, nobody loses anything, and no
/// token moves.
#[test]
fn h83_no_forged_message_gives_extends_or_ends_a_hold() {
    run(async {
        let world = world();
        let listener = Listener::start(&world, |_| Vec::new());
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        // What was broadcast of grants before is known to everybody.
        let first = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        first.release().await.unwrap();
        let (earlier, _) = next.await.unwrap();
        let next = subscribed_waiter(&holder, "k").await;
        earlier.release().await.unwrap();
        next.await.unwrap().0.release().await.unwrap();
        until("the grant is broadcast", SEC, || listener.heard().len() >= 2).await;
        let (_, broadcast) = listener.heard().pop().unwrap();
        let old: Vec<String> = broadcast.split(' ').map(str::to_owned).collect();

        // The holder's process has a channel as well, for it has waited before.
        let guard = holder.acquire("k").await;
        let next = next_waiter(&other).await;
        world.line_is("k", 1).await;
        let (id, process) = waiting_at(&world, "k", 0);
        let holders_id = world.text(&["GET", "k"])[7..39].to_owned();
        let before = state(&world, "k");
        let ids = [id, holders_id, old[1].clone(), "0".repeat(32)];
        let now = io().now().as_nanos();
        let stamps = [
            "0".into(),
            old[4].clone(),
            "9007199254740991".into(),
            now.to_string(),
            u64::MAX.to_string(),
            "f".repeat(32),
        ];
        let mut messages = all_messages(&ids, &stamps, guard.token().grant_number());
        messages.extend(["", "g", "l", "x 1", "g g g g g g g"].map(str::to_owned));
        // The very words that were broadcast, and the one that once made a second holder.
        messages.push(broadcast);
        messages.push(format!("g {} {LARGEST} 86400000 1 9000000000000000 k", ids[0]));
        messages.push(format!("g {} {LARGEST} 86400000 {LARGEST} 0 k", ids[0]));
        let mut publisher = Publisher::new(&world);
        let mut channels: HashSet<_> =
            listener.heard().into_iter().map(|(channel, _)| channel).collect();
        channels.insert(format!("lw:push:{process}"));
        channels.insert("lw:push:0000000000000000".into());
        for channel in &channels {
            publisher.say(channel, &messages);
        }
        pause(300 * MS).await;
        assert!(!next.is_finished(), "a forged message has granted the lock");
        assert_eq!(guard.ensure_held(), Ok(guard.token()));
        assert_eq!(state(&world, "k"), before);
        assert!(world.number(&["PTTL", "k"]) <= TTL.as_millis() as i64);

        let token = guard.token();
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", SLACK, next).await.unwrap();
        assert!(guard.token() > token && guard.token().grant_number() < LARGEST / 4);
        guard.release().await.unwrap();
    });
}

/// H83: somebody reads each grant when the waiter does, and at once publishes copies with a larger
/// token, a longer ttl and another lock. The waiter believes what the script said, and nothing more.
#[test]
fn h83_a_grant_that_is_copied_and_changed_counts_once() {
    run(async {
        let world = world();
        let listener = Listener::start(&world, |text| {
            let words: Vec<&str> = text.split(' ').collect();
            let ["g", id, token, ttl, stamp, since, lock] = words[..] else { return Vec::new() };
            let mut copies = vec![format!("g {id} {LARGEST} 86400000 {stamp} {since} {lock}")];
            copies.push(format!("g {id} {LARGEST} {ttl} {stamp} 9000000000000000 {lock}"));
            copies.push(format!("g {id} {token} 86400000 {stamp} {since} other"));
            copies.push(text.to_owned());
            copies
        });
        let clients = [
            Client::warm(&world.server.url(), TTL).await,
            Client::warm(&world.server.url(), TTL).await,
        ];
        let mut guard = clients[0].acquire("k").await;
        for round in 1..=40 {
            let next = next_waiter(&clients[round % 2]).await;
            guard.release().await.unwrap();
            let (new, _) = within("admitted", SLACK, next).await.unwrap();
            guard = new;
            // The copies come now: nothing of them may change what is held.
            let stored = world.text(&["GET", "k"]);
            let at_server: u64 = stored[40..56].parse().expect("a token");
            assert_eq!(guard.token().grant_number(), at_server, "round {round}");
            assert!(guard.remaining() <= TTL, "{:?}", guard.remaining());
            let left = Duration::from_millis(world.number(&["PTTL", "k"]).try_into().unwrap());
            assert!(guard.remaining() <= left, "round {round}: {:?}", guard.remaining());
        }
        guard.release().await.unwrap();
        // All that was ever said, once more: nobody waits, nobody holds.
        let before = state(&world, "k");
        let mut publisher = Publisher::new(&world);
        let heard = listener.heard();
        assert!(heard.iter().filter(|(_, text)| text.starts_with('g')).count() >= 20, "{heard:?}");
        for (channel, text) in &heard {
            publisher.say(channel, std::slice::from_ref(text));
        }
        pause(200 * MS).await;
        assert_eq!(state(&world, "k"), before);
    });
}

/// One more waiter of a client whose channel is known.
async fn next_waiter(client: &Client) -> tokio::task::JoinHandle<(Guard, Instant)> {
    let looks = client.story.waiting();
    let next = waiter(client, "k");
    until("it waits", 5 * SEC, || client.story.waiting() > looks).await;
    next
}

/// H83: what a process does not know it gives back, but only what the store granted to it: a forged
/// grant to the claim of somebody else ends nothing.
#[test]
fn h83_a_forged_grant_to_another_process_ends_no_hold() {
    run(async {
        let world = world();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        let (_, process) = waiting_at(&world, "k", 0);
        let holders_id = world.text(&["GET", "k"])[7..39].to_owned();
        let forged = |nonce: &str| format!("g {holders_id} 1 2000 {nonce} 0 k");
        let messages = [forged("1"), forged(&"0".repeat(32))];
        Publisher::new(&world).say(&format!("lw:push:{process}"), &messages);
        pause(300 * MS).await;
        assert!(!next.is_finished(), "the hold of another process was released");
        assert!(world.is_held("k"));
        guard.release().await.unwrap();
        drop(within("admitted", SLACK, next).await.unwrap());
    });
}

/// H83: somebody who may read the line as well knows the word that a grant is believed by. It is
/// not believed with a longer ttl than was asked for, nor with a token that no store would give.
#[test]
fn h83_a_reader_of_the_queue_can_forge_no_hold() {
    run(async {
        let world = world();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        let mut publisher = Publisher::new(&world);
        let token = guard.token().grant_number() + 1;
        for (token, ttl) in [(token, 86_400_000), (token, 2_001), (LARGEST, 2_000), (0, 2_000)] {
            let looks = other.story.waiting();
            let entry = world.text(&["LINDEX", "k:lw:line", "0"]);
            let (id, process, nonce) = (&entry[..32], &entry[79..95], &entry[95..127]);
            let forged = format!("g {id} {token} {ttl} {nonce} 0 k");
            publisher.say(&format!("lw:push:{process}"), &[forged]);
            until("it looks", 5 * SEC, || other.story.waiting() > looks || next.is_finished())
                .await;
            assert!(!next.is_finished(), "believed: token {token}, ttl {ttl}");
        }
        guard.release().await.unwrap();
        drop(within("admitted", SLACK, next).await.unwrap());
    });
}

/// H83: what a flood of forged wake-ups costs does not grow with the flood.
#[test]
fn h83_a_flood_of_forged_messages_costs_few_tries() {
    run(async {
        let world = world();
        let holder = Client::warm(&world.server.url(), TTL).await;
        let other = Client::warm(&world.server.url(), TTL).await;
        let guard = holder.acquire("k").await;
        let next = subscribed_waiter(&other, "k").await;
        let (id, process) = waiting_at(&world, "k", 0);
        let channel = format!("lw:push:{process}");
        let looks = other.story.waiting();
        let began = Instant::now();
        let flood = thread::spawn({
            let mut publisher = Publisher::new(&world);
            move || {
                // First so slowly that each could cost a try of its own, then all at once.
                for _ in 0..2_000 {
                    publisher.say(&channel, &[format!("l {id} 0")]);
                    thread::sleep(2 * MS);
                }
                let flood: Vec<_> = (0..4_000)
                    .flat_map(|n| [format!("l {id} 0"), format!("g {id} 1 2000 {n} 0 k")])
                    .collect();
                publisher.say(&channel, &flood);
            }
        });
        until("the flood is over", 40 * SEC, || flood.is_finished()).await;
        let (tries, took) = (other.story.waiting() - looks, began.elapsed());
        let allowed = 40 + (50.0 * took.as_secs_f64()) as u64;
        assert!(tries <= allowed, "{tries} tries in {took:?}, {allowed} allowed");
        assert!(guard.ensure_held().is_ok() && !next.is_finished());
        // The genuine grant is not held up by what came before it.
        guard.release().await.unwrap();
        let (guard, _) = within("admitted", 2 * SLACK, next).await.unwrap();
        guard.release().await.unwrap();
    });
}

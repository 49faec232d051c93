//! A disk that takes five seconds for each sync. Everything else stays as fast as the page cache.
//!
//! `strace` delays the calls of a child process: of the thread that makes them, and of no other.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork::{Driver, LockManager};
use latchwork_file::FileBackend;
use latchwork_store::testing::stalls;
use latchwork_store::*;

use crate::common::*;

const TTL: Duration = Duration::from_secs(3);
const SYNC: Duration = Duration::from_secs(5);
/// How late a holder may be told beside other tests. Behind a sync it would be told two seconds late.
const LATE: Duration = Duration::from_millis(500);

/// A process in which every sync takes that long.
fn on_a_slow_disk(role: &str, dir: &Path) -> Process {
    let inner = command(&std::env::current_exe().unwrap(), role, dir);
    let mut outer = Command::new("strace");
    outer.args(["-f", "-qq", "-o", "/dev/null", "--seccomp-bpf"]);
    outer.args(["-e", "trace=fdatasync,fsync"]);
    outer.args(["-e", &format!("inject=fdatasync,fsync:delay_enter={}", SYNC.as_micros())]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Process::spawn(outer)
}

fn stripe_file(dir: &Path, stripe: &str) -> File {
    File::open(dir.join("stripes").join(stripe)).unwrap()
}

/// The stripe of a key, which is held for a moment: so its tokens have a ceiling on the disk.
async fn prepare(backend: &FileBackend, key: &str) -> String {
    let claim = claim(key);
    granted(backend.try_acquire(&claim).await);
    let query = Query::Key(claim.key.clone());
    let snapshot = backend.inspect(&query).await.unwrap().pop().unwrap();
    let record = snapshot.notes.iter().find_map(|note| note.strip_prefix("record: ")).unwrap();
    let stripe = Path::new(record).parent().unwrap().file_name().unwrap().to_str().unwrap();
    release(backend, &claim).await;
    stripe.to_owned()
}

/// H88: while a sync takes five seconds, another key of the same stripe is renewed, a holder that
/// cannot be renewed is told in time, the stripe is free for other processes, and the verb that
/// asked for the sync is not answered before it.
async fn a_slow_sync_stalls_nothing_else(what: &str) {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("locks");
    let backend = connect(&dir);
    let busy = prepare(&backend, "synced").await;
    // Another key in the stripe of the slow sync, and one that is elsewhere.
    let (mut renewed, mut stuck) = (None, None);
    for n in 0.. {
        let key = format!("key {n}");
        let stripe = prepare(&backend, &key).await;
        if stripe == busy {
            renewed.get_or_insert(key);
        } else {
            stuck.get_or_insert((key, stripe));
        }
        if renewed.is_some() && stuck.is_some() {
            break;
        }
    }
    let (renewed, (stuck, elsewhere)) = (renewed.unwrap(), stuck.unwrap());

    let mut holder = on_a_slow_disk("surroundings::slow disk", &dir);
    holder.tell(&format!("{what}\n{renewed}\n{stuck}"));
    assert_eq!(holder.line(), "held");
    let stop_renewals = stripe_file(&dir, &elsewhere);
    stop_renewals.lock().unwrap();
    holder.tell("sync");
    assert_eq!(holder.line(), "asked");
    std::thread::sleep(Duration::from_millis(500));
    let free = Instant::now();
    let probe = stripe_file(&dir, &busy);
    probe.lock().unwrap();
    probe.unlock().unwrap();
    let free = free.elapsed();

    let told: Vec<u64> = holder.line().split(' ').map(|n| n.parse().unwrap()).collect();
    let (late, stalled) = (Duration::from_micros(told[0]), Duration::from_micros(told[1]));
    eprintln!(
        "{what}: told {late:?} after the end of the validity, the machine stalled {stalled:?}"
    );
    assert!(late < LATE + stalled, "told {late:?} late, on a machine that stalled {stalled:?}");
    assert_eq!(holder.line(), "renewed", "a key of the stripe in which a sync is under way");
    assert!(free < Duration::from_secs(2), "the stripe was locked for {free:?} during a sync");
    let took = Duration::from_micros(holder.line().parse().unwrap());
    assert!(took > SYNC - SYNC / 10, "answered after {took:?}, before the disk was done");
    holder.end();
}

#[tokio::test]
async fn h88_a_slow_sync_of_a_linger_stalls_no_renewal() {
    a_slow_sync_stalls_nothing_else("linger").await;
}

#[tokio::test]
async fn h88_a_slow_sync_of_a_ceiling_stalls_no_renewal() {
    a_slow_sync_stalls_nothing_else("ceiling").await;
}

#[tokio::test]
async fn h88_a_slow_sync_on_the_driver_stalls_no_timer() {
    a_slow_sync_stalls_nothing_else("ceiling on the driver").await;
}

/// The part of the process on the slow disk.
pub(crate) async fn hold_and_sync(dir: &Path) {
    let (what, renewed, stuck) = (hear(), hear(), hear());
    let driver = Driver::start().unwrap();
    let own_thread = driver.io();
    let backend = FileBackend::connect(dir, driver.io()).unwrap();
    let locks = LockManager::new(backend.clone(), driver).ttl(TTL);
    let renewed = locks.mutex(&renewed).acquire().await.unwrap();
    let stuck = locks.mutex(&stuck).acquire().await.unwrap();
    let synced = claim("synced");
    let token = granted(backend.try_acquire(&synced).await);
    say("held");
    hear();

    stalls::start();
    let start = io().now();
    let (answered, answer) = std::sync::mpsc::channel();
    let verb = {
        let (what, backend) = (what.clone(), backend.clone());
        async move {
            let start = Instant::now();
            if what == "linger" {
                let linger = Linger::For(Duration::from_secs(60));
                assert_eq!(backend.release(&synced, linger).await.unwrap(), Released::Yes);
            } else {
                let floor = token + 1_000_000;
                let more = claim("synced").with(|it| {
                    it.floor = floor;
                    it.mode = Mode::Exclusive;
                });
                release(&backend, &synced).await;
                assert!(granted(backend.try_acquire(&more).await) >= floor);
                release(&backend, &more).await;
            }
            answered.send(start.elapsed()).unwrap();
        }
    };
    if what == "ceiling on the driver" {
        own_thread.spawn(verb);
    } else {
        std::thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(verb);
        });
    }
    say("asked");
    stuck.lost().await;
    let late = io().now().since(stuck.valid_until());
    say(format_args!("{} {}", late.as_micros(), stalls::since(start).longest.as_micros()));
    // Long enough that it is held only if it was renewed during the sync.
    while io().now() < stuck.valid_until().plus(TTL / 3) {
        io().sleep(Duration::from_millis(10)).await;
    }
    say(if renewed.ensure_held().is_ok() { "renewed" } else { "lost" });
    let took = answer.recv().unwrap();
    say(took.as_micros());
}

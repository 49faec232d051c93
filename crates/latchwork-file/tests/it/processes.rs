//! What happens between processes: deaths, stops, storms, and a command that outlives its keeper.
//!
//! Each test starts this program again; the test named `child` plays the part that it is given.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::*;
use latchwork::{Driver, LockManager};
use latchwork_file::FileBackend;
use latchwork_store::*;
use rustix::process::Signal;

/// Plays a part in another test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((role, dir)) = role() else { return };
    let runtime = without_io();
    runtime.block_on(async {
        match role.as_str() {
            "hold" => hold(&dir).await,
            "wait" => wait(&dir).await,
            "count" => count(&dir).await,
            "storm" => storm(&dir).await,
            "guarded" => guarded(&dir).await,
            "flock" => flock(&dir),
            "flock one" => flock_one(&dir),
            other => panic!("no such part: {other}"),
        }
    });
}

/// Takes the key and keeps it until told to end.
async fn hold(dir: &Path) {
    let backend = connect(dir);
    let claim = claim("k");
    let (token, _) = acquire(&backend, &claim).await;
    say(token);
    hear();
    release(&backend, &claim).await;
}

/// Stands in line, then holds, then releases when told to; says how often it tried after it was
/// woken. Once it has said that it waits it does nothing at all until then.
async fn wait(dir: &Path) {
    let backend = connect(dir);
    let claim = claim("k");
    let answer = blocked(backend.try_acquire(&claim).await);
    say("waiting");
    backend.wait(&claim, &answer).await.unwrap();
    let (token, tries) = acquire(&backend, &claim).await;
    say(format_args!("{token} {tries}"));
    hear();
    release(&backend, &claim).await;
}

/// Adds to a number in a file, under the lock, with other keys around it.
async fn count(dir: &Path) {
    let backend = connect(dir);
    let counter = dir.join(".counter");
    let mut last = 0;
    for round in 0..COUNTS {
        let claim = claim("counter");
        let (token, _) = acquire(&backend, &claim).await;
        assert!(token > last);
        last = token;
        let number: u32 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
        std::fs::write(&counter, (number + 1).to_string()).unwrap();
        release(&backend, &claim).await;
        // So many keys that the record of the counter is removed and made again.
        let other = crate::common::claim(&format!("{} {round}", std::process::id()));
        acquire(&backend, &other).await;
        release(&backend, &other).await;
    }
    say("done");
}

const COUNTS: u32 = 4_000;

/// Changes a record as fast as it can, from short to long and back, until it is killed.
async fn storm(dir: &Path) {
    let backend = connect(dir);
    say("go");
    for round in 0.. {
        let first = claim("storm");
        if let Attempt::Granted(grant) = backend.try_acquire(&first).await.unwrap() {
            std::fs::write(dir.join("token"), grant.token.to_string()).unwrap();
            for _ in 0..round % 40 {
                blocked(backend.try_acquire(&claim("storm")).await);
            }
            renew(&backend, &first).await;
        }
        release(&backend, &first).await;
        // The waiters of this round stay: only a death ends them.
        if round % 50 == 49 {
            drop(connect(dir));
        }
    }
}

/// Holds the key, gives the lifeline to a command that does not know of it, and waits to be
/// killed.
async fn guarded(dir: &Path) {
    let backend = connect(dir);
    acquire(&backend, &claim("k")).await;
    let Some(Lifeline(lifeline)) = backend.lifeline() else { panic!("no lifeline") };
    #[expect(clippy::zombie_processes, reason = "it is to outlive this process")]
    let guardian = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::from(lifeline.try_clone().unwrap()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    say(guardian.id());
    hear();
}

/// Locks every stripe, as if in the middle of a verb.
fn flock(dir: &Path) {
    let stripes: Vec<_> = std::fs::read_dir(dir.join("stripes"))
        .unwrap()
        .map(|entry| std::fs::File::open(entry.unwrap().path()).unwrap())
        .collect();
    for stripe in &stripes {
        stripe.lock().unwrap();
    }
    say("locked");
    hear();
}

/// Locks the stripe that the parent names.
fn flock_one(dir: &Path) {
    let stripe = std::fs::File::open(dir.join("stripes").join(hear())).unwrap();
    stripe.lock().unwrap();
    say("locked");
    hear();
}

/// A process that is stopped while it has the one stripe that is named.
fn stopped_in(dir: &Path, stripe: &str) -> Process {
    let mut process = start("processes::flock one", dir);
    process.tell(stripe);
    assert_eq!(process.line(), "locked");
    process.stop();
    process
}

/// The stripe of a key that is held.
async fn stripe_of(backend: &FileBackend, key: &str) -> String {
    let query = Query::Key(Key::new(key).unwrap());
    let snapshot = backend.inspect(&query).await.unwrap().pop().unwrap();
    let record = snapshot.notes.iter().find_map(|note| note.strip_prefix("record: ")).unwrap();
    let stripe = Path::new(record).parent().unwrap().file_name().unwrap();
    stripe.to_str().unwrap().to_owned()
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

#[tokio::test]
async fn a_killed_holder_is_followed_at_once() {
    let dir = dir();
    let backend = connect(dir.path());
    let mut times = Vec::new();
    let mut last = 0;
    for _ in 0..20 {
        let mut holder = start("processes::hold", dir.path());
        let token: u64 = holder.line().parse().unwrap();
        assert!(token > last);
        let mine = claim("k");
        let answer = blocked(backend.try_acquire(&mine).await);
        // Nothing but the death can end the wait so soon.
        assert!(answer.retry_after.unwrap() > 20 * SEC);
        let killed = Instant::now();
        holder.signal(Signal::KILL);
        soon("word of the death", backend.wait(&mine, &answer)).await.unwrap();
        let token = granted(backend.try_acquire(&mine).await);
        times.push(killed.elapsed());
        assert!(token > last);
        last = token;
        release(&backend, &mine).await;
    }
    let median = median(times);
    assert!(median < Duration::from_millis(100), "a takeover took {median:?}");
}

#[tokio::test]
async fn a_release_notifies_other_processes() {
    let dir = dir();
    let backend = connect(dir.path());
    let mine = claim("k");
    granted(backend.try_acquire(&mine).await);
    let mut waiters: Vec<_> = (0..8)
        .map(|_| {
            let mut waiter = start("processes::wait", dir.path());
            assert_eq!(waiter.line(), "waiting");
            waiter
        })
        .collect();
    release(&backend, &mine).await;
    let mut last = 0;
    for waiter in &mut waiters {
        let line = waiter.line();
        let (token, tries) = line.split_once(' ').unwrap();
        assert_eq!(tries, "1", "whoever waits does not look before its turn");
        let token: u64 = token.parse().unwrap();
        assert!(token > last, "in the order of the line");
        last = token;
        waiter.tell("go on");
    }
    waiters.into_iter().for_each(Process::end);
}

#[tokio::test]
async fn killed_waiters_do_not_block_the_queue() {
    let dir = dir();
    let backend = connect(dir.path());
    let first = claim("k");
    granted(backend.try_acquire(&first).await);
    let dead: Vec<_> = (0..6)
        .map(|_| {
            let mut waiter = start("processes::wait", dir.path());
            assert_eq!(waiter.line(), "waiting");
            waiter
        })
        .collect();
    let mut last = start("processes::wait", dir.path());
    assert_eq!(last.line(), "waiting");
    for index in [2, 5, 1, 3, 0, 4] {
        dead[index].signal(Signal::KILL);
    }
    release(&backend, &first).await;
    assert!(!last.line().is_empty());
    last.tell("go on");
    last.end();
    drop(dead);
}

/// H79: records are removed and made again while processes hold and release, and a counter that
/// each of them reads and writes comes out exact.
#[test]
fn h79_a_counter_under_the_lock_is_exact() {
    let dir = dir();
    // Other files may come to lie in a lock directory, once it is one.
    drop(connect(dir.path()));
    std::fs::write(dir.path().join(".counter"), "0").unwrap();
    let mut processes: Vec<_> = (0..2).map(|_| start("processes::count", dir.path())).collect();
    for process in &mut processes {
        assert_eq!(process.line(), "done");
    }
    processes.into_iter().for_each(Process::end);
    let counter = std::fs::read_to_string(dir.path().join(".counter")).unwrap();
    assert_eq!(counter, (2 * COUNTS).to_string());
}

/// A process that is killed at any instant leaves a readable record and readable stripes.
#[tokio::test]
async fn kill_storm_against_torn_writes() {
    let dir = dir();
    let backend = connect(dir.path());
    let mut last = 0;
    for round in 0..60u64 {
        let mut process = start("processes::storm", dir.path());
        assert_eq!(process.line(), "go");
        // Long enough for some changes, and never the same.
        std::thread::sleep(Duration::from_micros(500 + round * 397 % 20_000));
        process.signal(Signal::KILL);
        process.child.wait().unwrap();
        let snapshot =
            backend.inspect(&Query::Key(Key::new("storm").unwrap())).await.unwrap().pop().unwrap();
        assert!(snapshot.is_free(), "the dead hold nothing: {snapshot:?}");
        let mine = claim("storm");
        let token = granted(backend.try_acquire(&mine).await);
        let noted = std::fs::read_to_string(dir.path().join("token")).unwrap_or_default();
        let noted = noted.parse().unwrap_or(0);
        assert!(token > noted && token > last, "{token} after {noted} and {last}");
        last = token;
        release(&backend, &mine).await;
    }
    drop(backend);
    // The next one to connect clears what they left.
    let backend = connect(dir.path());
    let sessions = std::fs::read_dir(dir.path().join("sessions")).unwrap().count();
    assert_eq!(sessions, 2, "the files of the one that lives");
    drop(backend);
}

/// A process that is stopped in the middle of a verb holds up that stripe, and no thread: the
/// verb is cut by its time limit, and works again when the other goes on or dies.
#[tokio::test]
async fn a_process_stopped_inside_the_lock_blocks_no_thread() {
    let dir = dir();
    let backend = connect(dir.path());
    let mine = claim("k");
    for kill in [false, true] {
        let mut process = start("processes::flock", dir.path());
        assert_eq!(process.line(), "locked");
        process.stop();
        let start = Instant::now();
        let limit = Duration::from_millis(100);
        assert!(io().within(limit, backend.try_acquire(&mine)).await.is_none());
        assert!(io().within(limit, backend.release(&mine, Linger::None)).await.is_none());
        let query = Query::Key(mine.key.clone());
        assert!(io().within(limit, backend.inspect(&query)).await.is_none());
        assert!(start.elapsed() < 30 * SEC, "the time limits worked");
        if kill {
            process.signal(Signal::KILL);
        } else {
            process.tell("go on");
            process.signal(Signal::CONT);
        }
        soon("the verb", acquire(&backend, &mine)).await;
        assert_eq!(release(&backend, &mine).await, Released::Yes);
    }
}

/// The next step of what a stopped process holds up.
const FIND_IT: &str = "find it (lslocks, fuser), and resume or end it";

/// Only the claims of the stripe that a stopped process has are in doubt, and the answer comes in
/// the time that core gives it.
#[tokio::test]
async fn a_stopped_process_holds_up_no_renewal_of_another_stripe() {
    let dir = dir();
    let backend = connect(dir.path());
    let claims: Vec<_> = (0..64).map(|n| claim(&format!("key {n}"))).collect();
    let mut stripes = Vec::new();
    for claim in &claims {
        granted(backend.try_acquire(claim).await);
        stripes.push(stripe_of(&backend, claim.key.as_str()).await);
    }
    let stuck = stripes.iter().min().unwrap();
    let mut process = stopped_in(dir.path(), stuck);
    let limit = claims[0].ttl / 4;
    let answers = io().within(limit, backend.renew_all(&claims)).await.expect("an answer in time");
    for (stripe, answer) in stripes.iter().zip(answers) {
        match answer {
            Ok(Renewal::Held { .. }) => assert_ne!(stripe, stuck),
            Err(error) => {
                assert_eq!(stripe, stuck);
                let said = (error.kind, error.effect);
                assert_eq!(said, (BackendErrorKind::Unreachable, Effect::NotApplied));
                assert!(error.message.contains(&format!("stripes/{stuck}")), "{error}");
                assert!(error.message.contains("stopped"), "{error}");
                assert_eq!(error.next_step.as_deref(), Some(FIND_IT));
            }
            Ok(Renewal::Lost) => panic!("nobody said so"),
        }
    }
    let report = latchwork_file::doctor(dir.path(), io()).await.unwrap();
    let records = report.findings.iter().find(|finding| finding.code == "records").unwrap();
    assert_eq!(records.severity, doctor::Severity::Warning);
    assert_eq!((&*records.found, &*records.remedy), ("not all could be checked in time", FIND_IT));
    process.tell("go on");
    process.signal(Signal::CONT);
    process.end();
    for answer in backend.renew_all(&claims).await {
        assert!(matches!(answer, Ok(Renewal::Held { .. })));
    }
}

/// The same through the core, for longer than the ttl.
#[tokio::test]
async fn a_stopped_process_costs_no_hold_of_another_stripe() {
    let dir = dir();
    let backend = connect(dir.path());
    let driver = Driver::start().unwrap();
    let own = FileBackend::connect(dir.path(), driver.io()).unwrap();
    let ttl = 3 * SEC;
    let locks = LockManager::new(own, driver).ttl(ttl);
    let mut guards = Vec::new();
    for n in 0..64 {
        let key = format!("key {n}");
        let guard = locks.mutex(&key).acquire().await.unwrap();
        guards.push((stripe_of(&backend, &key).await, guard));
    }
    let stuck = guards.iter().map(|(stripe, _)| stripe).min().unwrap().clone();
    let process = stopped_in(dir.path(), &stuck);
    let (hit, others): (Vec<_>, Vec<_>) = guards.into_iter().partition(|(s, _)| *s == stuck);
    for (_, guard) in &hit {
        soon("the loss of what cannot be renewed", guard.lost()).await;
    }
    io().sleep(ttl / 2).await;
    for (stripe, guard) in &others {
        assert!(guard.ensure_held().is_ok(), "a hold in stripe {stripe}, and {stuck} is stuck");
    }
    drop(process);
}

/// A stopped waiter that is first in line is passed over, and costs no process that pokes it.
#[tokio::test]
async fn a_stopped_waiter_is_passed_over() {
    let dir = dir();
    let (backend, other) = (connect(dir.path()), connect(dir.path()));
    let first = claim("k");
    granted(backend.try_acquire(&first).await);
    let mut stopped = start("processes::wait", dir.path());
    assert_eq!(stopped.line(), "waiting");
    stopped.stop();
    let last = claim("k");
    blocked(other.try_acquire(&last).await);
    release(&backend, &first).await;
    let answer = blocked(other.try_acquire(&last).await);
    assert_eq!(answer.cause, Cause::Queued);
    let start = Instant::now();
    soon("its turn", async {
        while let Attempt::Blocked(answer) = other.try_acquire(&last).await.unwrap() {
            io().sleep(answer.retry_after.unwrap()).await;
        }
    })
    .await;
    assert!(start.elapsed() < 30 * SEC);
    stopped.signal(Signal::CONT);
    release(&other, &last).await;
    assert!(!stopped.line().is_empty(), "it kept its place");
    stopped.tell("go on");
    stopped.end();
}

/// A guardian that has inherited the descriptor keeps the claims of a killed process closed.
#[tokio::test]
async fn a_lifeline_that_is_inherited_keeps_the_session_alive() {
    let dir = dir();
    let backend = connect(dir.path());
    let mut holder = start("processes::guarded", dir.path());
    let guardian: i32 = holder.line().parse().unwrap();
    let guardian = rustix::process::Pid::from_raw(guardian).unwrap();
    let mine = claim("k");
    blocked(backend.try_acquire(&mine).await);
    holder.signal(Signal::KILL);
    holder.child.wait().unwrap();
    assert!(still_pending(acquire(&backend, &mine)).await, "the command still runs");
    blocked(connect(dir.path()).try_acquire(&claim("k")).await);
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    soon("the takeover", acquire(&backend, &mine)).await;
}

/// Many more sessions than a backend watches when nobody waits for them.
#[tokio::test]
async fn sessions_that_come_and_go_leave_nothing() {
    let dir = dir();
    let backend = connect(dir.path());
    for _ in 0..150 {
        let other = FileBackend::connect(dir.path(), io()).unwrap();
        let (theirs, mine) = (claim("k"), claim("k"));
        granted(other.try_acquire(&theirs).await);
        blocked(backend.try_acquire(&mine).await);
        release(&other, &theirs).await;
        soon("the turn", acquire(&backend, &mine)).await;
        release(&backend, &mine).await;
    }
    assert_eq!(std::fs::read_dir(dir.path().join("sessions")).unwrap().count(), 2);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(open < 700, "{open} descriptors are open");
}

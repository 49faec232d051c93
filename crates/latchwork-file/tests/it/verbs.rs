//! The five verbs, in one process with several backends: each is a session of its own, and what
//! is between them goes through the file system as between processes.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::common::*;
use latchwork_file::FileBackend;
use latchwork_store::*;

pub(crate) fn dir() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// All files below a directory with their content, but not what sessions come and go.
pub(crate) fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// The one record file of a directory.
pub(crate) fn record_file(dir: &Path) -> PathBuf {
    let mut records: Vec<_> =
        files(dir).into_keys().filter(|path| path.starts_with(dir.join("records"))).collect();
    assert_eq!(records.len(), 1);
    records.pop().unwrap()
}

pub(crate) async fn inspect(backend: &FileBackend, key: &str) -> Snapshot {
    let query = Query::Key(Key::new(key).unwrap());
    backend.inspect(&query).await.unwrap().pop().unwrap()
}

#[tokio::test]
async fn a_release_wakes_exactly_one_of_64_waiting_sessions() {
    let dir = dir();
    let holder = connect(dir.path());
    let first = claim("k");
    granted(holder.try_acquire(&first).await);

    let (woken, mut waiting) = (Arc::new(AtomicU32::new(0)), Vec::new());
    for _ in 0..64 {
        let (backend, claim) = (connect(dir.path()), claim("k"));
        let answer = blocked(backend.try_acquire(&claim).await);
        let woken = woken.clone();
        waiting.push(tokio::spawn(async move {
            backend.wait(&claim, &answer).await.unwrap();
            woken.fetch_add(1, Ordering::SeqCst);
            (backend, claim)
        }));
    }
    for done in 1..=64u32 {
        // The first one releases the first claim, the second one the claim of the first waiter.
        if done == 1 {
            assert_eq!(release(&holder, &first).await, Released::Yes);
        }
        let (backend, claim) = soon("the next waiter is woken", waiting.remove(0)).await.unwrap();
        assert_eq!(woken.load(Ordering::SeqCst), done);
        if done == 1 {
            let rest = futures_pending(&mut waiting).await;
            assert_eq!((rest, woken.load(Ordering::SeqCst)), (63, 1));
        }
        granted(backend.try_acquire(&claim).await);
        assert_eq!(release(&backend, &claim).await, Released::Yes);
    }
}

/// How many tasks still run after everything under way had time to arrive.
async fn futures_pending<T>(tasks: &mut [tokio::task::JoinHandle<T>]) -> usize {
    assert!(still_pending(std::future::pending::<()>()).await);
    tasks.iter().filter(|task| !task.is_finished()).count()
}

#[tokio::test]
async fn a_wake_up_between_the_try_and_the_wait_is_kept() {
    let dir = dir();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    for other in [&a, &b] {
        let (first, second) = (claim("k"), claim("k"));
        granted(a.try_acquire(&first).await);
        let answer = blocked(other.try_acquire(&second).await);
        release(&a, &first).await;
        assert_eq!(soon("the wake-up", other.wait(&second, &answer)).await.unwrap(), Wake::Look);
        assert!(still_pending(other.wait(&second, &answer)).await, "one wake-up, one look");
        granted(other.try_acquire(&second).await);
        release(other, &second).await;
    }
}

#[tokio::test]
async fn a_backend_that_is_dropped_frees_its_claims_at_once() {
    let dir = dir();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let (first, second) = (claim("k"), claim("k"));
    let before = granted(a.try_acquire(&first).await);
    blocked(b.try_acquire(&second).await);
    // Whoever still has the descriptor does not keep a session alive that was ended.
    let lifeline = a.lifeline();
    drop(a);
    let (token, _) = soon("the takeover", acquire(&b, &second)).await;
    assert!(token > before);
    drop(lifeline);
    drop(b);
    assert_eq!(std::fs::read_dir(dir.path().join("sessions")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_waiter_is_woken_when_everyone_ahead_of_it_dies() {
    let dir = dir();
    let last = connect(dir.path());
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut ahead: Vec<_> = (0..3).map(|_| Some(connect(dir.path()))).collect();
        for backend in ahead.iter().flatten() {
            // The first one holds, the others wait.
            let _ = backend.try_acquire(&claim("k")).await.unwrap();
        }
        let mine = claim("k");
        blocked(last.try_acquire(&mine).await);
        for index in order {
            ahead[index] = None;
        }
        soon("the takeover", acquire(&last, &mine)).await;
        release(&last, &mine).await;
    }
}

#[tokio::test]
async fn a_release_skips_dead_waiters() {
    let dir = dir();
    let (a, b, c) = (connect(dir.path()), connect(dir.path()), connect(dir.path()));
    let (first, last) = (claim("k"), claim("k"));
    granted(a.try_acquire(&first).await);
    blocked(b.try_acquire(&claim("k")).await);
    let waiting = tokio::spawn(async move {
        let (token, _) = acquire(&c, &last).await;
        (token, c)
    });
    while inspect(&a, "k").await.waiters.len() < 2 {
        tokio::task::yield_now().await;
    }
    drop(b);
    release(&a, &first).await;
    soon("the last one's turn", waiting).await.unwrap();
}

#[tokio::test]
async fn hostile_names_are_different_keys_and_leave_no_other_files() {
    let dir = dir();
    let inside = dir.path().join("locks");
    let backend = connect(&inside);
    let long = "x".repeat(10_000);
    let names = [
        "../x",
        "..",
        ".",
        "/",
        "/etc/passwd",
        "a\0b",
        "a\0c",
        "Straße",
        "STRASSE",
        "a",
        "A",
        "e\u{301}",
        "\u{e9}",
        " ",
        "\n",
        "growing",
        "a/b",
        "a//b",
        &long,
        &long[1..],
    ];
    let claims: Vec<_> = names.iter().map(|name| claim(name)).collect();
    for claim in &claims {
        granted(backend.try_acquire(claim).await);
    }
    let all = backend.inspect(&Query::Prefix("".into())).await.unwrap();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(all.iter().map(|s| s.key.as_str()).collect::<Vec<_>>(), expected);
    for name in names {
        assert_eq!(inspect(&backend, name).await.holders.len(), 1);
    }
    for path in files(&inside).into_keys() {
        assert!(
            path.parent().unwrap().parent() == Some(&inside.join("records"))
                || path.parent() == Some(&inside.join("stripes"))
                || path == inside.join("latchwork.format"),
            "{path:?}"
        );
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    for claim in &claims {
        assert_eq!(release(&backend, claim).await, Released::Yes);
    }
}

#[tokio::test]
async fn inspect_changes_nothing() {
    let dir = dir();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let (held, dead) = (claim("held"), claim("dead"));
    granted(a.try_acquire(&held).await);
    granted(b.try_acquire(&dead).await);
    blocked(b.try_acquire(&claim("held")).await);
    drop(b);
    let before = files(dir.path());
    let snapshot = inspect(&a, "held").await;
    assert_eq!((snapshot.holders.len(), snapshot.waiters.len()), (1, 0));
    let path = record_of(&snapshot);
    assert!(Path::new(path).is_file(), "{path}");
    assert!(inspect(&a, "dead").await.is_free(), "its session is dead");
    assert!(inspect(&a, "never used").await.is_free());
    let all = a.inspect(&Query::Prefix("".into())).await.unwrap();
    assert_eq!(all.len(), 1);
    assert!(a.inspect(&Query::Prefix("x".into())).await.unwrap().is_empty());
    assert_eq!(files(dir.path()), before);
}

#[tokio::test]
async fn a_damaged_record_hides_no_other() {
    let dir = dir();
    let backend = connect(dir.path());
    granted(backend.try_acquire(&claim("damaged")).await);
    let path = record_file(dir.path());
    std::fs::write(&path, vec![b'?'; 4096]).unwrap();
    granted(backend.try_acquire(&claim("good")).await);
    let all = backend.inspect(&Query::Prefix("g".into())).await.unwrap();
    let [damaged, good] = &all[..] else { panic!("{all:?}") };
    assert_eq!((good.key.as_str(), good.holders.len()), ("good", 1));
    assert_eq!(damaged.key.as_str(), path.to_str().unwrap());
    assert!(!damaged.is_free(), "nobody can take it");
    let notes = damaged.notes.join("\n");
    assert!(notes.contains("readable") && notes.contains("remove the file"), "{notes}");
    let error = backend.inspect(&Query::Key(Key::new("damaged").unwrap())).await.unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Corrupt, "whoever asks for the key is told");
}

#[tokio::test]
async fn a_long_listing_can_be_cut() {
    let dir = dir();
    let backend = connect(dir.path());
    for n in 0..200 {
        granted(backend.try_acquire(&claim(&format!("{n}"))).await);
    }
    let all = Query::Prefix("".into());
    let now = std::time::Duration::ZERO;
    assert!(io().within(now, backend.inspect(&all)).await.is_none(), "all of it in one go");
    assert_eq!(backend.inspect(&all).await.unwrap().len(), 200);
}

fn record_of(snapshot: &Snapshot) -> &str {
    snapshot.notes.iter().find_map(|note| note.strip_prefix("record: ")).unwrap()
}

#[tokio::test]
async fn keys_used_once_leave_a_bounded_directory() {
    let dir = dir();
    let backend = connect(dir.path());
    let kept = claim("kept").with(|it| it.ttl = 600 * SEC);
    granted(backend.try_acquire(&kept).await);
    let closed = claim("closed");
    granted(backend.try_acquire(&closed).await);
    backend.release(&closed, Linger::For(600 * SEC)).await.unwrap();
    let mut most = 0;
    let mut last = 0;
    for index in 0..12_000 {
        let claim = claim(&format!("once {index}"));
        last = granted(backend.try_acquire(&claim).await).max(last);
        release(&backend, &claim).await;
        if index % 1_000 == 999 {
            most = most.max(files(dir.path()).len());
        }
    }
    // A stripe sweeps when it has 32, at the next release there.
    assert!(most < 64 * 34 + 70, "{most} files");
    assert!(matches!(renew(&backend, &kept).await, Renewal::Held { .. }));
    blocked(backend.try_acquire(&claim("closed").with(|it| it.waits = false)).await);
    // The record of the first key is gone, its token is not forgotten.
    let again = claim("once 0");
    assert!(granted(backend.try_acquire(&again).await) > 0);
}

#[tokio::test]
async fn tokens_grow_over_restarts_and_lost_records() {
    let dir = dir();
    let mut last = 0;
    for round in 0..6 {
        let backend = connect(dir.path());
        for _ in 0..3 {
            let claim = claim("k");
            let token = granted(backend.try_acquire(&claim).await);
            assert!(token > last, "round {round}: {token} after {last}");
            assert!(token < 1 << 53);
            last = token;
            release(&backend, &claim).await;
        }
        drop(backend);
        let record = record_file(dir.path());
        match round {
            0 => std::fs::remove_file(record).unwrap(),
            1 => std::fs::write(record, "").unwrap(),
            2 => std::fs::write(record, [0; 4096]).unwrap(),
            3 => {
                // H82: the header of every stripe zeroed or cut, with the records.
                for stripe in files(&dir.path().join("stripes")).into_keys() {
                    std::fs::write(stripe, [0; 128]).unwrap();
                }
                std::fs::remove_file(record).unwrap();
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn damage_is_named_with_the_path_and_the_next_step() {
    let dir = dir();
    let backend = connect(dir.path());
    let held = claim("k");
    granted(backend.try_acquire(&held).await);
    let path = record_file(dir.path());
    std::fs::write(&path, vec![b'?'; 4096]).unwrap();
    let error = backend.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Corrupt, Effect::NotApplied));
    assert!(error.message.contains(path.to_str().unwrap()), "{error}");
    assert!(error.next_step.unwrap().contains("remove the file"));
    let renewal = backend.renew_all(std::slice::from_ref(&held)).await.pop().unwrap();
    assert_eq!(renewal.unwrap_err().kind, BackendErrorKind::Corrupt, "not knowing is not Lost");
    // A record cut to a piece is one that was not finished, and grants no smaller token.
    std::fs::remove_file(&path).unwrap();
    assert_eq!(renew(&backend, &held).await, Renewal::Lost);
}

#[test]
fn a_directory_is_made_by_many_at_once() {
    for _ in 0..40 {
        let dir = dir();
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            let connect = || {
                barrier.wait();
                FileBackend::connect(dir.path(), io()).map(drop)
            };
            let all: Vec<_> = (0..4).map(|_| scope.spawn(connect)).collect();
            for connected in all {
                connected.join().unwrap().unwrap();
            }
        });
        let mut names: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort_unstable();
        assert_eq!(names, ["latchwork.format", "records", "sessions", "stripes"]);
    }
}

#[tokio::test]
async fn a_linger_outlives_its_session() {
    let dir = dir();
    let backend = connect(dir.path());
    let first = claim("k");
    granted(backend.try_acquire(&first).await);
    let length = 2 * SEC;
    let start = io().now();
    backend.release(&first, Linger::For(length)).await.unwrap();
    drop(backend);
    let backend = connect(dir.path());
    let answer = blocked(backend.try_acquire(&claim("k")).await);
    assert_eq!(answer.cause, Cause::Linger);
    let next = claim("k").with(|it| it.waits = false);
    let token = loop {
        match backend.try_acquire(&next).await.unwrap() {
            Attempt::Granted(grant) => break grant.token,
            Attempt::Blocked(blocked) => io().sleep(blocked.retry_after.unwrap()).await,
        }
    };
    assert!(io().now().since(start) >= length - std::time::Duration::from_millis(5));
    assert!(token > 0);
}

#[tokio::test]
async fn readers_share_and_permits_count() {
    let dir = dir();
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    let (r1, r2) = (with_mode("rw", Mode::Read), with_mode("rw", Mode::Read));
    let writer = with_mode("rw", Mode::Write);
    granted(a.try_acquire(&r1).await);
    granted(b.try_acquire(&r2).await);
    blocked(b.try_acquire(&writer).await);
    release(&a, &r1).await;
    release(&b, &r2).await;
    soon("the writer's turn", acquire(&b, &writer)).await;

    let permits = |take| with_mode("sem", Mode::Permits { take, of: 3 });
    granted(a.try_acquire(&permits(2)).await);
    let one = permits(1);
    granted(b.try_acquire(&one).await);
    let two = permits(2);
    blocked(b.try_acquire(&two).await);
    let error = b.try_acquire(&claim("sem")).await.unwrap_err();
    assert_eq!(error.kind, BackendErrorKind::Mismatch);
    drop(a);
    soon("the permits of a dead session", acquire(&b, &two)).await;
}

#[tokio::test]
async fn a_lost_claim_stays_lost() {
    let dir = dir();
    let backend = connect(dir.path());
    let short = claim("k").with(|it| it.ttl = SEC);
    granted(backend.try_acquire(&short).await);
    let after = io().now();
    let answer = blocked(backend.try_acquire(&claim("k").with(|it| it.waits = false)).await);
    assert!(answer.retry_after.unwrap() <= short.ttl);
    io().clock().sleep_until(after.plus(short.ttl)).await;
    assert_eq!(renew(&backend, &short).await, Renewal::Lost);
    granted(backend.try_acquire(&claim("k")).await);
    assert_eq!(renew(&backend, &short).await, Renewal::Lost);
    assert_eq!(release(&backend, &short).await, Released::NotHeld);
}

#[tokio::test]
async fn many_claims_are_renewed_in_order() {
    let dir = dir();
    let backend = connect(dir.path());
    let claims: Vec<_> = (0..500).map(|i| claim(&format!("{i}"))).collect();
    for claim in &claims {
        granted(backend.try_acquire(claim).await);
    }
    for claim in claims.iter().step_by(3) {
        release(&backend, claim).await;
    }
    let answers = backend.renew_all(&claims).await;
    for (index, answer) in answers.into_iter().enumerate() {
        let lost = matches!(answer.unwrap(), Renewal::Lost);
        assert_eq!(lost, index % 3 == 0, "claim {index}");
    }
    // With a floor the token moves on, and so does the stripe's counter.
    let raised = claims[1].clone().with(|it| it.floor = 1 << 52);
    assert!(
        matches!(renew(&backend, &raised).await, Renewal::Held { token, .. } if token == 1 << 52)
    );
    release(&backend, &raised).await;
    assert!(granted(backend.try_acquire(&claim("1")).await) > 1 << 52);
}

#[tokio::test]
async fn a_backend_that_only_reads_says_how_to_take_locks() {
    let dir = dir();
    let backend = connect(dir.path());
    let held = claim("k");
    granted(backend.try_acquire(&held).await);
    let reader = FileBackend::read_only(dir.path(), io()).unwrap();
    assert_eq!(reader.inspect(&Query::Key(held.key.clone())).await.unwrap()[0].holders.len(), 1);
    let refused = [
        reader.try_acquire(&claim("k")).await.unwrap_err(),
        reader.renew_all(std::slice::from_ref(&held)).await.remove(0).unwrap_err(),
        reader.release(&held, Linger::None).await.unwrap_err(),
    ];
    for error in refused {
        assert_eq!(
            (error.kind, error.effect),
            (BackendErrorKind::Unsupported, Effect::NotApplied),
            "{error}"
        );
        let step = error.next_step.unwrap();
        assert!(step.starts_with("connect with FileBackend::connect"), "{step}");
    }
    release(&backend, &held).await;
}

//! What happens when somebody removes files of a directory in use, or leads its path elsewhere.

use latchwork_store::*;

use crate::common::*;
use crate::verbs::{dir, inspect};

/// What the error of a backend says whose directory others find no longer.
const NEXT: &str = "exclude it from temp cleaners, name it by a path that stays the same across deploys, and \
                    restart every program that used it: at its start a program creates what is missing";

/// H81: what a temp cleaner does.
#[tokio::test]
async fn h81_a_directory_removed_under_a_holder() {
    let dir = dir();
    let path = dir.path().join("locks");
    let backend = connect(&path);
    let held = claim("k");
    let before = granted(backend.try_acquire(&held).await);
    assert!(matches!(renew(&backend, &held).await, Renewal::Held { .. }));
    std::fs::remove_dir_all(&path).unwrap();

    for key in ["k", "another"] {
        let error = backend.try_acquire(&claim(key)).await.unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(error.next_step.as_deref(), Some(NEXT));
    }
    // Somebody else has begun anew there: still nothing that this backend could rely on.
    let fresh = connect(&path);
    assert_eq!(renew(&backend, &held).await, Renewal::Lost);
    assert_eq!(release(&backend, &held).await, Released::NotHeld);
    assert!(backend.try_acquire(&claim("k")).await.is_err());
    assert!(granted(fresh.try_acquire(&claim("k")).await) > before);
}

/// H81: systemd-tmpfiles leaves a directory alone that is locked. It removes named pipes by age as well, and so would
/// make a session dead whose process lives.
#[tokio::test]
async fn h81_a_cleaner_that_asks_waits_for_the_last_session() {
    let dir = dir();
    let cleaner = || {
        let open = std::fs::File::open(dir.path()).unwrap();
        rustix::fs::flock(open, rustix::fs::FlockOperation::NonBlockingLockExclusive)
    };
    let (a, b) = (connect(dir.path()), connect(dir.path()));
    assert_eq!(cleaner(), Err(rustix::io::Errno::WOULDBLOCK));
    drop(a);
    assert_eq!(cleaner(), Err(rustix::io::Errno::WOULDBLOCK), "b is alive");
    drop(b);
    let open = std::fs::File::open(dir.path()).unwrap();
    let wait = move || {
        rustix::fs::flock(&open, rustix::fs::FlockOperation::LockExclusive).unwrap();
        open
    };
    let _cleaning =
        soon("the end of the sessions", tokio::task::spawn_blocking(wait)).await.unwrap();
    // A cleaner holds nobody up.
    granted(connect(dir.path()).try_acquire(&claim("k")).await);
}

/// H81: only what is not written to goes, as a cleaner by age takes it.
#[tokio::test]
async fn h81_stripe_files_removed_under_a_holder() {
    let dir = dir();
    let a = connect(dir.path());
    let held = claim("k");
    let before = granted(a.try_acquire(&held).await);
    std::fs::remove_dir_all(dir.path().join("stripes")).unwrap();
    std::fs::remove_dir(dir.path().join("records/00")).unwrap_or_default();
    // Until somebody connects there is nothing to lock by.
    let error = a.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!(error.next_step.as_deref(), Some(NEXT));
    let b = connect(dir.path());
    for n in 0..200 {
        granted(b.try_acquire(&claim(&format!("other {n}"))).await);
    }
    let next = claim("k");
    blocked(b.try_acquire(&next).await);
    // Two may not change a record under two stripe files: the older one is out.
    let error = a.try_acquire(&claim("k")).await.unwrap_err();
    assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    assert_eq!(renew(&a, &held).await, Renewal::Lost);
    drop(a);
    let (token, _) = soon("the takeover", acquire(&b, &next)).await;
    assert!(token > before);
}

#[tokio::test]
async fn h81_a_session_file_removed_under_a_holder() {
    let dir = dir();
    let a = connect(dir.path());
    let (held, next) = (claim("k"), claim("k"));
    granted(a.try_acquire(&held).await);
    std::fs::remove_dir_all(dir.path().join("sessions")).unwrap();
    std::fs::create_dir(dir.path().join("sessions")).unwrap();
    assert_eq!(renew(&a, &held).await, Renewal::Lost, "the others take it for dead");
    let error = a.try_acquire(&claim("other")).await.unwrap_err();
    assert_eq!(error.next_step.as_deref(), Some(NEXT));
    granted(connect(dir.path()).try_acquire(&next).await);
}

/// What a deploy does that keeps its locks below a link, and what a person does with `mv`: those who
/// come later find another directory, and no key may be held in both of them by new claims.
#[tokio::test]
async fn a_moved_path_makes_no_second_holder() {
    for by_link in [true, false] {
        let base = dir();
        let at = |name: &str| base.path().join(name);
        if by_link {
            for name in ["v1", "v2"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            std::os::unix::fs::symlink(at("v1"), at("current")).unwrap();
        }
        let (path, kept) = match by_link {
            true => (at("current/locks"), at("v1/locks")),
            false => (at("locks"), at("locks.bak")),
        };
        let (a, beside) = (connect(&path), connect(&path));
        let (held, other, used) = (claim("held"), claim("other"), claim("k"));
        granted(a.try_acquire(&held).await);
        granted(a.try_acquire(&other).await);
        // Its stripe and record are there, and open.
        granted(a.try_acquire(&used).await);
        release(&a, &used).await;
        assert!(matches!(renew(&a, &held).await, Renewal::Held { .. }));

        if by_link {
            std::os::unix::fs::symlink(at("v2"), at("next")).unwrap();
            std::fs::rename(at("next"), at("current")).unwrap();
        } else {
            std::fs::rename(&path, &kept).unwrap();
        }
        let b = connect(&path);
        let error = a.try_acquire(&claim("k")).await.unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
        assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        assert_eq!(error.next_step.as_deref(), Some(NEXT));
        granted(b.try_acquire(&claim("k")).await);
        assert_eq!(renew(&a, &held).await, Renewal::Lost, "b can be granted it");
        granted(b.try_acquire(&claim("held")).await);

        // What is left to do is done where it began.
        assert!(inspect(&b, "other").await.is_free());
        assert_eq!(inspect(&beside, "other").await.holders.len(), 1);
        assert_eq!(release(&a, &other).await, Released::Yes);
        assert!(inspect(&beside, "other").await.is_free());
        let all = connect(&kept).inspect(&Query::Prefix("".into())).await.unwrap();
        assert_eq!(all, [], "nothing of it is left in the directory that was moved");
        assert_eq!(b.inspect(&Query::Prefix("".into())).await.unwrap().len(), 2);
    }
}

/// H81: a waiter that cannot be woken any more is told at its next look; until then it keeps its
/// place, and holds up nobody behind it.
#[tokio::test]
async fn h81_a_wake_file_removed_under_a_waiter() {
    let dir = dir();
    let a = connect(dir.path());
    let of_a: Vec<_> = std::fs::read_dir(dir.path().join("sessions")).unwrap().flatten().collect();
    let (b, c) = (connect(dir.path()), connect(dir.path()));
    let (first, deaf, last) = (claim("k"), claim("k"), claim("k"));
    granted(b.try_acquire(&first).await);
    let held = claim("held");
    granted(a.try_acquire(&held).await);
    blocked(a.try_acquire(&deaf).await);
    let answer = blocked(c.try_acquire(&last).await);
    for entry in of_a {
        if entry.path().extension().is_some_and(|kind| kind == "wake") {
            std::fs::remove_file(entry.path()).unwrap();
        }
    }
    for waiting in [&deaf, &claim("k")] {
        let error = a.try_acquire(waiting).await.unwrap_err();
        assert_eq!((error.kind, error.effect), (BackendErrorKind::Unreachable, Effect::NotApplied));
    }
    release(&b, &first).await;
    soon("the wake-up of the next one", c.wait(&last, &answer)).await.unwrap();
    let line: Vec<_> = inspect(&b, "k").await.waiters.into_iter().map(|w| w.id.unwrap()).collect();
    assert_eq!(line, [deaf.id, last.id], "its session lives");
    let answer = blocked(c.try_acquire(&last).await);
    assert_eq!(answer.cause, Cause::Queued);
    assert!(answer.retry_after.unwrap() <= 2 * SEC);
    assert_eq!(release(&a, &deaf).await, Released::Yes, "as core does after an error");
    soon("its turn", acquire(&c, &last)).await;
    assert!(matches!(renew(&a, &held).await, Renewal::Held { .. }), "nobody can be granted it");
    assert_eq!(release(&a, &held).await, Released::Yes);
}

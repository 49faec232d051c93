//! A read hold becomes a write hold, and back.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use latchwork::{AdaptiveTtl, Event, Guard, HoldState, Lock, Observer};
use latchwork_store::*;

use crate::engine::support::*;

async fn read(locks: &latchwork::LockManager) -> Guard {
    locks.rwlock("k").read().acquire().await.unwrap()
}

async fn can(lock: Lock) -> bool {
    lock.try_acquire().await.unwrap().is_some()
}

/// Who may get the lock now, as a reader and as a writer.
async fn admits(world: &World) -> (bool, bool) {
    let (_, other) = world.another();
    world.settle().await;
    let page = other.rwlock("k");
    let admitted = (can(page.read()).await, can(page.write()).await);
    // What it has got itself is released in the background.
    world.settle().await;
    admitted
}

const NOBODY: (bool, bool) = (false, false);
const READERS: (bool, bool) = (true, false);

/// The modes of the holders at the store.
async fn holders(world: &World) -> Vec<Mode> {
    world.settle().await;
    let seen = world.store.inner.inspect(&Query::Prefix("".into())).await.unwrap();
    seen.iter().flat_map(|it| &it.holders).map(|it| it.mode).collect()
}

/// Polls a future so many times, then drops it. `Some` if it ended before.
async fn polled<F: Future>(world: &World, future: F, times: u32) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..times {
        let poll = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = poll {
            return Some(output);
        }
        world.io.sleep(MS / 2).await;
    }
    None
}

#[tokio::test(start_paused = true)]
async fn a_reader_becomes_a_writer_and_a_reader_again() {
    let world = World::new();
    let mut guard = read(&world.locks).await;
    let first = guard.token();
    assert_eq!(admits(&world).await, READERS);
    let second = guard.upgrade().await.unwrap();
    assert_eq!((guard.token(), guard.mode()), (second, Mode::Write));
    assert_eq!(guard.ensure_held().unwrap(), second);
    assert_eq!(holders(&world).await, [Mode::Write]);
    assert_eq!(admits(&world).await, NOBODY);
    let third = guard.downgrade().await.unwrap();
    assert_eq!((guard.token(), guard.mode()), (third, Mode::Read));
    assert_eq!(admits(&world).await, READERS);
    assert!(first < second && second < third);
    // Again and again, through one guard.
    let fourth = guard.try_upgrade().await.unwrap().unwrap();
    assert!(fourth > third && guard.downgrade().await.unwrap() > fourth);
    guard.release().await.unwrap();
    world.settle().await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_waits_for_readers_and_admits_no_new_one() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    assert_eq!(guard.try_upgrade().await.unwrap(), None);
    assert_eq!(admits(&world).await, READERS, "a single try leaves nothing");
    let token = guard.token();
    let mut upgrade = Box::pin(guard.upgrade());
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    assert_eq!(admits(&world).await, NOBODY);
    reader.release().await.unwrap();
    assert!(upgrade.await.unwrap() > token);
    assert_eq!(admits(&world).await, NOBODY);
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_goes_before_writers_that_wait() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let lock = other.rwlock("k").write();
    let mut writer = Box::pin(lock.acquire());
    assert!(world.io.within(SEC, &mut writer).await.is_none());
    let mut upgrade = Box::pin(guard.upgrade());
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    reader.release().await.unwrap();
    let token = upgrade.await.unwrap();
    assert!(world.io.within(SEC, &mut writer).await.is_none());
    guard.release().await.unwrap();
    assert!(writer.await.unwrap().token() > token);
}

/// Also two readers of one process.
#[tokio::test(start_paused = true)]
async fn h78_the_second_upgrader_is_refused_and_goes_on_reading() {
    let world = World::new();
    let (_, other) = world.another();
    for locks in [&other, &world.locks] {
        let first = world.locks.rwlock("k").read().holder("the first");
        let mut first = first.acquire().await.unwrap();
        let mut second = read(locks).await;
        let token = second.token();
        let mut upgrade = Box::pin(first.upgrade());
        assert!(world.io.within(SEC, &mut upgrade).await.is_none());
        for _ in 0..2 {
            let error = second.upgrade_within(SEC).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UpgradeConflict, "{error}");
            assert_eq!(error.message(), "the first is upgrading its hold, and waits for this one");
            assert_eq!(
                error.next_step(),
                Some("release this hold, then acquire the lock for writing")
            );
            assert_eq!(error.key().unwrap().as_str(), "k");
            assert_eq!(second.ensure_held().unwrap(), token);
        }
        assert_eq!(second.try_upgrade().await.unwrap_err().kind(), ErrorKind::UpgradeConflict);
        assert!(world.io.within(60 * SEC, &mut upgrade).await.is_none());
        second.ensure_held().unwrap();
        // As the error says.
        second.release().await.unwrap();
        upgrade.await.unwrap();
        let write = locks.rwlock("k").write();
        let mut write = Box::pin(write.acquire());
        assert!(world.io.within(SEC, &mut write).await.is_none());
        first.release().await.unwrap();
        write.await.unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_that_timed_out_leaves_the_reader_as_it_was() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let _reader = other.rwlock("k").read().holder("a slow reader").acquire().await.unwrap();
    let (start, token) = (world.io.now(), guard.token());
    let error = guard.upgrade_within(2 * SEC).await.unwrap_err();
    assert_eq!(world.io.now().since(start), 2 * SEC);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.message(), "timed out after 2s: held by a slow reader");
    let step = error.next_step().unwrap();
    assert!(step.starts_with("the lock is still held for reading; wait longer"), "{step}");
    assert_eq!((guard.ensure_held().unwrap(), guard.mode()), (token, Mode::Read));
    world.io.sleep(SEC).await;
    assert_eq!(holders(&world).await, [Mode::Read, Mode::Read]);
    assert_eq!(admits(&world).await, READERS, "its place is withdrawn");
    world.io.sleep(60 * SEC).await;
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
}

/// Its own place, which is still being withdrawn, is no rival.
#[tokio::test(start_paused = true)]
async fn an_upgrade_right_after_one_that_timed_out_is_no_conflict() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    world.store.plan(|asked| match asked {
        Asked::Release => Fault::DelayRequest(SEC),
        _ => Fault::None,
    });
    let token = guard.token();
    for _ in 0..3 {
        assert_eq!(guard.upgrade_within(MS).await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(guard.try_upgrade().await.unwrap(), None);
        assert_eq!(guard.upgrade_within(2 * SEC).await.unwrap_err().kind(), ErrorKind::TimedOut);
        assert!(world.io.within(SEC, guard.upgrade()).await.is_none());
    }
    reader.release().await.unwrap();
    assert!(guard.upgrade().await.unwrap() > token);
}

/// Two tasks that share a guard change it once.
#[tokio::test(start_paused = true)]
async fn two_upgrades_of_one_guard_are_one() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let (mut one, mut two) =
        (Box::pin(guard.prepare_upgrade(None)), Box::pin(guard.prepare_upgrade(None)));
    assert!(world.io.within(SEC, &mut one).await.is_none());
    assert!(world.io.within(SEC, &mut two).await.is_none());
    reader.release().await.unwrap();
    guard.exchange(one.await.unwrap()).unwrap().await;
    let error = two.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    guard.ensure_held().unwrap();
    assert_eq!(holders(&world).await, [Mode::Write]);
}

#[tokio::test(start_paused = true)]
async fn the_reader_is_renewed_while_it_waits() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let mut upgrade = Box::pin(guard.prepare_upgrade(None));
    for _ in 0..30 {
        assert!(world.io.within(10 * SEC, &mut upgrade).await.is_none());
        guard.ensure_held().unwrap();
    }
    reader.release().await.unwrap();
    let exchange = upgrade.await.unwrap();
    assert_eq!(guard.mode(), Mode::Read, "until it is exchanged");
    guard.exchange(exchange).unwrap().await;
    assert_eq!(holders(&world).await, [Mode::Write]);
    world.io.sleep(300 * SEC).await;
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_dropped_at_any_poll_leaves_the_reader() {
    for polls in 0..16 {
        for delay in [Fault::None, Fault::DelayAnswer(MS), Fault::DelayRequest(MS)] {
            let world = World::new();
            let (_, other) = world.another();
            let mut guard = read(&world.locks).await;
            let reader = if polls % 2 == 0 { None } else { Some(read(&other).await) };
            world.store.plan(move |_| delay);
            let token = guard.token();
            let upgraded = polled(&world, guard.upgrade(), polls).await;
            drop(reader);
            world.io.sleep(SEC).await;
            let context = format!("polls {polls}, {delay:?}, {upgraded:?}");
            match upgraded {
                Some(new) => assert_eq!(guard.token(), new.unwrap(), "{context}"),
                None => {
                    assert_eq!(guard.token(), token, "{context}");
                    assert_eq!(admits(&world).await, READERS, "{context}");
                }
            }
            guard.ensure_held().unwrap();
            assert_eq!(holders(&world).await, [guard.mode()], "{context}");
            guard.release().await.unwrap();
            world.io.sleep(SEC).await;
            assert!(world.is_empty().await, "{context}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_dropped_at_any_poll_leaves_one_hold() {
    let mut modes = Vec::new();
    for polls in 0..12 {
        for delay in [Fault::None, Fault::DelayAnswer(MS), Fault::DelayRequest(MS)] {
            let world = World::new();
            let mut guard = world.locks.rwlock("k").write().acquire().await.unwrap();
            world.store.plan(move |_| delay);
            let done = polled(&world, guard.downgrade(), polls).await.map(|it| it.is_ok());
            world.io.sleep(SEC).await;
            guard.ensure_held().unwrap();
            let context = format!("polls {polls}, {delay:?}, {done:?}");
            assert_eq!(holders(&world).await, [guard.mode()], "{context}");
            assert!(done.is_none() || guard.mode() == Mode::Read, "{context}");
            modes.push((done, guard.mode()));
            guard.release().await.unwrap();
            world.io.sleep(SEC).await;
            assert!(world.is_empty().await, "{context}");
        }
    }
    for kind in [(None, Mode::Write), (None, Mode::Read), (Some(true), Mode::Read)] {
        assert!(modes.contains(&kind), "{kind:?} never came");
    }
}

/// Also if the release of the hold that was replaced takes longer.
#[tokio::test(start_paused = true)]
async fn a_release_after_changes_leaves_nothing() {
    for changes in 1..4 {
        let world = World::new();
        let mut guard = read(&world.locks).await;
        let mut first = true;
        world.store.plan(move |asked| match asked {
            Asked::Release if std::mem::take(&mut first) => Fault::DelayRequest(SEC),
            _ => Fault::None,
        });
        for change in 0..changes {
            if change % 2 == 0 { guard.upgrade().await } else { guard.downgrade().await }.unwrap();
        }
        if changes == 2 {
            guard.release_until_answered(|_| {}).await.unwrap();
        } else {
            guard.release().await.unwrap();
        }
        assert!(world.is_empty().await, "{changes}");
    }
}

#[tokio::test(start_paused = true)]
async fn lost_and_late_messages_leave_one_hold() {
    let late = Fault::DelayAnswer(SEC);
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, late, Fault::DelayRequest(SEC)] {
        for which in [Asked::Try, Asked::Release] {
            let world = World::new();
            let mut guard = read(&world.locks).await;
            let first = guard.token();
            let mut left = 2;
            world.store.plan(move |asked| {
                let is_hit = asked == which && left > 0;
                left -= u32::from(is_hit);
                if is_hit { fault } else { Fault::None }
            });
            let second = guard.upgrade().await.unwrap();
            let third = guard.downgrade().await.unwrap();
            assert!(first < second && second < third);
            world.io.sleep(5 * SEC).await;
            assert_eq!(holders(&world).await, [Mode::Read], "{fault:?} {which:?}");
            guard.release().await.unwrap();
            world.io.sleep(5 * SEC).await;
            assert!(world.is_empty().await, "{fault:?} {which:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_upgrade_without_answers_keeps_the_reader_while_it_can() {
    let world = World::new();
    let mut guard = world.locks.rwlock("k").read().ttl(9 * SEC).acquire().await.unwrap();
    world.store.plan(|asked| if asked == Asked::Try { Fault::LoseRequest } else { Fault::None });
    let error = guard.try_upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.next_step().unwrap().starts_with("the lock is still held for reading"));
    assert_eq!(guard.upgrade().await.unwrap_err().kind(), ErrorKind::Unreachable);
    guard.ensure_held().unwrap();
    // Without renewals as well, it is lost: that is what the caller has to know.
    world.store.plan(|_| Fault::LoseRequest);
    let error = guard.upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(error.lost().unwrap().reason, LostReason::Expired);
    assert!(matches!(guard.state(), HoldState::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn a_reader_lost_while_it_waits_is_not_upgraded() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let _reader = read(&other).await;
    let token = guard.token();
    let mut upgrade = Box::pin(guard.upgrade());
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    assert!(!other.force_release("k").await.unwrap().evicted.is_empty());
    let error = upgrade.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert_eq!(
        error.message(),
        "the lock was lost before it was upgraded: the store reports that the lock is no longer held"
    );
    assert_eq!(
        error.next_step().unwrap(),
        format!("check what was done under token {token}, and acquire the lock again")
    );
    assert!(matches!(guard.state(), HoldState::Lost(_)), "the guard reports it at once");
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    world.io.sleep(SEC).await;
    assert!(world.is_empty().await, "neither the hold nor a place");
}

/// It asks before its next renewal would.
#[tokio::test(start_paused = true)]
async fn a_change_of_a_hold_taken_away_finds_the_loss() {
    let world = World::new();
    let (_, other) = world.another();
    for is_upgrade in [true, false] {
        let page = world.locks.rwlock("k");
        let lock = if is_upgrade { page.read() } else { page.write() };
        let mut guard = lock.acquire().await.unwrap();
        other.force_release("k").await.unwrap();
        let answer = if is_upgrade { guard.upgrade().await } else { guard.downgrade().await };
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
        assert!(matches!(guard.state(), HoldState::Lost(_)));
        drop(guard);
        world.settle().await;
        assert!(world.is_empty().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_after_an_upgrade_reaches_its_watcher() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let mut lost = Box::pin(guard.watch_loss());
    assert!(world.io.within(SEC, &mut lost).await.is_none());
    guard.upgrade().await.unwrap();
    assert!(world.io.within(100 * SEC, &mut lost).await.is_none(), "the upgrade is no loss");
    guard.downgrade().await.unwrap();
    guard.upgrade().await.unwrap();
    assert!(world.io.within(100 * SEC, &mut lost).await.is_none());
    other.force_release("k").await.unwrap();
    assert_eq!(lost.await.reason, LostReason::Taken);
    assert_eq!(guard.lost().await.reason, LostReason::Taken);
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn max_hold_counts_from_the_acquire_on() {
    let world = World::new();
    let lock = world.locks.rwlock("k").read().max_hold(10 * SEC);
    let start = world.io.now();
    let mut guard = lock.acquire().await.unwrap();
    world.io.sleep(6 * SEC).await;
    guard.upgrade().await.unwrap();
    let lost = guard.lost().await;
    assert_eq!((lost.reason, lost.at.since(start)), (LostReason::MaxHold, 10 * SEC));
    let error = guard.downgrade().await.unwrap_err();
    assert_eq!(error.lost().unwrap().reason, LostReason::MaxHold);
    world.settle().await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_the_machine_while_it_waits_is_settled() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let mut upgrade = Box::pin(guard.prepare_upgrade(None));
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    world.io.sleep(8 * SEC).await;
    world.clock.pause_machine(26 * SEC);
    assert_eq!(guard.state(), HoldState::Suspect);
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    guard.ensure_held().unwrap();
    reader.release().await.unwrap();
    let exchange = upgrade.await.unwrap();
    guard.exchange(exchange).unwrap().await;
    guard.ensure_held().unwrap();
    world.clock.suspend(100 * SEC);
    assert!(matches!(guard.lost().await.reason, LostReason::Expired | LostReason::Taken));
}

#[tokio::test(start_paused = true)]
async fn writers_of_the_same_process_come_after_the_release() {
    let world = World::new();
    let mut guard = read(&world.locks).await;
    let token = guard.upgrade().await.unwrap();
    let page = world.locks.rwlock("k");
    let (write, read) = (page.write(), page.read());
    let (mut one, mut two) = (Box::pin(write.acquire()), Box::pin(read.acquire()));
    assert!(world.io.within(SEC, &mut one).await.is_none());
    assert!(world.io.within(SEC, &mut two).await.is_none());
    guard.release().await.unwrap();
    let writer = world.io.within(SEC, &mut one).await.unwrap().unwrap();
    assert!(writer.token() > token);
    writer.release().await.unwrap();
    two.await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exchange_dropped_or_of_another_guard_changes_nothing() {
    let world = World::new();
    let one = read(&world.locks).await;
    let prepared = one.prepare_upgrade(Some(SEC)).await.unwrap();
    drop(prepared);
    world.io.sleep(SEC).await;
    one.ensure_held().unwrap();
    assert_eq!(holders(&world).await, [Mode::Read]);
    let prepared = one.prepare_upgrade(Some(SEC)).await.unwrap();
    let mut two = world.locks.rwlock("l").read().acquire().await.unwrap();
    let error = two.exchange(prepared).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(error.next_step(), Some("call exchange once, on the guard that has prepared it"));
    let prepared = one.prepare_upgrade(Some(SEC)).await.unwrap();
    one.release().await.unwrap();
    drop((prepared, two));
    world.settle().await;
    assert!(world.is_empty().await);
}

#[tokio::test(start_paused = true)]
async fn only_readers_upgrade_and_only_writers_downgrade() {
    let world = World::new();
    let page = world.locks.rwlock("page");
    let mutex = world.locks.mutex("mutex").acquire().await.unwrap();
    let permit = world.locks.semaphore("permits", 3).permit().acquire().await.unwrap();
    let write = page.write().acquire().await.unwrap();
    for (mut guard, how) in
        [(mutex, "as a mutex"), (permit, "as permits of a semaphore"), (write, "for writing")]
    {
        let error = guard.upgrade().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.message(), format!("upgrade: the lock is held {how}, not for reading"));
        assert_eq!(
            error.next_step(),
            Some("upgrade only a guard that holds a read-write lock for reading")
        );
        assert_eq!(error.key(), Some(guard.key()));
        guard.ensure_held().unwrap();
    }
    let mut read = page.read().acquire().await.unwrap();
    let error = read.downgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert_eq!(error.message(), "downgrade: the lock is held for reading, not for writing");
    assert_eq!(
        error.next_step(),
        Some("downgrade only a guard that holds a read-write lock for writing")
    );
    read.ensure_held().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_is_named() {
    let world = World::new();
    world.store.cannot_upgrade.store(true, Ordering::SeqCst);
    let locks = latchwork::LockManager::on_io(world.store.clone(), world.io.clone());
    let mut guard = read(&locks).await;
    let tries = world.store.asked().0;
    let error = guard.upgrade().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(
        error.message(),
        "upgrade: this store cannot replace a hold for reading without a gap"
    );
    assert_eq!(error.store(), Some("mem:"));
    assert_eq!(
        error.next_step(),
        Some(
            "release the lock, acquire it for writing, and read again: another writer may have come \
             first"
        )
    );
    assert_eq!(world.store.asked().0, tries, "nothing is sent");
    guard.ensure_held().unwrap();
}

/// Woken by the release of the last reader, and not polled: another process is not kept waiting.
#[tokio::test(start_paused = true)]
async fn an_upgrade_that_nobody_polls_gives_way() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let mut upgrade = pin!(guard.prepare_upgrade(None));
    for _ in 0..8 {
        assert!(poll_fn(|cx| Poll::Ready(upgrade.as_mut().poll(cx))).await.is_pending());
        world.settle().await;
    }
    reader.release().await.unwrap();
    world.io.sleep(3 * SEC).await;
    assert_eq!(admits(&world).await, READERS);
    guard.ensure_held().unwrap();
    let exchange = upgrade.await.unwrap();
    guard.exchange(exchange).unwrap().await;
    assert_eq!(admits(&world).await, NOBODY);
}

#[tokio::test(start_paused = true)]
async fn a_close_of_the_manager_ends_an_upgrade() {
    let world = World::new();
    let (_, other) = world.another();
    let mut guard = read(&world.locks).await;
    let reader = read(&other).await;
    let mut upgrade = Box::pin(guard.upgrade());
    assert!(world.io.within(SEC, &mut upgrade).await.is_none());
    world.locks.close().await;
    let kind = upgrade.await.unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::Closed | ErrorKind::Lost), "{kind:?}");
    reader.release().await.unwrap();
    world.settle().await;
    assert!(world.is_empty().await);
    assert_eq!(guard.downgrade().await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Each grant has one end, through changes as well.
#[derive(Debug, Default)]
struct Grants(Mutex<Vec<String>>);

impl Observer for Grants {
    fn event(&self, event: &Event<'_>) {
        let (word, token) = match event {
            Event::Acquired { token, .. } => ("acquired", token),
            Event::Released { token, .. } => ("released", token),
            Event::Lost { token, .. } => ("lost", token),
            _ => return,
        };
        self.0.lock().unwrap().push(format!("{word} {token}"));
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_sees_the_end_of_each_grant() {
    let world = World::new();
    let grants = Arc::new(Grants::default());
    let locks = world.locks.clone().observer(grants.clone());
    let mut guard = read(&locks).await;
    let first = guard.token();
    let second = guard.upgrade().await.unwrap();
    world.settle().await;
    let third = guard.downgrade().await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(
        *grants.0.lock().unwrap(),
        [
            format!("acquired {first}"),
            format!("acquired {second}"),
            format!("released {first}"),
            format!("acquired {third}"),
            format!("released {second}"),
            format!("released {third}"),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn options_of_the_acquire_hold_for_the_new_hold() {
    let world = World::new();
    let page = world.locks.rwlock("k");
    let lock = page.read().ttl(20 * SEC).lock_delay(5 * SEC).holder("me");
    let mut guard = lock.acquire().await.unwrap();
    guard.upgrade().await.unwrap();
    assert_eq!(guard.ttl(), 20 * SEC);
    let seen = world.store.inner.inspect(&Query::Key(guard.key().clone())).await.unwrap();
    let writer = seen[0].holders.iter().find(|it| it.mode == Mode::Write).unwrap();
    assert_eq!(writer.holder.text.as_ref(), "me");
    assert_eq!(writer.holder.lock_delay, Some(5 * SEC));
    assert!(writer.remaining.unwrap() > 20 * SEC, "room for the delay");
    guard.release().await.unwrap();
    let bounds = AdaptiveTtl::between(5 * SEC, 30 * SEC);
    let mut guard = page.read().adaptive_ttl(bounds).acquire().await.unwrap();
    guard.upgrade().await.unwrap();
    world.io.sleep(60 * SEC).await;
    guard.ensure_held().unwrap();
    guard.release().await.unwrap();
}

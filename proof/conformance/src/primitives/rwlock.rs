//! A read-write lock: many readers or one writer.

use latchwork_store::{ErrorKind, Mode};

use crate::case::{Case, case};
use crate::stage::{NAME, Stage};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(readers_share_and_a_writer_is_alone, |e| e.shared),
        case!(a_waiting_writer_stops_later_readers, |e| e.shared && e.fifo),
        case!(readers_behind_a_writer_come_together, |e| e.shared),
        case!(a_reader_after_a_writer_has_a_larger_token, |e| e.shared),
        case!(a_guard_changes_ahead_of_a_writer_that_waits, |e| e.shared && e.upgrade && e.fifo),
        case!(a_failed_upgrade_lets_no_reader_pass_a_writer, |e| e.shared && e.upgrade && e.fifo),
        case!(an_upgrade_conflict_names_an_earlier_writer, |e| e.shared && e.upgrade && e.fifo),
        case!(a_forced_release_ends_an_upgrade_that_waits, |e| e.shared && e.upgrade),
        case!(a_forced_release_ends_the_upgrade_of_a_frozen_process, |e| e.shared && e.upgrade),
        case!(is_refused_by_a_store_without_readers, |e| !e.shared),
    ]
}

/// Readers hold together; a writer holds alone, among processes and within one.
async fn readers_share_and_a_writer_is_alone(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let (ours, theirs) = (a.locks.rwlock(NAME), b.locks.rwlock(NAME));
    let readers =
        [ours.read().acquire().await.unwrap(), theirs.read().acquire().await.unwrap()];
    assert!(theirs.write().try_acquire().await.unwrap().is_none(), "somebody reads");
    for reader in readers {
        reader.ensure_held().unwrap();
        reader.release().await.unwrap();
    }
    let writer = theirs.write().acquire().await.unwrap();
    assert!(ours.read().try_acquire().await.unwrap().is_none(), "somebody writes");
    assert!(ours.write().try_acquire().await.unwrap().is_none(), "somebody writes");
    assert!(theirs.read().try_acquire().await.unwrap().is_none(), "also within the process");
    writer.release().await.unwrap();
}

/// Readers that keep coming do not keep a writer out.
async fn a_waiting_writer_stops_later_readers(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let first = a.locks.rwlock(NAME).read().acquire().await.unwrap();
    let write = b.locks.rwlock(NAME).write();
    let mut writer = Box::pin(write.acquire());
    stage.waits(&b, &mut writer, "somebody reads").await;
    let late = a.locks.rwlock(NAME).read().try_acquire().await.unwrap();
    assert!(late.is_none(), "a reader passed a writer that waits");
    first.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
    a.locks.rwlock(NAME).read().acquire().await.unwrap().release().await.unwrap();
}

/// All readers that waited for a writer hold at one time.
async fn readers_behind_a_writer_come_together(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let writer = a.locks.rwlock(NAME).write().acquire().await.unwrap();
    let read = b.locks.rwlock(NAME).read();
    let (one, two, three, released) =
        tokio::join!(read.acquire(), read.acquire(), read.acquire(), async {
            stage.settle().await;
            writer.release().await
        });
    released.unwrap();
    for reader in [&one, &two, &three] {
        reader.as_ref().unwrap().ensure_held().unwrap();
    }
}

/// So that a resource can refuse a writer that was paused before the read.
async fn a_reader_after_a_writer_has_a_larger_token(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let writer = a.locks.rwlock(NAME).write().acquire().await.unwrap();
    let written = writer.token();
    writer.release().await.unwrap();
    let reader = b.locks.rwlock(NAME).read().acquire().await.unwrap();
    assert!(reader.token() > written, "{} after {written}", reader.token());
    let read = reader.token();
    reader.release().await.unwrap();
    let next = a.locks.rwlock(NAME).write().acquire().await.unwrap();
    assert!(next.token() > read, "{} after {read}", next.token());
}

/// A writer that waits comes after the upgrades and the downgrades, with a larger token.
async fn a_guard_changes_ahead_of_a_writer_that_waits(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    let mut guard = a.locks.rwlock(NAME).read().acquire().await.unwrap();
    let lock = b.locks.rwlock(NAME).write();
    let mut writer = Box::pin(lock.acquire());
    stage.waits(&b, &mut writer, "somebody reads").await;
    let changes = async {
        let mut last = guard.token();
        for _ in 0..3 {
            for token in [guard.upgrade().await.unwrap(), guard.downgrade().await.unwrap()] {
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
        guard.ensure_held().unwrap();
        last
    };
    let last = tokio::select! {
        _ = &mut writer => panic!("somebody reads or writes"),
        last = changes => last,
    };
    guard.release().await.unwrap();
    let next = writer.await.unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
    next.release().await.unwrap();
}

/// H508: an upgrade is given up while a writer waits. The writer is still ahead of the readers that come later.
async fn a_failed_upgrade_lets_no_reader_pass_a_writer(stage: Stage) {
    let (a, b, c) = (stage.peer().await, stage.peer().await, stage.peer().await);
    let mut guard = a.locks.rwlock(NAME).read().acquire().await.unwrap();
    let other = b.locks.rwlock(NAME).read().acquire().await.unwrap();
    let lock = b.locks.rwlock(NAME).write();
    let mut writer = Box::pin(lock.acquire());
    stage.waits(&b, &mut writer, "somebody reads").await;
    for _ in 0..3 {
        let gives_up = async {
            let error = guard.upgrade_within(stage.a_while()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            stage.sleep(stage.a_while()).await;
            let late = c.locks.rwlock(NAME).read().try_acquire().await.unwrap();
            assert!(late.is_none(), "a reader passed a writer that waits");
        };
        tokio::select! {
            _ = &mut writer => panic!("somebody reads"),
            () = gives_up => {}
        }
    }
    guard.release().await.unwrap();
    other.release().await.unwrap();
    writer.await.unwrap().release().await.unwrap();
}

/// H546: a reader has passed a writer whose place an upgrade had removed. Its own upgrade does not go ahead of that.
async fn an_upgrade_conflict_names_an_earlier_writer(stage: Stage) {
    let (a, b) = (stage.client().await, stage.peer().await);
    let [read, other] = [(); 2].map(|()| stage.claim(Mode::Read));
    let writer = stage.claim(Mode::Write);
    for reader in [&read, &other] {
        stage.granted(&a, reader, "readers share").await;
    }
    a.blocked(&writer, "others read").await;
    let upgrade = stage.claim(Mode::Write).with(|it| it.beside = Some(read.id));
    a.blocked(&upgrade, "another reads").await;
    a.released(&upgrade, "it waited").await;
    let passed = b.locks.rwlock(NAME).read().try_acquire().await.unwrap();
    a.blocked(&writer, "others read").await;
    if let Some(mut guard) = passed {
        let waits = guard.upgrade_within(stage.a_while()).await;
        for error in [waits.unwrap_err(), guard.try_upgrade().await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::UpgradeConflict, "{error}");
            let said = format!("{} waits for this hold, and came before it", writer.holder);
            assert!(error.to_string().contains(&said), "{error}");
        }
        guard.release().await.unwrap();
    }
    for reader in [&read, &other] {
        a.released(reader, "it was held").await;
    }
    stage.granted(&a, &writer, "it is its turn").await;
}

/// H507: the process of an evicted reader is frozen while its upgrade waits. The upgrade does not become the holder.
async fn a_forced_release_ends_the_upgrade_of_a_frozen_process(stage: Stage) {
    let (a, b) = (stage.client().await, stage.peer().await);
    let read = stage.claim(Mode::Read);
    stage.granted(&a, &read, "the key is free").await;
    let other = b.locks.rwlock(NAME).read().acquire().await.unwrap();
    let write = stage.claim(Mode::Write).with(|it| it.beside = Some(read.id));
    a.blocked(&write, "another reads").await;
    let freed = b.locks.force_release(NAME).await.unwrap();
    assert_eq!(freed.evicted.len(), 2, "{freed:?}");
    assert!(freed.token.is_some_and(|token| token > other.token()), "{freed:?}");
    let why = "nobody holds it or waits";
    stage.soon(&b.client, &read.key, why, |it| it.holders.is_empty() && it.waiters.is_empty()).await;
    let next = b.locks.rwlock(NAME).write().try_acquire().await.unwrap();
    next.expect("nobody holds it").release().await.unwrap();
}

/// An evicted reader becomes no writer when the other readers go, in whatever order they came.
async fn a_forced_release_ends_an_upgrade_that_waits(stage: Stage) {
    let (a, b) = (stage.peer().await, stage.peer().await);
    for comes_first in [true, false] {
        let read = a.brief.clone().ttl(stage.short()).rwlock(NAME).read();
        let first = read.acquire().await.unwrap();
        let second = read.acquire().await.unwrap();
        let (mut reader, other) = if comes_first { (first, second) } else { (second, first) };
        {
            let mut upgrade = Box::pin(reader.upgrade());
            assert!(stage.within(stage.a_while(), &mut upgrade).await.is_none(), "another reads");
            let freed = b.locks.force_release(NAME).await.unwrap();
            assert_eq!(freed.evicted.len(), 2, "{freed:?}");
            assert_eq!(upgrade.await.unwrap_err().kind(), ErrorKind::Lost);
        }
        for evicted in [reader, other] {
            evicted.lost().await;
            assert_eq!(evicted.release().await.unwrap_err().kind(), ErrorKind::Lost);
        }
        // The evicted client may not have withdrawn its upgrade yet; what is left of a hold ends by its ttl alone.
        let write = b.locks.rwlock(NAME).write();
        let next = stage.within(stage.short() / 2, write.acquire()).await;
        next.expect("nobody holds it").unwrap().release().await.unwrap();
    }
}

/// A store without read claims says so at once.
async fn is_refused_by_a_store_without_readers(stage: Stage) {
    let a = stage.peer().await;
    let lock = a.locks.rwlock(NAME);
    stage.refused(lock.read().try_acquire().await);
    stage.refused(lock.write().acquire().await);
}

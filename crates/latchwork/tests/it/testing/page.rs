//! The code of docs/guide/testing-your-code.md.

use std::error::Error;
use std::sync::Mutex;
use std::time::Duration;

use latchwork::fence::{Fence, Fenced};
use latchwork::testing::{Answer, Call, TestStore};
use latchwork::{ErrorKind, FencingToken, LockManager, Lost, LostReason};

type Failure = Box<dyn Error + Send + Sync>;

/// The resource: it refuses a writer that was superseded.
#[derive(Default)]
struct Ledger {
    fence: Fence,
    counted: Mutex<Vec<u32>>,
}

impl Ledger {
    fn write(&self, token: FencingToken, shelf: u32) -> Result<(), Fenced> {
        let mut counted = self.counted.lock().unwrap();
        self.fence.check_write(token)?;
        counted.push(shelf);
        Ok(())
    }

    fn lines(&self) -> usize {
        self.counted.lock().unwrap().len()
    }
}

/// The code under test: counts ten shelves under a lock.
async fn count_stock(
    locks: &LockManager,
    ledger: &Ledger,
    scan: impl AsyncFn(u32),
) -> Result<(), Failure> {
    let guard = locks.mutex("stock").acquire_within(Duration::from_secs(5)).await?;
    let work = async {
        for shelf in 0..10 {
            scan(shelf).await;
            ledger.write(guard.token(), shelf)?;
        }
        Ok::<_, Failure>(())
    };
    guard.run(work).await??;
    if let Err(error) = guard.release().await {
        eprintln!("counted, but not released: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn two_clients_exclude_each_other() {
    let name = "mem:two_clients_exclude_each_other";
    let (here, there) =
        tokio::try_join!(latchwork::connect(name), latchwork::connect(name)).unwrap();
    let _held = there.mutex("stock").acquire().await.unwrap();
    assert!(here.mutex("stock").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_count_waits_for_five_seconds() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    let _held = store.locks().mutex("stock").acquire().await.unwrap();
    let locks = store.locks();
    let count = count_stock(&locks, &ledger, async |_| {});
    let error = store.run_within(Duration::from_secs(60), count).await.unwrap().unwrap_err();
    let error = error.downcast_ref::<latchwork::Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(store.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_count_stops_when_its_lock_is_lost() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    let scan = async |shelf| {
        if shelf == 3 {
            store.take_away("stock").await;
        }
    };
    let error = count_stock(&store.locks(), &ledger, scan).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Lost>().unwrap().reason, LostReason::Taken);
    assert_eq!(ledger.lines(), 3);
}

#[tokio::test]
async fn a_resumed_process_writes_nothing() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    let guard = store.locks().mutex("stock").acquire().await.unwrap();
    store.suspend(Duration::from_secs(31)).await;
    count_stock(&store.locks(), &ledger, async |_| {}).await.unwrap();
    assert!(guard.ensure_held().is_err());
    assert!(ledger.write(guard.token(), 10).is_err(), "refused by the resource as well");
}

#[tokio::test]
async fn a_count_survives_a_short_outage() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    store.script(Call::Acquire, 3, Answer::Unreachable);
    let locks = store.locks();
    let count = count_stock(&locks, &ledger, async |_| {});
    store.run_within(Duration::from_secs(5), count).await.unwrap().unwrap();
    assert_eq!(store.count(Call::Acquire), 4);
}

#[tokio::test]
async fn a_count_without_rights_fails_at_once() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    store.script(Call::Acquire, 1, Answer::Denied);
    let error = count_stock(&store.locks(), &ledger, async |_| {}).await.unwrap_err();
    assert_eq!(error.downcast_ref::<latchwork::Error>().unwrap().kind(), ErrorKind::Denied);
    assert_eq!(ledger.lines(), 0);
}

#[tokio::test]
async fn a_count_releases_its_lock_once_also_when_it_fails() {
    let (store, ledger) = (TestStore::new(), Ledger::default());
    ledger.fence.check_write(FencingToken::from_grant(u64::MAX)).unwrap(); // a later holder was here
    assert!(count_stock(&store.locks(), &ledger, async |_| {}).await.is_err());
    store.settle().await; // the guard was dropped
    assert_eq!(store.count_of("stock", Call::Release), 1);
}

#[tokio::test]
async fn a_shutdown_ends_while_the_store_is_unreachable() {
    let store = TestStore::new();
    let locks = store.locks();
    let held = locks.mutex("stock").acquire().await.unwrap();
    let lock = locks.mutex("stock");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    store.settle().await;
    store.set_reachable(false);
    store.run_within(Duration::from_secs(10), locks.close()).await.expect("it ends");
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(held.lost().await.reason, LostReason::SessionEnded);
}

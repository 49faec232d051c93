//! Leaders that are followed by another one.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use latchwork::fence::Fence;
use latchwork_recipes::leader::{Step, lead, lead_on_a_thread};

use crate::common::{take_over, two_processes};

/// One candidate leads; it is deposed in the midst of a round, and another one goes on. The system that
/// takes the leader's word refuses what arrives with the earlier term.
#[tokio::test]
async fn a_deposed_leader_stops_and_another_leads() {
    let (one, two) = two_processes("leader").await;
    let system = Fence::new();
    let (begun, ended) = (Cell::new(None), Cell::new(false));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let first = async {
        let round = async |term| {
            system.check_write(term)?;
            begun.set(Some(term));
            // Work that does not end by itself.
            std::future::pending::<()>().await;
            ended.set(true);
            Ok(())
        };
        let stop = async { stopped.await.unwrap() };
        lead(&one, "one", round, stop).await.unwrap();
    };
    let second = async {
        while begun.get().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The first one campaigns again behind this one.
        let next = take_over(&two, "scheduler").await;
        system.check_write(next.token()).unwrap();
        let old = begun.take().unwrap();
        assert!(system.check_write(old).is_err(), "a late write of the earlier term");
        next.release().await.unwrap();
        let again = async {
            loop {
                if let Some(term) = begun.get() {
                    return term;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(again.await > old);
        stop.send(()).unwrap();
    };
    tokio::join!(first, second);
    assert!(!ended.get());
    // It has resigned: its ttl would take longer.
    let next = two.election("scheduler").campaign_within(Duration::from_secs(3)).await.unwrap();
    next.resign().await.unwrap();
}

#[tokio::test]
async fn a_deposed_leaders_thread_starts_no_step() {
    let (one, two) = two_processes("leader-thread").await;
    let election = one.election("import");
    let steps = Arc::new(std::sync::Mutex::new(Vec::new()));
    let step = |name: &'static str, work: Box<dyn Fn() + Send>| -> Step {
        let steps = steps.clone();
        Box::new(move |_| {
            steps.lock().unwrap().push(name);
            work();
            Ok(())
        })
    };
    let runtime = tokio::runtime::Handle::current();
    let depose = move || {
        runtime.block_on(async {
            take_over(&two, "import").await.release().await.unwrap();
            // Until its next renewal the holder does not know.
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
    };
    let work = vec![
        step("first", Box::new(|| {})),
        step("second", Box::new(depose)),
        step("third", Box::new(|| {})),
    ];
    let done = lead_on_a_thread(&election, work).await;
    assert!(done.is_err());
    assert_eq!(*steps.lock().unwrap(), ["first", "second"]);
}

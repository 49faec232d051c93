//! A worker that loses its lock in the midst of its work.

use std::fs;
use std::path::Path;
use std::time::Duration;

use latchwork_recipes::worker::{publish, publish_by_run, publish_by_with};

use crate::common::{Failure, SOON, take_over, two_processes};

/// Writes half, lets another process take the lock over, and would go on.
async fn loses(locks: &latchwork::LockManager, draft: &Path) -> Result<(), Failure> {
    fs::write(draft, "half")?;
    take_over(locks, "report").await.release().await?;
    tokio::time::sleep(SOON).await;
    panic!("the work was not dropped")
}

fn files(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[tokio::test]
async fn a_report_is_published_by_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = two_processes("worker-one").await;
    let write = async |draft: &Path| {
        let other = publish(&two, folder.path(), async |_| panic!("one is at it")).await?;
        assert!(!other);
        Ok(fs::write(draft, "all")?)
    };
    assert!(publish(&one, folder.path(), write).await.unwrap());
    assert_eq!(fs::read_to_string(folder.path().join("report")).unwrap(), "all");
    assert_eq!(files(folder.path()), ["report"]);
}

#[tokio::test]
async fn a_worker_that_loses_the_lock_removes_its_draft() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = two_processes("worker-select").await;
    let lost = publish(&one, folder.path(), async |draft| loses(&two, draft).await).await;
    assert!(lost.unwrap_err().to_string().contains("no longer held"));
    assert_eq!(files(folder.path()), [] as [&str; 0]);
}

/// The write has ended, and the lock was lost while it ran without an await point.
#[tokio::test]
async fn a_draft_that_is_complete_too_late_is_not_published() {
    let folder = tempfile::tempdir().unwrap();
    let locks = latchwork::connect("mem:").await.unwrap().max_hold(Duration::from_millis(50));
    let late = publish(&locks, folder.path(), async |draft: &Path| {
        fs::write(draft, "all")?;
        std::thread::sleep(Duration::from_millis(100));
        Ok(())
    });
    assert!(late.await.unwrap_err().to_string().contains("max_hold"));
    assert_eq!(files(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn run_stops_the_work_of_a_lost_lock() {
    let folder = tempfile::tempdir().unwrap();
    let draft = folder.path().join("draft");
    let (one, two) = two_processes("worker-run").await;
    let write = async |draft: &Path| Ok(fs::write(draft, "all")?);
    publish_by_run(&one, &draft, write).await.unwrap();
    assert_eq!(files(folder.path()), ["draft"]);
    let lost = publish_by_run(&one, &draft, async |draft| loses(&two, draft).await).await;
    assert!(lost.unwrap_err().to_string().contains("no longer held"));
    assert_eq!(files(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn with_stops_the_work_of_a_lost_lock() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = two_processes("worker-with").await;
    let write = async |draft: &Path| Ok(fs::write(draft, "all")?);
    publish_by_with(&one, folder.path(), write).await.unwrap();
    assert_eq!(files(folder.path()), ["report"]);
    let lost = publish_by_with(&one, folder.path(), async |draft| loses(&two, draft).await).await;
    let lost = lost.unwrap_err();
    let error = lost.downcast_ref::<latchwork::Error>().unwrap();
    assert_eq!(error.kind(), latchwork::ErrorKind::Lost);
}

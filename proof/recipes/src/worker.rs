//! Work beside the loss of its lock, and what becomes of work that is half done.

// recipe: worker-select
use std::fs;
use std::path::Path;

use latchwork::LockManager;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Writes the report and publishes it. Answers `false` if another process is doing that.
pub async fn publish(
    locks: &LockManager,
    folder: &Path,
    write: impl AsyncFnOnce(&Path) -> Result<(), Failure>,
) -> Result<bool, Failure> {
    let Some(guard) = locks.mutex("report").try_acquire().await? else {
        return Ok(false);
    };
    // Each holder has a draft of its own: an earlier holder may still be writing.
    let draft = folder.join(format!("draft.{}", guard.token()));
    let mut done = tokio::select! {
        written = write(&draft) => written,
        // The other branch was dropped at its last await point.
        lost = guard.lost() => Err(lost.into()),
    };
    if done.is_ok() {
        // The step that others see: ask once more, right before it.
        done = match guard.ensure_held() {
            Ok(_) => fs::rename(&draft, folder.join("report")).map_err(Failure::from),
            Err(not_held) => Err(not_held.into()),
        };
    }
    if done.is_err() {
        let _ = fs::remove_file(&draft);
    }
    done?;
    // The report is out, whatever the release answers.
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "published, but the lock was not released");
    }
    Ok(true)
}
// end

/// The same by `run`, which is the `select!` of above.
pub async fn publish_by_run(
    locks: &LockManager,
    draft: &Path,
    write: impl AsyncFnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // recipe: worker-run
    let guard = locks.mutex("report").acquire().await?;
    match guard.run(write(draft)).await {
        Ok(written) => written?,
        Err(lost) => {
            fs::remove_file(draft)?;
            return Err(lost.into());
        }
    }
    if let Err(error) = guard.release().await {
        tracing::warn!(%error, "written, but the lock was not released");
    }
    // end
    Ok(())
}

/// The same in one call.
pub async fn publish_by_with(
    locks: &LockManager,
    folder: &Path,
    write: impl AsyncFnOnce(&Path) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // recipe: worker-with
    locks
        .mutex("report")
        .with(async |guard| {
            let draft = folder.join(format!("draft.{}", guard.token()));
            write(&draft).await?;
            guard.ensure_held()?;
            fs::rename(&draft, folder.join("report"))?;
            Ok(())
        })
        .await?
    // end
}

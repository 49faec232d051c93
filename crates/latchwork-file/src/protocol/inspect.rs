//! Reading records for people: locked like a verb, and changing nothing.

use std::path::Path;
use std::sync::atomic::Ordering;

use latchwork_store::kit::record::Record;
use latchwork_store::{BackendError, BackendErrorKind, Effect, Key, Mode, Party, Query, Snapshot};
use rustix::io::Errno;

use crate::disk::failure::{failed, failed_at};
use crate::protocol::shared::{BATCH, Shared};
use crate::records::layout::{ASIDE, Place, STRIPES};
use crate::records::record_file::RecordFile;

impl Shared {
    /// Tells who holds and who waits.
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        if self.session.only_reads() {
            self.check_path()?;
        }
        match query {
            Query::Key(key) => {
                let place = Place::of(key);
                let entry = self.layout.record(&place);
                let path = entry.path();
                let locked = match self.lock(place.stripe).await? {
                    Some(locked) => Some(locked),
                    None if self.has_none(entry.look()) => None,
                    None => return Err(self.removed()),
                };
                let record = match locked {
                    Some(_) => RecordFile::read_of(entry, key, self.era())?,
                    None => Record::default(),
                };
                let snapshot = self.snapshot(key.clone(), &record, &path);
                drop(locked);
                Ok(vec![snapshot])
            }
            Query::Prefix(prefix) => {
                let mut found = Vec::new();
                for stripe in 0..STRIPES {
                    self.inspect_stripe(stripe, prefix, &mut found).await?;
                }
                found.sort_by(|a: &Snapshot, b| a.key.cmp(&b.key));
                Ok(found)
            }
        }
    }

    /// Whether a backend that only reads has found a part missing, which is yet to be made.
    fn has_none<T>(&self, found: Result<T, impl std::borrow::Borrow<Errno>>) -> bool {
        self.session.only_reads()
            && found.is_err_and(|errno| matches!(*errno.borrow(), Errno::NOENT))
    }

    /// Nobody makes anything any more in a directory that was removed or replaced.
    fn check_path(&self) -> Result<(), BackendError> {
        let dir = self.layout.dir();
        match dir.can_be_found() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.removed()),
            Err(errno) => Err(failed("examine", dir.path(), errno, Effect::NotApplied)),
        }
    }

    async fn inspect_stripe(
        &self,
        stripe: usize,
        prefix: &str,
        found: &mut Vec<Snapshot>,
    ) -> Result<(), BackendError> {
        let records = self.layout.records(stripe);
        let listed = records.list();
        if self.has_none(listed.as_ref()) {
            return Ok(());
        }
        let mut names = listed.map_err(|errno| match errno {
            Errno::NOENT => self.removed(),
            errno => failed_at("read", &records, errno, Effect::NotApplied),
        })?;
        names.retain(|name| name != ASIDE);
        for batch in names.chunks(BATCH) {
            let locked = self.lock(stripe).await?.ok_or_else(|| self.removed())?;
            for name in batch {
                let entry = records.child(name);
                let looked = match RecordFile::look(entry.clone(), self.era()) {
                    Ok(looked) => looked,
                    Err(error) => {
                        found.push(unreadable(&entry.path(), error)?);
                        continue;
                    }
                };
                let Some(key) = looked.key.filter(|key| key.as_str().starts_with(prefix)) else {
                    continue;
                };
                let snapshot = self.snapshot(key, &looked.record, &entry.path());
                if !snapshot.is_free() {
                    found.push(snapshot);
                }
            }
            drop(locked);
            // A long listing is work for this thread; a task that waits with a limit must get a turn.
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn snapshot(&self, key: Key, record: &Record, path: &Path) -> Snapshot {
        let mut snapshot = record.snapshot(key, self.now(), &|tag| self.seems_alive(tag));
        snapshot.notes.push(format!("record: {}", path.display()));
        if self.polling.load(Ordering::Relaxed) {
            snapshot.notes.push("out of descriptors: waiting by polling every 50 ms".to_owned());
        }
        if self.denied.load(Ordering::Relaxed) {
            snapshot.notes.push(format!(
                "cannot write to a wake file in {}, so its waiter is notified late: give all \
                 users of the directory the right to write to the files in it",
                self.layout.sessions().path().display()
            ));
        }
        snapshot
    }
}

/// The holder's text of a record that cannot be read.
pub(crate) const UNREADABLE: &str = "(unknown: the record cannot be read)";

/// The entry for a record that cannot be read, so that one of them does not hide all others. Its
/// key is in the record, so the path stands for it, and is listed for every prefix. Nobody can take
/// the key, so it is not free.
fn unreadable(path: &Path, error: BackendError) -> Result<Snapshot, BackendError> {
    if !matches!(error.kind, BackendErrorKind::Corrupt | BackendErrorKind::Denied) {
        return Err(error);
    }
    let Ok(key) = Key::new(path.to_string_lossy()) else { return Err(error) };
    let holder = Party::new(Mode::Exclusive, UNREADABLE);
    let notes = [Some(error.message), error.next_step].into_iter().flatten().collect();
    Ok(Snapshot::free(key).with(|it| {
        it.holders = vec![holder];
        it.notes = notes;
    }))
}

//! Reading records for people: locked like a verb, and changing nothing.

use std::path::Path;
use std::sync::atomic::Ordering;

use latchwork_core::kit::record::Record;
use latchwork_core::{BackendError, Key, Query, Snapshot};

use crate::backend::{BATCH, Shared};
use crate::layout::{Place, STRIPES};
use crate::record_file::{ASIDE, RecordFile};

impl Shared {
    /// Tells who holds and who waits.
    pub(crate) async fn inspect(&self, query: &Query) -> Result<Vec<Snapshot>, BackendError> {
        match query {
            Query::Key(key) => {
                let place = Place::of(key);
                let entry = self.layout.record(&place);
                let path = entry.path();
                let locked = self.lock(place.stripe).await?.ok_or_else(|| self.removed())?;
                let (_, record) = RecordFile::open(entry, key, self.boot)?;
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

    async fn inspect_stripe(
        &self,
        stripe: usize,
        prefix: &str,
        found: &mut Vec<Snapshot>,
    ) -> Result<(), BackendError> {
        let records = self.layout.records(stripe);
        let Ok(mut names) = records.list() else {
            return Err(self.removed());
        };
        names.retain(|name| name != ASIDE);
        for batch in names.chunks(BATCH) {
            let locked = self.lock(stripe).await?.ok_or_else(|| self.removed())?;
            for name in batch {
                let entry = records.child(name);
                let looked = RecordFile::look(entry.clone(), self.boot)?;
                let Some(key) = looked.key.filter(|key| key.as_str().starts_with(prefix)) else {
                    continue;
                };
                let snapshot = self.snapshot(key, &looked.record, &entry.path());
                if !snapshot.is_free() {
                    found.push(snapshot);
                }
            }
            drop(locked);
        }
        Ok(())
    }

    fn snapshot(&self, key: Key, record: &Record, path: &Path) -> Snapshot {
        let mut snapshot = record.snapshot(key, self.now(), &|tag| self.seems_alive(tag));
        snapshot.notes.push(format!("record: {}", path.display()));
        if self.polling.load(Ordering::Relaxed) {
            snapshot.notes.push("out of descriptors: waiting by polling every 50 ms".to_owned());
        }
        snapshot
    }
}

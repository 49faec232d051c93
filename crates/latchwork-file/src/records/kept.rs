//! The records of held claims, kept open.
//!
//! A program that has used up its descriptors opens nothing any more, and would lose each hold at the end of its
//! ttl. So the record of a claim stays open from its grant to its release, for the first of the holds: no more
//! than a small part of the descriptors of a usual program.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use latchwork_store::kit::record::Record;
use latchwork_store::{BackendError, Key};

use crate::disk::dir::Identity;
use crate::records::boot::Era;
use crate::records::layout::{Layout, Place};
use crate::records::record_file::RecordFile;

/// How many records are kept open.
const MOST: usize = 64;

/// Open records, by their places, with what tells whether a record is still the one of its place: one that
/// outgrew its file has moved to another.
#[derive(Debug, Default)]
pub(crate) struct Kept(Mutex<HashMap<Place, (OwnedFd, Identity)>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, HashMap<Place, (OwnedFd, Identity)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the record of `key` for a change, by the descriptor that was kept if there is one. It is kept no
    /// longer then. The stripe is locked.
    pub(crate) fn open(
        &self,
        layout: &Layout,
        place: &Place,
        key: &Key,
        era: Era<'_>,
    ) -> Result<(RecordFile, Record), BackendError> {
        let at = layout.record(place);
        let kept = self.lock().remove(place);
        let current =
            kept.filter(|(_, identity)| at.identity().is_ok_and(|now| now == Some(*identity)));
        RecordFile::reopen(at, current.map(|(file, _)| file), key, era)
    }

    /// Keeps this record open if a claim of this session holds it.
    pub(crate) fn keep(&self, place: &Place, file: RecordFile, record: &Record, session: u128) {
        if !record.held.iter().any(|member| member.tag == session) {
            return;
        }
        let Some(file) = file.into_descriptor() else { return };
        let Ok(stat) = rustix::fs::fstat(&file) else { return };
        let mut kept = self.lock();
        if kept.len() < MOST {
            kept.insert(*place, (file, stat.into()));
        }
    }
}

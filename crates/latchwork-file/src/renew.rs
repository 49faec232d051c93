//! Renewal of many claims at once, without one stripe holding up the others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_core::kit::record::Wakeup;
use latchwork_core::{BackendError, Backoff, Claim, Linger, Renewal};

use crate::backend::{BATCH, Shared};
use crate::failure::busy;
use crate::layout::Place;
use crate::record_file::RecordFile;
use crate::stripe::{Locked, Try};

/// The longest wait for busy stripes. The caller's time limit is not known here, and when that is
/// over all answers are lost, those of the other stripes too.
const PATIENCE: Duration = Duration::from_millis(100);

type Answer = Result<Renewal, BackendError>;

/// Some of the claims on the keys of one stripe, by their index.
type Batch<'a> = (usize, &'a [(usize, Place)]);

impl Shared {
    /// Renews claims, stripe by stripe.
    ///
    /// A process that is stopped in the middle of a verb may have a stripe for ever. So the free
    /// ones come first; then the busy ones are waited for together, for a moment.
    pub(crate) async fn renew_all(self: &Arc<Self>, claims: &[Claim]) -> Vec<Answer> {
        let mut by_stripe: BTreeMap<usize, Vec<(usize, Place)>> = BTreeMap::new();
        for (index, claim) in claims.iter().enumerate() {
            let place = Place::of(&claim.key);
            by_stripe.entry(place.stripe).or_default().push((index, place));
        }
        let mut answers = vec![None; claims.len()];
        let batches = by_stripe
            .iter()
            .flat_map(|(stripe, group)| group.chunks(BATCH).map(|batch| (*stripe, batch)));
        let mut left = self.renew_free(batches.collect(), claims, &mut answers).await;

        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let end = self.io.now().plus((shortest / 16).min(PATIENCE));
        let mut backoff = Backoff::new(Duration::from_micros(200), Duration::from_millis(5));
        while !left.is_empty() && self.io.now() < end {
            self.io.sleep(backoff.pause()).await;
            left = self.renew_free(left, claims, &mut answers).await;
        }
        for (stripe, batch) in left {
            let error = busy(&self.layout.stripe(stripe).path());
            batch.iter().for_each(|(index, _)| answers[*index] = Some(Err(error.clone())));
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Ok(Renewal::Lost))).collect()
    }

    /// Renews the batches whose stripe is free, and returns the others.
    async fn renew_free<'a>(
        self: &Arc<Self>,
        batches: Vec<Batch<'a>>,
        claims: &[Claim],
        answers: &mut [Option<Answer>],
    ) -> Vec<Batch<'a>> {
        let mut left = Vec::new();
        for (stripe, batch) in batches {
            if self.renew_batch(stripe, batch, claims, answers) {
                // Thousands of renewals are milliseconds; others run here too.
                tokio::task::yield_now().await;
            } else {
                left.push((stripe, batch));
            }
        }
        left
    }

    /// Renews claims of one stripe; false if another process has it.
    fn renew_batch(
        self: &Arc<Self>,
        stripe: usize,
        batch: &[(usize, Place)],
        claims: &[Claim],
        answers: &mut [Option<Answer>],
    ) -> bool {
        let mut woken = Vec::new();
        match self.try_lock(stripe) {
            Ok(Try::Locked(mut locked)) => {
                for (index, place) in batch {
                    let renewed = self.renew(&mut locked, &claims[*index], place);
                    answers[*index] = Some(renewed.map(|(renewal, wakeups)| {
                        woken.push((*index, wakeups));
                        renewal
                    }));
                }
            }
            Ok(Try::Busy) => return false,
            // Whoever locks this key now locks another file.
            Ok(Try::Removed) => {
                batch.iter().for_each(|(i, _)| answers[*i] = Some(Ok(Renewal::Lost)));
            }
            Err(error) => {
                batch.iter().for_each(|(i, _)| answers[*i] = Some(Err(error.clone())));
            }
        }
        for (index, wakeups) in woken {
            self.deliver(&claims[index].key, &wakeups);
        }
        true
    }

    fn renew(
        &self,
        locked: &mut Locked<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<(Renewal, Vec<Wakeup>), BackendError> {
        let (mut file, mut record) =
            RecordFile::open(self.layout.record(place), &claim.key, self.boot)?;
        if !file.exists() {
            return Ok((Renewal::Lost, Vec::new()));
        }
        let now = self.now();
        let alive = |tag| self.alive(tag);
        let (renewal, wakeups) = if self.session.can_be_found()? {
            record.renew(claim, now, &alive)
        } else {
            // The others take this session for dead already; the record had better say so.
            let (_, wakeups) = record.release(claim.id, Linger::None, now, &alive);
            (Renewal::Lost, wakeups)
        };
        if let Renewal::Held { token, .. } = renewal {
            let micros = now.wall.as_micros() as u64;
            if claim.floor != 0 && token > locked.counter(self.boot, micros)? {
                locked.grant(token, false, self.boot, micros)?;
            }
        }
        file.write(&claim.key, &record, self.layout.file_mode())?;
        Ok((renewal, wakeups))
    }
}

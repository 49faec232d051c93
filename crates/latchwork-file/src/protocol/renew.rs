//! Renewal of many claims at once, without delays between stripes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::kit::record::Wakeup;
use latchwork_store::{BackendError, Backoff, Claim, Renewal};

use crate::disk::failure::{busy, slow};
use crate::protocol::shared::{BATCH, PAUSES, Shared};
use crate::records::layout::Place;
use crate::records::stripe::{Locked, Try};

/// The longest wait for busy stripes. The caller's time limit is not known here, and when that is
/// over all answers are lost, those of the other stripes too.
const STRIPE_PATIENCE: Duration = Duration::from_millis(100);

/// The longest wait for a ceiling that a floor asks for: half of the caller's time limit, as a rule.
const CEILING_PATIENCE: Duration = Duration::from_secs(1);

type Answer = Result<Renewal, BackendError>;

/// Some of the claims on the keys of one stripe, by their index.
type Batch<'a> = (usize, &'a [(usize, Place)]);

/// Why claims of a batch are not renewed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Another process, or another thread, has the stripe.
    Busy,
    /// A floor asks for a token above the ceiling; a higher one is on its way to the disk.
    Disk,
}

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
        let now = self.io.now();
        let for_others = now.plus((shortest / 16).min(STRIPE_PATIENCE));
        let for_the_disk = now.plus((shortest / 8).min(CEILING_PATIENCE));
        let mut backoff = Backoff::new(PAUSES.0, PAUSES.1);
        let in_time = |left: &[(Batch<'_>, Left)]| {
            let now = self.io.now();
            let disk = left.iter().any(|(_, why)| *why == Left::Disk);
            !left.is_empty() && now < if disk { for_the_disk } else { for_others }
        };
        while in_time(&left) {
            self.io.sleep(backoff.pause()).await;
            let batches = left.into_iter().map(|(batch, _)| batch).collect();
            left = self.renew_free(batches, claims, &mut answers).await;
        }
        for ((stripe, batch), why) in left {
            let stripe = self.layout.stripe(stripe).path();
            let error = match why {
                Left::Busy => busy(&stripe),
                Left::Disk => slow(&stripe),
            };
            for (index, _) in batch {
                answers[*index].get_or_insert_with(|| Err(error.clone()));
            }
        }
        answers.into_iter().map(|answer| answer.unwrap_or(Ok(Renewal::Lost))).collect()
    }

    /// Renews the batches whose stripe is free, and returns the others.
    async fn renew_free<'a>(
        self: &Arc<Self>,
        batches: Vec<Batch<'a>>,
        claims: &[Claim],
        answers: &mut [Option<Answer>],
    ) -> Vec<(Batch<'a>, Left)> {
        let mut left = Vec::new();
        for (stripe, batch) in batches {
            match self.renew_batch(stripe, batch, claims, answers) {
                // Thousands of renewals are milliseconds; others run here too.
                None => tokio::task::yield_now().await,
                Some(why) => left.push(((stripe, batch), why)),
            }
        }
        left
    }

    /// Renews claims of one stripe, and tells why some are left.
    fn renew_batch(
        self: &Arc<Self>,
        stripe: usize,
        batch: &[(usize, Place)],
        claims: &[Claim],
        answers: &mut [Option<Answer>],
    ) -> Option<Left> {
        let mut woken = Vec::new();
        match self.try_lock(stripe) {
            Ok(Try::Locked(mut locked)) => {
                for (index, place) in batch {
                    if answers[*index].is_some() {
                        continue;
                    }
                    answers[*index] = match self.renew(&mut locked, &claims[*index], place) {
                        Ok(Some((renewal, wakeups))) => {
                            woken.push((*index, wakeups));
                            Some(Ok(renewal))
                        }
                        Ok(None) => None,
                        Err(error) => Some(Err(error)),
                    };
                }
            }
            Ok(Try::Busy) => return Some(Left::Busy),
            // A process that locks this key now locks another file.
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
        let done = batch.iter().all(|(index, _)| answers[*index].is_some());
        (!done).then_some(Left::Disk)
    }

    /// Renews a claim; `None` if its token needs a ceiling first, which is under way then.
    fn renew(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<Option<(Renewal, Vec<Wakeup>)>, BackendError> {
        let (mut file, mut record) = self.kept.open(&self.layout, place, &claim.key, self.era())?;
        if !file.exists() {
            return Ok(Some((Renewal::Lost, Vec::new())));
        }
        let now = self.now();
        let alive = |tag| self.alive(tag);
        let (renewal, wakeups) = if self.session.can_be_found()? {
            let renewed = record.renew(claim, now, &alive);
            record.adopt(claim, self.session.id);
            renewed
        } else {
            // The others take this session for dead already; the record had better say so.
            let (_, wakeups) = record.leave(claim.id, now, &alive);
            (Renewal::Lost, wakeups)
        };
        if let Renewal::Held { token, .. } = renewal {
            let micros = now.wall.as_micros() as u64;
            if claim.floor != 0 && token > locked.counter(self.era(), micros)? {
                if !locked.covers(token, self.era(), micros)? {
                    drop(self.reserve(locked, place.stripe, token, micros));
                    return Ok(None);
                }
                locked.grant(token, false, self.era(), micros)?;
            }
        }
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.kept.keep(place, file, &record, self.session.id);
        Ok(Some((renewal, wakeups)))
    }
}

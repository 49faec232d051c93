//! The try: reads a record under its stripe's lock, lets it decide, and writes it back.

use std::sync::Arc;

use latchwork_store::kit::record::Wakeup;
use latchwork_store::{Attempt, BackendError, Claim};

use crate::protocol::reserve::{self, Waiting};
use crate::protocol::shared::Shared;
use crate::protocol::wakeup;
use crate::records::layout::Place;
use crate::records::stripe::Locked;

/// The result of a try.
#[expect(clippy::large_enum_variant, reason = "it lives for a moment, on the stack")]
enum Tried {
    /// An answer, whom it lets move on, and whose sessions are to be watched.
    Done(Result<Attempt, BackendError>, Vec<Wakeup>, Vec<u128>),
    /// Nothing was changed: the next token lies above the ceiling that is on the disk.
    NoToken(Waiting),
}

impl Shared {
    /// The try: again when the disk has a higher ceiling for tokens, until the record was read and judged.
    pub(crate) async fn acquire(self: &Arc<Self>, claim: &Claim) -> Result<Attempt, BackendError> {
        let place = Place::of(&claim.key);
        let (answer, wakeups, unwatched) = loop {
            let tried = {
                let locked = self.lock(place.stripe).await?;
                let mut locked = locked.ok_or_else(|| self.removed())?;
                self.try_acquire(&mut locked, claim, &place)?
            };
            match tried {
                Tried::Done(answer, wakeups, unwatched) => break (answer, wakeups, unwatched),
                Tried::NoToken(waiting) => reserve::wait(waiting).await?,
            }
        };
        for tag in unwatched {
            wakeup::watch(self, tag);
        }
        self.deliver(&claim.key, &wakeups);
        answer
    }

    fn try_acquire(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: &Claim,
        place: &Place,
    ) -> Result<Tried, BackendError> {
        // A process that cannot find this session takes its claims for those of a dead process.
        if !self.session.can_be_found()? {
            return Err(self.removed());
        }
        let (mut file, mut record) = self.kept.open(&self.layout, place, &claim.key, self.era())?;
        let now = self.now();
        let micros = now.wall.as_micros() as u64;
        let base = locked.counter(self.era(), micros)?;
        let alive = |tag| self.alive(tag);
        let (answer, wakeups) = record.try_acquire(claim, self.session.id, base, now, &alive);
        // Nothing is written then, so nothing has changed.
        if matches!(answer, Ok(Attempt::Blocked(_))) && claim.waits && !self.session.can_be_told() {
            return Err(self.removed());
        }
        if let Ok(Attempt::Granted(grant)) = &answer
            && grant.token > base
        {
            if !locked.covers(grant.token, self.era(), micros)? {
                let waiting = self.reserve(locked, place.stripe, grant.token, micros);
                return Ok(Tried::NoToken(waiting));
            }
            if locked.grant(grant.token, !file.exists(), self.era(), micros)? {
                self.reserve_ahead(locked, place.stripe);
            }
        }
        file.write(&claim.key, &record, self.layout.file_mode())?;
        self.kept.keep(place, file, &record, self.session.id);
        let mut unwatched = Vec::new();
        match &answer {
            Ok(Attempt::Blocked(_)) if claim.waits => {
                let mut behind = record.behind(claim.id, &alive);
                // This session's own death needs no telling.
                behind.retain(|tag| *tag != self.session.id);
                let at = self.io.now();
                unwatched = self.wakeups.register(claim.id, behind, at.plus(claim.ttl), at);
            }
            _ => self.wakeups.forget(claim.id),
        }
        Ok(Tried::Done(answer, wakeups, unwatched))
    }
}

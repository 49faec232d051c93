//! `release`: the end of a claim, and the opening of a closed key.

use latchwork_store::kit::record::Record;
use latchwork_store::{BackendError, Claim, Linger, Released, Resized};

use crate::protocol::attempt::ALIVE;
use crate::protocol::change::{Look, Step};
use crate::protocol::names::object_of;
use crate::protocol::object::{is_foreign, times};
use crate::protocol::shared::Store;

impl Store {
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        let entry = self.known.entry(&object_of(&claim.key));
        entry.forget_asked(claim.id);
        // A try of this claim that was dropped may be among them.
        entry.strays_landed().await;
        let judge = |record: &mut Record, look: &Look<'_>| {
            let (released, _) = record.release(claim, linger, times(look.now), ALIVE);
            match released {
                // The place ends by its ttl: the object is the foreign holder's to write.
                Released::Yes if is_foreign(record) && look.is_fresh => Step::Done(released),
                Released::Yes if is_foreign(record) => Step::Ask,
                Released::Yes => Step::Write(released),
                Released::NotHeld if look.is_fresh => Step::Done(released),
                Released::NotHeld => Step::Ask,
            }
        };
        let (released, _) =
            self.change(&claim.key, &entry, std::slice::from_ref(claim), judge).await?;
        Ok(released)
    }

    /// Sets the limit of permits for all claims of the object.
    pub(crate) async fn resize(&self, claim: &Claim) -> Result<Resized, BackendError> {
        let entry = self.known.entry(&object_of(&claim.key));
        let judge = |record: &mut Record, look: &Look<'_>| {
            let (resized, _) = record.resize(claim, times(look.now), ALIVE);
            match resized {
                _ if !look.is_fresh => Step::Ask,
                // The object is the foreign holder's to write.
                Ok(Resized::Yes { .. }) if !is_foreign(record) => Step::Write(resized),
                resized => Step::Done(resized),
            }
        };
        self.change(&claim.key, &entry, &[], judge).await?.0
    }
}

//! Releases, and the messages to those who come next.

use latchwork_store::{BackendError, Claim, Linger, Released};

use crate::acquire::micros;
use crate::backend::Store;
use crate::lane::{Params, Seat};
use crate::names::stored;
use crate::statements::Ask;
use crate::values::{Uuid, column, strange};

impl Store {
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        // A claim that was in the queue leaves one behind, mostly: the free release would find it.
        let has_waited = linger != Linger::End && self.listener.close(claim.id);
        if claim.mode.is_alone()
            && !has_waited
            && linger == Linger::None
            && self.access.orphans.find(claim.id).is_none()
            && let Some(was_held) = self.keys.free(claim).await?
        {
            return Ok(released(was_held));
        }
        let (seat, may_land) = self.pool.seat_after(claim.id).await?;
        let (key, name) = stored(&claim.key);
        let id = Uuid::from(claim.id);
        let linger = match linger {
            Linger::None => 0,
            Linger::For(length) => micros(length),
            Linger::End => -1,
        };
        let (holder, nonce) = (claim.holder.stored(), self.nonce());
        let holder = holder.as_bytes();
        let bury = if may_land && linger >= 0 { micros(claim.ttl) } else { 0 };
        let params: Params<'_> = &[&key, &name, &id, &linger, &holder, &nonce, &bury];
        let rows = seat.ask(Ask::Leave, params, None).await?;
        if linger >= 0 {
            self.access.orphans.remove(claim.id);
        }
        let [row] = &rows[..] else { return Err(strange(0)) };
        self.tell(&seat, column(row, 2)?);
        Ok(released(column(row, 0)?))
    }

    /// Tells processes what the store has written for them: pairs of a channel and a message. What is for
    /// this process is delivered here; the rest is sent and not awaited, for it is only a hint.
    pub(crate) fn tell(&self, seat: &Seat, pairs: Vec<&str>) {
        let channel = self.listener.channel();
        let own = channel.to_string();
        let (mut channels, mut messages) = (Vec::new(), Vec::new());
        for pair in pairs.chunks_exact(2) {
            if pair[0] == own {
                self.listener.deliver(pair[1], channel);
            } else if let Ok(channel) = pair[0].parse() {
                channels.push(self.listener.name(channel));
                messages.push(pair[1].to_owned());
            }
        }
        if channels.is_empty() {
            return;
        }
        let seat = Seat::on(seat.lane().clone());
        self.access.io.finish(async move {
            // Who is not told looks by itself.
            let _ = seat.ask(Ask::Notify, &[&channels, &messages], None).await;
        });
    }
}

fn released(yes: bool) -> Released {
    if yes { Released::Yes } else { Released::NotHeld }
}

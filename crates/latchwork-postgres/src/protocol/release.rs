//! Releases, and the messages to those who come next.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use latchwork_store::{BackendError, Claim, Linger, Released, Resized};
use tokio_postgres::Row;

use crate::names::stored;
use crate::protocol::acquire::mismatch;
use crate::protocol::statements::Ask;
use crate::protocol::store::Store;
use crate::protocol::values::{Uuid, micros, mode};
use crate::server::connection::{Checkout, Params};
use crate::server::errors::is_locked;
use crate::server::reply::{column, strange};
use crate::server::schema::check_resizing;

impl Store {
    /// Ends a claim. If the row of the key is locked for long, it is asked for once more: tries wait for it for a shorter
    /// time, so the crowd has gone by then.
    pub(crate) async fn release(
        &self,
        claim: &Claim,
        linger: Linger,
    ) -> Result<Released, BackendError> {
        match self.end(claim, linger).await {
            Err(error) if is_locked(&error) => self.end(claim, linger).await,
            answer => answer,
        }
    }

    async fn end(&self, claim: &Claim, linger: Linger) -> Result<Released, BackendError> {
        // A claim that was in the queue leaves one behind, mostly: the free release would find it.
        let mut has_queue = linger != Linger::End && self.listener.close(claim.id);
        if claim.mode.is_alone()
            && !has_queue
            && linger == Linger::None
            && self.access.orphans.find(claim.id).is_none()
        {
            if let Some(was_held) = self.keys.free(claim).await? {
                return Ok(released(was_held));
            }
            has_queue = true;
        }
        let (checkout, may_land) = self.pool.checkout_after(claim.id).await?;
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
        // Behind a pooler the second statement may run in another session.
        let tells = has_queue && !checkout.connection().pooled;
        let rows = match tells {
            true => self.leave_and_tell(&checkout, params).await?,
            false => checkout.ask(Ask::Leave, params, None).await?,
        };
        if linger >= 0 {
            self.access.orphans.remove(claim.id);
        }
        let [row] = &rows[..] else { return Err(strange(0)) };
        let told: Vec<&str> = column(row, 2)?;
        match tells && column(row, 3)? {
            true => drop(self.deliver(&told)),
            false => self.tell(&checkout, told),
        }
        Ok(released(column(row, 0)?))
    }

    /// Sets the limit of permits, and serves the waiters that it admits.
    pub(crate) async fn resize(&self, claim: &Claim) -> Result<Resized, BackendError> {
        match self.set_limit(claim).await {
            Err(error) if is_locked(&error) => self.set_limit(claim).await,
            answer => answer,
        }
    }

    async fn set_limit(&self, claim: &Claim) -> Result<Resized, BackendError> {
        check_resizing(self.functions, &self.access.config)?;
        let (_, _, of) = mode(claim.mode)?;
        let checkout = self.pool.checkout().await?;
        let ((key, name), id, nonce) = (stored(&claim.key), Uuid::from(claim.id), self.nonce());
        let (linger, bury, holder): (i64, i64, &[u8]) = (-1 - i64::from(of), 0, b"");
        let params: Params<'_> = &[&key, &name, &id, &linger, &holder, &nonce, &bury];
        let rows = checkout.ask(Ask::Leave, params, None).await?;
        let [row] = &rows[..] else { return Err(strange(0)) };
        let told: Vec<&str> = column(row, 2)?;
        // A key that was never used has no row.
        let ["limit", said, rest @ ..] = &told[..] else { return Ok(Resized::Unused) };
        self.tell(&checkout, rest.to_vec());
        let said: Vec<i64> = said.split(' ').filter_map(|part| part.parse().ok()).collect();
        let [kind, from, held] = said[..] else { return Err(strange(2)) };
        match kind {
            -1 => Ok(Resized::Unused),
            3 => Ok(Resized::Yes { from: from as u32, to: of as u32, held: held.unsigned_abs() }),
            other => Err(mismatch(claim, other.unsigned_abs(), 0)),
        }
    }

    /// Ends a claim, and has the server notify those who come next as soon as that is committed: both statements go
    /// out in one flight, and the second one is not awaited. The fourth column says whether it does.
    async fn leave_and_tell(
        &self,
        checkout: &Checkout,
        params: Params<'_>,
    ) -> Result<Vec<Row>, BackendError> {
        let (own, checkout_to_tell) =
            (self.listener.channel(), Checkout::on(checkout.connection().clone()));
        let mut told = Box::pin(async move {
            // A waiter that is not notified checks by itself.
            let _ = checkout_to_tell.ask(Ask::Tell, &[&own], None).await;
        });
        let mut left = pin!(checkout.ask(Ask::LeaveAndTell, params, None));
        let (left_now, is_told) = poll_fn(|cx| {
            let left = left.as_mut().poll(cx);
            Poll::Ready((left, told.as_mut().poll(cx).is_ready()))
        })
        .await;
        let answer = match left_now {
            Poll::Ready(answer) => answer,
            Poll::Pending => left.await,
        };
        if !is_told {
            latchwork_wire::finish(&self.access.io, told);
        }
        answer
    }

    /// Tells processes what the store has written for them: pairs of a channel and a message. What is for
    /// this process is delivered here; the rest is sent and not awaited, for it is only a hint.
    pub(crate) fn tell(&self, checkout: &Checkout, pairs: Vec<&str>) {
        let (channels, messages) = self.deliver(&pairs);
        if channels.is_empty() {
            return;
        }
        let checkout = Checkout::on(checkout.connection().clone());
        latchwork_wire::finish(&self.access.io, async move {
            // A waiter that is not notified checks by itself.
            let _ = checkout.ask(Ask::Notify, &[&channels, &messages], None).await;
        });
    }

    /// Delivers what is for this process; returns the channels and the messages of the others.
    fn deliver(&self, pairs: &[&str]) -> (Vec<String>, Vec<String>) {
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
        (channels, messages)
    }
}

fn released(yes: bool) -> Released {
    if yes { Released::Yes } else { Released::NotHeld }
}

//! Tries: one statement for a free key, one function call for everything else.

use std::time::Duration;

use latchwork_store::kit::record::cannot_replace;
use latchwork_store::{
    Attempt, BackendError, BackendErrorKind, Blocked, Cause, Claim, Effect, Grant, Holder, Order,
    Resize, Shape, random_u128,
};
use tokio_postgres::Row;

use crate::names::stored;
use crate::protocol::listener::ExpectedGrant;
use crate::protocol::statements::Ask;
use crate::protocol::store::Store;
use crate::protocol::values::{BESIDE, Uuid, holder_of, micros, mode};
use crate::server::connection::Checkout;
use crate::server::errors::is_locked;
use crate::server::reply::{column, number, strange};
use crate::server::schema::{REPLACING, check_resizing};

/// How often a client asks again whose nonce is not the guard's any more.
const LOOKS: u32 = 3;
/// After a try that has not come to the row of its key, the next one comes so much later, or up to twice as much.
const CROWDED: Duration = Duration::from_millis(100);
/// Named as the holder that blocks such a try.
const LOCKED: &str =
    "other transactions, which lock the row of the key (see pg_stat_activity and pg_locks)";

impl Store {
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        match self.attempt(claim).await {
            // Many try, or somebody's transaction keeps the row.
            Err(error) if is_locked(&error) => Ok(Attempt::Blocked(self.is_crowded(claim))),
            answer => answer,
        }
    }

    async fn attempt(&self, claim: &Claim) -> Result<Attempt, BackendError> {
        if let Some(guard) = &self.guard {
            guard.check(claim)?;
        }
        if claim.beside.is_some() {
            self.can_replace(claim)?;
        }
        if claim.resize != Resize::Never {
            check_resizing(self.functions, &self.access.config)?;
        }
        // A claim that has a place has it in the line.
        let waits = self.listener.find(claim.id).is_some();
        // The free try would most likely find a queue.
        let is_busy = claim.waits && self.busy.has(&claim.key, self.access.io.now());
        if claim.mode.is_alone()
            && claim.beside.is_none()
            && !waits
            && !is_busy
            && let Some((token, time)) = self.keys.take(claim).await?
        {
            return Ok(Attempt::Granted(grant(claim, token, time)));
        }
        let checkout = self.pool.checkout().await?;
        for look in 0.. {
            let rows = self.try_queued(&checkout, claim).await?;
            let [row] = &rows[..] else { return Err(strange(0)) };
            match (column::<&str>(row, 0)?, &self.guard) {
                // The server may have lost data, or somebody else has noticed first.
                ("n", Some(guard)) if look < LOOKS => {
                    guard.look(&checkout).await?;
                }
                ("n", _) => break,
                (what, _) => {
                    self.tell(&checkout, column(row, 6)?);
                    return self.answer(claim, what, row);
                }
            }
        }
        Err(changing(&self.access.config.table))
    }

    /// Whether this claim can replace a hold at all.
    fn can_replace(&self, claim: &Claim) -> Result<(), BackendError> {
        if claim.mode.shape() != Shape::ReadWrite {
            return Err(cannot_replace(claim.mode.word(), claim.mode));
        }
        if self.functions >= REPLACING {
            return Ok(());
        }
        let message = "no upgrade or downgrade: the functions of the table are of an older version";
        let (kind, effect) = (BackendErrorKind::Unsupported, Effect::NotApplied);
        Err(BackendError::new(kind, effect, message).with_next_step(
            "run `latchwork init` with this address, as the owner of the table: it keeps the locks that are held",
        ))
    }

    async fn try_queued(
        &self,
        checkout: &Checkout,
        claim: &Claim,
    ) -> Result<Vec<Row>, BackendError> {
        let (key, name) = stored(&claim.key);
        let (mode, mut take, mut of) = mode(claim.mode)?;
        match claim.resize {
            Resize::Never => {}
            Resize::ToMine => of = -of,
            Resize::Follow => take = -take,
        }
        let mut holder = claim.holder.stored();
        if let Some(hold) = claim.beside {
            // See stand.sql. Other versions pass over the field.
            take = 2;
            holder = format!("{holder}{BESIDE}{hold}").into();
        }
        let probation = self.probation.min(claim.ttl);
        let word = random_u128();
        let mut channel = None;
        if claim.waits {
            let mailbox = self.listener.open(claim.id);
            let named = if self.pooled { 0 } else { self.listener.channel() };
            channel = (named != 0).then_some(named);
            let (sign, stamp) = ((word, named), claim.stamp);
            mailbox.tries(ExpectedGrant { sign, stamp, longest: probation });
        }
        let fifo = claim.order == Order::Fifo || claim.beside.is_some();
        let (id, word, nonce) = (Uuid::from(claim.id), Uuid(word), self.nonce());
        let (ttl, floor, probation) = (micros(claim.ttl), claim.floor as i64, micros(probation));
        checkout
            .ask(
                Ask::Stand,
                &[
                    &key,
                    &name,
                    &id,
                    &mode,
                    &take,
                    &of,
                    &fifo,
                    &claim.waits,
                    &ttl,
                    &floor,
                    &holder.as_bytes(),
                    &probation,
                    &word,
                    &channel,
                    &nonce,
                ],
                Some(claim.id),
            )
            .await
    }

    /// The row of the key was locked for as long as a try may wait: it comes again after a moment, each at another time.
    fn is_crowded(&self, claim: &Claim) -> Blocked {
        self.busy.note(&claim.key, self.access.io.now());
        let pause = CROWDED.mul_f64(1.0 + (random_u128() % 1_000) as f64 / 1_000.0);
        Blocked::by(Cause::Held).with(|it| {
            it.retry_after = Some(pause);
            it.holder = Some(Holder::new(LOCKED));
        })
    }

    fn answer(&self, claim: &Claim, what: &str, row: &Row) -> Result<Attempt, BackendError> {
        let token = number(row, 1)?;
        let cause = match what {
            "g" => {
                self.listener.close(claim.id);
                return Ok(Attempt::Granted(grant(claim, token, number(row, 5)?)));
            }
            "m" => {
                self.listener.close(claim.id);
                return Err(mismatch(claim, token, number(row, 2)?));
            }
            "e" => {
                self.listener.close(claim.id);
                return Err(ended());
            }
            "b" => {
                self.listener.close(claim.id);
                let held = ["exclusive", "write", "read"].get(token as usize).copied();
                return Err(cannot_replace(held.unwrap_or("permits"), claim.mode));
            }
            "u" => Cause::Upgrade,
            "l" => Cause::Gone,
            "h" => Cause::Held,
            "q" => Cause::Queued,
            "c" => Cause::Linger,
            "x" => Cause::Quarantine,
            _ => return Err(strange(0)),
        };
        self.busy.note(&claim.key, self.access.io.now());
        let retry: i64 = column(row, 2)?;
        let retry = Duration::from_micros(retry.max(0) as u64).max(Duration::from_millis(1));
        let ahead: Option<i32> = column(row, 3)?;
        let holder: Option<&[u8]> = column(row, 4)?;
        let time = Duration::from_micros(number(row, 5)?);
        Ok(Attempt::Blocked(Blocked::by(cause).with(|it| {
            it.retry_after = (!matches!(cause, Cause::Upgrade | Cause::Gone)).then_some(retry);
            it.ahead = ahead.and_then(|ahead| ahead.try_into().ok());
            it.holder = holder.map(holder_of);
            it.store_time = Some(time);
        })))
    }
}

fn grant(claim: &Claim, token: u64, time: u64) -> Grant {
    let time = Duration::from_micros(time);
    Grant::new(token, claim.ttl).with(|it| it.store_time = Some(time))
}

pub(crate) fn mismatch(claim: &Claim, number: u64, of: u64) -> BackendError {
    let shape = match number {
        0 => Shape::Mutex,
        3 => Shape::Semaphore { of: of as u32 },
        _ => Shape::ReadWrite,
    };
    claim.mismatch(shape)
}

fn ended() -> BackendError {
    let message = "the claim was released before";
    BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
        .with_next_step("use each claim once")
}

fn changing(table: &str) -> BackendError {
    let message = "the guard's identity changes again and again: several servers answer, or something else writes it";
    BackendError::new(BackendErrorKind::Unreachable, Effect::NotApplied, message).with_next_step(
        format!("check that the address leads to one server, and that nothing but Latchwork writes to {table}_alive"),
    )
}

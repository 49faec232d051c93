//! Renewals: one statement for all claims that hold their keys alone, and one for the others.

use std::time::Duration;

use futures_util::future::join_all;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect, Renewal};
use tokio_postgres::Row;

use crate::names::stored;
use crate::protocol::statements::Ask;
use crate::protocol::store::Store;
use crate::protocol::values::{Uuid, micros};
use crate::server::connection::Checkout;
use crate::server::errors::is_locked;
use crate::server::reply::{column, number};

/// So many claims are renewed by one statement: a few milliseconds of the server.
const AT_ONCE: usize = 512;

type Answer = Result<Renewal, BackendError>;

/// What a statement is given for some claims.
struct Batch {
    keys: Vec<Vec<u8>>,
    ids: Vec<Uuid>,
    ttls: Vec<i64>,
    floors: Vec<i64>,
    holders: Vec<Option<Vec<u8>>>,
}

impl Batch {
    fn of(claims: &[&Claim]) -> Self {
        // A holder is written again only if it says something that may have changed.
        let holder = |claim: &&Claim| {
            claim.holder.lock_delay.map(|_| claim.holder.stored().as_bytes().to_vec())
        };
        Self {
            keys: claims.iter().map(|claim| stored(&claim.key).0).collect(),
            ids: claims.iter().map(|claim| claim.id.into()).collect(),
            ttls: claims.iter().map(|claim| micros(claim.ttl)).collect(),
            floors: claims.iter().map(|claim| claim.floor as i64).collect(),
            holders: claims.iter().map(holder).collect(),
        }
    }
}

impl Store {
    pub(crate) async fn renew_all(&self, claims: &[Claim]) -> Vec<Answer> {
        let parts = claims.chunks(AT_ONCE).map(|some| Box::pin(self.renew_some(some)));
        join_all(parts).await.into_iter().flatten().collect()
    }

    async fn renew_some(&self, claims: &[Claim]) -> Vec<Answer> {
        let checkout = match self.pool.checkout_for_renewals().await {
            Ok(checkout) => checkout,
            Err(error) => return claims.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut answers: Vec<Option<Answer>> = claims.iter().map(|_| None).collect();
        let alone: Vec<usize> = (0..claims.len()).filter(|i| claims[*i].mode.is_alone()).collect();
        self.ask_for(&checkout, Ask::Renew, claims, &alone, &mut answers).await;
        // The others, and those that the first statement has not found: it sees the tables as they were when it
        // began, and passes over what is locked.
        let rest: Vec<usize> = (0..claims.len()).filter(|i| answers[*i].is_none()).collect();
        self.ask_for(&checkout, Ask::Keep, claims, &rest, &mut answers).await;
        // Those whose rows are locked, each by itself: one that waits must not hold up the rest.
        let locked: Vec<usize> = (0..claims.len()).filter(|i| answers[*i].is_none()).collect();
        let waited = join_all(locked.iter().map(|i| self.wait_for(&claims[*i]))).await;
        for (i, answer) in locked.into_iter().zip(waited) {
            answers[i] = Some(answer);
        }
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(locked_row()))).collect()
    }

    /// Asks for some of the claims; leaves out those that the answer does not decide.
    async fn ask_for(
        &self,
        checkout: &Checkout,
        ask: Ask,
        claims: &[Claim],
        which: &[usize],
        answers: &mut [Option<Answer>],
    ) {
        if which.is_empty() {
            return;
        }
        let some: Vec<&Claim> = which.iter().map(|i| &claims[*i]).collect();
        match self.batch(checkout, ask, &some, false).await {
            Ok(decided) => {
                for (i, answer) in which.iter().zip(decided) {
                    answers[*i] = answer.map(Ok);
                }
            }
            Err(error) => which.iter().for_each(|i| answers[*i] = Some(Err(error.clone()))),
        }
    }

    /// The answers to some claims, in order; none where the row is locked or must be asked again.
    async fn batch(
        &self,
        checkout: &Checkout,
        ask: Ask,
        claims: &[&Claim],
        waits: bool,
    ) -> Result<Vec<Option<Renewal>>, BackendError> {
        let batch = Batch::of(claims);
        let Batch { keys, ids, ttls, floors, holders } = &batch;
        let rows = match ask {
            Ask::Keep => {
                checkout.ask(ask, &[keys, ids, ttls, floors, holders, &waits], None).await?
            }
            _ => checkout.ask(ask, &[keys, ids, ttls, floors, holders], None).await?,
        };
        let mut answers = vec![None; claims.len()];
        for row in &rows {
            let (at, answer) = read(ask, row, claims)?;
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        Ok(answers)
    }

    async fn wait_for(&self, claim: &Claim) -> Answer {
        let checkout = self.pool.checkout().await?;
        let answers = match self.batch(&checkout, Ask::Keep, &[claim], true).await {
            // Tries wait for a shorter time: the crowd has gone.
            Err(error) if is_locked(&error) => {
                self.batch(&checkout, Ask::Keep, &[claim], true).await?
            }
            answers => answers?,
        };
        answers.into_iter().flatten().next().ok_or_else(locked_row)
    }
}

/// Which claim a row is about, and what it says.
fn read(ask: Ask, row: &Row, claims: &[&Claim]) -> Result<(usize, Option<Renewal>), BackendError> {
    let at = number(row, 0)?.saturating_sub(1) as usize;
    let (state, token, time) = match ask {
        Ask::Keep => (column::<&str>(row, 1)?, column::<Option<i64>>(row, 2)?, number(row, 3)?),
        _ => ("", column::<Option<i64>>(row, 1)?, number(row, 2)?),
    };
    let ttl = claims.get(at).map_or(Duration::ZERO, |claim| claim.ttl);
    let answer = match (state, token) {
        ("l", _) => Some(Renewal::Lost),
        (_, Some(token)) => {
            let time = Duration::from_micros(time);
            Some(Renewal::held(ttl, token.unsigned_abs(), Some(time)))
        }
        _ => None,
    };
    Ok((at, answer))
}

fn locked_row() -> BackendError {
    let (kind, effect) = (BackendErrorKind::Unreachable, Effect::NotApplied);
    BackendError::new(kind, effect, "another transaction keeps the key's row locked")
        .with_next_step("end that transaction: see pg_stat_activity and pg_locks")
}

//! The restart guard: after the server may have lost data, nothing is granted until every lease that it may
//! have forgotten has ended.
//!
//! The identity of what the server knows is a nonce in a table that is not logged: a crash and a promotion
//! empty it. Beside it stand the server's system identifier and timeline, which are compared whenever a
//! connection is made, and a row of the table of locks repeats it, which notices `TRUNCATE` and `DROP`. Each
//! try names the nonce in the statement that grants.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use latchwork_store::{BackendError, BackendErrorKind, Claim, Effect};

use crate::lock;
use crate::protocol::statements::Ask;
use crate::protocol::values::Uuid;
use crate::server::connection::Checkout;
use crate::server::pool::Check;
use crate::server::reply::{column, number};

/// The guard of a table.
pub(crate) struct Guard {
    max_ttl: Duration,
    nonce: Mutex<Option<Uuid>>,
}

/// What the guard says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) nonce: Uuid,
    /// The longest ttl that the table was guarded with.
    pub(crate) longest: Duration,
}

impl Guard {
    pub(crate) fn new(max_ttl: Duration) -> Self {
        Self { max_ttl, nonce: Mutex::default() }
    }

    /// What a try names.
    pub(crate) fn nonce(&self) -> Option<Uuid> {
        *lock(&self.nonce)
    }

    /// Asks who the server is, and begins a quarantine if it may have lost data.
    pub(crate) async fn look(&self, checkout: &Checkout) -> Result<Verdict, BackendError> {
        let verdict = ask(checkout, self.max_ttl, false).await?;
        if verdict.longest != self.max_ttl {
            let message = format!(
                "store: the table is guarded with max_ttl {:?}, and this client has {:?}",
                verdict.longest, self.max_ttl
            );
            return Err(BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
                .with_next_step(
                    "use the same max_ttl in all addresses; `latchwork init` changes it",
                ));
        }
        *lock(&self.nonce) = Some(verdict.nonce);
        Ok(verdict)
    }

    /// What each new connection has to pass: another server may answer than before.
    pub(crate) fn connection_check(self: &Arc<Self>) -> Check {
        let guard = self.clone();
        Arc::new(move |checkout| {
            let guard = guard.clone();
            async move { guard.look(&checkout).await.map(drop) }.boxed()
        })
    }

    /// Refuses a ttl that the quarantine would not outlast.
    pub(crate) fn check(&self, claim: &Claim) -> Result<(), BackendError> {
        if claim.ttl <= self.max_ttl {
            return Ok(());
        }
        let message = format!(
            "ttl: {:?} is longer than the max_ttl of the guard, {:?}",
            claim.ttl, self.max_ttl
        );
        Err(BackendError::new(BackendErrorKind::Invalid, Effect::NotApplied, message)
            .with_next_step(
                "choose a shorter ttl, or a longer max_ttl in all addresses; `latchwork init` changes it",
            ))
    }
}

/// What the server's guard says; with `vouch`, that no lock is held that it does not know of.
pub(crate) async fn ask(
    checkout: &Checkout,
    max_ttl: Duration,
    vouch: bool,
) -> Result<Verdict, BackendError> {
    let longest = i64::try_from(max_ttl.as_micros()).unwrap_or(i64::MAX);
    let rows = checkout.ask(Ask::Heal, &[&longest, &vouch], None).await;
    // Whatever it has written, it has granted nothing.
    let rows = rows.map_err(|error| error.with_effect(Effect::NotApplied))?;
    let [row] = &rows[..] else { return Err(crate::server::reply::strange(0)) };
    Ok(Verdict { nonce: column(row, 0)?, longest: Duration::from_micros(number(row, 2)?) })
}

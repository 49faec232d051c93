//! Detaches a hold from its guard, so that another process can adopt it.

use std::time::Duration;

use latchwork_store::{Claim, Error, ErrorKind, FencingToken, Lost, LostReason, Renewal};

use crate::hold::engine::Engine;
use crate::hold::guard::Guard;
use crate::hold::lease::{HoldState, Sent};
use crate::hold::ticket::Ticket;
use crate::rules::options::Rules;

/// The store's answer to one renewal, and when it was asked.
pub(crate) struct DatedRenewal {
    pub(crate) sent: Sent,
    pub(crate) answer: Renewal,
}

/// How often to check for the answer to a renewal that is under way.
const LOOK: Duration = Duration::from_millis(1);

/// A store that marks the claims of dead processes keeps this one to the end of its ttl.
const OUTLIVES_ITS_PROCESS: Duration = Duration::from_millis(1);

impl Guard {
    /// Detaches the hold and returns a ticket for [`adopt`](crate::LockManager::adopt) in another
    /// process.
    ///
    /// For example, a request handler takes the lock and a worker continues the work.
    ///
    /// The lock is renewed once more, so it is held for a whole ttl from now on. It is not renewed
    /// again until it is adopted; after the ttl it is free. Waiters keep waiting.
    ///
    /// The ticket is a text of letters, digits, dots and dashes. Treat it as a secret: it can be used to release
    /// the lock. A hold that was adopted can be detached again; the older ticket is void then, but on Redis, etcd and
    /// Redlock.
    ///
    /// # Errors
    ///
    /// `Unsupported` on ZooKeeper, which ties a claim to the session of its process. `Invalid` for a guard of a reentrant
    /// mutex.
    /// `Lost` if the lock was lost. `Unreachable` if the store does not answer. After each of them the lock is
    /// released as by a drop.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background. At its very end, when the guard has
    /// already ended, it leaves the lock held until the ttl ends.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), latchwork::Error> {
    /// # let locks = latchwork::connect("mem:detach").await?;
    /// # let others = latchwork::connect("mem:detach").await?;
    /// let guard = locks.mutex("stock/42").acquire().await?;
    /// let token = guard.token();
    /// let ticket = guard.detach().await?;
    /// // In the other process:
    /// let guard = others.adopt(&ticket).await?;
    /// assert_eq!(guard.token(), token);
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn detach(self) -> Result<String, Error> {
        let engine = self.engine().clone();
        engine.check_open(Some(self.key()))?;
        if !engine.backend.renews_for_others() {
            return Err(unsupported(&engine).with_key(self.key()));
        }
        if self.is_entered() {
            let message = "detach: a reentrant mutex belongs to an owner in this process";
            return Err(Error::new(ErrorKind::Invalid, message)
                .with_key(self.key())
                .with_store(engine.capabilities.store.clone())
                .with_next_step("use a mutex that is not reentrant"));
        }
        if let HoldState::Lost(lost) = self.state() {
            return Err(self.lost_before(lost));
        }
        let (watched, _) = self.hold();
        let (watched, rules) = (watched.clone(), watched.lease.rules.clone());
        // A renewal that lands after the one below is of a process that has no hold any more.
        let latest = engine.io.now().plus(rules.op_timeout(watched.lease.granted_ttl()));
        while watched.lease.renewing().is_none() && engine.io.now() < latest {
            engine.io.sleep(LOOK).await;
        }
        let claim = watched
            .lease
            .claim_as_kept()
            .with(|it| it.holder.detached = it.holder.detached.saturating_add(1));
        let kept = claim.clone().with(|it| {
            it.holder.lock_delay.get_or_insert(OUTLIVES_ITS_PROCESS);
        });
        let Renewal::Held { .. } = renew(&engine, &kept, &rules).await?.answer else {
            return Err(self.lost_before(Lost::new(LostReason::Taken, engine.io.now())));
        };
        let token = self.token();
        self.give_up()?;
        let id = engine.backend.detach(&claim);
        Ok(Ticket::of(claim.with(|it| it.id = id), token).write())
    }
}

/// The claim of a hold with this token, as its store renews it for any process.
pub(crate) fn adopted(engine: &Engine, rules: &Rules, claim: Claim, token: FencingToken) -> Claim {
    engine.backend.adopt(claim, rules.grant(token).unwrap_or(0))
}

/// Renews one claim now.
pub(crate) async fn renew(
    engine: &Engine,
    claim: &Claim,
    rules: &Rules,
) -> Result<DatedRenewal, Error> {
    let limit = rules.op_timeout(claim.ttl);
    let asked = engine.renewals.ask(claim.clone(), limit);
    let answer = engine.native(asked).await;
    let answer = answer.map(|answer| answer.map_err(|e| engine.seen(e, Some(&claim.key))));
    let (sent, answer) = engine.told(answer, Some(&claim.key))?;
    Ok(DatedRenewal { sent, answer })
}

pub(crate) fn unsupported(engine: &Engine) -> Error {
    let message = "detach: this store ties a lock to the process that acquired it";
    Error::new(ErrorKind::Unsupported, message)
        .with_store(engine.capabilities.store.clone())
        .with_next_step("let the process that acquired the lock do the work, or use another store than ZooKeeper")
}

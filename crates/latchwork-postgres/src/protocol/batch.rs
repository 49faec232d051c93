//! Free keys, taken and freed by one statement for many callers.
//!
//! Takes and releases are statements of their own: a take is as durable as the address says for all of its claims,
//! and a release waits for no disk.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use latchwork_store::{BackendError, Claim, ClaimId, Effect, Verb};
use latchwork_wire::combine::{Combined, Combiner, Limits};
use tokio_postgres::Row;

use crate::lock;
use crate::names::stored;
use crate::protocol::guard::Guard;
use crate::protocol::statements::Ask;
use crate::protocol::values::{Uuid, micros, mode};
use crate::server::connect::Access;
use crate::server::connection::{Checkout, Connection, Orphans, Params};
use crate::server::pool::Pool;
use crate::server::reply::{column, number, strange};

/// Half of the connections are for those that ask alone.
const LIMITS: Limits = Limits { alone: 4, alone_outside: 4, all: 6, most: 64 };

/// An answer for each claim; none if more must be asked.
type Each<T> = Vec<Result<Option<T>, BackendError>>;

/// A claim that wants a free key.
pub(crate) struct TakeRequest {
    key: Vec<u8>,
    name: Option<Vec<u8>>,
    id: ClaimId,
    mode: i16,
    ttl: i64,
    floor: i64,
    holder: Vec<u8>,
    fate: Arc<Mutex<Fate>>,
}

/// What has become of a request.
enum Fate {
    /// It was not sent, or its caller sends it.
    Open,
    /// The statement for several callers is being sent.
    Going,
    /// That statement is under way there.
    Sent(Arc<Connection>),
    /// It was answered.
    Landed,
    /// The caller has given up.
    GivenUp,
}

/// The caller of a request. If it gives up while the statement for several is under way, what ends its
/// claim must come after that.
struct Caller<'a> {
    fate: Arc<Mutex<Fate>>,
    id: ClaimId,
    orphans: &'a Orphans,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        match std::mem::replace(&mut *lock(&self.fate), Fate::GivenUp) {
            Fate::Sent(connection) => self.orphans.add(self.id, &connection),
            // What ends the claim may overtake it.
            Fate::Going => self.orphans.add_astray(self.id),
            Fate::Open | Fate::Landed | Fate::GivenUp => {}
        }
    }
}

impl TakeRequest {
    fn of(claim: &Claim) -> Result<Self, BackendError> {
        let (key, name) = stored(&claim.key);
        Ok(Self {
            name: name.map(<[u8]>::to_vec),
            key,
            id: claim.id,
            mode: mode(claim.mode)?.0,
            ttl: micros(claim.ttl),
            floor: claim.floor as i64,
            holder: claim.holder.stored().as_bytes().to_vec(),
            fate: Arc::new(Mutex::new(Fate::Open)),
        })
    }

    /// Notes that it is about to be sent; false if nobody wants it any more.
    fn goes(&self) -> bool {
        self.becomes(|fate| matches!(fate, Fate::Open).then_some(Fate::Going))
    }

    fn sent_on(&self, connection: &Arc<Connection>) {
        self.becomes(|fate| matches!(fate, Fate::Going).then(|| Fate::Sent(connection.clone())));
    }

    fn lands(&self) {
        self.becomes(|fate| matches!(fate, Fate::Sent(_)).then_some(Fate::Landed));
    }

    fn becomes(&self, next: impl FnOnce(&Fate) -> Option<Fate>) -> bool {
        let mut fate = lock(&self.fate);
        let next = next(&fate);
        let has_changed = next.is_some();
        if let Some(next) = next {
            *fate = next;
        }
        has_changed
    }
}

/// The token and the server's time in microseconds.
pub(crate) type Taken = (u64, u64);

/// Takes free keys. No answer: more must be asked.
pub(crate) struct Take {
    pool: Arc<Pool>,
    guard: Option<Arc<Guard>>,
}

impl Take {
    fn nonce(&self) -> Option<Uuid> {
        self.guard.as_ref().and_then(|guard| guard.nonce())
    }

    async fn one(
        &self,
        checkout: &Checkout,
        request: &TakeRequest,
    ) -> Result<Option<Taken>, BackendError> {
        let TakeRequest { key, name, id, mode, ttl, floor, holder, .. } = request;
        let (claim, nonce) = (Uuid::from(*id), self.nonce());
        let params: Params<'_> = &[key, name, &claim, mode, ttl, floor, holder, &nonce];
        let rows = checkout.ask(Ask::Take, params, Some(*id)).await?;
        rows.first().map(|row| Ok((number(row, 0)?, number(row, 1)?))).transpose()
    }

    /// Takes several. Of two claims for one key, one at most gets it.
    async fn several(
        &self,
        checkout: &Checkout,
        requests: &[&TakeRequest],
    ) -> Result<Each<Taken>, BackendError> {
        fn all<T>(requests: &[&TakeRequest], what: impl Fn(&TakeRequest) -> T) -> Vec<T> {
            requests.iter().map(|request| what(request)).collect()
        }
        if let [only] = requests {
            return Ok(vec![Ok(self.one(checkout, only).await?)]);
        }
        let rows = checkout
            .ask(
                Ask::TakeAll,
                &[
                    &all(requests, |it| it.key.clone()),
                    &all(requests, |it| it.name.clone()),
                    &all(requests, |it| Uuid::from(it.id)),
                    &all(requests, |it| it.mode),
                    &all(requests, |it| it.ttl),
                    &all(requests, |it| it.floor),
                    &all(requests, |it| it.holder.clone()),
                    &self.nonce(),
                ],
                None,
            )
            .await?;
        by_place(&rows, requests.len(), |row| Ok((number(row, 1)?, number(row, 2)?)))
    }
}

impl Combined for Take {
    type Request = TakeRequest;
    type Answer = Option<Taken>;

    async fn send(&self, request: &TakeRequest) -> Result<Option<Taken>, BackendError> {
        let checkout = self.pool.checkout().await?;
        self.one(&checkout, request).await
    }

    fn send_all<'a>(&'a self, requests: &'a [TakeRequest]) -> Verb<'a, Each<Taken>> {
        Box::pin(async move {
            let checkout = match self.pool.checkout().await {
                Ok(checkout) => checkout,
                Err(error) => return refused(&error, requests.len()),
            };
            let mut answers: Each<Taken> = (0..requests.len()).map(|_| Ok(None)).collect();
            let places: Vec<usize> =
                (0..requests.len()).filter(|at| requests[*at].goes()).collect();
            if places.is_empty() {
                return answers;
            }
            let sent: Vec<&TakeRequest> = places.iter().map(|at| &requests[*at]).collect();
            let mut taking = pin!(self.several(&checkout, &sent));
            // Now it is sent, or is the next one on its connection.
            let first = poll_fn(|cx| Poll::Ready(taking.as_mut().poll(cx))).await;
            sent.iter().for_each(|request| request.sent_on(checkout.connection()));
            let taken = match first {
                Poll::Ready(taken) => taken,
                Poll::Pending => taking.await,
            };
            if !taken.as_ref().is_err_and(|error| error.effect == Effect::Unknown) {
                sent.iter().for_each(|request| request.lands());
            }
            for (place, answer) in places.iter().zip(apart(taken, places.len())) {
                answers[*place] = answer;
            }
            answers
        })
    }
}

/// A claim that releases a key which it holds alone.
pub(crate) struct FreeRequest {
    key: Vec<u8>,
    claim: Uuid,
}

/// Frees keys that one claim holds alone and that nobody waits for; tells whether the lease was still running.
/// No answer: more must be asked.
pub(crate) struct Free {
    pool: Arc<Pool>,
}

impl Combined for Free {
    type Request = FreeRequest;
    type Answer = Option<bool>;

    async fn send(&self, request: &FreeRequest) -> Result<Option<bool>, BackendError> {
        let checkout = self.pool.checkout().await?;
        let rows = checkout.ask(Ask::Free, &[&request.key, &request.claim], None).await?;
        rows.first().map(|row| column(row, 0)).transpose()
    }

    fn send_all<'a>(&'a self, requests: &'a [FreeRequest]) -> Verb<'a, Each<bool>> {
        Box::pin(async move {
            if let [only] = requests {
                return vec![self.send(only).await];
            }
            let freed = async {
                let keys: Vec<&[u8]> = requests.iter().map(|it| &*it.key).collect();
                let claims: Vec<Uuid> = requests.iter().map(|it| it.claim).collect();
                let checkout = self.pool.checkout().await?;
                let rows = checkout.ask(Ask::FreeAll, &[&keys, &claims], None).await?;
                by_place(&rows, requests.len(), |row| column(row, 1))
            };
            apart(freed.await, requests.len())
        })
    }
}

/// The rows of a statement for several: the first column says for which. A row that cannot be read fails its own
/// claim, and no other.
fn by_place<T>(
    rows: &[Row],
    count: usize,
    read: impl Fn(&Row) -> Result<T, BackendError>,
) -> Result<Each<T>, BackendError> {
    let mut answers: Each<T> = (0..count).map(|_| Ok(None)).collect();
    for row in rows {
        let at = number(row, 0)?.checked_sub(1).ok_or_else(|| strange(0))?;
        *answers.get_mut(at as usize).ok_or_else(|| strange(0))? = read(row).map(Some);
    }
    Ok(answers)
}

/// An answer for each. If the statement for several has failed and has done nothing, each asks by itself.
fn apart<T>(answers: Result<Each<T>, BackendError>, count: usize) -> Each<T> {
    match answers {
        Ok(answers) => answers,
        Err(error) if error.effect == Effect::NotApplied => (0..count).map(|_| Ok(None)).collect(),
        Err(error) => refused(&error, count),
    }
}

fn refused<T>(error: &BackendError, count: usize) -> Vec<Result<T, BackendError>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

/// Takes and frees free keys, alone or together with others.
pub(crate) struct Keys {
    take: Arc<Combiner<Take>>,
    free: Arc<Combiner<Free>>,
    orphans: Arc<Orphans>,
}

impl Keys {
    pub(crate) fn new(pool: &Arc<Pool>, guard: Option<Arc<Guard>>, access: &Access) -> Self {
        let take = Take { pool: pool.clone(), guard };
        Self {
            take: Combiner::new(take, LIMITS, access.io.clone()),
            free: Combiner::new(Free { pool: pool.clone() }, LIMITS, access.io.clone()),
            orphans: access.orphans.clone(),
        }
    }

    /// Takes a free key; with none, more must be asked. Alone, a request also gets what the claim holds already.
    ///
    /// # Cancel safety
    ///
    /// A request that was not sent is never sent. If one that was sent is dropped, what ends the claim comes after it.
    pub(crate) async fn take(&self, claim: &Claim) -> Result<Option<Taken>, BackendError> {
        let request = TakeRequest::of(claim)?;
        let fate = request.fate.clone();
        let _caller = Caller { fate, id: claim.id, orphans: &self.orphans };
        self.take.send(request).await
    }

    /// Frees a key that the claim holds alone; with none, more must be asked.
    ///
    /// # Cancel safety
    ///
    /// The key may stay held.
    pub(crate) async fn free(&self, claim: &Claim) -> Result<Option<bool>, BackendError> {
        let request = FreeRequest { key: stored(&claim.key).0, claim: claim.id.into() };
        self.free.send(request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_is_being_sent_is_not_overtaken_by_its_end() {
        let orphans = Orphans::default();
        let given_up = |fate: Fate| {
            let id = ClaimId::random();
            let fate = Arc::new(Mutex::new(fate));
            drop(Caller { fate: fate.clone(), id, orphans: &orphans });
            assert!(matches!(*lock(&fate), Fate::GivenUp));
            orphans.find(id).map(|connection| connection.is_some())
        };
        // Nothing can come after it for certain: its end leaves a mark.
        assert_eq!(given_up(Fate::Going), Some(false));
        assert_eq!(given_up(Fate::Open), None);
        assert_eq!(given_up(Fate::Landed), None);
    }

    #[test]
    fn a_claim_that_was_given_up_is_not_sent() {
        let claim = latchwork_store::testing::claim("k");
        let request = TakeRequest::of(&claim).unwrap();
        drop(Caller { fate: request.fate.clone(), id: claim.id, orphans: &Orphans::default() });
        assert!(!request.goes());
    }
}

//! Lists of all locks: one at a time is read from the store, whoever asks, and is kept for a while for the
//! client that reads it in parts.

use std::sync::Arc;
use std::time::Duration;

use latchwork::store::Moment;

use crate::domain::service::Service;
use crate::http::error::ApiError;
use crate::http::views::LockView;
use crate::time::{pause, spawn};

/// For how long the parts of one list are parts of the same.
const KEPT: Duration = Duration::from_secs(10);

/// All locks whose names begin with a prefix, as they were at one time.
#[derive(Debug)]
pub(crate) struct Listing {
    prefix: String,
    /// When the store was asked.
    asked: Moment,
    /// The number of the last event before.
    pub(crate) last_event: u64,
    /// The locks, sorted by their names.
    pub(crate) locks: Vec<LockView>,
}

/// The newest list.
#[derive(Debug, Default, Clone)]
pub(crate) struct Listings(Arc<tokio::sync::Mutex<Option<Arc<Listing>>>>);

impl Listings {
    /// A list that was asked for after `since`. Those that wait for the same share one.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn fresh(
        &self,
        service: &Service,
        prefix: &str,
        since: Moment,
    ) -> Result<Arc<Listing>, ApiError> {
        let mut newest = self.0.lock().await;
        if let Some(listing) = newest.as_ref().filter(|it| it.prefix == prefix && it.asked >= since)
        {
            return Ok(listing.clone());
        }
        let (asked, last_event) = (service.clock.now(), service.hub.last());
        let locks = service.read_all(prefix).await?;
        let listing = Arc::new(Listing { prefix: prefix.to_owned(), asked, last_event, locks });
        *newest = Some(listing.clone());
        drop(newest);
        let (all, old) = (self.0.clone(), Arc::downgrade(&listing));
        spawn(async move {
            pause(KEPT).await;
            let mut newest = all.lock().await;
            if newest.as_ref().is_some_and(|it| old.ptr_eq(&Arc::downgrade(it))) {
                *newest = None;
            }
        });
        Ok(listing)
    }

    /// The list that a client reads on, or a new one if that is not kept any more.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub(crate) async fn kept(
        &self,
        service: &Service,
        prefix: &str,
    ) -> Result<Arc<Listing>, ApiError> {
        let since = service.clock.now().since(Moment::from_nanos(0)).saturating_sub(KEPT);
        let since = Moment::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        self.fresh(service, prefix, since).await
    }
}

//! The stream of events.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{Stream, StreamExt, stream};
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use utoipa::IntoParams;

use super::error::{ApiError, Errors};
use super::gate::Caller;
use super::parts::Asked;
use crate::domain::access::principal::{Principal, Right};
use crate::domain::events::hub::{EventView, Told};
use crate::domain::service::Service;

/// A comment now and then shows both sides that the other one is there.
#[expect(non_snake_case, reason = "a value that cannot be a constant")]
pub(super) fn KEEP_ALIVE() -> KeepAlive {
    KeepAlive::new().interval(Duration::from_secs(10))
}

/// Which events to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Only of names that begin with this text.
    #[serde(default)]
    #[param(required = false)]
    prefix: String,
    /// The number of the last event that was seen, as the header `Last-Event-ID`.
    after: Option<u64>,
}

/// Streams what happens to locks, as server-sent events
///
/// The type of an event is its word (`granted`, `waiting`, `withdrawn`, `released`, `lost`, `handed_over`,
/// `suspect`, `closing`), its data an object, its id a number. `hello` comes first and names the last number.
/// `reset` says that events were missed: read the list of locks again.
#[utoipa::path(get, path = "/v1/events", operation_id = "follow_events", tag = "events",
    params(Which, ("Last-Event-ID" = Option<u64>, Header, description = "Go on after this event")),
    responses((status = 200, description = "A stream without an end", body = EventView, content_type = "text/event-stream"), Errors))]
pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    headers: HeaderMap,
    Asked(which): Asked<Which>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    caller.principal.check_right(Right::Read)?;
    let place = service.listeners.enter(&caller.principal.name)?;
    let seen = match headers.get("last-event-id").map(|value| value.to_str().map(str::parse)) {
        None => which.after,
        Some(Ok(Ok(id))) => Some(id),
        Some(_) => {
            return Err(ApiError::invalid(
                "Last-Event-ID: not a number",
                "leave it out, or send an id",
            ));
        }
    };
    let follow = service.hub.follow(seen);
    service.others.wanted(&service);
    let mut first =
        vec![Event::default().event("hello").data(format!(r#"{{"last_event":{}}}"#, follow.last))];
    let wanted = Wanted { principal: caller.principal.clone(), prefix: which.prefix };
    match follow.missed {
        Some(missed) => {
            first.extend(missed.iter().filter(|it| wanted.has(it)).map(|it| written(it)))
        }
        None => first.push(reset()),
    }
    let live =
        stream::unfold((follow.live, wanted, place), |(mut live, wanted, place)| async move {
            loop {
                let event = match live.recv().await {
                    Ok(told) if wanted.has(&told) => written(&told),
                    Ok(_) => continue,
                    Err(RecvError::Lagged(_)) => reset(),
                    Err(RecvError::Closed) => return None,
                };
                return Some((event, (live, wanted, place)));
            }
        });
    let events = stream::iter(first).chain(live).map(Ok);
    Ok(Sse::new(until_over(events, &service, &caller)).keep_alive(KEEP_ALIVE()))
}

/// Ends a stream when the service has stopped, and when the token of its client is not known any more.
pub(super) fn until_over<S: Stream>(
    events: S,
    service: &Arc<Service>,
    caller: &Caller,
) -> impl Stream<Item = S::Item> + use<S> {
    let mut stopped = service.stopped.subscribe();
    let (service, caller) = (service.clone(), caller.clone());
    events.take_until(async move {
        tokio::select! {
            // An error means that the service is gone.
            _ = stopped.wait_for(|it| *it) => {}
            () = service.revoked(&caller) => {}
        }
    })
}

/// What a listener gets to see.
struct Wanted {
    principal: Arc<Principal>,
    prefix: String,
}

impl Wanted {
    fn has(&self, told: &Told) -> bool {
        // What is about the service is for all.
        told.name.is_empty()
            || (told.name.starts_with(&self.prefix) && self.principal.may(Right::Read, &told.name))
    }
}

fn written(told: &Told) -> Event {
    Event::default().event(told.event).id(told.id.to_string()).data(&told.json)
}

fn reset() -> Event {
    Event::default().event("reset").data("{}")
}

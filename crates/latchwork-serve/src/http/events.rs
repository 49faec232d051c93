//! The stream of events.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use serde::Deserialize;
use utoipa::IntoParams;

use super::error::{ApiError, LimitErrors};
use super::parts::Parameters;
use super::views::EventView;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::{Principal, Right};
use crate::domain::events::event::LockEvent;
use crate::domain::events::hub::{Message, Next};
use crate::domain::refusal::Refusal;
use crate::domain::service::Service;

/// Comments at intervals show each side that the other one is still connected.
#[expect(non_snake_case, reason = "a value that cannot be a constant")]
pub(super) fn KEEP_ALIVE() -> KeepAlive {
    KeepAlive::new().interval(Duration::from_secs(10))
}

/// Which events to follow.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventQuery {
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
/// `suspect`, `forced`, `unreachable`, `reachable`, `closing`), its data an object, its id a number. `hello` comes first and names the last number.
/// `reset` says that events were missed: read the list of locks again.
#[utoipa::path(get, path = "/v1/events", operation_id = "follow_events", tag = "events",
    params(EventQuery, ("Last-Event-ID" = Option<u64>, Header, description = "Go on after this event")),
    responses((status = 200, description = "A stream without an end", body = EventView, content_type = "text/event-stream"), LimitErrors))]
pub(super) async fn follow(
    State(service): State<Arc<Service>>,
    caller: Caller,
    headers: HeaderMap,
    Parameters(query): Parameters<EventQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    caller.principal.check_right(Right::Read)?;
    let place = service.streams.enter(&caller.principal.name)?;
    let seen = match headers.get("last-event-id").map(|value| value.to_str().map(str::parse)) {
        None => query.after,
        Some(Ok(Ok(id))) => Some(id),
        Some(_) => {
            let message = "Last-Event-ID: not a number";
            return Err(Refusal::invalid(message, "leave it out, or send an id").into());
        }
    };
    // Before the listener's place, so that all later ones follow.
    let hello = format!(r#"{{"last_event":{}}}"#, service.hub.last());
    let hello = Event::default().event("hello").data(hello);
    let listener = service.hub.listen(seen);
    service.store_watch.start(|| service.registry.locks());
    let filter = EventFilter { principal: caller.principal.clone(), prefix: query.prefix };
    let live =
        stream::unfold((listener, filter, place), |(mut listener, filter, place)| async move {
            loop {
                let event = match listener.next().await {
                    Next::Event(message) if filter.has(&message) => written(&message),
                    Next::Event(_) => continue,
                    Next::Missed => reset(),
                };
                return Some((event, (listener, filter, place)));
            }
        });
    let events = stream::iter([hello]).chain(live).map(Ok);
    Ok(Sse::new(until_over(events, &service, &caller)).keep_alive(KEEP_ALIVE()))
}

/// Ends a stream when the service has stopped and all that was told before is sent, and when its client may no longer do
/// all that it could.
pub(super) fn until_over<S: Stream>(
    events: S,
    service: &Arc<Service>,
    caller: &Caller,
) -> impl Stream<Item = S::Item> + use<S> {
    let mut stopped = service.stopped.subscribe();
    let mut over = Box::pin(async move { stopped.wait_for(|it| *it).await.map(drop) }.fuse());
    let (service, caller) = (service.clone(), caller.clone());
    let narrowed = async move { service.access.narrowed(&caller).await };
    let mut events = Box::pin(events.take_until(narrowed));
    let mut has_stopped = false;
    stream::poll_fn(move |context| {
        // Before the look at the events: those that were told before the stop are there.
        has_stopped |= over.as_mut().poll(context).is_ready();
        match events.as_mut().poll_next(context) {
            Poll::Pending if has_stopped => Poll::Ready(None),
            next => next,
        }
    })
}

/// The events that a listener gets.
struct EventFilter {
    principal: Arc<Principal>,
    prefix: String,
}

impl EventFilter {
    fn has(&self, message: &Message) -> bool {
        // An event of the service itself is for all.
        message.name.is_empty()
            || (message.name.starts_with(&self.prefix)
                && self.principal.may(Right::Read, &message.name))
    }
}

fn written(message: &Message) -> Event {
    Event::default().event(message.word).id(message.id.to_string()).data(&message.text)
}

/// Writes an event as the data of a server-sent event.
pub(crate) fn json(event: &LockEvent) -> Option<String> {
    serde_json::to_string(&EventView::from(event)).ok()
}

fn reset() -> Event {
    Event::default().event("reset").data("{}")
}

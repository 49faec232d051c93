//! Sessions: one renewal, or one open stream, keeps many holds.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::{Method, StatusCode};
use axum::response::sse::{Event, Sse};
use futures_util::{Stream, stream};
use latchwork_store::Moment;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::body::{Json, marked, maybe_whole, options};
use super::error::{ApiError, ErrorBody, HoldErrors, KindErrors, LimitErrors, StoreErrors};
use super::events::{KEEP_ALIVE, until_over};
use super::parts::{Id, Parameters};
use super::views::{TokenView, millis};
use crate::domain::access::caller::Caller;
use crate::domain::holds::hold_status::Marks;
use crate::domain::holds::origin::SessionNumber;
use crate::domain::holds::validity::LONGEST_WAIT;
use crate::domain::open_answers::OpenAnswer;
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::service::Service;
use crate::domain::service::sessions::{EndedSession, LostLock, OwnSession, SessionStatus};

/// A session to begin.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NewSession {
    /// How long the session and its holds last without a renewal, in milliseconds.
    #[serde(default, deserialize_with = "maybe_whole")]
    ttl_ms: Option<u64>,
    /// The text that others see.
    holder: Option<String>,
    /// Any JSON that readers of the session's own lock see, at most 1,024 bytes without spaces.
    #[schema(value_type = Option<serde_json::Value>)]
    value: Option<Box<RawValue>>,
}

/// A renewal of a session.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionRenewal {
    /// The marks of all holds that the client has in this session, added modulo 2^64: each hold from the answer to its
    /// acquire until its release. If the service has renewed just these, it does not search the store for others.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    marks: Option<String>,
}

/// A session, and for how long the client may rely on all of its locks.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionView {
    /// The id of the session, to name it in an acquire, and to renew and end it. Keep it to yourself.
    session: String,
    /// The ttl of the session and of its holds.
    ttl_ms: u64,
    /// For how long the client may rely on all locks of the session. It counts from a moment **before the request was
    /// sent**, by the client's own clock.
    valid_for_ms: u64,
    /// When to renew: so long after this answer came.
    renew_in_ms: u64,
    /// How many locks the session holds.
    locks: usize,
    /// These locks. A lock of the client that is not among them is lost.
    held: Vec<TokenView>,
    /// The locks that this instance knew, and that the store does not have any more.
    lost: Vec<LostView>,
}

/// A lock that a session no longer holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LostView {
    /// Its name.
    name: String,
    /// The token under which it was held.
    token: String,
    /// Why: `taken` (or released through another instance), `not_renewed`, `forced`, `forbidden`, `unconfirmed` ...
    reason: &'static str,
}

/// What the end of a session has done.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EndedView {
    /// Always `true`: the session lasted until then.
    ended: bool,
    /// How many locks were held until then, and were released.
    released: usize,
    /// The others: they were lost before, or the store has not confirmed that they were held.
    lost: Vec<LostView>,
}

/// The sessions of a token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionList {
    /// As the store has them, whichever instance began them.
    sessions: Vec<OwnSessionView>,
}

/// A session of the caller's token.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnSessionView {
    /// Its lock, by whose name an administrator can end it.
    name: String,
    /// Its text for people.
    holder: String,
    /// How long it has lasted, if the store knows.
    age_ms: Option<u64>,
    /// What remains of its lease by the store's clock.
    remaining_ms: Option<u64>,
    /// How many locks it holds.
    locks: usize,
}

impl From<LostLock> for LostView {
    fn from(lost: LostLock) -> Self {
        Self { name: lost.name, token: lost.token.to_string(), reason: lost.reason }
    }
}

fn held(status: &SessionStatus) -> Vec<TokenView> {
    status.held.iter().map(|(name, token)| TokenView::new(name, *token)).collect()
}

fn view(status: SessionStatus) -> Answer<SessionView> {
    Answer(SessionView {
        ttl_ms: millis(status.ttl),
        valid_for_ms: millis(status.valid_for),
        renew_in_ms: millis(status.renew_in),
        locks: status.held.len(),
        held: held(&status),
        lost: status.lost.into_iter().map(Into::into).collect(),
        session: status.id,
    })
}

/// Begins a session, which keeps many holds by one renewal
///
/// Name it as `session` in an acquire: the hold has the ttl of the session. On stores that tie a lock to the process that
/// acquired it, `422`.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "create_session", tag = "sessions", request_body = NewSession,
    responses((status = 200, description = "Begun", body = SessionView), StoreErrors, LimitErrors, KindErrors))]
pub(super) async fn create(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Json(asked): Json<NewSession>,
) -> Result<Answer<SessionView>, ApiError> {
    let options = options(asked.ttl_ms, None, asked.holder, None);
    let options = marked(options, None, asked.value)?;
    Ok(view(service.create_session(options, &caller).await?))
}

/// Lists the sessions of the caller's token, as the store has them; without their ids
#[utoipa::path(get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions",
    responses((status = 200, description = "The sessions", body = SessionList), StoreErrors, LimitErrors))]
pub(super) async fn list(
    State(service): State<Arc<Service>>,
    caller: Caller,
) -> Result<Answer<SessionList>, ApiError> {
    let _place = service.lists.enter(&caller.principal.name)?;
    let of = |it: OwnSession| OwnSessionView {
        name: it.number.name(),
        holder: it.holder.to_string(),
        age_ms: it.age.map(millis),
        remaining_ms: it.remaining.map(millis),
        locks: it.locks,
    };
    let sessions = service.own_sessions(&caller).await?.into_iter().map(of).collect();
    Ok(Answer(SessionList { sessions }))
}

/// Renews a session and all of its holds, through any instance with the same seal key
///
/// With `503` the store has not confirmed all of them: the validity of the last answer counts, and a repeat renews them.
#[utoipa::path(post, path = "/v1/sessions/{session}/renew", operation_id = "renew_session", tag = "sessions",
    request_body = Option<SessionRenewal>, params(("session" = String, Path, description = "The id of the session")),
    responses((status = 200, description = "Renewed", body = SessionView), StoreErrors, HoldErrors))]
pub(super) async fn renew(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
    Json(asked): Json<Option<SessionRenewal>>,
) -> Result<Answer<SessionView>, ApiError> {
    let read = |text: String| {
        let refusal = Refusal::invalid(
            "marks: 16 hexadecimal digits are expected",
            "add the `mark` of each hold modulo 2^64, or leave `marks` out",
        );
        Marks::read(&text).ok_or(refusal)
    };
    let marks = asked.and_then(|it| it.marks).map(read).transpose()?;
    Ok(view(service.renew_session(&id, marks, &caller).await?))
}

/// Shows a session of this client and its locks as the store has them, and renews nothing
#[utoipa::path(get, path = "/v1/sessions/{session}", operation_id = "show_session", tag = "sessions",
    params(("session" = String, Path, description = "The id of the session")),
    responses((status = 200, description = "The session", body = SessionView), StoreErrors, HoldErrors, LimitErrors))]
pub(super) async fn show(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<SessionView>, ApiError> {
    let _place = service.lists.enter(&caller.principal.name)?;
    Ok(view(service.show_session(&id, &caller).await?))
}

/// Ends a session and releases all of its holds
///
/// With `503` the store has not confirmed all releases: repeat the request. `410` with `Unconfirmed` tells that another
/// instance may have ended the session before; its remaining holds are released.
#[utoipa::path(delete, path = "/v1/sessions/{session}", operation_id = "end_session", tag = "sessions",
    params(("session" = String, Path, description = "The id of the session")),
    responses((status = 200, description = "Ended", body = EndedView), StoreErrors, HoldErrors))]
pub(super) async fn end(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
) -> Result<Answer<EndedView>, ApiError> {
    let EndedSession { released, lost } = service.end_session(&id, &caller).await?;
    let lost = lost.into_iter().map(Into::into).collect();
    Ok(Answer(EndedView { ended: true, released, lost }))
}

/// How to keep a session alive.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct KeepAliveQuery {
    /// Whether the session ends when the client closes the stream, or its connection breaks.
    #[serde(default)]
    #[param(required = false)]
    bound: bool,
}

/// A renewal of a session that a stream keeps alive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeptView {
    /// For how long the client may rely on all locks of the session, counted from before it **requested the stream**.
    valid_for_ms: u64,
    /// How many locks the session holds.
    locks: usize,
    /// These locks, if they are others than in the event before.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<Vec<TokenView>>,
    /// As in the answer to a renewal.
    lost: Vec<LostView>,
}

/// Keeps a session alive while the stream is open: this instance renews it every third of its ttl
///
/// Events: `kept` after each renewal, `error` if the store did not confirm one, and as the last one `again` after 20 ttls
/// (open the next stream), `closing` (this instance stops: open a stream at another one) or `ended` (the session is lost or
/// was ended). The session outlives the stream for its ttl, unless it is `bound` to it.
#[utoipa::path(get, path = "/v1/sessions/{session}/events", operation_id = "keep_session_alive", tag = "sessions",
    params(("session" = String, Path, description = "The id of the session"), KeepAliveQuery),
    responses((status = 200, description = "A stream of events", body = KeptView, content_type = "text/event-stream"), StoreErrors, HoldErrors, LimitErrors))]
pub(super) async fn keep_alive(
    State(service): State<Arc<Service>>,
    caller: Caller,
    Id(id): Id,
    method: Method,
    Parameters(query): Parameters<KeepAliveQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    // Its stream would be over at once, and the session with it.
    if method == Method::HEAD {
        let refusal = Refusal::invalid("method: a stream has no HEAD", "send GET");
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, refusal));
    }
    let place = service.streams.enter(&caller.principal.name)?;
    let number = service.open_stream(&id, &caller)?;
    let mut stream = KeptAlive {
        service: service.clone(),
        caller: caller.clone(),
        id,
        number,
        ttl: Duration::ZERO,
        // The client that learns of no first renewal has no stream to end.
        is_bound: false,
        next_at: Moment::NEVER,
        events: VecDeque::new(),
        held: None,
        is_over: false,
        _place: place,
    };
    let first = service.keep_session(&stream.id, &caller).await?;
    (stream.ttl, stream.is_bound) = (first.ttl, query.bound);
    stream.tell(Ok(first));
    let events = stream::unfold(stream, |mut stream| async move {
        let event = stream.next().await?;
        Some((Ok(event), stream))
    });
    Ok(Sse::new(until_over(events, &service, &caller)).keep_alive(KEEP_ALIVE()))
}

/// A session that is kept alive while this exists.
struct KeptAlive {
    service: Arc<Service>,
    caller: Caller,
    id: String,
    /// That of the session, whose id a new key may not open, and its own among the streams of it at this instance.
    number: (SessionNumber, u64),
    ttl: Duration,
    is_bound: bool,
    next_at: Moment,
    /// What the client has not got yet.
    events: VecDeque<Event>,
    /// The locks of the last event that had them.
    held: Option<Vec<TokenView>>,
    is_over: bool,
    _place: OpenAnswer,
}

impl KeptAlive {
    /// How soon the store is asked again that has not answered.
    const AGAIN: Duration = Duration::from_millis(500);

    /// `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            let mut stopping = self.service.stopping.subscribe();
            let stops = tokio::select! {
                () = self.service.clock.sleep_until(self.next_at) => false,
                _ = stopping.wait_for(|it| *it) => true,
            };
            if stops {
                self.tell(Err(Refusal::closed()));
                continue;
            }
            // Later, the clocks of both sides could differ by too much.
            if self.service.clock.now().since(self.caller.arrival) >= self.ttl * LONGEST_WAIT {
                self.end("again", "{}".to_owned());
                continue;
            }
            let kept = self.service.keep_session(&self.id, &self.caller).await;
            self.tell(kept);
        }
    }

    fn tell(&mut self, kept: Result<SessionStatus, Refusal>) {
        let now = self.service.clock.now();
        let status = match kept {
            Ok(status) => status,
            Err(refusal) => {
                let text = serde_json::to_string(&ErrorBody::from(&refusal)).unwrap_or_default();
                match refusal.kind {
                    Kind::Closed => self.end("closing", text),
                    Kind::Lost | Kind::Released | Kind::Unconfirmed | Kind::NotFound => {
                        self.end("ended", text);
                    }
                    _ => {
                        self.next_at = now.plus(Self::AGAIN.min(self.ttl / 10));
                        self.events.push_back(Event::default().event("error").data(text));
                    }
                }
                return;
            }
        };
        let mut held = held(&status);
        held.sort();
        let is_news = self.held.as_ref() != Some(&held);
        let kept = KeptView {
            valid_for_ms: millis(status.valid_for),
            locks: held.len(),
            held: is_news.then(|| held.clone()),
            lost: status.lost.into_iter().map(Into::into).collect(),
        };
        self.held = Some(held);
        self.next_at = now.plus(status.renew_in);
        let text = serde_json::to_string(&kept).unwrap_or_default();
        self.events.push_back(Event::default().event("kept").data(text));
    }

    /// The stream ends after this event, and the session does not end with it.
    fn end(&mut self, word: &str, text: String) {
        self.is_over = true;
        self.events.push_back(Event::default().event(word).data(text));
    }
}

impl Drop for KeptAlive {
    fn drop(&mut self) {
        let is_left = self.is_bound
            && !self.is_over
            && !self.service.is_stopping()
            // Else the service has ended the stream, and not its client.
            && self.service.access.is_as_before(&self.caller.principal);
        self.service.close_stream(&self.id, &self.caller, self.number, is_left);
    }
}

//! An answer that may take long, as a stream: something is sent every few seconds, so that no proxy takes a
//! wait for a connection that hangs.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{FutureExt, stream};

use super::body;
use super::error::ApiError;
use super::events::KEEP_ALIVE;

/// Answers a request as it wants: at once, or as a stream of comments and one event `answer` with the status and
/// the body. A client that ends the stream withdraws its request.
pub(super) async fn answer(request: Request, next: Next) -> Response {
    match is_wanted(&request) {
        false => next.run(request).await,
        true => waits(request, next).await.unwrap_or_else(ApiError::into_response),
    }
}

/// Whether it is a request that may wait, and asks for events.
fn is_wanted(request: &Request) -> bool {
    let wanted = request.headers().get_all(header::ACCEPT).iter();
    let kinds = wanted.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let kind = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    request.method() == Method::POST && kinds.map(kind).any(|kind| kind == "text/event-stream")
}

async fn waits(request: Request, next: Next) -> Result<Response, ApiError> {
    // Read before the answer begins: not every proxy sends in both directions at a time.
    let (head, body) = request.into_parts();
    let body = body::read(body).await?;
    let answered = next.run(Request::from_parts(head, Body::from(body)));
    let event = answered.then(|answer| async { Ok::<_, Infallible>(written(answer).await) });
    Ok(Sse::new(stream::once(event)).keep_alive(KEEP_ALIVE()).into_response())
}

async fn written(answer: Response) -> Event {
    let (head, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let body = if body.is_empty() { "null" } else { &*body };
    // JSON has no line breaks but between its parts, where they mean nothing.
    let data = format!(r#"{{"status":{},"body":{body}}}"#, head.status.as_u16());
    Event::default().event("answer").data(data)
}

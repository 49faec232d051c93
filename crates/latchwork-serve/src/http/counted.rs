//! Answers that may be long, counted until they are written: what clients that do not read cost is bounded.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;

use super::error::ApiError;
use crate::domain::open_answers::Listening;

/// How much of it is given away at once: what was given away is counted no more.
const PART: usize = 16 * 1024;

/// A body with its place among those of its token.
pub(crate) struct Counted {
    rest: Bytes,
    _place: Listening,
}

impl Counted {
    /// An answer of JSON.
    pub(crate) fn json(value: &impl Serialize, place: Listening) -> Response {
        let Ok(text) = serde_json::to_vec(value) else { return ApiError::broken().into_response() };
        let body = Body::new(Self { rest: text.into(), _place: place });
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], body).into_response()
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let length = self.rest.len().min(PART);
        let part = self.rest.split_to(length);
        Poll::Ready((length > 0).then(|| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

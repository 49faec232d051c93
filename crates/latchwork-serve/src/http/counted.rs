//! Long answers, counted until they are written: this limits the memory that clients take if they do not read.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;

use super::error::ApiError;
use crate::domain::open_answers::OpenAnswer;

/// The most bytes of a part. Parts that the connection has taken are no longer counted.
const PART: usize = 16 * 1024;

/// A body with its place among those of its token.
pub(crate) struct CountedBody {
    rest: Bytes,
    _place: OpenAnswer,
}

impl CountedBody {
    /// An answer of JSON.
    pub(crate) fn json(value: &impl Serialize, place: OpenAnswer) -> Response {
        let Ok(text) = serde_json::to_vec(value) else { return ApiError::broken().into_response() };
        let body = Body::new(Self { rest: text.into(), _place: place });
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], body).into_response()
    }
}

impl HttpBody for CountedBody {
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

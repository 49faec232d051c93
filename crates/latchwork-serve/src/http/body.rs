//! Reads the body of a request as JSON: bounded in size and time, with a clear error for anything else.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::wish::Options;
use crate::time::at_most;

/// The largest body: a name of 64 KiB fits in, also if each of its characters is escaped twice.
pub(crate) const LARGEST: usize = 256 * 1024;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// The body, read as JSON. An empty body is an empty object.
pub(crate) struct Json<T>(pub(crate) T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let (head, body) = request.into_parts();
        refuse_encoded(&head.headers)?;
        let kind = head.headers.get(header::CONTENT_TYPE);
        let is_json = kind.map(|kind| kind.to_str().is_ok_and(is_json));
        let bytes = read(body).await?;
        match is_json {
            Some(true) => {}
            None if bytes.is_empty() => {}
            _ => {
                let message = "Content-Type: the body must be application/json";
                let refusal = Refusal::new(Kind::Invalid, message)
                    .with_next_step("send the header Content-Type: application/json");
                return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, refusal));
            }
        }
        let step = "correct the JSON; GET /openapi.json describes it";
        let Ok(text) = str::from_utf8(&bytes) else {
            return Err(Refusal::invalid("body: it is not UTF-8", "send the JSON in UTF-8").into());
        };
        // Some writers put a byte order mark before it.
        let text = text.trim_start_matches('\u{feff}');
        let text = if text.is_empty() { "{}" } else { text };
        // Serde would take a list as the fields of an object in their order.
        if text.trim_ascii_start().starts_with('[') {
            return Err(Refusal::invalid("body: it is a list, not an object", step).into());
        }
        let mut reader = serde_json::Deserializer::from_str(text);
        let read = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| (Some(error.path().to_string()), error.into_inner()));
        let read = read.and_then(|read| reader.end().map(|()| read).map_err(|error| (None, error)));
        read.map(Self).map_err(|(path, error)| {
            let (is_of_a_field, error) = (error.is_data(), error.to_string());
            // These name the field themselves.
            let is_named = error.starts_with("unknown field") || error.starts_with("missing field");
            let path = path.filter(|path| is_of_a_field && path != "." && !is_named);
            let path = path.unwrap_or_else(|| "body".to_owned());
            Refusal::invalid(format!("{path}: {}", in_terms_of_json(&error)), step).into()
        })
    }
}

/// A parser's error in the words of JSON instead of Rust's.
pub(super) fn in_terms_of_json(error: &str) -> String {
    let error = error.replacen("invalid type: map,", "invalid type: object,", 1);
    let error = error.replacen("invalid type: sequence,", "invalid type: list,", 1);
    // A text of the client comes before what is expected.
    let Some((found, expected)) = error.rsplit_once(", expected ") else { return error };
    let (expected, place) = match expected.find(" at line ") {
        Some(at) => expected.split_at(at),
        None => (expected, ""),
    };
    let expected = match expected {
        "u64" => "a whole number from 0 on",
        "u32" => "a whole number from 0 to 4294967295",
        "a string" | "string or map" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        it if it.starts_with("struct ") => "an object",
        it => it,
    };
    format!("{found}, expected {expected}{place}")
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

/// A compressed body would be refused for its first byte, which tells nobody why.
fn refuse_encoded(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(coding) = headers.get(header::CONTENT_ENCODING) else { return Ok(()) };
    if coding.as_bytes().eq_ignore_ascii_case(b"identity") {
        return Ok(());
    }
    let message = format!("Content-Encoding: {coding:?} is not read here");
    let refusal = Refusal::new(Kind::Invalid, message)
        .with_next_step("send the body as it is, without Content-Encoding");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, refusal))
}

/// A whole number, also as languages write it that have floats alone: `9000.0`, `9e3`.
struct Whole<N>(N);

impl<'de, N: TryFrom<u64>> Deserialize<'de> for Whole<N> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader<N>(PhantomData<N>);

        impl<N: TryFrom<u64>> Visitor<'_> for Reader<N> {
            type Value = Whole<N>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(type_name::<N>())
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole<N>, E> {
                let unfit = |_| E::invalid_value(Unexpected::Unsigned(number), &self);
                N::try_from(number).map(Whole).map_err(unfit)
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Whole<N>, E> {
                Err(E::invalid_value(Unexpected::Signed(number), &self))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole<N>, E> {
                // From 2^53 on, a float stands for several whole numbers.
                if number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number) {
                    return self.visit_u64(number as u64);
                }
                Err(E::invalid_type(Unexpected::Float(number), &self))
            }
        }

        from.deserialize_u64(Reader(PhantomData))
    }
}

/// Reads a [`Whole`] number.
pub(super) fn whole<'de, N: TryFrom<u64>, D: Deserializer<'de>>(from: D) -> Result<N, D::Error> {
    Whole::deserialize(from).map(|whole| whole.0)
}

/// Reads a [`Whole`] number that may be `null`.
pub(super) fn maybe_whole<'de, N, D>(from: D) -> Result<Option<N>, D::Error>
where
    N: TryFrom<u64>,
    D: Deserializer<'de>,
{
    Ok(Option::<Whole<N>>::deserialize(from)?.map(|whole| whole.0))
}

pub(super) async fn read(body: Body) -> Result<Vec<u8>, ApiError> {
    let Some(read) = at_most(PATIENCE, collected(body)).await else {
        let message = format!("body: it did not arrive within {PATIENCE:?}");
        let refusal = Refusal::new(Kind::TimedOut, message).with_next_step("send the body at once");
        return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, refusal));
    };
    match read {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.is::<LengthLimitError>() => {
            let message = format!("body: it is longer than {LARGEST} bytes");
            let refusal = Refusal::new(Kind::Invalid, message)
                .with_next_step("send a smaller body: fewer or shorter names");
            Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, refusal))
        }
        Err(_) => Err(Refusal::invalid("body: it was cut off", "send the whole body").into()),
    }
}

/// Copies the parts: each one, even of a single byte, would keep a whole buffer of the connection alive.
async fn collected(body: Body) -> Result<Vec<u8>, BoxError> {
    let mut body = pin!(Limited::new(body, LARGEST));
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        // Trailers are of no use.
        if let Ok(part) = frame?.into_data() {
            bytes.extend_from_slice(&part);
        }
    }
    Ok(bytes)
}

/// How long the rest of a body that no request needs is waited for.
const REST: Duration = Duration::from_secs(1);

/// The body of a request, which the gate reads to its end if the request did not: a connection cannot be used again
/// before that.
pub(super) struct Rest(Arc<Mutex<Body>>);

/// Shares the body of a request with the gate.
pub(super) fn shared(request: &mut Request) -> Rest {
    let body = std::mem::take(request.body_mut());
    let size = body.size_hint();
    let body = Arc::new(Mutex::new(body));
    *request.body_mut() = Body::new(Shared { body: body.clone(), size });
    Rest(body)
}

impl Rest {
    /// Reads what the request has left of its body, with the usual bounds of size and less patience.
    pub(super) async fn skip(self) {
        let body = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if !body.is_end_stream() {
            // If it does not come, the connection is closed after the answer.
            let _ = at_most(REST, collected(body)).await;
        }
    }
}

struct Shared {
    body: Arc<Mutex<Body>>,
    size: SizeHint,
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut body = self.body.lock().unwrap_or_else(PoisonError::into_inner);
        Pin::new(&mut *body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.lock().unwrap_or_else(PoisonError::into_inner).is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}

/// The options that all wishes share, as the fields of their bodies.
pub(super) fn options(
    ttl_ms: Option<u64>,
    wait_ms: Option<u64>,
    holder: Option<String>,
    max_hold_ms: Option<u64>,
) -> Options {
    Options {
        ttl: ttl_ms.map(Duration::from_millis),
        wait: Duration::from_millis(wait_ms.unwrap_or(0)),
        holder,
        max_hold: max_hold_ms.map(Duration::from_millis),
        ..Options::default()
    }
}

/// The same with a session and a value.
///
/// # Errors
///
/// `Invalid` for a value that readers cannot read.
pub(super) fn marked(
    options: Options,
    session: Option<String>,
    value: Option<Box<RawValue>>,
) -> Result<Options, Refusal> {
    let value = value.map(|value| shortest(value.get())).transpose()?;
    Ok(Options { session, value, ..options })
}

/// A value without the spaces between its parts. All else stays as it was written: read as a float, a long number would
/// be another one.
fn shortest(value: &str) -> Result<String, Refusal> {
    // A reader that cannot read one value of a list cannot read the list.
    serde_json::from_str::<serde_json::Value>(value).map_err(|error| {
        let step =
            "write a number that a double can have, and whole characters; or send it as a text";
        Refusal::invalid(format!("value: {error}"), step)
    })?;
    let (mut is_text, mut is_escaped) = (false, false);
    let is_part = |one: &char| {
        is_text ^= *one == '"' && !is_escaped;
        is_escaped = *one == '\\' && !is_escaped;
        is_text || !one.is_ascii_whitespace()
    };
    Ok(value.chars().filter(is_part).collect())
}

#[cfg(test)]
mod tests {
    use super::shortest;

    #[test]
    fn h535_a_value_stays_as_it_was_written_but_for_spaces_between() {
        for (written, stays) in [
            ("12345678901234567890123", "12345678901234567890123"),
            ("[1.0, -0, 1.10,1E5 ]", "[1.0,-0,1.10,1E5]"),
            (r#" {"b" : "a \" c\\" , "a" :	1} "#, r#"{"b":"a \" c\\","a":1}"#),
            (r#"{"b":1,"b":2}"#, r#"{"b":1,"b":2}"#),
            (r#""\u00e9\/ é""#, r#""\u00e9\/ é""#),
        ] {
            assert_eq!(shortest(written).unwrap(), stays);
        }
        for bad in ["1e400", "[-1e999]", r#""\ud800""#, r#"{"\udc00": 1}"#] {
            let refused = shortest(bad).unwrap_err();
            assert!(refused.message.starts_with("value: "), "{refused:?}");
        }
    }
}

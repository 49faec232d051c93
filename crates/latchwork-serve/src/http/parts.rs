//! Reads the path, the query and the headers of a request, with a clear error for each mistake.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, OptionalFromRequestParts, Path, Query};
use axum::http::HeaderName;
use axum::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::body::in_terms_of_json;
use super::error::ApiError;
use crate::domain::refusal::Refusal;

/// The one part of the path that is not fixed, decoded.
async fn path<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<String, PathRejection> {
    let path = <Path<String> as FromRequestParts<S>>::from_request_parts(parts, state).await;
    path.map(|Path(text)| text)
}

/// The name of a lock in the path, decoded.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        check_escapes("name", parts.uri.path())?;
        match path(parts, state).await {
            Ok(name) if is_ambiguous(&name) => Err(Refusal::invalid(
                format!(
                    "name: {name:?} in a path may be changed by a proxy, and name another lock"
                ),
                "send it in the query, as in /v1/lock?name=, or in the body of POST /v1/holds",
            )
            .key(name)
            .into()),
            Ok(name) => Ok(Self(name)),
            Err(_) => {
                Err(Refusal::invalid("name: the path is not percent-encoded UTF-8", ENCODE).into())
            }
        }
    }
}

/// How to write a name in a path or a query.
const ENCODE: &str =
    "encode every byte of the name but letters, digits and -._~ as %XX, and a % as %25";

/// Refuses a `%` that begins no escape: some readers take it as it is, others refuse it or drop it.
fn check_escapes(field: &str, text: &str) -> Result<(), Refusal> {
    for (at, _) in text.match_indices('%') {
        let escape: String = text[at..].chars().take(3).collect();
        let is_escape =
            escape.len() == 3 && escape.bytes().skip(1).all(|it| it.is_ascii_hexdigit());
        if !is_escape {
            return Err(Refusal::invalid(format!("{field}: {escape:?} is no escape"), ENCODE));
        }
    }
    Ok(())
}

/// Whether a proxy that decodes a path, merges its slashes or resolves its dots would make another name of it.
fn is_ambiguous(name: &str) -> bool {
    let is_escape = |at: usize| {
        let digits = name.as_bytes().get(at + 1..at + 3);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    let mut parts = name.split('/');
    (name.contains('/') && parts.any(|part| matches!(part, "" | "." | "..")))
        || name.match_indices('%').any(|(at, _)| is_escape(at))
}

/// The id of a hold in the path, as its client wrote it.
pub(crate) struct Id(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        // A text that is no id belongs to no hold.
        path(parts, state).await.map(Self).map_err(|_| Refusal::no_hold().into())
    }
}

/// The parameters of the query.
pub(crate) struct Parameters<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        check_escapes("query", parts.uri.query().unwrap_or_default())?;
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(error) => {
                let text = error.body_text();
                let text = text.trim_start_matches("Failed to deserialize query string: ");
                let text = text
                    .replace("cannot parse integer from empty string", "expected a whole number")
                    .replace("invalid digit found in string", "expected a whole number")
                    .replace("number too large to fit in target type", "the number is too large")
                    .replace("provided string was not `true` or `false`", "expected true or false");
                let message = format!("query: {}", in_terms_of_json(&text));
                Err(Refusal::invalid(message, "correct the part after the question mark").into())
            }
        }
    }
}

/// The name of a lock in the query, for one that no path can have.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NameQuery {
    /// The name, percent-encoded.
    pub(crate) name: String,
}

/// The name of a lock in the query, unless the body has it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NameOrBody {
    /// The name, percent-encoded; or send it in the body, where a long one fits.
    name: Option<String>,
}

impl NameOrBody {
    /// The name, which is in the query or in the body.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is in neither, or in both.
    pub(super) fn or(self, body: Option<String>) -> Result<Name, Refusal> {
        let (message, step) = match (self.name, body) {
            (Some(name), None) | (None, Some(name)) => return Ok(Name(name)),
            (None, None) => ("name: it is missing", "send it in the body, or in the query"),
            (Some(_), Some(_)) => ("name: it is in the query and in the body", "send it once"),
        };
        Err(Refusal::invalid(message, step))
    }
}

/// The header `Idempotency-Key`.
pub(crate) struct IdempotencyKey(pub(crate) String);

/// The client's name for its claim, if the request has the header.
pub(super) fn claim_name(key: Option<IdempotencyKey>) -> Option<String> {
    key.map(|IdempotencyKey(name)| name)
}

const HEADER: HeaderName = HeaderName::from_static("idempotency-key");

/// The most characters of a key.
const LONGEST: usize = 255;

impl<S: Send + Sync> OptionalFromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, ApiError> {
        let mut values = parts.headers.get_all(HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let key = value.to_str().ok().filter(|key| (1..=LONGEST).contains(&key.len()));
        match (key, values.next()) {
            (Some(key), None) => Ok(Some(Self(key.to_owned()))),
            _ => Err(Refusal::invalid(
                format!(
                    "Idempotency-Key: one value of 1 to {LONGEST} visible ASCII characters is needed"
                ),
                "use a random UUID",
            )
            .into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_ambiguous;

    #[test]
    fn a_name_that_a_proxy_would_change_is_ambiguous() {
        for name in ["a/../b", "./a", "a/.", "a//b", "/a", "a/", "a%2Fb", "%2e%2e", "/"] {
            assert!(is_ambiguous(name), "{name}");
        }
        for name in ["a", "shop/y", "a..b", "...", "100%", "5%-off", ".a/b.", "日本/%zz", ""] {
            assert!(!is_ambiguous(name), "{name}");
        }
    }
}

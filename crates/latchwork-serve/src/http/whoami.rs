//! The name and the rights of the caller: the page shows only the actions that it may do.

use std::sync::Arc;

use axum::Json as Answer;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::ApiError;
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::service::Service;

/// The caller.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CallerView {
    /// The name of its token; `local` without one.
    name: String,
    /// What it may do: `read`, `lock`, `admin`.
    rights: Vec<&'static str>,
    /// The beginnings of the names that it may use; an empty text is the beginning of every name.
    prefixes: Vec<String>,
    /// Whether the service was started with tokens.
    tokens: bool,
    /// Whether a hold outlives this instance of the service: any instance with the same keys renews and releases it.
    /// If not, it can be renewed and released here only, and while this process lives.
    holds_outlive_service: bool,
}

/// Tells who the caller is, and what it may do
#[utoipa::path(get, path = "/v1/whoami", tag = "operation",
    responses((status = 200, description = "The caller", body = CallerView)))]
pub(super) async fn whoami(
    State(service): State<Arc<Service>>,
    caller: Caller,
) -> Result<Answer<CallerView>, ApiError> {
    let principal = &caller.principal;
    Ok(Answer(CallerView {
        name: principal.name.to_string(),
        rights: principal.rights.iter().map(|right| Right::word(*right)).collect(),
        prefixes: principal.prefixes.clone(),
        tokens: service.access.has_tokens(),
        holds_outlive_service: service.outlived(),
    }))
}

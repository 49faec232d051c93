//! Health, readiness and metrics of the service.

use std::sync::Arc;
use std::time::Duration;

use axum::Json as Answer;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ApiError, StoreErrors};
use crate::domain::access::caller::Caller;
use crate::domain::access::principal::Right;
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::service::Service;
use crate::time::at_most;

/// How long the store may take to answer before the service counts as not ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// For how long an answer of the store counts.
const FRESH: Duration = Duration::from_secs(1);

/// The state of the service.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthView {
    /// `ok`.
    status: &'static str,
    /// The version of the service.
    version: &'static str,
}

fn health() -> Answer<HealthView> {
    Answer(HealthView { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

/// Tells that the process runs; says nothing about the store
#[utoipa::path(get, path = "/healthz", tag = "operation",
    responses((status = 200, description = "It runs", body = HealthView)))]
pub(super) async fn healthz() -> Answer<HealthView> {
    health()
}

/// Tells whether the store answers, and the service does not stop
#[utoipa::path(get, path = "/readyz", tag = "operation",
    responses((status = 200, description = "Ready", body = HealthView), StoreErrors))]
pub(super) async fn readyz(
    State(service): State<Arc<Service>>,
) -> Result<Answer<HealthView>, ApiError> {
    if service.is_stopping() {
        return Err(Refusal::closed().without_hold().into());
    }
    // No token is needed, so requests must not burden the store.
    let mut answered = service.answered.lock().await;
    if answered.is_some_and(|at| service.clock.now().since(at) < FRESH) {
        return Ok(health());
    }
    match at_most(PATIENCE, service.locks.inspect("latchwork-readyz")).await {
        Some(Ok(_)) => {
            *answered = Some(service.clock.now());
            Ok(health())
        }
        Some(Err(error)) => Err(Refusal::unready(&error).into()),
        None => {
            let message = format!("store: no answer within {PATIENCE:?}");
            Err(Refusal::new(Kind::Unreachable, message)
                .with_next_step("check that the store is running and that the service can reach it")
                .into())
        }
    }
}

/// Metrics, as Prometheus reads them; needs the right read
#[utoipa::path(get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(super) async fn metrics(
    State(service): State<Arc<Service>>,
    caller: Caller,
) -> Result<Response, ApiError> {
    caller.principal.check_right(Right::Read)?;
    let text = crate::metrics::text(service.registry.count(), service.hub.listeners());
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

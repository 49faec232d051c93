//! All routes, and the OpenAPI document that describes them.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, ErrorBody};
use super::gate::Gate;
use super::views::{LockView, PartyView};
use super::{admin, elections, events, gate, holds, locks, once, operation, sessions, whoami};
use crate::domain::refusal::{Kind, Refusal};
use crate::domain::service::Service;

/// The description of the API.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Latchwork",
        description = "Distributed locks over HTTP. An answer says for how long the client may rely on a lock, counted \
                       from before it sent its request, and has a fencing token that the resource can check. Every \
                       answer that is not a success has the form {error, kind, key, next_step}. A POST that accepts \
                       text/event-stream is answered by comments while it waits, and then by one event `answer` with \
                       {status, body}.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0")
    ),
    components(schemas(ErrorBody, LockView, PartyView)),
    modifiers(&Bearer),
    security((), ("token" = []))
)]
struct ApiDescription;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Default::default);
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("token", scheme);
    }
}

fn described() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::with_openapi(ApiDescription::openapi())
        .routes(routes!(locks::list))
        .routes(routes!(locks::acquire, locks::show))
        .routes(routes!(locks::acquire_named, locks::show_named))
        .routes(routes!(locks::list_by_body))
        .routes(routes!(locks::show_by_body))
        .routes(routes!(admin::force_release))
        .routes(routes!(admin::force_release_named))
        .routes(routes!(admin::resize))
        .routes(routes!(admin::resize_named))
        .routes(routes!(holds::list, holds::acquire))
        .routes(routes!(holds::show, holds::release))
        .routes(routes!(holds::renew))
        .routes(routes!(holds::upgrade))
        .routes(routes!(holds::downgrade))
        .routes(routes!(holds::succeed))
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::show, sessions::end))
        .routes(routes!(sessions::renew))
        .routes(routes!(sessions::keep_alive))
        .routes(routes!(once::begin))
        .routes(routes!(once::begin_named))
        .routes(routes!(once::reset))
        .routes(routes!(once::reset_named))
        .routes(routes!(elections::campaign))
        .routes(routes!(elections::campaign_named))
        .routes(routes!(elections::leader))
        .routes(routes!(elections::leader_named))
        .routes(routes!(elections::follow))
        .routes(routes!(elections::follow_named))
        .routes(routes!(events::follow))
        .routes(routes!(admin::doctor))
        .routes(routes!(whoami::whoami))
        .routes(routes!(operation::healthz))
        .routes(routes!(operation::readyz))
        .routes(routes!(operation::metrics))
}

/// The description of the API as JSON.
pub(crate) fn document() -> String {
    described().into_openapi().to_json().unwrap_or_default()
}

/// All routes of the service. `allow_hosts` are more names by which clients may address it.
pub(crate) fn router(service: Arc<Service>, allow_hosts: Vec<String>) -> Router {
    let (api, document) = described().split_for_parts();
    let document: Arc<str> = document.to_json().unwrap_or_default().into();
    let openapi = move || {
        let document = document.to_string();
        async move { ([(header::CONTENT_TYPE, "application/json")], document).into_response() }
    };
    let gate = Arc::new(Gate { service: service.clone(), allow_hosts });
    api.route("/openapi.json", get(openapi))
        .merge(crate::page::routes())
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(middleware::from_fn_with_state(gate, gate::pass))
        .with_state(service)
}

async fn not_found() -> ApiError {
    Refusal::new(Kind::NotFound, "path: there is nothing here")
        .with_next_step(
            "GET /openapi.json lists the paths; a / in a name is written %2F, and a proxy must pass that on as it \
             is: else send the name in the query, as in /v1/lock?name=",
        )
        .into()
}

async fn not_allowed() -> ApiError {
    let refusal = Refusal::new(Kind::Invalid, "method: this path does not have it")
        .with_next_step("use one of the methods in the header Allow");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, refusal)
}

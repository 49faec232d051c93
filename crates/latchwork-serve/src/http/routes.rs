//! All routes, and the OpenAPI document that describes them.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{Components, RefOr, Schema};
use utoipa::{IntoResponses, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{AnyErrors, ApiError, BodyErrors, ErrorBody};
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

/// Adds what follows from the form of each request: the errors that any one may get, those of a body, and whether the
/// body is needed. One whose fields may all be left out is not.
fn completed(mut document: utoipa::openapi::OpenApi) -> String {
    let components = document.components.take().unwrap_or_default();
    for item in document.paths.paths.values_mut() {
        for operation in [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten() {
            let mut errors = AnyErrors::responses();
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                errors.extend(BodyErrors::responses());
                if !needs_fields(body, &components) {
                    body.required = None;
                }
            }
            operation.responses.responses.extend(errors);
        }
    }
    document.components = Some(components);
    document.to_json().unwrap_or_default()
}

/// Whether a body has a field that must be there.
fn needs_fields(body: &RequestBody, components: &Components) -> bool {
    body.content.values().any(|content| {
        let RefOr::T(content) = content else { return true };
        let Some(RefOr::Ref(form)) = &content.schema else { return true };
        let name = form.ref_location.rsplit('/').next().unwrap_or_default();
        match components.schemas.get(name) {
            Some(RefOr::T(Schema::Object(object))) => !object.required.is_empty(),
            _ => true,
        }
    })
}

/// The description of the API as JSON.
pub(crate) fn document() -> String {
    completed(described().into_openapi())
}

/// All routes of the service. `allow_hosts` are more names by which clients may address it.
pub(crate) fn router(service: Arc<Service>, allow_hosts: Vec<String>) -> Router {
    let (api, document) = described().split_for_parts();
    let document: Arc<str> = completed(document).into();
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::document;

    /// Each part of the document that has this field, with its path.
    fn walk(value: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value)) {
        visit(path, value);
        let parts: Vec<(String, &Value)> = match value {
            Value::Object(parts) => parts.iter().map(|(name, it)| (name.clone(), it)).collect(),
            Value::Array(parts) => {
                parts.iter().enumerate().map(|(at, it)| (at.to_string(), it)).collect()
            }
            _ => Vec::new(),
        };
        for (name, part) in parts {
            walk(part, &format!("{path}/{name}"), visit);
        }
    }

    #[test]
    fn the_description_is_true_of_each_operation() {
        let all: Value = serde_json::from_str(&document()).unwrap();
        let mut ids = Vec::new();
        for (path, item) in all["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let of = format!("{method} {path}");
                // Generators of clients name their functions after these.
                ids.push(operation["operationId"].as_str().unwrap());
                let responses = operation["responses"].as_object().unwrap();
                let has = |status: &str| responses.contains_key(status);
                for (status, response) in responses.iter().filter(|(status, _)| *status != "200") {
                    let form = &response["content"]["application/json"]["schema"]["$ref"];
                    assert_eq!(form, "#/components/schemas/ErrorBody", "{of} {status}");
                    let header = match &**status {
                        "401" => Some("WWW-Authenticate"),
                        "429" | "503" => Some("Retry-After"),
                        _ => None,
                    };
                    let headers = response["headers"].as_object();
                    let headers = headers.map(|it| it.keys().map(String::as_str).collect());
                    assert_eq!(headers, header.map(|it| vec![it]), "{of} {status}");
                }
                assert!(["200", "400", "401", "403", "414", "431"].into_iter().all(has), "{of}");
                let body = operation.get("requestBody");
                for status in ["408", "413", "415"] {
                    assert_eq!(has(status), body.is_some(), "{of} {status}");
                }
                if let Some(body) = body {
                    let form = &body["content"]["application/json"]["schema"]["$ref"];
                    // A form that is not named may be `null`.
                    let form = form.as_str().map(|form| all.pointer(&form[1..]).unwrap());
                    let is_needed = form.is_some_and(|form| form.get("required").is_some());
                    assert_eq!(body["required"] == true, is_needed, "{of}");
                }
                // A hold can only have ended for a request that names one, or that was granted one before.
                let is_of_hold = path.contains("{hold}") || path.contains("{session}");
                let has_key = operation.to_string().contains("Idempotency-Key\"");
                for status in ["404", "410"] {
                    assert_eq!(has(status), is_of_hold || has_key, "{of} {status}");
                }
                let follows = path.ends_with("/events") && !path.contains("{session}");
                let is_own = ["/healthz", "/metrics", "/v1/whoami"].contains(&&**path);
                let asks_store = !follows && !is_own;
                for status in ["502", "503"] {
                    assert_eq!(has(status), asks_store, "{of} {status}");
                }
            }
        }
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "{ids:?}");
    }

    #[test]
    fn the_description_has_room_for_every_number() {
        let all: Value = serde_json::from_str(&document()).unwrap();
        walk(&all, "", &mut |path, part| {
            let most = part["maximum"].as_u64();
            assert!(
                part["format"] != "int32" || most.is_some_and(|most| most <= i32::MAX as u64),
                "{path}: {part}"
            );
        });
    }
}

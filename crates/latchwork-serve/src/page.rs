//! The page that shows the locks, embedded: it needs no build step and no network.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

const INDEX: &str = include_str!("../page/index.html");

/// The routes of the page. Headers such as the Content-Security-Policy are added to every answer of the
/// service, so to these as well.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/", get(index))
}

async fn index() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], INDEX)
}

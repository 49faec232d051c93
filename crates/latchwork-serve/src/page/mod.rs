//! The page that shows the locks, embedded: it needs no build step and no network.
//!
//! Its files are in `assets`. `http` imports this room, and it imports no other.

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

/// A file of the page: its path, its type, and its text.
type File = (&'static str, &'static str, &'static str);

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PICTURE: &str = "image/svg+xml";

/// All of them. Their sum is bounded by a test.
const FILES: [File; 14] = [
    ("/", HTML, include_str!("assets/index.html")),
    ("/page/style.css", STYLE, include_str!("assets/style.css")),
    ("/page/icon.svg", PICTURE, include_str!("assets/icon.svg")),
    ("/page/app.js", SCRIPT, include_str!("assets/app.js")),
    ("/page/api.js", SCRIPT, include_str!("assets/api.js")),
    ("/page/detail.js", SCRIPT, include_str!("assets/detail.js")),
    ("/page/dialogs.js", SCRIPT, include_str!("assets/dialogs.js")),
    ("/page/history.js", SCRIPT, include_str!("assets/history.js")),
    ("/page/locks.js", SCRIPT, include_str!("assets/locks.js")),
    ("/page/table.js", SCRIPT, include_str!("assets/table.js")),
    ("/page/text.js", SCRIPT, include_str!("assets/text.js")),
    ("/page/timeline.js", SCRIPT, include_str!("assets/timeline.js")),
    ("/page/urgent.js", SCRIPT, include_str!("assets/urgent.js")),
    ("/page/views.js", SCRIPT, include_str!("assets/views.js")),
];

/// The routes of the page.
///
/// Headers such as the Content-Security-Policy are added to every answer of the service, so to these as well. The
/// policy allows neither script nor style within the text of the page.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let mut router = Router::new();
    for file in FILES {
        let tag = tag(file.2);
        router = router.route(file.0, get(move |headers: HeaderMap| answer(file, tag, headers)));
    }
    router
}

/// The beginning of the hash of a text: the same text has the same tag in every process.
fn tag(text: &str) -> HeaderValue {
    let hash = Sha256::digest(text.as_bytes());
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{digits}\""))
        .unwrap_or_else(|_| HeaderValue::from_static("\"\""))
}

async fn answer((_, kind, text): File, tag: HeaderValue, headers: HeaderMap) -> Response {
    // A browser asks each time, so that a new version of the service shows its own page.
    let head = [
        (header::ETAG, tag.clone()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
    ];
    let known = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_known = known.is_some_and(|known| {
        known
            .split(',')
            .map(|one| one.trim().trim_start_matches("W/"))
            .any(|one| one == tag || one == "*")
    });
    if is_known {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (head, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_page_is_smaller_than_120_kb() {
        let sum: usize = FILES.iter().map(|file| file.2.len()).sum();
        assert!(sum < 120_000, "{sum} bytes");
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/assets");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), FILES.len(), "a file is missing");
    }

    #[test]
    fn the_page_has_no_script_or_style_inside() {
        let html = FILES[0].2;
        for word in
            ["<style", "style=", " onclick", " onload", "javascript:", "http:", "https:", "//"]
        {
            assert!(!html.contains(word), "{word}");
        }
        assert_eq!(
            html.matches("<script").count(),
            html.matches("<script type=\"module\" src=\"page/").count()
        );
    }

    /// What would make text of others into markup.
    #[test]
    fn no_script_of_the_page_writes_markup() {
        for (path, _, text) in FILES.iter().filter(|file| file.1 == SCRIPT) {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "setAttribute('style'",
                "setAttribute('on",
            ] {
                assert!(!text.contains(word), "{path}: {word}");
            }
        }
    }

    /// The colours of a scheme by their names.
    fn colours(css: &str) -> std::collections::HashMap<&str, [f64; 3]> {
        let mut found = std::collections::HashMap::new();
        for (name, value) in css.split("--").filter_map(|one| one.split_once(": #")) {
            let digits = value.get(..6).unwrap_or_default();
            let part = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
            if let (Some(red), Some(green), Some(blue)) = (part(0), part(2), part(4)) {
                found.insert(name, [red, green, blue].map(|part| f64::from(part) / 255.0));
            }
        }
        found
    }

    /// As WCAG 2 defines it.
    fn contrast(one: [f64; 3], other: [f64; 3]) -> f64 {
        let light = |colour: [f64; 3]| {
            let [red, green, blue] = colour.map(|part| {
                if part <= 0.04045 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
            });
            0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05
        };
        let (one, other) = (light(one), light(other));
        if one > other { one / other } else { other / one }
    }

    #[test]
    fn texts_of_the_page_have_contrast_aa_in_both_schemes() {
        let css = FILES[1].2;
        let (light, rest) = css.split_once("@media (prefers-color-scheme: dark)").unwrap();
        let dark = rest.split_once("\n}\n").unwrap().0;
        for (scheme, css) in [("light", light), ("dark", dark)] {
            let colours = colours(css);
            let text = [
                ("ink", "bg panel raised soft rail"),
                ("faint", "bg panel raised rail soft"),
                ("accent", "bg panel soft"),
                ("accent-ink", "accent"),
                ("warn", "panel raised warn-soft soft"),
                ("danger", "panel bg danger-soft"),
                ("ok", "ok-soft"),
                ("panel", "danger"),
                ("bg", "ink"),
            ];
            // Bars and marks need less: they are not read.
            let marks = [("hold", "panel rail soft"), ("late", "panel"), ("wait", "panel")];
            for (pairs, least) in [(&text[..], 4.5), (&marks[..], 3.0)] {
                for (name, grounds) in pairs {
                    for ground in grounds.split(' ') {
                        let found = contrast(colours[name], colours[ground]);
                        assert!(found >= least, "{scheme}: {name} on {ground}: {found:.2}");
                    }
                }
            }
        }
    }

    /// A token in an address would be in logs and in the browser's history.
    #[test]
    fn the_token_of_the_page_is_only_in_a_header() {
        let uses: Vec<_> = FILES
            .iter()
            .flat_map(|file| file.2.lines())
            .filter(|line| line.contains("Bearer"))
            .collect();
        assert_eq!(uses, ["  if (token) headers.Authorization = `Bearer ${token}`;"]);
    }
}

//! Refuses requests that a web page of another site makes the browser of its visitor send.
//!
//! A browser on this machine reaches a service on loopback, and so does every page that it shows. Two
//! tricks matter: a page posts to the service (its `Origin` is another one), and a page whose own name
//! was pointed at 127.0.0.1 talks to the service as if to itself (the `Host` is that name).

use axum::http::{HeaderMap, HeaderName, Uri, header};

use crate::domain::refusal::Refusal;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names by which clients may address the service.
#[derive(Debug, Clone)]
pub(crate) enum Hosts {
    /// Any: a Unix socket, which no browser reaches, or a service that demands tokens.
    Any,
    /// These, in lower case, without a port.
    Of(Vec<String>),
}

impl Hosts {
    /// Those of a service on loopback, and what the user adds.
    pub(crate) fn loopback(more: &[String]) -> Self {
        let usual = ["localhost", "127.0.0.1", "[::1]"].into_iter().map(str::to_owned);
        Self::Of(usual.chain(more.iter().map(|name| name.to_lowercase())).collect())
    }

    fn has(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Of(names) => {
                let name = without_port(host).to_lowercase();
                names.contains(&name) || is_loopback(&name)
            }
        }
    }
}

/// Any address of 127.0.0.0/8.
fn is_loopback(name: &str) -> bool {
    name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|it| it.is_ascii_digit()) && !name.ends_with(':') =>
        {
            name
        }
        _ => host,
    }
}

/// Refuses a request to a wrong host, or from another site.
///
/// # Errors
///
/// `Forbidden`, which names the header.
pub(crate) fn check(hosts: &Hosts, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("\u{0}"));
    let host = match (uri.authority(), headers.get_all(header::HOST).iter().count()) {
        (Some(authority), _) => authority.as_str(),
        (None, 1) => text(header::HOST).unwrap_or_default(),
        // HTTP/1.0 has none. No browser sends that.
        (None, 0) => "",
        (None, _) => return Err(Refusal::invalid("Host: it is there twice", "send it once")),
    };
    if !host.is_empty() && !hosts.has(host) {
        return Err(Refusal::forbidden(
            "Host: the service does not have this name",
            "use localhost, or start the service with --allow-host NAME",
        ));
    }
    let foreign = || {
        Refusal::forbidden(
            "Origin: the request comes from another site",
            "send it from a program, or from the page of the service itself",
        )
    };
    if let Some(origin) = text(header::ORIGIN) {
        let site = origin.split_once("://").map(|(_, site)| site);
        if host.is_empty() || !site.is_some_and(|site| site.eq_ignore_ascii_case(host)) {
            return Err(foreign());
        }
    }
    match text(SEC_FETCH_SITE) {
        None | Some("same-origin" | "none") => Ok(()),
        // A link of another site may lead to the page, which shows nothing by itself.
        Some(_) if uri.path() == "/" => Ok(()),
        Some(_) => Err(foreign()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn is_let_in(hosts: &Hosts, lines: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        check(hosts, &Uri::from_static("/v1/locks"), &headers).is_ok()
    }

    #[test]
    fn another_name_of_the_loopback_is_refused() {
        let hosts = Hosts::loopback(&["Locks.example".into()]);
        for host in [
            "localhost:7117",
            "127.0.0.1:7117",
            "[::1]:7117",
            "127.0.0.9",
            "LOCALHOST",
            "locks.example:1",
        ] {
            assert!(is_let_in(&hosts, &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7117",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "::",
            ":",
            "[::2]:7117",
        ] {
            assert!(!is_let_in(&hosts, &[("host", host)]), "{host}");
        }
        assert!(!is_let_in(&hosts, &[("host", "localhost"), ("host", "evil.example")]));
        assert!(is_let_in(&Hosts::Any, &[("host", "evil.example")]));
    }

    #[test]
    fn another_site_is_refused() {
        let hosts = Hosts::loopback(&[]);
        let with = |name, value| is_let_in(&hosts, &[("host", "localhost:7117"), (name, value)]);
        assert!(with("origin", "http://localhost:7117"));
        for origin in
            ["http://evil.example", "null", "http://localhost:8080", "http://localhost", ""]
        {
            assert!(!with("origin", origin), "{origin}");
        }
        assert!(with("sec-fetch-site", "same-origin") && with("sec-fetch-site", "none"));
        assert!(!with("sec-fetch-site", "cross-site") && !with("sec-fetch-site", "same-site"));
    }
}

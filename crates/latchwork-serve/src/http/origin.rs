//! Refuses requests that a web page of another site makes the browser of its visitor send.
//!
//! A browser on this machine reaches a service on loopback, and so does every page that it shows. Two
//! tricks matter: a page posts to the service (its `Origin` is another one), and a page whose own name
//! was pointed at 127.0.0.1 talks to the service as if to itself (the `Host` is that name). The second one needs a
//! service that demands no token: the page has none, and browsers send none by themselves.

use std::net::{Ipv4Addr, Ipv6Addr};

use axum::http::{HeaderName, Request, Version, header};

use crate::domain::refusal::Refusal;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names by which clients may address the service.
#[derive(Debug, Clone)]
pub(crate) enum Hosts {
    /// Any: of a request with a token, of one that may do nothing without it, or on a Unix socket.
    Any,
    /// These, in lower case, without a port; and every address, if it is so.
    Of { names: Vec<String>, addresses: bool },
}

impl Hosts {
    /// Those of clients without a token: the names of the loopback, and what the user adds. A service for other hosts
    /// is addressed by its address, too: a page of that address is one of the service.
    pub(crate) fn without_a_token(more: &[String], is_for_other_hosts: bool) -> Self {
        let usual = ["localhost", "127.0.0.1", "[::1]"].into_iter().map(str::to_owned);
        let names = usual.chain(more.iter().map(|name| name.to_lowercase())).collect();
        Self::Of { names, addresses: is_for_other_hosts }
    }

    fn has(&self, host: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Of { names, addresses } => {
                let name = without_port(host).to_lowercase();
                names.contains(&name) || is_loopback(&name) || (*addresses && is_address(&name))
            }
        }
    }
}

/// Any address of 127.0.0.0/8.
fn is_loopback(name: &str) -> bool {
    name.parse::<Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

/// An address, as a browser writes it in `Host`.
fn is_address(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    name.parse::<Ipv4Addr>().is_ok() || bare.is_some_and(|it| it.parse::<Ipv6Addr>().is_ok())
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
/// `Invalid` if it does not name one host, `Forbidden` for one that it may not have; both name the header.
pub(crate) fn check<B>(hosts: &Hosts, request: &Request<B>) -> Result<(), Refusal> {
    let (uri, headers) = (request.uri(), request.headers());
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("\u{0}"));
    let host = match (headers.get_all(header::HOST).iter().count(), uri.authority()) {
        // A client of HTTP/1.0 need not send it. No browser speaks that.
        (0, _) if request.version() != Version::HTTP_10 => {
            let step = "send the header Host: NAME, as RFC 9112 demands of HTTP/1.1";
            return Err(Refusal::invalid("Host: it is missing", step));
        }
        (0 | 1, Some(authority)) => authority.as_str(),
        (0 | 1, None) => text(header::HOST).unwrap_or_default(),
        _ => return Err(Refusal::invalid("Host: it is there twice", "send it once")),
    };
    if !host.is_empty() && !hosts.has(host) {
        return Err(Refusal::forbidden(
            "Host: the service does not have this name",
            "use localhost, send a token, or start the service with --allow-host NAME",
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

    fn is_let_in(hosts: &Hosts, lines: &[(&'static str, &'static str)]) -> bool {
        let mut request = Request::get("/v1/locks");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        check(hosts, &request.body(()).unwrap()).is_ok()
    }

    #[test]
    fn another_name_of_the_loopback_is_refused() {
        let hosts = Hosts::without_a_token(&["Locks.example".into()], false);
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
        let hosts = Hosts::without_a_token(&[], true);
        for (host, is_known) in [
            ("192.0.2.7:7117", true),
            ("[::2]:7117", true),
            ("::2", false),
            ("[192.0.2.7]", false),
            ("192.0.2.7.evil.example", false),
        ] {
            assert_eq!(is_let_in(&hosts, &[("host", host)]), is_known, "{host}");
        }
    }

    #[test]
    fn another_site_is_refused() {
        let hosts = Hosts::without_a_token(&[], false);
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

//! The service behind nginx and HAProxy, with the settings that they have by themselves.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use latchwork_services::Port;

use super::Service;
use super::browser::Browser;
use super::client::{Address, Answer, Connection, Events, read};
use crate::common::{Running, eventually};

/// A proxy before a service, in the foreground.
pub(super) struct Proxy {
    pub(super) address: Address,
    _process: Running,
    _port: Port,
}

impl Proxy {
    fn start(service: &Service, file: &str, settings: &str, words: &[&str]) -> Self {
        let Address::Tcp(to) = service.address else { unreachable!() };
        let port = Port::reserve().unwrap();
        let dir = service.store.file(file);
        fs::create_dir(&dir).unwrap();
        let dir = dir.display().to_string();
        let settings = settings
            .replace("$DIR", &dir)
            .replace("$PORT", &port.number().to_string())
            .replace("$TO", &to.to_string());
        let path = format!("{dir}/settings");
        fs::write(&path, settings).unwrap();
        let mut command = Command::new("sh");
        // Debian puts both where only root looks.
        command.args(["-c", "PATH=$PATH:/usr/sbin; exec \"$@\"", "sh"]).args(words).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let process = Running::start(command);
        let address = Address::Tcp(port.number());
        let connects = || std::net::TcpStream::connect(("127.0.0.1", port.number())).ok();
        eventually("the proxy", connects);
        Self { address, _process: process, _port: port }
    }

    /// As Debian installs it, but that `$SERVER` has only what passes requests on.
    fn nginx(service: &Service, file: &str, server: &str) -> Self {
        let settings = "daemon off; master_process off; pid $DIR/pid; error_log $DIR/errors;
            events {}
            http {
                access_log off; client_body_temp_path $DIR/body; proxy_temp_path $DIR/proxy;
                fastcgi_temp_path $DIR/f; uwsgi_temp_path $DIR/u; scgi_temp_path $DIR/s; gzip on;
                server { listen 127.0.0.1:$PORT; $SERVER }
            }";
        let settings = settings.replace("$SERVER", server);
        Self::start(service, file, &settings, &["nginx", "-p", "/tmp", "-e", "stderr", "-c"])
    }

    /// The defaults of Debian's package, and a check that is nothing but switched on.
    fn haproxy(service: &Service) -> Self {
        Self::haproxy_before(service, "")
    }

    /// The same before several instances: without `redispatch` it tries one that is gone for 3 s.
    pub(super) fn haproxy_of(services: [&Service; 2]) -> Self {
        let Address::Tcp(other) = services[1].address else { unreachable!() };
        let two = format!("server two 127.0.0.1:{other} check inter 100 fall 1");
        let more = format!("    {two}\n    option redispatch 1\n");
        Self::haproxy_before(services[0], &more)
    }

    /// nginx before several instances, with nothing but their addresses.
    pub(super) fn nginx_of(services: [&Service; 2]) -> Self {
        let Address::Tcp(other) = services[1].address else { unreachable!() };
        let server = format!(
            "location / {{ proxy_pass http://locks; }} }}
             upstream locks {{ server 127.0.0.1:$TO; server 127.0.0.1:{other};"
        );
        Self::nginx(services[0], "balancing", &server)
    }

    fn haproxy_before(service: &Service, more: &str) -> Self {
        let settings = "global
    maxconn 100
defaults
    mode http
    option httplog
    option dontlognull
    timeout connect 5000
    timeout client 50000
    timeout server 50000
    timeout check 5000
frontend in
    bind 127.0.0.1:$PORT
    default_backend locks
backend locks
    option httpchk
    server one 127.0.0.1:$TO check inter 100 fall 1
";
        let settings = format!("{settings}{more}");
        let it = Self::start(service, "haproxy", &settings, &["haproxy", "-db", "-f"]);
        // A server that fails its check gets no request, after the first look.
        eventually("a few checks", || {
            let checked = service.ask("GET /metrics", "").text;
            let count = checked.lines().find(|line| {
                line.starts_with("latchwork_http_requests_total") && line.contains("OPTIONS")
            });
            count.filter(|line| !line.ends_with(" 1")).map(drop)
        });
        it
    }

    #[track_caller]
    fn ask(&self, line: &str, body: &str) -> Answer {
        self.address.ask(line, &[], body)
    }
}

/// Where a proxy passes requests on as they are.
const AS_IT_IS: &str = "location / { proxy_pass http://127.0.0.1:$TO; }";

/// Waits, renewals, releases and events pass, and so does every name that stands in a query or in a path as it
/// is documented.
fn all_works(proxy: &Proxy, service: &Service) {
    let mut events = Events::follow(&proxy.address, "/v1/events", &[]);
    events.until("hello");
    let first = proxy.ask("POST /v1/locks/shop%2Fy", r#"{"ttl_ms": 20000}"#);
    assert_eq!(first.is(200).json()["locks"][0]["name"], "shop/y");
    assert_eq!(events.until("granted")["name"], "shop/y");
    let line = "POST /v1/locks/shop%2Fy";
    let waiting = proxy.address.send(line, &[], r#"{"wait_ms": 20000, "ttl_ms": 5000}"#);
    assert_eq!(events.until("waiting")["name"], "shop/y");
    let hold = first.get("hold");
    proxy.ask(&format!("POST /v1/holds/{hold}/renew"), "").is(200);
    proxy.ask(&format!("DELETE /v1/holds/{hold}"), "").is(200);
    let second = read(waiting).unwrap();
    assert_eq!(second.is(200).json()["locks"][0]["name"], "shop/y");
    assert_eq!(events.until("released")["name"], "shop/y");
    proxy.ask(&format!("DELETE /v1/holds/{}", second.get("hold")), "").is(200);
    // One that gives up is withdrawn.
    service.hold("held", "{}");
    let gone = proxy.address.send("POST /v1/locks/held", &[], r#"{"wait_ms": 20000}"#);
    eventually("a waiter", || (service.waiters("held") == 1).then_some(()));
    drop(gone);
    eventually("no waiter", || (service.waiters("held") == 0).then_some(()));
    names_in_a_query(proxy);
}

/// Names that a proxy would change in a path.
fn names_in_a_query(proxy: &Proxy) {
    for (name, written) in [
        ("a/../b", "a%2F..%2Fb"),
        ("a//b", "a%2F%2Fb"),
        ("/a", "%2Fa"),
        ("%2e%2e", "%252e%252e"),
        ("shop/y", "shop/y"),
    ] {
        let held = proxy.ask(&format!("POST /v1/lock?name={written}"), "");
        assert_eq!(held.is(200).json()["locks"][0]["name"], name);
        let shown = proxy.ask(&format!("GET /v1/lock?name={written}"), "");
        assert_eq!(shown.is(200).json()["name"], name);
        proxy.ask(&format!("DELETE /v1/holds/{}", held.get("hold")), "").is(200);
        let task = proxy.ask(&format!("POST /v1/task?name={written}"), r#"{"every": "1h"}"#);
        assert_eq!(task.is(200).json()["hold"]["locks"][0]["name"], name);
        let body = r#"{"candidate": "me"}"#;
        let elected = proxy.ask(&format!("POST /v1/election/campaign?name=e{written}"), body);
        elected.is(200);
        let leader = proxy.ask(&format!("GET /v1/election?name=e{written}"), "");
        assert_eq!(leader.is(200).get("candidate"), "me");
    }
}

#[test]
fn h296_the_service_works_behind_nginx() {
    let service = Service::start(&[]);
    let proxy = Proxy::nginx(&service, "nginx", AS_IT_IS);
    all_works(&proxy, &service);
}

#[test]
fn h296_the_service_works_behind_haproxy() {
    let service = Service::start(&[]);
    let proxy = Proxy::haproxy(&service);
    all_works(&proxy, &service);
}

/// One that decodes paths, merges their slashes and resolves their dots: no request gets another lock than the
/// one that it names.
#[test]
fn h297_a_proxy_that_decodes_paths_leads_to_no_other_lock() {
    let service = Service::start(&[]);
    let decoding = "location /uri/ { proxy_pass http://127.0.0.1:$TO/; }";
    let proxy = Proxy::nginx(&service, "decoding", decoding);
    let refused = proxy.ask("POST /uri/v1/locks/shop%2Fy", "{}");
    assert!(refused.is(404).get("next_step").contains("/v1/lock?name="), "{refused:?}");
    for (name, written) in [("a/../b", "a%2F..%2Fb"), ("a//b", "a%2F%2Fb")] {
        let held = proxy.ask(&format!("POST /uri/v1/lock?name={written}"), "");
        assert_eq!(held.is(200).json()["locks"][0]["name"], name);
    }
    // The same names in a path are refused without any proxy, so that nobody begins to use them.
    for written in ["a%2F..%2Fb", "a%2F%2Fb", "%2Fa", "a%2F", "a%2F.", "%252e%252e", "a%252Fb"] {
        for line in [
            format!("POST /v1/locks/{written}"),
            format!("GET /v1/locks/{written}"),
            format!("POST /v1/once/{written}"),
            format!("POST /v1/elections/{written}/campaign"),
        ] {
            let body = if line.contains("once") { r#"{"every": "1h"}"# } else { "" };
            let refused = service.ask(&line, body);
            refused.is(400).kind("Invalid");
            assert!(refused.get("next_step").contains("/v1/lock?name="), "{refused:?}");
        }
    }
}

/// A proxy cuts what is silent for its time: nginx for 60 s, HAProxy for 50 s. A wait that asks for a stream is not.
#[test]
fn h298_a_wait_as_a_stream_outlasts_the_patience_of_a_proxy() {
    let service = Service::start(&[]);
    let impatient = "location / { proxy_pass http://127.0.0.1:$TO; proxy_read_timeout 12s; }";
    let proxy = Proxy::nginx(&service, "impatient", impatient);
    let hold = service.hold("x", r#"{"ttl_ms": 60000}"#);
    let accept = [("Accept", "text/event-stream")];
    let wish = r#"{"wait_ms": 60000, "ttl_ms": 5000}"#;
    let line = "POST /v1/locks/x";
    let stream = proxy.address.send(line, &accept, wish);
    let plain = proxy.address.send(line, &[], wish);
    eventually("two waiters", || (service.waiters("x") == 2).then_some(()));
    // The plain one is cut, is told so by the proxy, and is withdrawn.
    assert_eq!(read(plain).unwrap().status, 504);
    eventually("one waiter", || (service.waiters("x") == 1).then_some(()));
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    for _ in 0..2 {
        assert!(lines.any(|line| line.starts_with(':')), "a comment");
    }
    service.release(&hold).is(200);
    let data = lines.find_map(|line| line.strip_prefix("data: ").map(str::to_owned)).unwrap();
    let answer: serde_json::Value = serde_json::from_str(&data).unwrap();
    assert_eq!((&answer["status"], &answer["body"]["state"]), (&200.into(), &"held".into()));
    // An answer that is none, and a client that gives up.
    let refused = service.address.send(line, &accept, r#"{"ttl_ms": 1}"#);
    let text = read_all(refused);
    assert!(text.contains("event: answer") && text.contains(r#"{"status":400,"body":{"#), "{text}");
    let gone = service.address.send(line, &accept, wish);
    eventually("a waiter", || (service.waiters("x") == 1).then_some(()));
    drop(gone);
    eventually("no waiter", || (service.waiters("x") == 0).then_some(()));
}

fn read_all(stream: Box<dyn Connection>) -> String {
    std::io::read_to_string(stream).unwrap()
}

/// What proxies and their checks read in an answer.
#[test]
fn h299_answers_tell_proxies_what_they_are() {
    let service = Service::start(&[]);
    let head = service.ask("GET /healthz", "").head.to_lowercase();
    assert!(head.contains("keep-alive: timeout=15"), "{head}");
    for (line, allowed) in [
        ("OPTIONS /", &["GET"][..]),
        ("OPTIONS /healthz", &["GET"]),
        ("OPTIONS /v1/locks/x", &["GET", "POST"]),
        ("OPTIONS /v1/holds/x", &["GET", "DELETE"]),
    ] {
        let answer = service.ask(line, "");
        assert_eq!((answer.status, &*answer.text), (204, ""), "{answer:?}");
        let head = answer.head.to_lowercase();
        let allow = head.lines().find_map(|line| line.strip_prefix("allow: ")).unwrap();
        for method in allowed {
            assert!(allow.contains(&method.to_lowercase()), "{answer:?}");
        }
    }
    service.ask("OPTIONS /nothing", "").is(404);
    let mut stream = BufReader::new(service.address.send("GET /v1/events", &[], "")).lines();
    let head: Vec<_> =
        stream.by_ref().map(Result::unwrap).take_while(|it| !it.is_empty()).collect();
    // H415: nobody on the way keeps events back, to fill a buffer or a block of a compressor.
    for line in ["x-accel-buffering: no", "cache-control: no-cache, no-transform"] {
        assert!(head.iter().any(|it| it.eq_ignore_ascii_case(line)), "{line}: {head:?}");
    }
}

/// A proxy may have the service below a path of its own, as documented: the page asks for nothing outside of it.
#[test]
fn the_page_works_below_a_path_of_a_proxy() {
    let service = Service::start(&[]);
    let below = "location /latchwork/ { proxy_pass http://127.0.0.1:$TO/; proxy_set_header Host $http_host; proxy_buffering off; }";
    let proxy = Proxy::nginx(&service, "below", below);
    let Address::Tcp(port) = proxy.address else { unreachable!() };
    let browser = Browser::at(port);
    browser.go(&format!("http://localhost:{port}/latchwork/"));
    browser.sees("document.querySelector('#live').dataset.state === 'live'");
    service.hold("shop", r#"{"ttl_ms": 60000, "holder": "ada"}"#);
    browser.sees("document.querySelector('.row.body .holder')?.innerText === 'ada'");
    browser.click(".row.body");
    browser.sees("document.querySelector('#detail .parties')?.innerText.startsWith('ada')");
    let asked = "performance.getEntries().filter((one) => one.name.startsWith('http')).every((one) => new URL(one.name).pathname.startsWith('/latchwork/'))";
    browser.sees(asked);
}

//! Running the service: its stop, TLS, what systemd hands over, health and metrics.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use latchwork_services::{Certificates, Port, RedisOptions, RedisServer};
use latchwork_store::testing::stalls;
use rustix::process::Signal;

use super::Service;
use super::client::{AT_ONCE, Address, Events};
use super::security::usual;
use crate::common::{Running, Store, eventually};

#[test]
fn a_clean_stop_ends_when_all_holds_have_ended() {
    let service = Service::start(&[]);
    let held = service.hold("a", r#"{"ttl_ms": 60000}"#);
    service.hold("b", r#"{"ttl_ms": 2000}"#);
    let waiting = service.wait_for("a", &[], r#"{"wait_ms": 60000}"#);
    let mut events = Events::follow(&service.address, "/v1/events", &[]);
    service.process.signal(Signal::TERM);
    events.until("closing");
    waiting.answer().is(503).kind("Closed");
    service.renew(&held).is(503).kind("Closed");
    service.lock("c", "").is(503).kind("Closed");
    service.ask("GET /readyz", "").is(503).kind("Closed");
    assert_eq!(service.ask("GET /healthz", "").status, 200);
    // Its client relies on b for as long as the last answer said.
    assert!(service.is_held("b"));
    assert_eq!(events.until("lost")["name"], "b");
    let start = Instant::now();
    service.release(&held).is(200);
    while events.next().is_some() {}
    let Service { process, store, .. } = service;
    assert_eq!(process.finish().code(), 0);
    stalls::in_time(start, AT_ONCE);
    for name in ["a", "b", "c"] {
        assert_eq!(store.output(&["status", name]).code(), 1, "{name} is held");
    }
}

/// The client may rely on it yet.
#[test]
fn h158_a_stop_with_a_bound_releases_no_hold() {
    let service = Service::start(&["--drain", "500ms"]);
    let start = Instant::now();
    service.hold("a", r#"{"ttl_ms": 6000}"#);
    service.process.signal(Signal::TERM);
    let Service { process, store, .. } = service;
    let done = process.finish();
    assert_eq!(done.code(), 0);
    stalls::in_time(start, AT_ONCE);
    assert!(done.stderr.contains("left to their ttl"), "{done:?}");
    assert_eq!(store.output(&["status", "a"]).code(), 0, "released while its client relies on it");
}

#[test]
fn a_second_signal_ends_the_service_at_once() {
    let service = Service::start(&[]);
    service.hold("a", r#"{"ttl_ms": 60000}"#);
    service.process.signal(Signal::TERM);
    service.process.stderr.until("stopping");
    let start = Instant::now();
    service.process.signal(Signal::INT);
    let Service { process, store, .. } = service;
    assert_eq!(process.finish().code(), 0);
    stalls::in_time(start, AT_ONCE);
    assert_eq!(store.output(&["status", "a"]).code(), 0);
}

/// Its store is a server that is reached through a socket in the file system.
#[test]
fn h282_a_service_reaches_its_store_through_a_socket() {
    let server = RedisServer::start(&RedisOptions::new().requirepass("s3cret")).unwrap();
    let store = format!("redis+unix://:s3cret@{}", server.folder().join("socket").display());
    let service = Service::start(&["--store", &store]);
    let held = service.hold("a", r#"{"ttl_ms": 60000}"#);
    let waiting = service.wait_for("a", &[], r#"{"wait_ms": 60000}"#);
    eventually("a waiter", || (service.waiters("a") == 1).then_some(()));
    service.release(&held).is(200);
    waiting.answer().is(200);
    let shown = server.command(&["KEYS", "*"]).unwrap();
    assert!(format!("{shown:?}").contains("\"a\""), "{shown:?}");
}

#[test]
fn a_certificate_is_served_and_reloaded() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    for path in [&old, &new] {
        std::fs::create_dir(path).unwrap();
    }
    let (first, second) = (Certificates::make(&old).unwrap(), Certificates::make(&new).unwrap());
    let (cert, key) = (old.join("serve.crt"), old.join("serve.key"));
    std::fs::copy(&first.server_cert, &cert).unwrap();
    std::fs::copy(&first.server_key, &key).unwrap();
    let (cert_arg, key_arg) = (cert.display().to_string(), key.display().to_string());
    let service = Service::start(&["--tls-cert", &cert_arg, "--tls-key", &key_arg]);
    let Address::Tcp(port) = service.address else { unreachable!() };
    let curl = |authority: &Path| {
        let url = format!("https://localhost:{port}/v1/locks");
        let done = Command::new("curl").args(["-sS", "--cacert"]).arg(authority).arg(url).output();
        done.unwrap().status.success()
    };
    assert!(curl(&first.ca_cert) && !curl(&second.ca_cert));
    std::fs::copy(&second.server_cert, &cert).unwrap();
    std::fs::copy(&second.server_key, &key).unwrap();
    service.process.signal(Signal::HUP);
    service.process.stderr.until("the certificate was read again");
    assert!(curl(&second.ca_cert) && !curl(&first.ca_cert));
    // A certificate with the key of another, and none at all: the one in use stays.
    std::fs::copy(&first.server_cert, &cert).unwrap();
    for text in [None, Some("-----BEGIN CERTIFICATE-----\nnone\n")] {
        if let Some(text) = text {
            std::fs::write(&cert, text).unwrap();
        }
        service.process.signal(Signal::HUP);
        service.process.stderr.until("the certificate stays as it was");
        assert!(curl(&second.ca_cert));
    }
    // Nothing older than TLS 1.2 is spoken.
    let speaks = |version: &str| {
        let mut client = Command::new("openssl");
        client.args(["s_client", "-connect", &format!("127.0.0.1:{port}"), version]);
        client.args(["-cipher", "ALL:@SECLEVEL=0"]).stdin(std::process::Stdio::null());
        String::from_utf8_lossy(&client.output().unwrap().stdout).contains("BEGIN CERTIFICATE")
    };
    assert!(speaks("-tls1_2") && speaks("-tls1_3") && !speaks("-tls1_1") && !speaks("-tls1"));
    // No plain text where TLS is spoken.
    let plain = Command::new("curl").args(["-sS", &format!("http://localhost:{port}/")]).output();
    assert!(!plain.unwrap().status.success());
}

#[test]
fn an_address_that_cannot_be_used_is_refused() {
    let service = Service::start(&[]);
    let Address::Tcp(port) = service.address else { unreachable!() };
    let not_here = "choose an address of this machine on which this user may listen";
    for (listen, step) in [
        (
            format!("127.0.0.1:{port}"),
            "choose another address, or end the process that uses this one",
        ),
        ("192.0.2.1:7117".to_owned(), not_here),
        (format!("unix:{}", service.store.file("no/folder").display()), not_here),
    ] {
        let options = ["serve", "--insecure-plain-http", "--insecure-no-tokens", "--listen"];
        let refused = service.store.output(&[&options[..], &[&listen]].concat());
        assert_eq!(refused.code(), 69, "{refused:?}");
        let told = format!("listen: cannot listen on {listen}: ");
        assert!(refused.stderr.contains(&told) && refused.stderr.contains(step), "{refused:?}");
    }
}

/// Starts the service with a socket as descriptor 3, as systemd does it. `socket` is a line of Python that makes `s`;
/// the words go to `notify`, if there is one.
fn with_a_socket(store: &Store, socket: &str, notify: Option<&Path>, options: &[&str]) -> Running {
    let script = format!(
        "import os, socket, sys\n\
         {socket}\n\
         os.dup2(s.fileno(), 3); os.set_inheritable(3, True)\n\
         os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n\
         os.execv(sys.argv[1], ['latchwork', 'serve', *sys.argv[2:]])\n"
    );
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_latchwork")]).args(options);
    command.envs(notify.map(|path| ("NOTIFY_SOCKET", path)));
    Running::start(store.at_this_store(command))
}

#[test]
fn systemd_hands_over_a_socket_and_is_notified() {
    let (store, port) = (Store::new(), Port::reserve().unwrap());
    let notify = store.file("notify");
    let heard = UnixDatagram::bind(&notify).unwrap();
    heard.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let socket = format!("s = socket.create_server(('127.0.0.1', {}))", port.number());
    let process = with_a_socket(&store, &socket, Some(&notify), &[]);
    let told = || {
        let mut bytes = [0; 1_000];
        let length = heard.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    assert!(told().contains("READY=1"));
    Address::Tcp(port.number()).ask("POST /v1/locks/x", &[], r#"{"ttl_ms": 500}"#).is(200);
    process.signal(Signal::TERM);
    assert!(told().contains("STOPPING=1"));
    assert_eq!(process.finish().code(), 0);

    let socket = "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)";
    let refused = with_a_socket(&store, socket, None, &[]).finish();
    assert_eq!(refused.code(), 64, "{refused:?}");
    assert!(refused.stderr.contains("inherited socket 0 is no stream socket"), "{refused:?}");
    assert!(refused.stderr.contains("name it by ListenStream in the socket unit"), "{refused:?}");
}

/// H560: 0666 is the mode of systemd's sockets if the unit says nothing.
#[test]
fn h560_no_inherited_socket_gives_every_user_all_rights() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let path = store.file("http.sock");
    let bound = |at: &str, mode: &str| {
        let bind = format!("s = socket.socket(socket.AF_UNIX); s.bind({at}); s.listen()");
        if mode.is_empty() { bind } else { format!("{bind}; os.chmod({at}, {mode})") }
    };
    let named = format!("'{}'", path.display());
    let hidden = format!("'\\0latchwork-{}'", std::process::id());
    let gone = format!("{}; os.unlink({named})", bound(&named, "0o600"));
    for (socket, part) in [
        (bound(&named, "0o666"), "every user of this machine may open"),
        (bound(&named, "0o602"), "every user of this machine may open"),
        (bound(&hidden, ""), "every user of this machine may open"),
        (gone, "cannot be checked: No such file"),
    ] {
        let refused = with_a_socket(&store, &socket, None, &[]).finish();
        assert_eq!(refused.code(), 64, "{socket}: {refused:?}");
        for part in [part, "SocketMode=0660", "--require-token"] {
            assert!(refused.stderr.contains(part), "{socket}: {part}: {refused:?}");
        }
        let _ = std::fs::remove_file(&path);
    }
    let tokens = usual(&dir);
    for (mode, options, status) in [
        ("0o660", &[][..], 200),
        ("0o600", &["--tokens", &tokens], 200),
        ("0o666", &["--tokens", &tokens, "--require-token"], 401),
    ] {
        let service = with_a_socket(&store, &bound(&named, mode), None, options);
        service.stderr.until("ready");
        assert_eq!(Address::Unix(path.clone()).ask("GET /v1/locks", &[], "").status, status);
        drop(service);
        std::fs::remove_file(&path).unwrap();
    }
}

/// H562: such a certificate is refused by clients, which know less of the cause than the service.
#[test]
fn h562_a_certificate_out_of_its_time_is_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let good = Certificates::make(folder.path()).unwrap();
    let dates = [["20200101000000Z", "20210101000000Z"], ["20990101000000Z", "20990201000000Z"]];
    let [old, early] = dates.map(|dates| {
        let name = ["-addext", "subjectAltName=DNS:localhost"];
        good.another(&format!("from{}", dates[0]), &name, dates).unwrap()
    });
    let good = [good.server_cert, good.server_key];
    let (cert, key) = (folder.path().join("serve.crt"), folder.path().join("serve.key"));
    let put = |[from_cert, from_key]: &[PathBuf; 2], mode: u32| {
        std::fs::copy(from_cert, &cert).unwrap();
        std::fs::copy(from_key, &key).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    put(&good, 0o644);
    let (store, port) = (Store::new(), Port::reserve().unwrap());
    let listen = format!("127.0.0.1:{}", port.number());
    let files = [cert.display().to_string(), key.display().to_string()];
    let options = ["serve", "--listen", &listen, "--tls-cert", &files[0], "--tls-key", &files[1]];
    let service = Running::start(store.latchwork(&options));
    let warned = |until: &str| {
        let lines = std::iter::from_fn(|| service.stderr.next());
        let lines = lines.take_while(|line| !line.contains(until));
        lines.filter(|line| line.contains(" WARN ")).collect::<Vec<_>>()
    };
    let reload = || {
        service.signal(Signal::HUP);
        warned("the certificate was read again")
    };
    let is_open = |line: &str| {
        ["other users may read the key", "run chmod 600 ", &files[1]]
            .iter()
            .all(|it| line.contains(it))
    };
    let is_told = |line: &str, why: &str| {
        [why, "replace the file and send SIGHUP", &files[0]].iter().all(|it| line.contains(it))
    };
    let told = warned(" ready ");
    assert!(told.len() == 1 && is_open(&told[0]), "{told:?}");
    put(&old, 0o604);
    let told = reload();
    let expired = "it has expired at 2021-01-01T00:00:00Z";
    assert!(told.len() == 2 && is_told(&told[0], expired) && is_open(&told[1]), "{told:?}");
    // Several services of one machine may share a key by a group.
    put(&early, 0o640);
    let told = reload();
    let early = "it is not valid yet, but from 2099-01-01T00:00:00Z on";
    assert!(told.len() == 1 && is_told(&told[0], early), "{told:?}");
    put(&good, 0o600);
    assert_eq!(reload(), [""; 0]);
}

/// Starts the service as systemd does, with a watchdog of a second, and returns what hears its words.
fn with_a_watchdog(store: &Store) -> (Running, UnixDatagram) {
    let notify = store.file("notify");
    let heard = UnixDatagram::bind(&notify).unwrap();
    heard.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let listen = format!("unix:{}", store.file("http").display());
    let mut command = store.latchwork(&["serve", "--listen", &listen]);
    command.env("NOTIFY_SOCKET", &notify).env("WATCHDOG_USEC", "1000000");
    (Running::start(command), heard)
}

fn word(heard: &UnixDatagram) -> Option<String> {
    let mut bytes = [0; 1_000];
    let length = heard.recv(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

#[test]
fn systemd_hears_twice_in_its_interval_that_the_service_lives() {
    let store = Store::new();
    let (_process, heard) = with_a_watchdog(&store);
    assert!(word(&heard).unwrap().contains("READY=1"));
    assert!(word(&heard).unwrap().contains("WATCHDOG=1"));
    let mut last = Instant::now();
    for _ in 0..8 {
        assert!(word(&heard).unwrap().contains("WATCHDOG=1"));
        let pause = last.elapsed();
        assert!(pause < Duration::from_millis(1_000), "{pause:?} of 1 s");
        assert!(pause > Duration::from_millis(100), "{pause:?}: far too often");
        last = Instant::now();
    }
}

/// Only one thread stands still, and the others answer requests; without it no lease would be renewed.
#[test]
fn systemd_hears_nothing_while_a_thread_of_the_locks_hangs() {
    for thread in ["latchwork", "latchwork-time"] {
        let store = Store::new();
        let (process, heard) = with_a_watchdog(&store);
        process.stderr.until("ready");
        while !word(&heard).unwrap().contains("WATCHDOG=1") {}
        let stopped = stop_threads(process.child.id(), thread);
        heard.set_read_timeout(Some(Duration::from_millis(2_500))).unwrap();
        // One may have been under way.
        let _ = word(&heard);
        assert_eq!(word(&heard), None, "{thread}");
        drop(stopped);
    }
}

/// Stops the threads of this name, as a debugger does, until it is dropped.
fn stop_threads(process: u32, name: &str) -> Running {
    let script = "import ctypes, glob, os, sys\n\
        libc = ctypes.CDLL(None, use_errno=True)\n\
        libc.ptrace.argtypes = [ctypes.c_long] * 4\n\
        for path in glob.glob(f'/proc/{sys.argv[1]}/task/*/comm'):\n\
        \x20   if open(path).read().strip() == sys.argv[2]:\n\
        \x20       thread = int(path.split('/')[4])\n\
        \x20       for request in (0x4206, 0x4207):\n\
        \x20           if libc.ptrace(request, thread, 0, 0): sys.exit(os.strerror(ctypes.get_errno()))\n\
        \x20       os.waitpid(thread, 0x40000000)\n\
        print('stopped', flush=True)\n\
        sys.stdin.read()\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script, &process.to_string(), name]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let debugger = Running::start({
        command.stderr(std::process::Stdio::piped());
        command
    });
    debugger.stdout.until("stopped");
    debugger
}

#[test]
fn metrics_count_waits_holds_and_renewals() {
    let service = Service::start(&[]);
    let hold = service.hold("x", r#"{"ttl_ms": 30000}"#);
    for _ in 0..4 {
        service.renew(&hold).is(200);
    }
    service.release(&hold).is(200);
    let metrics = service.ask("GET /metrics", "");
    assert_eq!(metrics.status, 200);
    for line in [
        "latchwork_wait_seconds_bucket{le=",
        "latchwork_hold_seconds_count 1",
        "latchwork_renewal_seconds_bucket{le=",
        "latchwork_http_requests_total{route=\"/v1/holds/{hold}/renew\",method=\"POST\",status=\"200\"} 4",
        "latchwork_client_holds 0",
    ] {
        assert!(metrics.text.contains(line), "{line}: {}", metrics.text);
    }
}

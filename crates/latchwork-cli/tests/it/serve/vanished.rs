//! A client whose host is gone: no packet comes from it any more, not even one that ends the connection.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::client::Address;
use crate::common::{Running, Store, eventually};

/// What a client does there: waits for a lock, and holds another one.
const CLIENT: &str = "import socket, sys\n\
    def ask(line, body):\n\
    \x20   s = socket.create_connection(('10.9.0.1', 7117))\n\
    \x20   s.sendall(f'{line} HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Type: application/json\\r\\n'\n\
    \x20       f'Content-Length: {len(body)}\\r\\n\\r\\n{body}'.encode())\n\
    \x20   return s\n\
    held = ask('POST /v1/locks/held', '{\"ttl_ms\": 8000}')\n\
    assert b' 200 ' in held.recv(4096)\n\
    waits = ask('POST /v1/locks/busy', '{\"wait_ms\": 600000, \"ttl_ms\": 60000}')\n\
    hears = ask('GET /v1/events', '')\n\
    hears.recv(4096)\n\
    print('asked', flush=True)\n\
    sys.stdin.read()\n";

/// A service in a network of its own, which a socket in the file system leads to as well.
fn in_a_network_of_its_own(store: &Store, socket: &Path) -> Running {
    let script = format!(
        "ip link set lo up && ip link add near type veth peer name far && ip addr add 10.9.0.1/24 dev near && \
         ip link set near address 02:00:00:00:00:01 up && ip neigh add 10.9.0.2 dev near lladdr 02:00:00:00:00:02 && \
         exec '{}' serve --insecure-plain-http --insecure-no-tokens --listen 10.9.0.1:7117 \
         --listen 'unix:{}'",
        env!("CARGO_BIN_EXE_latchwork"),
        socket.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "sh", "-c", &script]);
    let service = Running::start(store.at_this_store(command));
    service.stderr.until("ready");
    service
}

/// A command in the network of a process.
fn nsenter(process: &Running, words: &[&str]) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &process.child.id().to_string(), "--user", "--net"]);
    command.arg("--preserve-credentials").args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Another host, at the other end of a cable to the service, that runs a script.
fn host(service: &Running, script: &str) -> Running {
    let wait = "read up && ip link set lo up && ip addr add 10.9.0.2/24 dev far && \
         ip link set far address 02:00:00:00:00:02 up && ip neigh add 10.9.0.1 dev far lladdr 02:00:00:00:00:01 && \
         exec /usr/bin/python3 -c \"$0\"";
    let mut host = nsenter(service, &["unshare", "--net", "sh", "-c", wait, script]);
    let mut host = Running::start({
        host.stdin(Stdio::piped());
        host
    });
    let own = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/net")).ok();
    // It starts in that of this process, then enters that of the service, then makes its own.
    let others = [own(std::process::id()), own(service.child.id())];
    eventually("a network", || (!others.contains(&own(host.child.id()))).then_some(()));
    let pid = host.child.id().to_string();
    let mut plug = nsenter(service, &["ip", "link", "set", "far", "netns", &pid]);
    assert!(plug.output().unwrap().status.success());
    host.child.stdin.as_mut().unwrap().write_all(b"up\n").unwrap();
    host
}

/// 35 s for the request that waits and the stream of events, by keep-alives of TCP; its ttl for the hold.
#[test]
fn h163_a_client_whose_host_is_gone_keeps_nothing() {
    let (store, dir) = (Store::new(), tempfile::tempdir().unwrap());
    let path = dir.path().join("s");
    let service = in_a_network_of_its_own(&store, &path);
    let address = Address::Unix(path);
    let busy = address.ask("POST /v1/locks/busy", &[], r#"{"ttl_ms": 600000}"#);
    busy.is(200);
    let client = host(&service, CLIENT);
    client.stdout.until("asked");
    let lock = |name: &str| address.ask(&format!("GET /v1/locks/{name}"), &[], "").is(200).json();
    let waiters = || lock("busy")["waiters"].as_array().unwrap().len();
    eventually("a waiter", || (waiters() == 1).then_some(()));
    let streams = || {
        let metrics = address.ask("GET /metrics", &[], "").text;
        metrics
            .lines()
            .find_map(|it| it.strip_prefix("latchwork_event_streams "))
            .map(str::to_owned)
    };
    eventually("a stream", || (streams()? == "1").then_some(()));
    // From now on packets arrive at a host that has no such address: nothing answers them.
    let mut words = nsenter(&client, &["ip", "addr", "del", "10.9.0.2/24", "dev", "far"]);
    assert!(words.output().unwrap().status.success());
    let start = Instant::now();
    let elapsed = |what: &str, is_over: &dyn Fn() -> bool, limit: u64| {
        while !is_over() {
            assert!(start.elapsed() < Duration::from_secs(limit), "{what}");
            std::thread::sleep(Duration::from_millis(100));
        }
        start.elapsed()
    };
    elapsed("the hold", &|| lock("held")["held"] == false, 12);
    elapsed("the waiter", &|| lock("busy")["waiters"].as_array().unwrap().is_empty(), 45);
    elapsed("the stream", &|| streams().as_deref() == Some("0"), 60);
    eventually("a free lock", || {
        let answer = address.ask("POST /v1/locks/held", &[], "");
        (answer.status == 200).then_some(())
    });
}

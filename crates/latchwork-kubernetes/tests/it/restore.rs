//! The API server's data are set back while clients run: a restore of its etcd from a backup. And a server that
//! contradicts itself, as two clusters behind one address do.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use latchwork::{Error, ErrorKind, Guard, Lock, LostReason};
use latchwork_services::KubernetesServer;
use latchwork_store::doctor::Severity;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{at, client, examine, namespace, until};

const SEC: Duration = Duration::from_secs(1);

/// Restores etcd from a backup, as the documentation of Kubernetes says: the API server does not run meanwhile.
fn restore(server: &mut KubernetesServer, backup: &Path) {
    tokio::task::block_in_place(|| {
        server.kill();
        server.etcd().restart_from(backup).expect("a backup");
        server.restart().expect("it starts again");
    });
}

/// Versions go on after the backup.
fn write_on(server: &KubernetesServer, space: &str) {
    for n in 0..40 {
        let body = format!("{{\"metadata\":{{\"name\":\"m-{n}\"}}}}");
        server
            .request("POST", &format!("/api/v1/namespaces/{space}/configmaps"), &body)
            .expect("a map");
    }
}

/// As a campaign does, it comes again while the server is away.
async fn after_an_outage(mutex: Lock) -> Result<Guard, Error> {
    loop {
        match mutex.acquire().await {
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                tokio::time::sleep(SEC / 10).await;
            }
            ended => return ended,
        }
    }
}

/// Clients that run through a restore: a holder from before the backup goes on, one from after it learns of its loss, the
/// others respect it until then, and waiters are served. An object that the backup lacks is made anew by a process that
/// knew it, and the lock stays held. Nobody has to be restarted, and nobody hammers the server.
#[tokio::test(flavor = "multi_thread")]
async fn h237_a_restore_of_etcd_locks_no_running_process_out() {
    let mut server = KubernetesServer::start_audited().expect("an API server");
    let space = namespace(&server);
    let a = client(&server, &space).await.ttl(60 * SEC);
    let (b, idle) = (client(&server, &space).await.ttl(4 * SEC), client(&server, &space).await);
    let before = a.mutex("before").acquire().await.expect("it is free");
    b.mutex("k").acquire().await.expect("free").release().await.expect("held");
    let folder = tempfile::tempdir().expect("a folder");
    let backup = folder.path().join("backup");
    server.etcd().save(&backup).expect("a backup");

    let after = a.mutex("after").acquire().await.expect("it is free");
    let held = idle.mutex("k").ttl(4 * SEC).acquire().await.expect("it is free");
    let waits = tokio::spawn(after_an_outage(b.mutex("k")));
    let token = held.token();
    // The backup lacks this object, and this process knows it.
    let made = idle.mutex("made").acquire().await.expect("it is free");
    let made_before = made.token();
    made.release().await.expect("it is held");
    until("it has a place", 5 * SEC, async || {
        idle.inspect("k").await.is_ok_and(|seen| seen.waiters.len() == 1)
    })
    .await;
    write_on(&server, &space);
    restore(&mut server, &backup);
    let (ready, asked) = (Instant::now(), server.lease_requests(&space).expect("a log"));
    let made = after_an_outage(idle.mutex("made").ttl(6 * SEC));
    let made = tokio::time::timeout(10 * SEC, made);
    let made = made.await.expect("it is reached").expect("it is free");
    assert!(made.token() > made_before, "{} after {made_before}", made.token());

    let lost = tokio::time::timeout(10 * SEC, after.lost()).await.expect("the guard is notified");
    assert_eq!(lost.reason, LostReason::Taken, "its own clock is not over");
    println!("told of its loss {:?} after the restore", ready.elapsed());
    let next = tokio::time::timeout(15 * SEC, waits).await.expect("it looks");
    let next = next.expect("no panic").expect("its turn");
    println!("served {:?} after the restore", ready.elapsed());
    assert!(
        next.token() > token,
        "{} after {token}: a process that has seen it gives no smaller one",
        next.token()
    );
    // The holder of that time has its lock, and renews it.
    until("it was renewed", 10 * SEC, async || before.ensure_held().is_ok()).await;
    let other = client(&server, &space).await;
    assert!(other.mutex("before").try_acquire().await.expect("no fault").is_none());
    // Those that had seen the lost hold respect it for its ttl. One that starts now cannot know of it.
    assert!(idle.mutex("after").try_acquire().await.expect("no fault").is_none());
    let free = other.mutex("after").try_acquire().await.expect("no fault").expect("it is free");
    free.release().await.expect("it is held");
    // What goes on now is as cheap as ever.
    while ready.elapsed() < 15 * SEC {
        tokio::time::sleep(SEC).await;
    }
    // Made anew, and renewed more than once since.
    assert!(made.ensure_held().is_ok(), "{:?}", made.state());
    assert!(other.mutex("made").try_acquire().await.expect("no fault").is_none());
    let asked = server.lease_requests(&space).expect("a log") - asked;
    println!("{asked} requests of four clients in {:?}", ready.elapsed());
    assert!(asked < 60, "{asked} requests");
    for guard in [next, before, made] {
        guard.release().await.expect("it is held");
    }
}

/// A server that refuses each write of a lease as outdated, and shows no newer version.
async fn contradicting(space: &'static str) -> (String, Arc<AtomicU32>, tempfile::TempDir) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\nclusters:\n- name: test\n  cluster:\n    server: \
         http://127.0.0.1:{port}\nusers:\n- name: test\n  user: {{}}\ncontexts:\n- name: test\n  context:\n    cluster: \
         test\n    user: test\n"
    );
    std::fs::write(&file, text).expect("a file");
    let writes = Arc::new(AtomicU32::new(0));
    let counted = writes.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, space, counted.clone()));
        }
    });
    (format!("k8s://test/{space}?kubeconfig={}", file.display()), writes, folder)
}

async fn serve(mut stream: TcpStream, space: &str, counted: Arc<AtomicU32>) {
    let mut read = Vec::new();
    loop {
        let mut some = [0; 4_096];
        let length = stream.read(&mut some).await.unwrap_or(0);
        if length == 0 {
            return;
        }
        read.extend_from_slice(&some[..length]);
        let text = String::from_utf8_lossy(&read).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let body_length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        if body.len() < body_length.unwrap_or(0) {
            continue;
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let (status, answer) = if path.contains("watch=1") {
            // No loss is reported.
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            return std::future::pending().await;
        } else if path.contains("limit=1") {
            ("200 OK", "{\"metadata\":{\"resourceVersion\":\"100\"},\"items\":[]}".to_owned())
        } else {
            counted.fetch_add(1, Ordering::SeqCst);
            match head.starts_with("GET") {
                true => (
                    "200 OK",
                    format!(
                        "{{\"metadata\":{{\"name\":\"k\",\"namespace\":\"{space}\",\"resourceVersion\":\"90\"}},\
                         \"spec\":{{}}}}"
                    ),
                ),
                false => {
                    ("409 Conflict", "{\"message\":\"the object has been modified\"}".to_owned())
                }
            }
        };
        let length = answer.len();
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{answer}");
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        read.clear();
    }
}

/// Two clients campaign at a server whose reads and writes do not fit each other.
#[tokio::test(flavor = "multi_thread")]
async fn h238_a_server_that_contradicts_itself_is_asked_rarely() {
    let (url, asked, _folder) = contradicting("shop").await;
    let (a, b) = (at(&url).await, at(&url).await);
    let limit = 10 * SEC;
    let [a, b] = [a, b].map(|locks| locks.election("k").ttl(3 * SEC));
    let (one, two) = tokio::join!(a.campaign_within(limit), b.campaign_within(limit));
    let (one, two) = (one.expect_err("refused"), two.expect_err("refused"));
    let asked = asked.load(Ordering::SeqCst);
    println!("{asked} requests of two clients in {limit:?}: {one}");
    assert!(asked <= 20, "{asked} requests");
    for error in [one, two] {
        let said = error.to_string();
        assert!(said.contains("contradicts itself about the Lease shop/k"), "{said}");
        let step = "check that all API servers behind this address share one etcd, and whether it is being restored";
        assert!(said.contains(step), "{said}");
    }
}

/// What answers is no API server: it says no version of Kubernetes, and not what time it is.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_a_server_that_is_no_api_server() {
    let (url, _, _folder) = contradicting("shop").await;
    let report = examine(&url).await;
    for (code, remedy) in [
        ("version", "check the address"),
        ("clock", "set proxies in front of the API server to pass the Date header on"),
    ] {
        let found = report.find(code).unwrap_or_else(|| panic!("{report:#?}"));
        assert_eq!((found.severity, &*found.remedy), (Severity::Warning, remedy), "{report:#?}");
    }
}

//! Logins that change, are slow to get, or cannot be got; and what errors say of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::{Driver, ErrorKind, LockManager};
use latchwork_kubernetes::{KubernetesBackend, KubernetesConfig, doctor};
use latchwork_services::ADMIN;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::common::{at, namespace, shared, until};

const SEC: Duration = Duration::from_secs(1);

/// A server that has no leases, and takes one token.
struct Api {
    port: u16,
    accepted: Arc<Mutex<String>>,
}

impl Api {
    async fn start(token: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let accepted = Arc::new(Mutex::new(token.to_owned()));
        let tokens = accepted.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, tokens.clone()));
            }
        });
        Self { port, accepted }
    }

    fn accept(&self, token: &str) {
        token.clone_into(&mut self.accepted.lock().expect("no panic"));
    }
}

async fn serve(stream: TcpStream, accepted: Arc<Mutex<String>>) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut head, mut length) = (String::new(), 0);
        while !head.ends_with("\r\n\r\n") {
            let begin = head.len();
            if stream.read_line(&mut head).await.ok()? == 0 {
                return None;
            }
            let line = head[begin..].to_ascii_lowercase();
            if let Some(told) = line.strip_prefix("content-length:") {
                length = told.trim().parse().ok()?;
            }
        }
        stream.read_exact(&mut vec![0; length]).await.ok()?;
        let bearer = format!("bearer {}\r\n", accepted.lock().ok()?).to_ascii_lowercase();
        let (status, body) = match head.to_ascii_lowercase().contains(&bearer) {
            true => ("200 OK", r#"{"metadata":{"resourceVersion":"1000"},"items":[]}"#),
            false => ("401 Unauthorized", r#"{"message":"Unauthorized"}"#),
        };
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}

/// A folder with a kubeconfig.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A plugin that does this.
    fn plugin(&self, script: &str) -> PathBuf {
        let path = self.path("plug-in");
        fs::write(&path, format!("#!/bin/sh\ncd {}\n{script}\n", self.0.path().display()))
            .expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
        path
    }

    /// Writes the kubeconfig; the address of its context.
    fn write(&self, cluster: &str, user: &str) -> String {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: k\n  cluster: {cluster}\n\
             users:\n- name: u\n  user: {user}\ncontexts:\n- name: c\n  context: {{cluster: k, user: u}}\n"
        );
        let new = self.path("new");
        fs::write(&new, text).expect("a file");
        fs::rename(&new, self.path("config")).expect("a file");
        self.url("shop")
    }

    fn url(&self, space: &str) -> String {
        format!("k8s://c/{space}?kubeconfig={}", self.path("config").display())
    }
}

/// A user of a kubeconfig whose login a plugin prints.
fn user_of(plugin: &Path) -> String {
    format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {}, args: [--key, s3cret], \
         env: [{{name: KEY, value: s3cret}}], interactiveMode: IfAvailable}}}}",
        plugin.display()
    )
}

/// Opens a store, and returns the error with all that can be printed of it.
async fn refusal(url: &str) -> (ErrorKind, String) {
    let driver = Driver::start().expect("a driver");
    let config = KubernetesConfig::parse(url).expect("a good address");
    let opened = KubernetesBackend::connect(config.clone(), driver.io()).await;
    let error = opened.expect_err("it has no login");
    let examined = doctor(config, driver.io()).await;
    (error.kind(), format!("{error} {error:?} {:?} {examined:?}", error.next_step()))
}

/// H500: a plugin that fails, a kubeconfig with a fault, a proxy with a user.
#[tokio::test(flavor = "multi_thread")]
async fn h500_no_error_repeats_a_secret_of_a_kubeconfig() {
    let folder = Folder::new();
    let here = "{server: 'http://127.0.0.1:1'}";
    let fails = folder.plugin("echo s3cret; echo s3cret >&2; exit 3");
    let url = folder.write(here, &user_of(&fails));
    let (kind, said) = refusal(&url).await;
    assert_eq!(kind, ErrorKind::Unreachable, "{said}");
    assert!(said.contains("plug-in") && said.contains("exit status 3"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    for (cluster, user, words) in [
        (here, "\n    token: s3cret\n    username: [s3cret]\n    password: s3cret", "line "),
        (here, "{token: \"s3cret", "line "),
        (
            "{server: 'https://h', proxy-url: 'http://me:s3cret@proxy:3128'}",
            "{}",
            "http://proxy:3128",
        ),
        ("{server: 'https://h', proxy-url: 'http://s3cret@ /'}", "{}", "cannot be read"),
        (here, "{client-certificate-data: s3cret-, client-key-data: s3cret-}", "base64"),
    ] {
        let (kind, said) = refusal(&folder.write(cluster, user)).await;
        assert_eq!(kind, ErrorKind::Invalid, "{said}");
        assert!(said.contains(words) && !said.contains("s3cret"), "{said}");
    }
}

/// H501: the program that a plugin asks is not there yet.
#[tokio::test(flavor = "multi_thread")]
async fn h501_a_plugin_that_failed_at_the_start_is_tried_again() {
    let folder = Folder::new();
    let api = Api::start("good").await;
    let plugin =
        folder.plugin("test -e ready || exit 1\necho '{\"status\": {\"token\": \"good\"}}'");
    let cluster = format!("{{server: 'http://127.0.0.1:{}'}}", api.port);
    let url = folder.write(&cluster, &user_of(&plugin));
    let (kind, said) = refusal(&url).await;
    // The command waits for what is unreachable, and ends at once for what is wrong.
    assert_eq!(kind, ErrorKind::Unreachable, "{said}");
    assert!(!said.contains("API server is running"), "{said}");
    fs::write(folder.path("ready"), "").expect("a file");
    assert!(at(&url).await.list("").await.expect("it has a login").is_empty());
}

/// Lists at once, so many times.
async fn at_once(locks: &LockManager, many: usize) {
    let mut tasks = JoinSet::new();
    for _ in 0..many {
        let locks = locks.clone();
        tasks.spawn(async move { locks.list("").await.map(drop) });
    }
    for ended in tasks.join_all().await {
        ended.expect("the new token is accepted");
    }
}

/// H502: the token is replaced just after the store was opened, and twice after that.
#[tokio::test(flavor = "multi_thread")]
async fn h502_requests_at_once_all_use_a_rotated_token() {
    let folder = Folder::new();
    let api = Api::start("tok1").await;
    let cluster = format!("{{server: 'http://127.0.0.1:{}'}}", api.port);
    let url = folder.write(&cluster, "{token: tok1}");
    let locks = at(&url).await;
    for token in ["tok2", "tok3"] {
        folder.write(&cluster, &format!("{{token: {token}}}"));
        api.accept(token);
        at_once(&locks, 12).await;
        tokio::time::sleep(SEC + SEC / 10).await;
    }
    // A plugin takes its time, and all requests wait for one run of it.
    let plugin =
        folder.plugin("echo x >> runs; sleep 0.4; echo '{\"status\": {\"token\": \"tok4\"}}'");
    folder.write(&cluster, &user_of(&plugin));
    api.accept("tok4");
    at_once(&locks, 12).await;
    assert_eq!(fs::read_to_string(folder.path("runs")).expect("it ran"), "x\n");
}

/// H503: the login ends soon, and the plugin that would give the next one waits for input and hangs.
#[tokio::test(flavor = "multi_thread")]
async fn h503_a_plugin_that_hangs_costs_no_hold() {
    let server = shared();
    let space = namespace(server);
    let folder = Folder::new();
    let plugin = folder.plugin(&format!(
        "echo $$ >> runs\nif test -e hang; then cat; sleep 100; fi\n\
         until=$(date -u -d '+12 seconds' +%Y-%m-%dT%H:%M:%SZ)\n\
         echo '{{\"status\": {{\"token\": \"{ADMIN}\", \"expirationTimestamp\": \"'$until'\"}}}}'"
    ));
    let authority = server.folder().join("certificates/apiserver.crt");
    let cluster = format!(
        "{{server: 'https://127.0.0.1:{}', certificate-authority: {}}}",
        server.port(),
        authority.display()
    );
    folder.write(&cluster, &user_of(&plugin));
    let locks = at(&folder.url(&space)).await;
    let guard = locks.mutex("k").ttl(3 * SEC).acquire().await.expect("it is free");
    fs::write(folder.path("hang"), "").expect("a file");
    let runs = || fs::read_to_string(folder.path("runs")).expect("it ran").lines().count();
    until("the plugin is run ahead", 15 * SEC, async || runs() == 2).await;
    let hangs_since = Instant::now();
    let last = fs::read_to_string(folder.path("runs")).expect("it ran");
    let last = PathBuf::from(format!("/proc/{}", last.lines().last().expect("a line")));
    let mut longest = Duration::ZERO;
    while hangs_since.elapsed() < 8 * SEC {
        let begun = Instant::now();
        locks.list("").await.expect("the old login is good");
        longest = longest.max(begun.elapsed());
        tokio::time::sleep(SEC / 10).await;
    }
    assert!(longest < SEC, "{longest:?}");
    assert!(last.exists() && runs() == 2, "it still hangs");
    until("the plugin is killed", 5 * SEC, async || !last.exists()).await;
    guard.ensure_held().expect("it was renewed with the old login");
    guard.release().await.expect("it is held");
}

/// H503: the old login is refused while the plugin hangs.
#[tokio::test(flavor = "multi_thread")]
async fn h503_a_plugin_that_hangs_is_named() {
    let folder = Folder::new();
    let api = Api::start("tok1").await;
    let cluster = format!("{{server: 'http://127.0.0.1:{}'}}", api.port);
    let plugin =
        folder.plugin("test -e hang && sleep 100; echo '{\"status\": {\"token\": \"tok1\"}}'");
    let locks = at(&folder.write(&cluster, &user_of(&plugin))).await;
    fs::write(folder.path("hang"), "").expect("a file");
    api.accept("tok2");
    let error = locks.list("").await.expect_err("there is no login");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("`plug-in`"), "{error}");
}

/// H505: the token is refused while the kubeconfig is half written.
#[tokio::test(flavor = "multi_thread")]
async fn h505_a_kubeconfig_that_is_being_written_is_read_again() {
    let folder = Folder::new();
    let api = Api::start("tok1").await;
    let cluster = format!("{{server: 'http://127.0.0.1:{}'}}", api.port);
    let locks = at(&folder.write(&cluster, "{token: tok1}")).await;
    api.accept("tok2");
    fs::write(folder.path("config"), "users:\n- name: u\n  user: {token: s3cret").expect("a file");
    let error = locks.list("").await.expect_err("there is no login");
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.to_string().contains("kubeconfig") && !error.to_string().contains("s3cret"),
        "{error}"
    );
    folder.write(&cluster, "{token: tok2}");
    until("it is read again", 5 * SEC, async || locks.list("").await.is_ok()).await;
}

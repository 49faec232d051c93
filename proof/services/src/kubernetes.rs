//! A Kubernetes API server over an etcd server.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::folder::Folder;
use crate::port::{Port, despite_collisions};
use crate::process::{Process, await_ready, go, is_a_process, provided, said};
use crate::tls::openssl;
use crate::wait::is_open;
use crate::{Error, EtcdOptions, EtcdServer, Result};

const ETCD: &str = "--etcd-servers=";
/// The pause between two questions whether a server is ready.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(100);
const AUDIT_LOG: &str = "audit.log";
/// Who asked what about Leases, at the end of each answer; of a watch also at its begin.
const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{ group: coordination.k8s.io, resources: [leases] }]
- level: None
";

/// The token of a user that may do everything.
pub const ADMIN: &str = "token-of-the-administrator";
/// The token of another one, `other`, whose requests are counted apart.
pub const OTHER_ADMIN: &str = "token-of-another-administrator";
/// The token of `user`, who may do nothing until a role is given.
pub const USER: &str = "token-of-a-user";

/// A kube-apiserver over an etcd server of its own, without any controller. Dropping it kills both.
///
/// Its process is that of the API server; [`etcd`](Self::etcd) is the other one.
#[derive(Debug)]
pub struct KubernetesServer {
    process: Process,
    /// That of another one if there is none.
    etcd: Option<EtcdServer>,
    program: PathBuf,
    args: Vec<String>,
    port: Port,
    // Last: it is removed when the process is gone.
    folder: Folder,
}

is_a_process!(KubernetesServer);

impl KubernetesServer {
    /// Starts both servers and waits until the API server is ready. If there is no kube-apiserver yet, it is
    /// built first, which takes minutes.
    ///
    /// # Errors
    ///
    /// If one does not become ready, or cannot be built; the text says why.
    pub fn start() -> Result<Self> {
        Self::start_version("kube-apiserver")
    }

    /// Starts one of this version, such as `kube-apiserver@1.31.4`.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start).
    pub fn start_version(name: &str) -> Result<Self> {
        Self::launch(name, |_| Ok(Vec::new()))
    }

    /// Starts one with further options of kube-apiserver, such as `--max-requests-inflight=1`.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_with(options: &[&str]) -> Result<Self> {
        let options: Vec<String> = options.iter().map(ToString::to_string).collect();
        Self::launch("kube-apiserver", |_| Ok(options))
    }

    /// Starts one that writes each request about a Lease into a log, for [`lease_requests`](Self::lease_requests).
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn start_audited() -> Result<Self> {
        Self::launch("kube-apiserver", |folder| {
            let (policy, log) = (folder.join("audit.yaml"), folder.join(AUDIT_LOG));
            fs::write(&policy, AUDIT_POLICY)?;
            let policy = format!("--audit-policy-file={}", policy.display());
            Ok(vec![policy, format!("--audit-log-path={}", log.display())])
        })
    }

    fn launch(name: &str, options: impl FnOnce(&Path) -> Result<Vec<String>>) -> Result<Self> {
        let program = PathBuf::from(provided(name)?);
        let etcd = EtcdServer::start(&EtcdOptions::new())?;
        let folder = Folder::new()?;
        let path = folder.path();
        let key = path.join("sa.key").to_string_lossy().into_owned();
        let public = path.join("sa.pub").to_string_lossy().into_owned();
        openssl(&["genrsa", "-out", &key, "2048"])?;
        openssl(&["rsa", "-in", &key, "-pubout", "-out", &public])?;
        let tokens = path.join("tokens.csv");
        let admin = |token: &str, name: &str| format!("{token},{name},{name},\"system:masters\"\n");
        let user = format!("{USER},user,user\n");
        fs::write(&tokens, admin(ADMIN, "admin") + &admin(OTHER_ADMIN, "other") + &user)?;
        let mut common: Vec<String> = [
            ("bind-address", "127.0.0.1"),
            ("cert-dir", &path.join("certificates").to_string_lossy()),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", &public),
            ("service-account-signing-key-file", &key),
            ("token-auth-file", &tokens.to_string_lossy()),
            ("authorization-mode", "RBAC"),
            ("service-cluster-ip-range", "10.0.0.0/24"),
            ("endpoint-reconciler-type", "none"),
            // There is no controller that would give each namespace its account.
            ("disable-admission-plugins", "ServiceAccount"),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        common.extend(options(path)?);
        let (process, args, port) = start_at(&program, &common, etcd.port(), path)?;
        let etcd = Some(etcd);
        Ok(Self { process, etcd, program, args, port, folder })
    }

    /// Starts a second API server over the same data, which it reads from an etcd server at this port: that of the
    /// first one, or of a proxy before it. Clients of the first one trust it.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn beside(&self, etcd: u16) -> Result<Self> {
        let own = |arg: &&String| !arg.starts_with("--secure-port=") && !arg.starts_with(ETCD);
        let mut common: Vec<String> = self.args.iter().filter(own).cloned().collect();
        let certificates = self.folder.path().join("certificates");
        let file = |name: &str| certificates.join(name).display().to_string();
        common.push(format!("--tls-cert-file={}", file("apiserver.crt")));
        common.push(format!("--tls-private-key-file={}", file("apiserver.key")));
        let (program, folder) = (self.program.clone(), Folder::new()?);
        let (process, args, port) = start_at(&program, &common, etcd, folder.path())?;
        Ok(Self { process, etcd: None, program, args, port, folder })
    }

    /// The port of the API server, which speaks TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The etcd server under it.
    ///
    /// # Panics
    ///
    /// If it was started beside another one, which has it.
    pub fn etcd(&mut self) -> &mut EtcdServer {
        self.etcd.as_mut().expect("a server with an etcd server of its own")
    }

    /// The folder with its `log`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Kills the API server if it runs, and starts it again.
    ///
    /// # Errors
    ///
    /// If it does not become ready.
    pub fn restart(&mut self) -> Result<()> {
        // Its hook `rbac/bootstrap-roles` may wait for ever after a crash. Kubelet starts such a server again, too.
        self.start_again().or_else(|_| self.start_again())
    }

    fn start_again(&mut self) -> Result<()> {
        self.kill();
        self.process = spawn(&self.program, &self.args, self.folder.path())?;
        self.await_ready()
    }

    /// Kills the API server and starts another version in its place, and waits until that one is ready. Asked to
    /// end, it would first wait a minute for those who watch.
    ///
    /// # Errors
    ///
    /// If the other one does not become ready.
    pub fn upgrade(&mut self, name: &str) -> Result<()> {
        self.program = PathBuf::from(provided(name)?);
        self.restart()
    }

    /// Waits until the API server is ready.
    ///
    /// # Errors
    ///
    /// If it does not become ready; the text has the end of its log.
    pub fn await_ready(&mut self) -> Result<()> {
        await_server(&mut self.process, self.port.number())
    }

    /// Writes a kubeconfig for the user of a token, and the server at this port: that of the server, or of a
    /// proxy before it. Its one context is called `test`.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn kubeconfig(&self, name: &str, token: &str, port: u16) -> Result<PathBuf> {
        let path = self.folder.path().join(format!("{name}.kubeconfig"));
        let authority = self.folder.path().join("certificates/apiserver.crt");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters:\n- name: test\n  cluster:\n    server: https://127.0.0.1:{port}\n    certificate-authority: {}\n\
             users:\n- name: test\n  user:\n    token: {token}\n\
             contexts:\n- name: test\n  context:\n    cluster: test\n    user: test\n",
            authority.display()
        );
        // A reader sees the old file or the new one.
        let new = tempfile::NamedTempFile::new_in(self.folder.path())?;
        fs::write(&new, text)?;
        new.persist(&path).map_err(|e| Error::while_(path.display(), e))?;
        Ok(path)
    }

    /// The address for Latchwork of a namespace, as the administrator.
    ///
    /// # Errors
    ///
    /// If the kubeconfig cannot be written.
    pub fn url(&self, namespace: &str) -> Result<String> {
        let file = self.kubeconfig("admin", ADMIN, self.port())?;
        Ok(format!("k8s://test/{namespace}?kubeconfig={}", file.display()))
    }

    /// Sends a request as the administrator, with a body of JSON unless it is empty; the answer's body.
    ///
    /// # Errors
    ///
    /// If the server does not answer, or refuses; the text has its words.
    pub fn request(&self, method: &str, path: &str, body: &str) -> Result<String> {
        let content = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        ask(self.port(), method, path, body, content)
    }

    /// How many requests about Leases of a namespace an audited server has answered. A watch is one.
    ///
    /// # Errors
    ///
    /// If there is no log.
    pub fn lease_requests(&self, namespace: &str) -> Result<usize> {
        self.lease_requests_with(namespace, "")
    }

    /// The same of one user: `admin` or `other`.
    ///
    /// # Errors
    ///
    /// As [`lease_requests`](Self::lease_requests).
    pub fn lease_requests_by(&self, namespace: &str, user: &str) -> Result<usize> {
        self.lease_requests_with(namespace, &format!("\"username\":\"{user}\""))
    }

    /// How many of them were watches.
    ///
    /// # Errors
    ///
    /// As [`lease_requests`](Self::lease_requests).
    pub fn lease_watches(&self, namespace: &str) -> Result<usize> {
        self.lease_requests_with(namespace, "\"verb\":\"watch\"")
    }

    fn lease_requests_with(&self, namespace: &str, words: &str) -> Result<usize> {
        let path = self.folder.path().join(AUDIT_LOG);
        let log = fs::read_to_string(&path).map_err(|e| Error::while_(path.display(), e))?;
        let here = format!("\"namespace\":\"{namespace}\"");
        let ids = log.lines().filter(|line| line.contains(&here) && line.contains(words));
        let ids = ids.filter_map(audit_id);
        // A watch has a line for its begin and one for its end.
        Ok(ids.collect::<HashSet<_>>().len())
    }

    /// Creates an object from YAML, as the administrator.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn create_yaml(&self, path: &str, body: &str) -> Result<String> {
        ask(self.port(), "POST", path, body, "application/yaml")
    }

    /// Makes a namespace.
    ///
    /// # Errors
    ///
    /// As [`request`](Self::request).
    pub fn make_namespace(&self, name: &str) -> Result<()> {
        let body = format!("{{\"metadata\":{{\"name\":\"{name}\"}}}}");
        self.request("POST", "/api/v1/namespaces", &body).map(drop)
    }
}

fn audit_id(line: &str) -> Option<&str> {
    line.split_once("\"auditID\":\"")?.1.split('"').next()
}

/// Starts the API server on a port that is free.
fn start_at(
    program: &Path,
    common: &[String],
    etcd: u16,
    folder: &Path,
) -> Result<(Process, Vec<String>, Port)> {
    despite_collisions(|| {
        let port = Port::reserve()?;
        let mut args = common.to_vec();
        args.push(format!("{ETCD}http://127.0.0.1:{etcd}"));
        args.push(format!("--secure-port={}", port.number()));
        let mut process = spawn(program, &args, folder)?;
        await_server(&mut process, port.number())?;
        Ok((process, args, port))
    })
}

fn spawn(program: &Path, args: &[String], folder: &Path) -> Result<Process> {
    let mut command = go(program);
    command.args(args);
    Process::start(&command, &folder.join("log"))
}

fn await_server(mut process: &mut Process, port: u16) -> Result<()> {
    let ask = |path| ask(port, "GET", path, "", "application/json");
    await_ready(&mut process, &format!("kube-apiserver on port {port}"), |_| {
        let ready = is_open(port).and_then(|()| ask("/readyz"));
        // The namespace that everybody expects is made a moment later.
        ready.and_then(|_| ask("/api/v1/namespaces/default")).inspect_err(|_| {
            // A start takes seconds, and each question a process with a handshake of TLS.
            std::thread::sleep(BETWEEN_QUESTIONS);
        })
    })
}

fn ask(port: u16, method: &str, path: &str, body: &str, content: &str) -> Result<String> {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--insecure", "--fail-with-body"]);
    command.args(["--max-time", "30"]);
    command.args(["--request", method, "--header", &format!("Authorization: Bearer {ADMIN}")]);
    if !body.is_empty() {
        command.args(["--header", &format!("Content-Type: {content}"), "--data-binary", body]);
    }
    said("curl", command.arg(format!("https://127.0.0.1:{port}{path}")))
}

//! A Kubernetes API server over an etcd server, as `docs/kubernetes.md` describes it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{ADMIN, KubernetesServer, Result, USER};
use serde_json::{Value, json};

use super::network::{self, Reach, Reached};
use super::{ServerLog, TWO_HOLDERS, the};
use crate::faults::Nemesis;
use crate::luck::Luck;
use crate::pause::pause;
use crate::repeated::Repeated;

const NAMESPACE: &str = "nemesis";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/nemesis/leases";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/nemesis";
/// The rights of `docs/kubernetes.md`.
const VERBS: &[&str] = &["get", "list", "watch", "create", "update"];

/// Both servers. The workers reach the API server through proxies, as a user with the least rights.
#[derive(Debug)]
pub struct Kubernetes {
    server: Arc<Mutex<KubernetesServer>>,
    reach: Reach,
    /// By the way to the API server. A kubeconfig file names the way.
    addresses: BTreeMap<String, String>,
}

impl Kubernetes {
    /// Starts both servers, to be used with these options of a Latchwork address.
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(options: &str) -> io::Result<Self> {
        let server = KubernetesServer::start()?;
        let reach = Reach::open(&[server.port()], options)?;
        prepare(&server)?;
        let mut addresses = BTreeMap::new();
        let workers = reach.ways.sides.iter().map(|side| (&side[0], USER));
        for (way, token) in workers.chain([(reach.ways.own(0), ADMIN)]) {
            let port = way.port();
            let file = server.kubeconfig(&format!("way-{port}"), token, port);
            let address = address(&file?, options);
            addresses.insert(network::hosts(std::slice::from_ref(way)), address);
        }
        Ok(Self { server: Arc::new(Mutex::new(server)), reach, addresses })
    }
}

fn address(kubeconfig: &Path, options: &str) -> String {
    let more = if options.is_empty() { String::new() } else { format!("&{options}") };
    format!("k8s://test/{NAMESPACE}?kubeconfig={}{more}", kubeconfig.display())
}

/// Makes the namespace, and gives the user of the workers its rights.
fn prepare(server: &KubernetesServer) -> Result<()> {
    server.make_namespace(NAMESPACE)?;
    server.request("POST", &format!("{RBAC}/roles"), &role(VERBS))?;
    let binding = json!({
        "metadata": { "name": "workers" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "workers" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "user" }],
    });
    server.request("POST", &format!("{RBAC}/rolebindings"), &binding.to_string()).map(drop)
}

fn role(verbs: &[&str]) -> String {
    let rule = json!({
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs,
    });
    let rules = if verbs.is_empty() { json!([]) } else { json!([rule]) };
    json!({ "metadata": { "name": "workers" }, "rules": rules }).to_string()
}

impl Reached for Kubernetes {
    const FAULTS: &'static [&'static str] =
        &["crash", "freeze", "etcd-kill", "etcd-stop", "rights", "touch", "strip", "delete"];

    fn excused_with(fault: &str, _: &str) -> &'static [&'static str] {
        match fault {
            // The watch tells the holder afterwards, or its next renewal does.
            "delete" | "strip" => TWO_HOLDERS,
            _ => &[],
        }
    }

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn address(&self, hosts: &str) -> String {
        self.addresses[hosts].clone()
    }

    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        of(&self.server, fault, ttl)
    }

    fn own_logs(&self) -> Vec<ServerLog> {
        let mut server = the(&self.server);
        vec![ServerLog::of("etcd", server.etcd()), ServerLog::of("apiserver", &server)]
    }
}

/// The fault of this name, if it is one of the servers or of what they keep.
fn of(
    server: &Arc<Mutex<KubernetesServer>>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    type Act = fn(&mut KubernetesServer, &mut Luck, Duration) -> Result<()>;
    let server = server.clone();
    let fault = move |name, often, act: Act| {
        Repeated::boxed(name, often, move |luck| act(&mut the(&server), luck, ttl))
    };
    let (seldom, often) = (ttl / 2..ttl * 2, ttl / 20..ttl / 4);
    Some(match name {
        "crash" => fault("crash", seldom, |server, _, _| server.restart()),
        "freeze" => fault("freeze", seldom, |server, luck, ttl| {
            server.stop()?;
            pause(luck.times(ttl, 0.1..1.3));
            server.cont()
        }),
        "etcd-kill" => fault("etcd-kill", seldom, |server, luck, ttl| {
            server.etcd().kill();
            pause(luck.times(ttl, 0.0..0.5));
            server.etcd().restart()?;
            server.await_ready()
        }),
        "etcd-stop" => fault("etcd-stop", seldom, |server, luck, ttl| {
            server.etcd().stop()?;
            pause(luck.times(ttl, 0.1..1.3));
            server.etcd().cont()
        }),
        "rights" => fault("rights", seldom, |server, luck, ttl| {
            let path = format!("{RBAC}/roles/workers");
            server.request("PUT", &path, &role(&[]))?;
            pause(luck.times(ttl, 0.1..1.0));
            server.request("PUT", &path, &role(VERBS)).map(drop)
        }),
        "touch" => fault("touch", often, |server, luck, _| {
            let note =
                json!({ "metadata": { "annotations": { "seen": luck.next().to_string() } } });
            with_one(server, luck, |path| server.request("PATCH", path, &note.to_string()))
        }),
        "strip" => fault("strip", often, |server, luck, _| {
            let bare = json!({ "metadata": { "annotations": null } }).to_string();
            with_one(server, luck, |path| server.request("PATCH", path, &bare))
        }),
        "delete" => fault("delete", often, |server, luck, _| {
            with_one(server, luck, |path| server.request("DELETE", path, ""))
        }),
        _ => return None,
    })
}

/// Does something with a Lease, if there is one.
fn with_one(
    server: &KubernetesServer,
    luck: &mut Luck,
    act: impl FnOnce(&str) -> Result<String>,
) -> Result<()> {
    let list: Value = serde_json::from_str(&server.request("GET", LEASES, "")?).unwrap_or_default();
    let leases = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    match leases.get(luck.below(leases.len())).and_then(|lease| lease["metadata"]["name"].as_str())
    {
        Some(name) => act(&format!("{LEASES}/{name}")).map(drop),
        None => Ok(()),
    }
}

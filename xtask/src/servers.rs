//! Builds the servers that tests run on and that the system has not, or has in an older version.

use std::path::Path;
use std::process::Command;

/// A server, and the script that builds it unless it is there; the script prints its path.
struct Server {
    name: &'static str,
    version: &'static str,
    script: &'static str,
}

/// All that the tests need.
const SERVERS: &[Server] = &[
    Server { name: "etcd", version: "3.7.3", script: "proof/services/etcd/build" },
    Server {
        name: "kube-apiserver",
        version: "1.31.4",
        script: "proof/services/kube-apiserver/build",
    },
];

/// Builds these, or all.
pub(crate) fn run(wanted: &[String]) -> Result<(), String> {
    let chosen = wanted.iter().map(|wanted| find(wanted)).collect::<Result<Vec<_>, _>>()?;
    let all = SERVERS.iter().collect();
    for server in if chosen.is_empty() { all } else { chosen } {
        build(server)?;
    }
    Ok(())
}

/// The server of this name, whatever its version, or of this name and version.
fn find(wanted: &str) -> Result<&'static Server, String> {
    let (name, version) = wanted.split_once('@').map_or((wanted, None), |(n, v)| (n, Some(v)));
    let is_it = |server: &&Server| {
        server.name == name && version.is_none_or(|version| version == server.version)
    };
    SERVERS.iter().find(is_it).ok_or_else(|| {
        let all: Vec<_> = SERVERS.iter().map(|s| format!("{}@{}", s.name, s.version)).collect();
        format!("there is no server {wanted:?} to build; choose from {}", all.join(", "))
    })
}

fn build(server: &Server) -> Result<(), String> {
    let script = crate::stages::root().join(server.script);
    let status = Command::new("sh").arg(&script).status();
    let status = status.map_err(|e| format!("{}: {e}", script.display()))?;
    let Server { name, version, .. } = server;
    if status.success() { Ok(()) } else { Err(format!("{name} {version} was not built")) }
}

/// Whether the API server of Kubernetes was built before; what is being built has another name.
pub(crate) fn has_kube_apiserver() -> bool {
    has_kube_apiserver_in(&crate::stages::root().join("target/kube-apiserver"))
}

fn has_kube_apiserver_in(folder: &Path) -> bool {
    let is_built = |name: &str| name.starts_with("kube-apiserver-") && !name.ends_with(".new");
    std::fs::read_dir(folder).is_ok_and(|entries| {
        let mut names = entries.flatten().map(|entry| entry.file_name());
        names.any(|name| is_built(&name.to_string_lossy()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_versions_that_are_built() {
        for Server { name, version, script } in SERVERS {
            let modules = crate::stages::root().join(script).with_file_name("go.mod");
            let modules = std::fs::read_to_string(modules).unwrap();
            let (etcd, kubernetes) = ("go.etcd.io/etcd/server/v3", "k8s.io/kubernetes");
            let module = if *name == "etcd" { etcd } else { kubernetes };
            let line = format!("{module} v{version}");
            assert!(modules.contains(&line), "{script} does not build {line}");
        }
    }

    #[test]
    fn a_server_is_found_with_or_without_its_version() {
        assert_eq!(find("etcd").unwrap().script, find("etcd@3.7.3").unwrap().script);
        for unknown in ["etcd@1.0.0", "ectd", ""] {
            let error = find(unknown).map(|_| ()).unwrap_err();
            assert!(error.contains("etcd@3.7.3, kube-apiserver@"), "{error}");
        }
    }
}

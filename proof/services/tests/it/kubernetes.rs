//! The Kubernetes API server starts, keeps its data over a restart, and says why it cannot.

use std::process::Command;

use latchwork_services::KubernetesServer;

/// An object that was written is there after the API server was killed and started again.
#[test]
fn an_api_server_keeps_its_objects_over_a_restart() {
    let mut server = KubernetesServer::start().expect("an API server");
    server.make_namespace("shop").expect("a namespace");
    let leases = "/apis/coordination.k8s.io/v1/namespaces/shop/leases";
    server.request("POST", leases, "{\"metadata\":{\"name\":\"a\"}}").expect("a lease");
    server.restart().expect("it starts again");
    let lease = server.request("GET", &format!("{leases}/a"), "").expect("the lease");
    assert!(lease.contains("\"uid\""), "{lease}");
    let refused = server.request("GET", &format!("{leases}/b"), "").unwrap_err();
    assert!(refused.to_string().contains("404"), "{refused}");
}

/// Without Go and without a program, the error names both ways out.
#[test]
fn a_machine_without_go_gets_a_clear_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = folder.path().join("proof/services/kube-apiserver");
    std::fs::create_dir_all(&place).expect("a folder");
    let here = concat!(env!("CARGO_MANIFEST_DIR"), "/kube-apiserver");
    for file in ["build", "go.mod", "main.go"] {
        std::fs::copy(format!("{here}/{file}"), place.join(file)).expect("a copy");
    }
    let run = |path: &str, named: Option<&str>| {
        let mut command = Command::new("/bin/sh");
        command.arg(place.join("build")).env("PATH", path).env_remove("LATCHWORK_KUBE_APISERVER");
        command.envs(named.map(|named| ("LATCHWORK_KUBE_APISERVER", named)));
        command.output().expect("a shell")
    };
    // Everything that the script needs but Go.
    let tools = folder.path().join("bin");
    std::fs::create_dir(&tools).expect("a folder");
    for tool in ["dirname", "sed", "head", "mkdir", "flock"] {
        let found = ["/usr/bin", "/bin"].iter().map(|dir| format!("{dir}/{tool}"));
        let found = found.into_iter().find(|path| std::path::Path::new(path).exists());
        std::os::unix::fs::symlink(found.expect(tool), tools.join(tool)).expect("a link");
    }
    let output = run(&tools.to_string_lossy(), None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "there is no Go");
    assert!(said.contains("golang-go") && said.contains("LATCHWORK_KUBE_APISERVER"), "{said}");
    let output = run(&tools.to_string_lossy(), Some("/opt/kube-apiserver"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "/opt/kube-apiserver\n");
}

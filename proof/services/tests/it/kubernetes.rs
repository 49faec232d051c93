//! The Kubernetes API server starts, keeps its data over a restart, and says why it cannot.

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

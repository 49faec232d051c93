//! Kubernetes keeps the contract: a kube-apiserver over etcd, with a namespace for each trial.

#![allow(clippy::disallowed_methods, reason = "tests")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use latchwork_conformance::{Client, Expected, Fault, Harness, Store, Time, run, trials};
use latchwork_kubernetes::{KubernetesBackend, KubernetesConfig};
use latchwork_services::contract::{close, cut};
use latchwork_services::{ADMIN, Direction, KubernetesServer, Proxy};
use latchwork_store::{Io, Verb};

fn main() {
    run(trials("kubernetes", Namespaces::default()))
}

/// A server that all trials share, started for the first of them.
#[derive(Default)]
struct Namespaces {
    server: OnceLock<Arc<KubernetesServer>>,
    next: AtomicU32,
}

impl Harness for Namespaces {
    fn expected(&self) -> Expected {
        Expected::EVERYTHING
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn fresh<'a>(&'a self, _io: &'a Io) -> Verb<'a, Store> {
        let start = || Arc::new(KubernetesServer::start().expect("an API server"));
        let server = self.server.get_or_init(start).clone();
        let namespace = format!("trial-{}", self.next.fetch_add(1, Ordering::Relaxed));
        server.make_namespace(&namespace).expect("a namespace");
        Box::pin(async move {
            Store::new(move |io| {
                let proxy = Proxy::plain(server.port()).expect("a proxy");
                let name = format!("proxy-{}", proxy.port());
                let file = server.kubeconfig(&name, ADMIN, proxy.port()).expect("a file");
                let url = format!("k8s://test/{namespace}?kubeconfig={}", file.display());
                async move {
                    let config = KubernetesConfig::parse(&url).expect("a good address");
                    let backend = KubernetesBackend::connect(config, io).await;
                    let proxies = Arc::new(vec![proxy]);
                    let held = proxies.clone();
                    Client::new(backend.expect("the server runs"))
                        .on_fault(move |fault| disturb(&proxies, fault))
                        .on_kill(move || cut(&held))
                }
            })
        })
    }

    /// A client that was opened after a claim's last beat counts the claim's ttl from its first look, and some
    /// trials open such a client.
    fn slack(&self) -> Duration {
        self.short_ttl() + Duration::from_millis(600)
    }
}

fn disturb(proxies: &[Proxy], fault: Fault) {
    let [proxy] = proxies else { panic!("one proxy") };
    match fault {
        Fault::None => {
            // A stream that has lost bytes is of no use.
            proxy.thaw(Direction::ToServer);
            close(proxies);
            proxy.lose_answers(false);
            proxy.accept_connections().expect("the port opens");
            std::thread::sleep(Duration::from_millis(50));
        }
        Fault::LoseRequests => proxy.freeze(Direction::ToServer),
        Fault::LoseAnswers => proxy.lose_answers(true),
    }
}

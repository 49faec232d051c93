//! Latchwork's elector: prints when it leads and when it does not, and works while it leads.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use latchwork_kubernetes::fence::patch;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::roles::Outcome;

/// That of client-go.
const LEASE: Duration = Duration::from_secs(15);
const WORK: Duration = Duration::from_millis(2);
/// What the leader writes to, with its token.
const WRITTEN: &str = "written-by-leaders";

/// `KUBECONFIG NAMESPACE LEASE ID LOG`. It prints `started`, `leads` and `stopped`, and after a loss whether a write
/// with the old token was `refused`.
pub(crate) fn run(args: &[String]) -> Outcome {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(elect(args))
}

async fn elect(args: &[String]) -> Outcome {
    let [kubeconfig, namespace, lease, id, log] = args else {
        return Err("KUBECONFIG NAMESPACE LEASE ID LOG".into());
    };
    let url = format!("k8s://test/{namespace}?kubeconfig={kubeconfig}");
    let locks = latchwork::connect(&url).await?;
    let maps = config_maps(kubeconfig, namespace).await?;
    let mut log = OpenOptions::new().create(true).append(true).open(log)?;
    let mut term = signal(SignalKind::terminate())?;
    let election = locks.election(lease).candidate(id.as_str()).ttl(LEASE);
    println!("started");
    loop {
        let led = tokio::select! {
            led = election.campaign() => led?,
            _ = term.recv() => return Ok(()),
        };
        println!("leads");
        // The first write of a leader ends those of its predecessors.
        patch(&maps, WRITTEN, &*led, json!({})).await?;
        while led.ensure_held().is_ok() {
            log.write_all(format!("{id}\n").as_bytes())?;
            tokio::select! {
                () = tokio::time::sleep(WORK) => {}
                _ = term.recv() => return Ok(led.resign().await?),
            }
        }
        println!("stopped");
        // As a process would write that was stopped after its last check.
        let late = patch(&maps, WRITTEN, &*led, json!({ "data": { "by": id } })).await;
        let refused = late.is_err_and(|error| error.refused().is_some());
        println!("{}", if refused { "refused" } else { "accepted" });
    }
}

/// With the object that leaders write to.
async fn config_maps(kubeconfig: &str, namespace: &str) -> Outcome<Api<ConfigMap>> {
    let read = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config)?, namespace);
    let mut map = ConfigMap::default();
    map.metadata.name = Some(WRITTEN.into());
    match maps.create(&PostParams::default(), &map).await {
        // Another elector was first.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        done => drop(done?),
    }
    Ok(maps)
}

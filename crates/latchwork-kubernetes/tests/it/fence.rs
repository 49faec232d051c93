//! Writes to other objects of Kubernetes, refused when the lock is another's.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use latchwork_kubernetes::fence::{newest, patch};
use latchwork_services::ADMIN;
use serde_json::json;

use crate::common::{client, namespace, shared};

pub(crate) async fn config_maps(space: &str) -> Api<ConfigMap> {
    let server = shared();
    let file = server.kubeconfig("admin", ADMIN, server.port()).expect("a file");
    let read = Kubeconfig::read_from(file).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
    Api::namespaced(Client::try_from(config.expect("a context")).expect("a client"), space)
}

/// A controller that was overtaken writes nothing, even before its successor has written anything but its token.
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_controllers_write_is_refused() {
    let space = namespace(shared());
    let maps = config_maps(&space).await;
    let mut map = ConfigMap::default();
    map.metadata.name = Some("stock".into());
    maps.create(&PostParams::default(), &map).await.expect("a map");
    let (a, b) = (client(shared(), &space).await, client(shared(), &space).await);
    let old = a.mutex("stock").acquire().await.expect("it is free");
    patch(&maps, "stock", &old, json!({"data": {"amount": "5"}})).await.expect("the first write");
    // The lock passes on without the first holder's knowledge.
    b.force_release("stock").await.expect("it is held");
    let new = b.mutex("stock").acquire().await.expect("it is free");
    assert!(new.token() > old.token());
    let admitted = patch(&maps, "stock", &new, json!({})).await.expect("its first write");
    assert_eq!(newest(&admitted).expect("a token"), Some(new.token()));
    let refused = patch(&maps, "stock", &old, json!({"data": {"amount": "4"}})).await;
    let refused = refused.expect_err("it was overtaken").refused().expect("by its token");
    assert_eq!((refused.refused, refused.newest), (old.token(), new.token()));
    let read = maps.get("stock").await.expect("the map");
    assert_eq!(read.data.expect("data")["amount"], "5", "nothing was written");
}

/// Writes of others between the read and the write are not lost: the token is checked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_write_meets_others_without_losing_theirs() {
    let space = namespace(shared());
    let maps = config_maps(&space).await;
    let mut map = ConfigMap::default();
    map.metadata.name = Some("stock".into());
    maps.create(&PostParams::default(), &map).await.expect("a map");
    let locks = client(shared(), &space).await;
    let guard = locks.mutex("stock").acquire().await.expect("it is free");
    let writes = (0..20).map(|n| {
        let (maps, guard) = (maps.clone(), &guard);
        async move {
            let key = format!("k{n}");
            patch(&maps, "stock", guard, json!({"data": {key: "x"}})).await.map(drop)
        }
    });
    for done in futures_util::future::join_all(writes).await {
        done.expect("it is held");
    }
    let read = maps.get("stock").await.expect("the map");
    assert_eq!(read.data.expect("data").len(), 20);
}

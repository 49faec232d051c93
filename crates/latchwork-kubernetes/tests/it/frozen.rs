//! A machine that is paused whole: its clocks stand still, and no process on it can notice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use latchwork::{Driver, LockManager, LostReason};
use latchwork_kubernetes::fence::patch;
use latchwork_kubernetes::{KubernetesBackend, KubernetesConfig};
use latchwork_store::{Clock, Io, Moment, Sleep};
use serde_json::json;

use crate::common::{client, namespace, shared};
use crate::fence::config_maps;

const SEC: Duration = Duration::from_secs(1);
/// How late a sleeper notices that its clock goes on again.
const STEP: Duration = Duration::from_millis(5);

/// A clock that can be stopped, and never makes up for it.
#[derive(Debug, Clone)]
struct Freezable {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Since when it stands still.
    since: Option<Moment>,
    /// For how long it stood still before.
    lost: Duration,
}

impl Freezable {
    fn freeze(&self) {
        self.state.lock().expect("no panic").since = Some(self.clock.now());
    }

    fn go_on(&self) {
        let mut state = self.state.lock().expect("no panic");
        let since = state.since.take().expect("it stands still");
        state.lost += self.clock.now().since(since);
    }

    /// For how long it has stood still in all.
    fn lost(&self) -> Duration {
        let state = self.state.lock().expect("no panic");
        state.lost + state.since.map_or(Duration::ZERO, |since| self.clock.now().since(since))
    }
}

impl Clock for Freezable {
    fn now(&self) -> Moment {
        let now = Duration::from_nanos(self.clock.now().as_nanos());
        Moment::from_nanos((now - self.lost()).as_nanos() as u64)
    }

    fn wall(&self) -> Duration {
        self.clock.wall() - self.lost()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let this = self.clone();
        Box::pin(async move {
            loop {
                let left = at.since(this.now());
                if left.is_zero() {
                    return;
                }
                this.clock.sleep_until(this.clock.now().plus(left.min(STEP))).await;
            }
        })
    }
}

/// The holder's machine stands still for longer than its ttl, and its clocks do not show it. Nothing can tell the holder
/// before its next renewal; its write is refused, and then it learns of its loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_clocks_stood_still_writes_nothing() {
    let space = namespace(shared());
    let maps = config_maps(&space).await;
    let mut map = ConfigMap::default();
    map.metadata.name = Some("stock".into());
    maps.create(&PostParams::default(), &map).await.expect("a map");

    let driver = Driver::start().expect("a driver");
    let io = driver.io();
    let clock = Freezable { clock: io.clock().clone(), state: Arc::default() };
    let spawner = io.clone();
    let io = Io::new(move |task| spawner.spawn(task), Arc::new(clock.clone()));
    let config = KubernetesConfig::parse(&shared().url(&space).expect("a kubeconfig"));
    let backend = KubernetesBackend::connect(config.expect("a good address"), io.clone()).await;
    let locks = LockManager::on_io(backend.expect("the server runs"), io);
    let old = locks.mutex("stock").ttl(6 * SEC).acquire().await.expect("it is free");
    patch(&maps, "stock", &old, json!({"data": {"amount": "5"}})).await.expect("it is held");

    let next = client(shared(), &space).await.mutex("stock");
    clock.freeze();
    let new = tokio::time::timeout(20 * SEC, next.acquire()).await.expect("a ttl is over");
    let new = new.expect("no fault");
    patch(&maps, "stock", &new, json!({"data": {"amount": "4"}})).await.expect("it is held");
    // By its own clocks no time has passed: what it believes is no matter to the object.
    let late = patch(&maps, "stock", &old, json!({"data": {"amount": "3"}})).await;
    let refused = late.expect_err("it was overtaken").refused().expect("by its token");
    assert_eq!(refused.newest, new.token());
    clock.go_on();
    let lost = tokio::time::timeout(5 * SEC, old.lost()).await.expect("its next renewal tells it");
    assert_eq!(lost.reason, LostReason::Taken);
    let read = maps.get("stock").await.expect("the map");
    assert_eq!(read.data.expect("data")["amount"], "4");
    new.ensure_held().expect("it is still its own");
}

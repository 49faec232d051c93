//! A virtual machine that is paused: its boot clock stands still, and the server's time runs on.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::{Driver, HoldState, LockManager};
use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_services::{Cut, EtcdOptions, EtcdServer, Proxy};
use latchwork_store::{Clock, Io, Moment, Sleep};

use crate::common::{SEC, connect, run};

/// A machine's clocks. The boot clock stands still while the machine is paused.
#[derive(Debug)]
struct Machine {
    clock: Arc<dyn Clock>,
    pauses: Mutex<Pauses>,
}

#[derive(Debug, Default)]
struct Pauses {
    since: Option<Moment>,
    lost: Duration,
}

impl Machine {
    async fn pause(&self, length: Duration) {
        self.pauses.lock().unwrap().since = Some(self.clock.now());
        tokio::time::sleep(length).await;
        let mut pauses = self.pauses.lock().unwrap();
        let since = pauses.since.take().unwrap();
        pauses.lost += self.clock.now().since(since);
    }
}

impl Clock for Machine {
    fn now(&self) -> Moment {
        let pauses = self.pauses.lock().unwrap();
        pauses.since.unwrap_or_else(|| self.clock.now()).minus(pauses.lost)
    }

    fn wall(&self) -> Duration {
        self.clock.wall()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let pauses = self.pauses.lock().unwrap();
        self.clock.sleep_until(at.plus(pauses.lost))
    }
}

/// The network is cut right after the second lock. The scaled-down pause takes 9 s with a ttl of
/// 10 s; `LATCHWORK_FULL_SIZE=1` makes it 26 s with a ttl of 30 s.
#[test]
fn h86_a_lease_from_before_a_pause_is_not_taken_for_fresh() {
    let full = std::env::var_os("LATCHWORK_FULL_SIZE").is_some();
    let (ttl, pause) = if full { (30 * SEC, 26 * SEC) } else { (10 * SEC, 9 * SEC) };
    let server = EtcdServer::start(&EtcdOptions::new()).unwrap();
    let proxy = Proxy::plain(server.port()).unwrap();
    run(async {
        let driver = Driver::start().unwrap();
        let machine =
            Arc::new(Machine { clock: driver.io().clock().clone(), pauses: Mutex::default() });
        let io = {
            let real = driver.io();
            Io::new(move |task| real.spawn(task), machine.clone())
        };
        let config = EtcdConfig::parse(&format!("etcd://127.0.0.1:{}", proxy.port())).unwrap();
        let backend = EtcdBackend::connect(config, io.clone()).await.unwrap();
        let locks = LockManager::on_io(backend, io).ttl(ttl);
        let other = connect(&server.url()).await.unwrap().ttl(ttl);

        locks.mutex("k").acquire().await.unwrap().release().await.unwrap();
        machine.pause(pause).await;
        let guard = locks.mutex("k").acquire().await.unwrap();
        proxy.refuse_connections().unwrap();
        proxy.cut(Cut::Reset).unwrap();
        assert_eq!(guard.state(), HoldState::Held);

        let _second = other.mutex("k").acquire_within(3 * ttl).await.unwrap();
        assert!(guard.ensure_held().is_err(), "two hold the lock");
    });
}

//! The worker process: tasks that lock, write and unlock, and note down what they were told.

mod http;
mod orders;
mod own_clock;
mod paused_clock;
mod task;
mod watch;
pub(crate) mod wish;

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use latchwork::{Driver, ErrorKind, LockManager};
use latchwork_etcd::{EtcdBackend, EtcdConfig};
use latchwork_file::FileBackend;
use latchwork_kubernetes::{KubernetesBackend, KubernetesConfig};
use latchwork_postgres::{PostgresBackend, PostgresConfig};
use latchwork_store::clock::boot_time;
use latchwork_store::{Backend, Io, Moment};
use latchwork_zookeeper::{ZooKeeperBackend, ZooKeeperConfig};
use tokio::sync::watch as signal;
use tokio::task::JoinSet;

pub use orders::Orders;
pub(crate) use paused_clock::Pauses;

use crate::event::What;
use crate::log::Log;
use crate::luck::Luck;
use crate::slow::SlowAnswers;
use crate::sweep::{CLOSED, sweep, until_free};
use crate::witness;
use own_clock::OwnClock;
use paused_clock::PausedClock;

/// How long a worker tries to reach its store before it fails.
const REACHED_WITHIN: Duration = Duration::from_secs(20);

/// What all tasks of a worker share.
pub(crate) struct Shop {
    pub(crate) orders: Orders,
    pub(crate) locks: LockManager,
    pub(crate) log: Arc<Log>,
    pub(crate) io: Io,
    /// The clock that the library reads, if it is not the boot clock of this machine.
    pub(crate) paused: Option<PausedClock>,
    pub(crate) attempts: AtomicU64,
    pub(crate) closing: signal::Receiver<bool>,
}

/// Works until standard input ends.
///
/// # Errors
///
/// What keeps the worker from its work: the store cannot be reached, the log cannot be written.
pub fn work(orders: Orders) -> Result<(), Box<dyn Error>> {
    let log = Arc::new(Log::open(&orders.log, &orders.name)?);
    log.note(None, What::Started { pid: std::process::id(), seed: orders.seed });
    witness::start(log.clone());
    let (close, closing) = signal::channel(false);
    #[expect(clippy::disallowed_methods, reason = "a blocking read of standard input")]
    std::thread::spawn(move || {
        // Whatever ends it, the run wants no more of us.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = close.send(true);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(orders, log, closing))
}

async fn run(
    orders: Orders,
    log: Arc<Log>,
    closing: signal::Receiver<bool>,
) -> Result<(), Box<dyn Error>> {
    let driver = Driver::start()?;
    let io = driver.io();
    let is_machine = orders.frozen_clock && orders.service.is_none();
    let paused = match is_machine {
        true => Some(PausedClock::new(io.clock().clone(), Pauses::open(&orders.log)?)),
        false => None,
    };
    let until = boot_time().plus(REACHED_WITHIN);
    let locks = loop {
        let connected = match &paused {
            Some(clock) => connect_by(&orders.store, &io, clock).await,
            None => connect(&orders).await,
        };
        match connected {
            // A fault may keep a new worker from its store.
            Err(error) if is_out_of_reach(&*error) && boot_time() < until => {
                io.sleep(Duration::from_millis(50)).await;
            }
            connected => break connected?,
        }
    };
    let locks = locks.namespace(&orders.namespace).ttl(orders.ttl).holder(&*orders.name);
    let shop = Arc::new(Shop {
        locks: locks.clone().observer(watch::of_the_line(&orders, log.clone())),
        log: log.clone(),
        io: io.clone(),
        paused,
        attempts: AtomicU64::new(0),
        closing,
        orders,
    });
    let mut tasks = JoinSet::new();
    let clock = match shop.orders.frozen_clock {
        true => OwnClock::that_stands_still(),
        false => OwnClock::default(),
    };
    for task in 0..shop.orders.tasks {
        match shop.orders.service.clone() {
            Some(address) => tasks.spawn(http::life(shop.clone(), task, address, clock.clone())),
            None => tasks.spawn(task::life(shop.clone(), task)),
        };
    }
    while let Some(ended) = tasks.join_next().await {
        ended?.map_err(|trouble| -> Box<dyn Error> { trouble })?;
    }
    if shop.orders.sweeps {
        io.sleep(shop.orders.ttl + shop.orders.ttl / 2).await;
        // A task that was done keeps its key closed until its period is over.
        let now = boot_time();
        until_free(&locks, now, now.plus(CLOSED)).await;
        sweep(&locks, &log).await?;
    }
    locks.close().await;
    log.note(None, What::Ended {});
    Ok(())
}

/// Also of a store that takes the rights away.
fn is_out_of_reach(error: &(dyn Error + 'static)) -> bool {
    let error = error.downcast_ref::<latchwork::Error>();
    error.is_some_and(|error| matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Denied))
}

async fn connect(orders: &Orders) -> Result<LockManager, Box<dyn Error>> {
    if orders.slow.is_zero() {
        return Ok(latchwork::connect(&orders.store).await?);
    }
    let path = orders.store.strip_prefix("file://");
    let path = path.ok_or("slow answers are for file stores; a server has the proxy")?;
    let driver = Driver::start()?;
    let io = driver.io();
    let store: Arc<dyn Backend> = FileBackend::connect(Path::new(path), io.clone())?;
    let store = SlowAnswers::new(store, io, orders.slow, Luck::of(orders.seed, 1_000));
    Ok(LockManager::new(store, driver))
}

/// Connects with another clock than that of this machine.
async fn connect_by(
    url: &str,
    io: &Io,
    clock: &PausedClock,
) -> Result<LockManager, Box<dyn Error>> {
    let real = io.clone();
    let io = Io::new(move |task| real.spawn(task), Arc::new(clock.clone()));
    let store: Arc<dyn Backend> = match url.split(':').next() {
        Some("etcd") => EtcdBackend::connect(EtcdConfig::parse(url)?, io.clone()).await?,
        Some("zk") => ZooKeeperBackend::connect(ZooKeeperConfig::parse(url)?, io.clone()).await?,
        Some("postgres") => {
            PostgresBackend::connect(PostgresConfig::parse(url)?, io.clone()).await?
        }
        Some("k8s") => {
            KubernetesBackend::connect(KubernetesConfig::parse(url)?, io.clone()).await?
        }
        _ => {
            return Err(
                "clocks of machines are for etcd, ZooKeeper, PostgreSQL and Kubernetes".into()
            );
        }
    };
    Ok(LockManager::on_io(store, io))
}

impl Shop {
    /// A moment that the library tells by its own clock, on the boot clock of this machine.
    pub(crate) fn moment(&self, told: Moment) -> Moment {
        self.paused.as_ref().map_or(told, |clock| clock.real(told))
    }
}

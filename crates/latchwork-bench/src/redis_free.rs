//! Free locks on Redis against the bare commands over the same connection library.
//!
//! The bare cycle is `SET NX PX` and a script that compares and deletes. Its connection is driven
//! by a thread of its own, as Latchwork's is; the same with the connection on the caller's thread
//! is printed beside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use latchwork_services::{RedisOptions, RedisServer};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Value, cmd};
use tokio::runtime::{Builder, Runtime};

use crate::Outcome;
use crate::child::Worker;
use crate::peers;
use crate::stats::{head, median, row, shortened};

pub(crate) const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_millis(300);
pub(crate) const DELETE_IF_MINE: &str = "if redis.call('get',KEYS[1]) == ARGV[1] then \
                              return redis.call('del',KEYS[1]) else return 0 end";

pub(crate) struct Sample {
    rate: f64,
    cpu: f64,
}

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let here = Builder::new_current_thread().enable_all().build()?;
    let there = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let far = Bare::connect(&server, &there)?;
    let near = Bare::connect(&server, &here)?;
    let locks = here.block_on(latchwork::connect(&server.url()))?;
    let (kinds, missing) = peers::install(vec![peers::RSLOCK, peers::ASYNC_REDIS_LOCK]);
    let mut others = Vec::new();
    for kind in &kinds {
        others.push((kind.name, kind.start("free", &server.url(), &[])?));
    }
    for tasks in [1, 64] {
        let mut other_rows: Vec<Vec<Sample>> = kinds.iter().map(|_| Vec::new()).collect();
        let (mut far_rows, mut near_rows, mut ours) = (vec![], vec![], vec![]);
        for _ in 0..shortened(ROUNDS, 3) {
            far_rows.push(sample(&here, tasks, |n| far.clone().cycles(n)));
            ours.push(sample(&here, tasks, |n| latchwork_cycles(locks.clone(), n)));
            near_rows.push(sample(&here, tasks, |n| near.clone().cycles(n)));
            for ((_, worker), rows) in others.iter_mut().zip(&mut other_rows) {
                rows.push(other_sample(worker, tasks)?);
            }
        }
        println!("{tasks} task(s), each with a key of its own:\n");
        head(&["what", "cycles a second", "to bare", "client CPU a cycle", "to bare"]);
        let base = (rate(&far_rows), cpu(&far_rows));
        let own = [
            ("bare, connection on its own thread", &far_rows),
            ("latchwork, with fencing token", &ours),
            ("bare, connection on the caller's thread", &near_rows),
        ];
        // Theirs is on the caller's thread, too.
        let others = others.iter().map(|(name, _)| *name).zip(&other_rows);
        for (name, rows) in own.into_iter().chain(others) {
            row(&[
                name.into(),
                format!("{:.0}", rate(rows)),
                format!("{:.2}", rate(rows) / base.0),
                format!("{:.2} us", cpu(rows)),
                format!("{:.2}", cpu(rows) / base.1),
            ]);
        }
        peers::missing_rows(&missing, 5);
        println!();
    }
    Ok(())
}

/// Lets another process run so many tasks for a while.
pub(crate) fn other_sample(
    worker: &mut Worker,
    tasks: usize,
) -> Result<Sample, Box<dyn std::error::Error>> {
    worker.tell(&format!("{tasks} {}", LENGTH.as_millis()))?;
    let line = worker.line()?;
    let (rate, cpu) = line.split_once(' ').ok_or("two numbers")?;
    Ok(Sample { rate: rate.parse()?, cpu: cpu.parse()? })
}

pub(crate) fn rate(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.rate).collect::<Vec<_>>())
}

pub(crate) fn cpu(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.cpu).collect::<Vec<_>>())
}

/// Runs so many tasks for a while.
pub(crate) fn sample<F>(runtime: &Runtime, tasks: usize, cycles: impl Fn(Work) -> F) -> Sample
where
    F: Future<Output = ()> + Send + 'static,
{
    let done = Arc::new(AtomicU64::new(0));
    let before = cpu_time();
    let start = Instant::now();
    runtime.block_on(async {
        let handles: Vec<_> = (0..tasks)
            .map(|n| {
                let work = Work { name: n, until: start + LENGTH, done: done.clone() };
                tokio::spawn(cycles(work))
            })
            .collect();
        for handle in handles {
            handle.await.expect("no cycle fails");
        }
    });
    let took = start.elapsed().as_secs_f64();
    let done = done.load(Ordering::Relaxed) as f64;
    Sample { rate: done / took, cpu: (cpu_time() - before).as_secs_f64() * 1e6 / done }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub(crate) struct Work {
    pub(crate) name: usize,
    until: Instant,
    done: Arc<AtomicU64>,
}

impl Work {
    pub(crate) fn goes_on(&self) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        Instant::now() < self.until
    }
}

pub(crate) async fn latchwork_cycles(locks: latchwork::LockManager, work: Work) {
    let mutex = locks.mutex(format!("bench/{}", work.name));
    while work.goes_on() {
        let guard = mutex.try_acquire().await.expect("the store answers");
        guard.expect("the key is its own").release().await.expect("the store answers");
    }
}

/// A connection, and the hash of the script that releases.
#[derive(Clone)]
pub(crate) struct Bare {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) hash: Arc<str>,
}

impl Bare {
    pub(crate) fn connect(
        server: &RedisServer,
        on: &Runtime,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = server.url().into_connection_info()?.set_tcp_settings(tcp);
        let client = Client::open(info)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = async move {
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let hash: String =
                cmd("SCRIPT").arg("LOAD").arg(DELETE_IF_MINE).query_async(&mut connection).await?;
            Ok::<_, redis::RedisError>(Self { connection, hash: hash.into() })
        };
        let made = on.spawn(connection);
        Ok(on.block_on(made)??)
    }

    async fn cycles(self, work: Work) {
        let key = format!("bench/{}", work.name);
        let mut connection = self.connection;
        for n in 0u64.. {
            if !work.goes_on() {
                return;
            }
            let value = format!("{:016x}{n:016x}", work.name);
            let set = take(&key, &value);
            let taken = connection.send_packed_command(&set).await.expect("the server answers");
            assert_eq!(taken, Value::Okay);
            let delete = give_back(&self.hash, &key, &value);
            let freed = connection.send_packed_command(&delete).await.expect("the server answers");
            assert_eq!(freed, Value::Int(1));
        }
    }
}

/// The bare way to take a key.
pub(crate) fn take(key: &str, value: &str) -> Cmd {
    let mut set = cmd("SET");
    set.arg(key).arg(value).arg("NX").arg("PX").arg(30_000);
    set
}

/// The bare way to give it back, by the hash of the script.
pub(crate) fn give_back(hash: &str, key: &str, value: &str) -> Cmd {
    let mut delete = cmd("EVALSHA");
    delete.arg(hash).arg(1).arg(key).arg(value);
    delete
}

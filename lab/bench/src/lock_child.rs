//! Latchwork on a server, and bare ways to wait (a client that spins on `SET NX`, advisory locks), in the
//! roles of the measurements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::{Event, Handover};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Value, cmd};
use tokio::runtime::Builder;

use crate::commit_and_notify;
use crate::faults_child;
use crate::postgres_bare::Sessions;
use crate::push_and_pop::PushAndPop;
use crate::roles::{self, Lock, Outcome};
use crate::watch_and_put::Ring;

/// The entry of a started process: `KIND ROLE URL ...`.
pub(crate) fn run(args: &[String]) -> Outcome {
    let [kind, role, url, rest @ ..] = args else { return Err("KIND ROLE URL ...".into()) };
    let role: Vec<String> = std::iter::once(role).chain(rest).cloned().collect();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if kind == "spin" {
            let spin = Spin::connect(url).await?;
            return roles::run(&role, |key| Spin { key: key.into(), ..spin.clone() }).await;
        }
        if kind == "push-and-pop" || kind == "script-and-pop" {
            let by_script = kind == "script-and-pop";
            // A connection for each key; the program ends if there is none.
            let make =
                |key: &str| PushAndPop::connect(url, key, by_script).expect("the server answers");
            return roles::run(&role, make).await;
        }
        if let [_, number] = &role[..]
            && kind == "watch-and-put"
        {
            return roles::handoff(Ring::join(url, number.parse()?).await?).await;
        }
        if let [_, number] = &role[..]
            && kind == "commit-and-notify"
        {
            let ring = commit_and_notify::Ring::join(url, number.parse()?);
            return roles::handoff(ring.await?).await;
        }
        if kind == "pg_advisory_lock" || kind == "DistributedLock's way" {
            let sessions = Sessions::connect(url, kind != "pg_advisory_lock")?;
            return roles::run(&role, |key| sessions.on(key)).await;
        }
        let mut locks = latchwork::connect(url).await?;
        if kind != "latchwork-handover" {
            locks = locks.handover(Handover::OFF);
        }
        if kind == "latchwork-votes" {
            let votes = Arc::new(Votes::default());
            let locks = locks.observer(votes.clone());
            roles::run(&role, |key| locks.mutex(key)).await?;
            println!("{}", votes.told());
            return Ok(());
        }
        match &role[..] {
            [role, ttl] if role == "handoff" => {
                let locks = locks.ttl(Duration::from_millis(ttl.parse()?));
                roles::run(std::slice::from_ref(role), |key| locks.mutex(key)).await
            }
            [role, ttl] if role == "steady" => {
                faults_child::run(locks.ttl(Duration::from_millis(ttl.parse()?))).await
            }
            [role, ttl] if role == "held" => {
                let locks = locks.ttl(Duration::from_millis(ttl.parse()?));
                let take = async |key| {
                    let guard = locks.mutex(key).try_acquire().await;
                    guard.map_err(|error| error.to_string())?.ok_or_else(|| "not free".to_string())
                };
                roles::held(take, |guard| guard.ensure_held().is_ok()).await
            }
            _ => roles::run(&role, |key| locks.mutex(key)).await,
        }
    })
}

/// Counts, for each grant of the contested key, the votes before it that nobody won. For one task.
///
/// Core tells its observer of each try that was blocked, and when looking again may pay. Where
/// somebody holds the key that is the rest of the lease of 30 s, or a quarter of a second at least if
/// only one server was asked; after a split vote it is a pause by lot of milliseconds.
#[derive(Default)]
struct Votes(Mutex<Counted>);

#[derive(Default)]
struct Counted {
    /// Of the grant that is being waited for.
    splits: usize,
    /// How many grants had so many.
    grants: Vec<u64>,
    /// Votes that found a holder.
    held: u64,
}

impl Votes {
    /// Longer than the pauses, and shorter than all else.
    const REST: Duration = Duration::from_millis(249);

    /// How many votes found a holder; then how many grants had no split vote, one, two...
    fn told(&self) -> String {
        let Counted { held, grants, .. } = &*self.0.lock().expect("nothing panics with it");
        let grants: Vec<String> = grants.iter().map(ToString::to_string).collect();
        format!("{held} {}", grants.join(" "))
    }
}

impl latchwork::Observer for Votes {
    fn event(&self, event: &Event<'_>) {
        let mut counted = self.0.lock().expect("nothing panics with it");
        match event {
            Event::Waiting { blocked, .. } => match blocked.retry_after {
                Some(after) if after < Self::REST => counted.splits += 1,
                _ => counted.held += 1,
            },
            Event::Acquired { key, .. } if key.as_str() == "bench" => {
                let splits = std::mem::take(&mut counted.splits);
                if counted.grants.len() <= splits {
                    counted.grants.resize(splits + 1, 0);
                }
                counted.grants[splits] += 1;
            }
            _ => {}
        }
    }
}

impl Lock for latchwork::Lock {
    type Held = latchwork::Guard;

    async fn acquire(&self) -> Self::Held {
        latchwork::Lock::acquire(self).await.expect("the store answers")
    }

    async fn release(&self, held: Self::Held) {
        held.release().await.expect("the store answers");
    }
}

#[derive(Clone)]
struct Spin {
    connection: MultiplexedConnection,
    hash: Arc<str>,
    key: Arc<str>,
}

impl Spin {
    async fn connect(url: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
        let client = Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let script = crate::redis_free::DELETE_IF_MINE;
        let hash: String =
            cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await?;
        Ok(Self { connection, hash: hash.into(), key: "".into() })
    }
}

impl Lock for Spin {
    type Held = String;

    async fn acquire(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut connection = self.connection.clone();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let value = format!("{:016x}{n:016x}", std::process::id());
        let mut set = cmd("SET");
        set.arg(&*self.key).arg(&value).arg("NX").arg("PX").arg(30_000);
        while connection.send_packed_command(&set).await.expect("answers") != Value::Okay {}
        value
    }

    async fn release(&self, value: String) {
        let mut delete = cmd("EVALSHA");
        delete.arg(&*self.hash).arg(1).arg(&*self.key).arg(&value);
        self.connection.clone().send_packed_command(&delete).await.expect("answers");
    }
}

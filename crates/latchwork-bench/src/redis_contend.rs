//! Many processes that want one key on Redis, against a client that spins on `SET NX`.
//!
//! What counts are changes of owner: a client that polls mostly gets back what it has just given
//! up. Every owner reads who was there before it and writes its own name into a file, so a
//! handover is seen by whom it happens to, and two owners at once would be seen too.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_core::Handover;
use latchwork_services::{RedisOptions, RedisServer};
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, Value, cmd};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::stats::{head, median, row};

const PROCESSES: usize = 8;
const ROUNDS: usize = 3;
const LENGTH: Duration = Duration::from_secs(2);

/// What one process has seen.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    pairs: f64,
    handovers: f64,
    overlaps: f64,
    cpu: f64,
}

struct Round {
    handovers: f64,
    pairs: f64,
    jain: f64,
    cpu: f64,
    commands: f64,
}

pub(crate) fn run() -> Outcome {
    let server = RedisServer::start(&RedisOptions::new())?;
    let folder = latchwork_services::Folder::new()?;
    for tasks in [1, 8] {
        let kinds = ["spin", "latchwork", "latchwork-handover"];
        let mut rounds: Vec<Vec<Round>> = kinds.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (kind, rounds) in kinds.iter().zip(&mut rounds) {
                rounds.push(round(kind, tasks, &server, folder.path())?);
            }
        }
        println!("{PROCESSES} processes of {tasks} task(s), one key:\n");
        head(&[
            "what",
            "handovers a second",
            "to spin",
            "pairs a second",
            "fairness (Jain)",
            "client CPU a handover",
            "commands a handover",
        ]);
        let of = |rounds: &[Round], what: fn(&Round) -> f64| {
            median(&mut rounds.iter().map(what).collect::<Vec<_>>())
        };
        let base = of(&rounds[0], |r| r.handovers);
        for (kind, rounds) in kinds.iter().zip(&rounds) {
            let handovers = of(rounds, |r| r.handovers);
            row(&[
                kind.to_string(),
                format!("{handovers:.0}"),
                format!("{:.2}", handovers / base),
                format!("{:.0}", of(rounds, |r| r.pairs)),
                format!("{:.3}", of(rounds, |r| r.jain)),
                format!("{:.1} us", of(rounds, |r| r.cpu)),
                format!("{:.2}", of(rounds, |r| r.commands)),
            ]);
        }
        println!();
    }
    Ok(())
}

fn round(
    kind: &str,
    tasks: usize,
    server: &RedisServer,
    folder: &Path,
) -> Result<Round, Box<dyn std::error::Error>> {
    server.command(&["FLUSHALL"])?;
    let scene = folder.join("scene");
    File::create(&scene)?.write_all_at(&[0; 16], 0)?;
    server.command(&["CONFIG", "RESETSTAT"])?;
    let commands = || server.info("total_commands_processed");
    let before: f64 = commands()?.parse()?;
    let children: Vec<Child> = (0..PROCESSES)
        .map(|n| {
            Command::new(std::env::current_exe()?)
                .args(["child-contend", kind, &server.url()])
                .arg(&scene)
                .args([tasks.to_string(), n.to_string()])
                .stdout(Stdio::piped())
                .spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut seen = Vec::new();
    for child in children {
        let output = child.wait_with_output()?;
        let text = String::from_utf8(output.stdout)?;
        let numbers: Vec<f64> =
            text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [pairs, handovers, overlaps, cpu] = numbers[..] else {
            return Err(format!("{kind}: a process said {text:?}").into());
        };
        seen.push(Seen { pairs, handovers, overlaps, cpu });
    }
    assert_eq!(seen.iter().map(|s| s.overlaps).sum::<f64>(), 0.0, "{kind}: two owners at once");
    let after: f64 = commands()?.parse()?;
    let sum = |what: fn(&Seen) -> f64| seen.iter().map(what).sum::<f64>();
    let handovers = sum(|s| s.handovers);
    let squares: f64 = seen.iter().map(|s| s.pairs * s.pairs).sum();
    Ok(Round {
        handovers: handovers / LENGTH.as_secs_f64(),
        pairs: sum(|s| s.pairs) / LENGTH.as_secs_f64(),
        jain: sum(|s| s.pairs).powi(2) / (PROCESSES as f64 * squares),
        cpu: sum(|s| s.cpu) / handovers,
        commands: (after - before) / handovers,
    })
}

/// A process of a round.
pub(crate) fn contend(args: &[String]) -> Outcome {
    let [kind, url, scene, tasks, number] = args else { return Err("five arguments".into()) };
    let (tasks, number): (u32, u32) = (tasks.parse()?, number.parse()?);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let scene = Arc::new(OpenOptions::new().read(true).write(true).open(scene)?);
    let totals = runtime.block_on(async {
        let locks = match kind.as_str() {
            "spin" => None,
            "latchwork" => Some(latchwork::connect(url).await?.handover(Handover::OFF)),
            _ => Some(latchwork::connect(url).await?),
        };
        let bare = match &locks {
            None => Some(bare(url).await?),
            Some(_) => None,
        };
        let start = Instant::now();
        let mut handles = Vec::new();
        for task in 0..tasks {
            let name = u64::from(number) << 32 | u64::from(task) | 1 << 63;
            let owner =
                Owner { scene: scene.clone(), name: name.to_le_bytes(), seen: Seen::default() };
            let until = start + LENGTH;
            handles.push(match (&locks, &bare) {
                (Some(locks), _) => tokio::spawn(latchwork_turns(locks.clone(), owner, until)),
                (None, bare) => tokio::spawn(spin(bare.clone().expect("connected"), owner, until)),
            });
        }
        let mut total = Seen::default();
        for handle in handles {
            let seen = handle.await?;
            total.pairs += seen.pairs;
            total.handovers += seen.handovers;
            total.overlaps += seen.overlaps;
        }
        Ok::<_, Box<dyn std::error::Error>>(total)
    })?;
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let cpu = time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3;
    println!("{} {} {} {cpu}", totals.pairs, totals.handovers, totals.overlaps);
    Ok(())
}

/// Who owns the key, and what it sees while it does.
struct Owner {
    scene: Arc<File>,
    name: [u8; 8],
    seen: Seen,
}

impl Owner {
    fn work(&mut self) {
        let mut last = [0; 8];
        self.scene.read_exact_at(&mut last, 0).expect("reads");
        self.scene.write_all_at(&self.name, 0).expect("writes");
        self.seen.pairs += 1.0;
        self.seen.handovers += f64::from(u8::from(last != self.name));
        let mut now = [0; 8];
        self.scene.read_exact_at(&mut now, 0).expect("reads");
        self.seen.overlaps += f64::from(u8::from(now != self.name));
    }
}

async fn latchwork_turns(locks: latchwork::LockManager, mut owner: Owner, until: Instant) -> Seen {
    let mutex = locks.mutex("bench");
    while Instant::now() < until {
        let guard = mutex.acquire().await.expect("the store answers");
        owner.work();
        guard.release().await.expect("the store answers");
    }
    owner.seen
}

type Bare = (redis::aio::MultiplexedConnection, Arc<str>);

async fn bare(url: &str) -> Result<Bare, Box<dyn std::error::Error>> {
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let client = Client::open(url.into_connection_info()?.set_tcp_settings(tcp))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let script = crate::redis_free::DELETE_IF_MINE;
    let hash: String = cmd("SCRIPT").arg("LOAD").arg(script).query_async(&mut connection).await?;
    Ok((connection, hash.into()))
}

async fn spin((mut connection, hash): Bare, mut owner: Owner, until: Instant) -> Seen {
    let name = u64::from_le_bytes(owner.name);
    for n in 0u64.. {
        if Instant::now() >= until {
            break;
        }
        let value = format!("{name:016x}{n:016x}");
        let mut set = cmd("SET");
        set.arg("bench").arg(&value).arg("NX").arg("PX").arg(30_000);
        if connection.send_packed_command(&set).await.expect("answers") != Value::Okay {
            continue;
        }
        owner.work();
        let mut delete = cmd("EVALSHA");
        delete.arg(&*hash).arg(1).arg("bench").arg(&value);
        connection.send_packed_command(&delete).await.expect("answers");
    }
    owner.seen
}

//! Connections that say nothing, or say it slowly: what they cost, and when the service cuts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use latchwork_services::Folder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

use super::api::Api;
use super::http::Client;
use super::service::{Service, kilobytes};
use crate::goals::{self, Goal};
use crate::roles::{Outcome, now};
use crate::stats::{head, micros, quantile, row, shortened};
use crate::store::{Files, Store};
use crate::times::Times;

const CONNECTIONS: usize = 1_000;
/// A connection that nobody has cut by then is lost: neither side knows of the other.
const LONGEST: Duration = Duration::from_secs(60);
/// Between two bytes of a slow client.
const STEP: Duration = Duration::from_secs(1);

/// What a client sends at once, and whether it sends a byte a second after that.
struct Slow {
    what: &'static str,
    first: &'static str,
    goes_on: bool,
    /// When the last of them should be cut, in seconds.
    most: f64,
}

static KINDS: [Slow; 4] = [
    Slow { what: "send nothing", first: "", goes_on: false, most: 22.0 },
    Slow {
        what: "send nothing after a request",
        first: "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        goes_on: false,
        most: 22.0,
    },
    Slow {
        what: "send a byte a second of a head",
        first: "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        goes_on: true,
        most: 22.0,
    },
    Slow {
        what: "send a byte a second of a body",
        first: "POST /v1/locks/slow HTTP/1.1\r\nHost: localhost\r\n\
                Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n",
        goes_on: true,
        most: 12.0,
    },
];

/// The most memory of such a connection, in kilobytes.
const KILOBYTES: f64 = 64.0;

pub(crate) fn run() -> Outcome {
    let count = shortened(CONNECTIONS, CONNECTIONS / 5);
    println!(
        "{count} connections of each kind, and one client that takes and releases free locks:\n"
    );
    head(
        "clients that | memory of each | cut after | the last after | goal | the service's CPU meanwhile | acquire p99 of the other client",
    );
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for kind in &KINDS {
        let files = Files(Folder::new()?);
        let service = Service::start(&files.address(), &[])?;
        let line = runtime.block_on(measure(kind, &service, count))?;
        row(&line);
    }
    Ok(())
}

async fn measure(kind: &'static Slow, service: &Service, count: usize) -> Outcome<Vec<String>> {
    let port = service.port();
    // What comes with the first request is not of a connection.
    let mut other = Client::connect(port).await?;
    for _ in 0..100 {
        cycle(&mut other).await?;
    }
    let (before, cpu, start) = (service.memory()?, service.processor_time(), Instant::now());
    let slow: Vec<_> = (0..count).map(|_| tokio::spawn(until_cut(kind, port))).collect();
    let over = Arc::new(AtomicBool::new(false));
    let watch = tokio::spawn(watch(other, over.clone()));
    sleep(STEP * 5).await;
    let each = (service.memory()? - before) / count as f64;
    let mut cut = Vec::new();
    for slow in slow {
        let ended = timeout(LONGEST, slow).await;
        cut.push(ended.map_err(|_| format!("a connection lives after {LONGEST:?}"))???);
    }
    let share = (service.processor_time() - cpu) / start.elapsed().as_secs_f64() * 100.0;
    over.store(true, Ordering::Relaxed);
    let times = watch.await??;
    let last = quantile(&mut cut, 1.0);
    let verdicts = [
        Goal::at_most(kind.most).of("the last").unit("s").judge(last),
        Goal::at_most(KILOBYTES).of("memory").unit("kB").judge(each),
    ];
    Ok(vec![
        kind.what.into(),
        kilobytes(each),
        format!("{:.1} s", quantile(&mut cut, 0.5)),
        format!("{last:.1} s"),
        goals::cell(&verdicts),
        format!("{share:.1} % of one core"),
        micros(times.quantile(0.99)),
    ])
}

/// One of the slow ones: how long it lasted, in seconds.
async fn until_cut(kind: &'static Slow, port: u16) -> Outcome<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(kind.first.as_bytes()).await?;
    let (start, mut buffer) = (Instant::now(), [0; 4096]);
    loop {
        let step = async {
            match kind.goes_on {
                true => sleep(STEP).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            read = stream.read(&mut buffer) => if let Ok(0) | Err(_) = read {
                return Ok(start.elapsed().as_secs_f64());
            },
            // A connection that was cut is noticed by the read.
            () = step => drop(stream.write_all(b"a").await),
        }
    }
}

async fn cycle(client: &mut Client) -> Outcome<u64> {
    let start = now();
    let hold =
        Api::Latchwork.acquire(client, "other", Duration::from_secs(15), Duration::ZERO).await?;
    let took = now() - start;
    hold.release(client).await?;
    Ok(took)
}

/// The client that is not slow.
async fn watch(mut client: Client, over: Arc<AtomicBool>) -> Outcome<Times> {
    let mut times = Times::default();
    while !over.load(Ordering::Relaxed) {
        times.record(cycle(&mut client).await?);
        sleep(Duration::from_millis(5)).await;
    }
    Ok(times)
}

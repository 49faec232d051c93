//! All stores side by side: what a lock costs, how fast it changes hands, and how long it stays
//! closed after a crash; near, and over a slow link.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use latchwork_services::{EtcdOptions, EtcdServer, Folder, RedisOptions, RedisServer};
use tokio::runtime::Builder;

use crate::Outcome;
use crate::bars::{CONTENDED, HANDOFF};
use crate::contest::{PROCESSES, Round, middle, round};
use crate::free_cycles::{Entry, Work, in_turns, rate, times};
use crate::handoffs::handoffs;
use crate::peers::LATCHWORK;
use crate::redlock_servers::Five;
use crate::roles::now;
use crate::stats::{head, median, micros, row, shortened};
use crate::store::{Files, SlowLink, Store};
use crate::{postgres, zookeeper};

/// What bytes take at least to pass the slow link, one way.
pub(crate) const DELAY: Duration = Duration::from_micros(2_500);
const CONTESTS: (usize, Duration) = (3, Duration::from_secs(2));
const TTL: Duration = Duration::from_secs(3);
const KILLS: usize = 9;
const PINGS: usize = 21;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What a store got in the cells of one column.
type Cells = Vec<String>;

pub(crate) fn run() -> Outcome {
    let files = Files(Folder::new()?);
    let redis = RedisServer::start(&RedisOptions::new())?;
    let five = Five::start()?;
    let etcd = EtcdServer::start(&EtcdOptions::new())?;
    let zookeeper = zookeeper::start()?;
    let postgres = postgres::start()?;
    let near: [&dyn Store; 6] = [&files, &redis, &five, &etcd, &zookeeper, &postgres];
    let far =
        near[1..].iter().map(|store| SlowLink::new(*store, DELAY)).collect::<Result<Vec<_>>>()?;
    let far: Vec<&dyn Store> = far.iter().map(|store| store as &dyn Store).collect();
    let round_trip = ping(far[0])?;

    let all: Vec<&dyn Store> = near.iter().chain(&far).copied().collect();
    let free = free(&all)?;
    let contended = contended(&near)?;
    let handoff = all.iter().map(|store| handoff(*store)).collect::<Result<Vec<_>>>()?;
    let takeover = takeovers(&near)?;

    let mut titles = vec!["Latchwork on"];
    titles.extend(near.iter().map(|store| store.name()));
    head(&titles);
    let line = |title: &str, cells: &[String]| {
        let mut line = vec![title.to_string()];
        line.extend_from_slice(cells);
        line.resize(near.len() + 1, "-".into());
        row(&line);
    };
    let here = near.len();
    let of_free = |which: usize| free.iter().map(|cells| cells[which].clone()).collect::<Cells>();
    line("free lock, 1 task: median of a cycle", &of_free(0)[..here]);
    line("the same, 99 %", &of_free(1)[..here]);
    line("free locks, 64 tasks: cycles a second", &of_free(2)[..here]);
    let of_rounds = |cell: fn(&[Round]) -> String| -> Cells {
        contended.iter().map(|rounds| cell(rounds)).collect()
    };
    let handovers = of_rounds(|rounds| format!("{:.0}", middle(rounds, |r| r.handovers)));
    line("one key, 8 processes: handovers a second", &handovers);
    line(
        "the same, Jain of processes",
        &of_rounds(|rounds| format!("{:.3}", middle(rounds, |r| r.fair_processes))),
    );
    line(
        "the same, two owners at once",
        &of_rounds(|rounds| format!("{:.0}", rounds.iter().map(|r| r.overlaps).sum::<f64>())),
    );
    line("hand-off, held for 200 ms: median", &handoff[..here]);
    line("from SIGKILL of the holder to the next hold, ttl 3 s: median", &takeover);
    // There is no link to files.
    let over = |cells: &[String]| -> Cells {
        std::iter::once("-".to_string()).chain(cells.iter().cloned()).collect()
    };
    line("over the link: free lock, 1 task: median of a cycle", &over(&of_free(0)[here..]));
    line("the same, 99 %", &over(&of_free(1)[here..]));
    line("over the link: free locks, 64 tasks: cycles a second", &over(&of_free(2)[here..]));
    line("over the link: hand-off, held for 200 ms: median", &over(&handoff[here..]));
    println!(
        "\nThe link takes {:.1} ms each way and a little more: a PING over it took {round_trip:.1} ms \
         in the median, all servers on this machine. Takeovers: {} each, killed at different moments \
         between two renewals.",
        DELAY.as_secs_f64() * 1e3,
        shortened(KILLS, 3),
    );
    Ok(())
}

/// Median and 99th percentile with one task, cycles a second with 64; all stores in turns.
fn free(stores: &[&dyn Store]) -> Result<Vec<Cells>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let mut entries = Vec::new();
    for (n, store) in stores.iter().enumerate() {
        let locks = runtime.block_on(latchwork::connect(&store.address()))?;
        let cycles = move |work| free_cycles(locks.clone(), n, work);
        entries.push(Entry::here(store.name(), &runtime, cycles));
    }
    let one = in_turns(&mut entries, 1)?;
    let many = in_turns(&mut entries, 64)?;
    let cells = one.iter().zip(&many).map(|(one, many)| {
        let times = times(one);
        let (middle, high) = (times.quantile(0.5), times.quantile(0.99));
        vec![micros(middle), micros(high), format!("{:.0}", rate(many))]
    });
    Ok(cells.collect())
}

/// Keys of its own for who comes by the link; a namespace of its own would be in quarantine on
/// servers that vote.
async fn free_cycles(locks: latchwork::LockManager, number: usize, mut work: Work) {
    let mutex = locks.mutex(format!("free-{number}/{}", work.name));
    while work.goes_on() {
        let guard = mutex.acquire().await.expect("the store answers");
        guard.release().await.expect("the store answers");
    }
}

fn contended(stores: &[&dyn Store]) -> Result<Vec<Vec<Round>>> {
    let folder = Folder::new()?;
    let mut all: Vec<Vec<Round>> = stores.iter().map(|_| Vec::new()).collect();
    for _ in 0..shortened(CONTESTS.0, 1) {
        for (store, rounds) in stores.iter().zip(&mut all) {
            rounds.push(round(*store, &LATCHWORK, folder.path(), (PROCESSES, 1), CONTESTS.1)?);
        }
    }
    for (store, rounds) in stores.iter().zip(&all) {
        CONTENDED.note(store.name(), LATCHWORK.name, middle(rounds, |r| r.handovers));
    }
    Ok(all)
}

fn handoff(store: &dyn Store) -> Result<String> {
    store.clear()?;
    let middle = median(&mut handoffs(&LATCHWORK, &store.address())?);
    // Who is asked twice for a store notes the first: here what is near comes first.
    HANDOFF.note(store.name(), LATCHWORK.name, middle);
    Ok(micros(middle))
}

/// All at once: nobody has anything to do but to wait.
fn takeovers(stores: &[&dyn Store]) -> Result<Cells> {
    let took = std::thread::scope(|scope| {
        let started: Vec<_> = stores
            .iter()
            .map(|store| scope.spawn(|| takeover(*store).map_err(|error| error.to_string())))
            .collect();
        started.into_iter().map(|one| one.join().expect("no panic")).collect::<Vec<_>>()
    });
    Ok(took.into_iter().collect::<std::result::Result<_, _>>()?)
}

fn takeover(store: &dyn Store) -> Result<String> {
    store.clear()?;
    let ttl = TTL.as_millis().to_string();
    let kills = shortened(KILLS, 3);
    let mut samples = Vec::new();
    for n in 0..kills {
        let address = store.address();
        let mut holder = LATCHWORK.start("handoff", &address, &[&ttl])?;
        // For longer than this takes.
        holder.tell("3600000")?;
        holder.line()?;
        let mut waiter = LATCHWORK.start("handoff", &address, &[&ttl])?;
        waiter.tell("0")?;
        // Renewals come every third of the ttl; this is after the first.
        std::thread::sleep(TTL / 2 + TTL / 3 * n as u32 / kills as u32);
        let killed = now();
        holder.child.kill()?;
        let line = waiter.line()?;
        let at = line.strip_prefix("acquired ").ok_or_else(|| format!("what is {line:?}?"))?;
        samples.push((at.parse::<u64>()? as f64 - killed as f64) / 1e3);
    }
    Ok(micros(median(&mut samples)))
}

/// The median of some round trips to Redis in milliseconds.
pub(crate) fn ping(store: &dyn Store) -> Result<f64> {
    let port = *store.ports().first().ok_or("a server")?;
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let start = now();
        stream.write_all(b"PING\r\n")?;
        stream.read_exact(&mut [0; b"+PONG\r\n".len()])?;
        times.push((now() - start) as f64 / 1e6);
    }
    Ok(median(&mut times))
}

//! What a process of a measurement does, for locks in Rust. `peers/roles.py` and `peers/roles.js`
//! do the same for theirs; `peers/rust` is built with this file too.

use std::fs::{File, OpenOptions};
use std::io::BufRead;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::times::Times;

pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A lock on one key.
pub(crate) trait Lock: Send + Sync + 'static {
    /// What proves that it is held.
    type Held: Send;

    /// Waits until it is held.
    fn acquire(&self) -> impl Future<Output = Self::Held> + Send;

    /// Gives it back.
    fn release(&self, held: Self::Held) -> impl Future<Output = ()> + Send;
}

/// Nanoseconds on a clock that all processes of this machine share.
pub(crate) fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Processor time of this process in microseconds.
pub(crate) fn cpu_time() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The lines that the measurement sends; reading them blocks nobody.
pub(crate) fn input() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// `contend SCENE TASKS NUMBER`, `handoff`, `timed` or `free`, with a lock on the key that it is given.
pub(crate) async fn run<L: Lock>(args: &[String], make: impl Fn(&str) -> L) -> Outcome {
    let warm = make(&format!("warm/{}", std::process::id()));
    warm.release(warm.acquire().await).await;
    match args {
        [role, scene, tasks, number] if role == "contend" => {
            let scene = Arc::new(OpenOptions::new().read(true).write(true).open(scene)?);
            let number: u64 = number.parse()?;
            let tasks = (0..tasks.parse()?).map(|n: u64| Task {
                scene: scene.clone(),
                name: (number << 32 | n | 1 << 63).to_le_bytes(),
                pairs: 0,
                handovers: 0,
                overlaps: 0,
                times: Times::default(),
            });
            contend(make, tasks.collect()).await
        }
        [role] if role == "handoff" => handoff(make("bench")).await,
        [role] if role == "timed" => timed(make("bench")).await,
        [role] if role == "free" => free(make).await,
        _ => Err(format!("no role: {args:?}").into()),
    }
}

/// Who owns the key, and what it sees while it does.
struct Task {
    scene: Arc<File>,
    name: [u8; 8],
    pairs: u64,
    handovers: u64,
    overlaps: u64,
    /// How long it waited for each of its grants.
    times: Times,
}

impl Task {
    fn work(&mut self) {
        let mut last = [0; 8];
        self.scene.read_exact_at(&mut last, 0).expect("reads");
        self.scene.write_all_at(&self.name, 0).expect("writes");
        self.pairs += 1;
        self.handovers += u64::from(last != self.name);
        let mut now = [0; 8];
        self.scene.read_exact_at(&mut now, 0).expect("reads");
        self.overlaps += u64::from(now != self.name);
    }
}

async fn contend<L: Lock>(make: impl Fn(&str) -> L, tasks: Vec<Task>) -> Outcome {
    let mut lines = input();
    println!("ready");
    let until: u64 = lines.recv().await.ok_or("no word to begin")?.parse()?;
    let before = cpu_time();
    let handles: Vec<_> = tasks
        .into_iter()
        .map(|mut task| {
            let lock = make("bench");
            tokio::spawn(async move {
                loop {
                    let start = now();
                    if start >= until {
                        return task;
                    }
                    let held = lock.acquire().await;
                    // Who waited to the end has waited so long at least; what comes too late is no
                    // turn, for then everybody gives up the contest.
                    let end = now();
                    task.times.record(end - start);
                    if end < until {
                        task.work();
                    }
                    lock.release(held).await;
                }
            })
        })
        .collect();
    let mut tasks = Vec::new();
    for handle in handles {
        tasks.push(handle.await?);
    }
    let cpu = cpu_time() - before;
    let sum = |what: fn(&Task) -> u64| tasks.iter().map(what).sum::<u64>();
    print!("{} {} {cpu}", sum(|t| t.handovers), sum(|t| t.overlaps));
    let mut times = Times::default();
    for task in &tasks {
        print!(" {}", task.pairs);
        times.merge(&task.times);
    }
    println!(" times {times}");
    Ok(())
}

/// For each line of milliseconds holds it for so long, and tells when.
pub(crate) async fn handoff<L: Lock>(lock: L) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let held = lock.acquire().await;
        println!("acquired {}", now());
        tokio::time::sleep(Duration::from_millis(line.parse()?)).await;
        let released = now();
        lock.release(held).await;
        println!("released {released}");
    }
    Ok(())
}

/// For each line `TASKS MILLISECONDS` says how many cycles of tasks with keys of their own there were a
/// second, the processor time of one, and how long they took.
async fn free<L: Lock>(make: impl Fn(&str) -> L) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let (tasks, length) = line.split_once(' ').ok_or("TASKS MILLISECONDS")?;
        let tasks: usize = tasks.parse()?;
        let (before, start) = (cpu_time(), now());
        let until = start + length.parse::<u64>()? * 1_000_000;
        let handles: Vec<_> = (0..tasks)
            .map(|n| {
                let lock = make(&format!("bench/{n}"));
                tokio::spawn(async move {
                    let (mut done, mut times, mut begun) = (0, Times::default(), now());
                    while begun < until {
                        lock.release(lock.acquire().await).await;
                        let end = now();
                        times.record(end - begun);
                        (done, begun) = (done + 1, end);
                    }
                    (done, times)
                })
            })
            .collect();
        let (mut done, mut times) = (0, Times::default());
        for handle in handles {
            let (cycles, took) = handle.await?;
            done += cycles;
            times.merge(&took);
        }
        let (took, cpu) = (now() - start, cpu_time() - before);
        let done = f64::from(done);
        println!("{} {} times {times}", done / (took as f64 / 1e9), cpu / done);
    }
    Ok(())
}

/// For each line of milliseconds says how many cycles it did, and the median, the 99th percentile and
/// the longest of its acquires in microseconds.
async fn timed<L: Lock>(lock: L) -> Outcome {
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let until = now() + line.parse::<u64>()? * 1_000_000;
        let mut took = Vec::new();
        while now() < until {
            let start = now();
            let held = lock.acquire().await;
            took.push((now() - start) as f64 / 1e3);
            lock.release(held).await;
        }
        took.sort_by(f64::total_cmp);
        let last = took.len().saturating_sub(1) as f64;
        let at = |part: f64| took.get((last * part).round() as usize).copied().unwrap_or(f64::NAN);
        println!("{} {} {} {}", took.len(), at(0.5), at(0.99), at(1.0));
    }
    Ok(())
}

/// For each line `take COUNT` takes locks until there are so many, and for `cpu` tells its processor
/// time; in the end tells how many are still held.
pub(crate) async fn held<H, E: Into<Box<dyn std::error::Error>>>(
    take: impl AsyncFn(String) -> Result<H, E>,
    still: impl Fn(&H) -> bool,
) -> Outcome {
    let mut lines = input();
    let mut locks = Vec::new();
    println!("ready");
    loop {
        let line = lines.recv().await.ok_or("no word to end")?;
        match line.split_once(' ') {
            Some(("take", count)) => {
                for n in locks.len()..count.parse()? {
                    locks.push(take(format!("stock/{n}")).await.map_err(Into::into)?);
                }
                println!("taken");
            }
            None if line == "cpu" => println!("{}", cpu_time()),
            _ => break,
        }
    }
    println!("{}", locks.iter().filter(|lock| still(lock)).count());
    Ok(())
}

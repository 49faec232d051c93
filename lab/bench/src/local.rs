//! What is measured inside this process: a free lock against the bare system calls, and handovers between tasks.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use latchwork::{Event, LockManager, Observer};
use rustix::fs::{FlockOperation, flock};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::goals::Goal;
use crate::roles::Outcome;
use crate::stats::{head, median, row, shortened};

const CYCLES: u32 = 500;

/// A free lock against the system calls that it cannot do without.
pub(crate) fn free() -> Outcome {
    let runtime = Builder::new_current_thread().build()?;
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let bare = dir.path().join("bare");
    File::create(&bare)?.write_all_at(&[7; 256], 0)?;
    let url = format!("file://{}", dir.path().join("locks").display());
    let stores = [
        runtime.block_on(latchwork::connect(&url))?,
        runtime.block_on(latchwork::connect("mem:"))?,
    ];
    let mut seen = [(); 4].map(|()| Vec::new());
    for _ in 0..shortened(60, 10) {
        for (n, seen) in seen.iter_mut().enumerate() {
            let start = Instant::now();
            for _ in 0..CYCLES {
                match n {
                    0 | 1 => (0..=n).try_for_each(|_| bare_calls(&bare))?,
                    n => runtime.block_on(cycle(&stores[n - 2]))?,
                }
            }
            seen.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(CYCLES));
        }
    }
    let middles = seen.map(|mut seen| median(&mut seen));
    head("what | median of a cycle | to open+flock+read+write+close once | twice | goal");
    let names = [
        "open, flock, read, write, close",
        "the same twice (acquire, release)",
        "file: acquire, release",
        "mem: acquire, release",
    ];
    for (n, (name, value)) in names.into_iter().zip(middles).enumerate() {
        let twice = value / middles[1];
        row(&[
            name.into(),
            format!("{value:.2} us"),
            format!("{:.2}", value / middles[0]),
            format!("{twice:.2}"),
            match n {
                2 => Goal::below(4.0).of("twice").judge(twice).to_string(),
                _ => "-".into(),
            },
        ]);
    }
    Ok(())
}

async fn cycle(locks: &LockManager) -> Outcome {
    let guard = locks.mutex("bench").try_acquire().await?;
    Ok(guard.ok_or("nobody else is here")?.release().await?)
}

fn bare_calls(path: &Path) -> Outcome {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    flock(&file, FlockOperation::LockExclusive)?;
    let mut record = [0; 256];
    file.read_exact_at(&mut record, 0)?;
    Ok(file.write_all_at(&record, 0)?)
}

const TASKS: usize = 16;
/// Handovers a second.
const LEAST: f64 = 200_000.0;

#[derive(Default)]
struct Count {
    handed: AtomicU64,
    granted: AtomicU64,
}

impl Observer for Count {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::HandedOver { .. } => self.handed.fetch_add(1, Ordering::Relaxed),
            Event::Acquired { .. } => self.granted.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

/// Handovers between tasks on one key.
pub(crate) fn handovers() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let file = format!("file://{}", dir.path().display());
    head(
        "store | runtime | handovers a second | goal | grants a second | turns of a task, least to most",
    );
    for store in ["mem:", &file] {
        let one = Builder::new_current_thread().build()?;
        one.block_on(handed(store, "one thread"))?;
        let two = Builder::new_multi_thread().worker_threads(2).build()?;
        two.block_on(handed(store, "two threads"))?;
    }
    Ok(())
}

async fn handed(store: &str, runtime: &str) -> Outcome {
    let count = Arc::new(Count::default());
    let locks = latchwork::connect(store).await?.observer(count.clone());
    let last = Arc::new(AtomicU64::new(0));
    let (start, length) = (Instant::now(), Duration::from_secs(shortened(3, 1)));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mutex, last) = (locks.mutex("bench"), last.clone());
        tasks.spawn(async move {
            let mut turns = 0u64;
            while start.elapsed() < length {
                let guard = mutex.acquire().await.expect("the store answers");
                let token = guard.token().get();
                assert!(token > last.swap(token, Ordering::Relaxed), "tokens grow");
                turns += 1;
            }
            turns
        });
    }
    let turns = tasks.join_all().await;
    let took = start.elapsed().as_secs_f64();
    let rate = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64 / took;
    row(&[
        store.split(':').next().unwrap_or_default().into(),
        runtime.into(),
        format!("{:.0}", rate(&count.handed)),
        Goal::at_least(LEAST).judge(rate(&count.handed)).to_string(),
        format!("{:.0}", rate(&count.granted)),
        format!("{} to {}", turns.iter().min().unwrap_or(&0), turns.iter().max().unwrap_or(&0)),
    ]);
    Ok(())
}

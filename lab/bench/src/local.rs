//! Handovers inside one process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::{Event, Observer};
use tokio::task::JoinSet;

use crate::Outcome;
use crate::goals::{self, Goal};
use crate::stats::{head, row, shortened};

const TASKS: usize = 16;
const LENGTH: Duration = Duration::from_secs(3);
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

pub(crate) fn run() -> Outcome {
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let file = format!("file://{}", dir.path().display());
    head(&[
        "store",
        "runtime",
        "handovers a second",
        goals::TITLE,
        "grants a second",
        "turns of a task, least to most",
    ]);
    for store in ["mem:", &file] {
        for threads in [1, 2] {
            let runtime = match threads {
                1 => tokio::runtime::Builder::new_current_thread().build()?,
                n => tokio::runtime::Builder::new_multi_thread().worker_threads(n).build()?,
            };
            let name = if threads == 1 { "one thread" } else { "two threads" };
            runtime.block_on(measure(store, name))?;
        }
    }
    Ok(())
}

async fn measure(store: &str, runtime: &str) -> Outcome {
    let count = Arc::new(Count::default());
    let locks = latchwork::connect(store).await?.observer(count.clone());
    let last = Arc::new(Mutex::new(0));
    let length = shortened(LENGTH, LENGTH / 3);
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (mutex, last) = (locks.mutex("bench"), last.clone());
        tasks.spawn(async move {
            let mut turns = 0u64;
            while start.elapsed() < length {
                let guard = mutex.acquire().await.expect("the store answers");
                let token = guard.token().get();
                let mut last = last.lock().expect("no panic under it");
                assert!(token > *last, "tokens grow");
                *last = token;
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

//! Free cycles of many tasks, each with a key of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::roles::{Lock, Outcome, cpu_time, input, now};

/// For each line `TASKS MILLISECONDS` says how many cycles a second, and the processor time of one.
pub(crate) async fn run<L: Lock>(make: impl Fn(&str) -> L) -> Outcome {
    let warm = make("warm");
    warm.release(warm.acquire().await).await;
    let mut lines = input();
    println!("ready");
    while let Some(line) = lines.recv().await {
        let (tasks, length) = line.split_once(' ').ok_or("TASKS MILLISECONDS")?;
        let tasks: usize = tasks.parse()?;
        let done = Arc::new(AtomicU64::new(0));
        let (before, start) = (cpu_time(), now());
        let until = start + length.parse::<u64>()? * 1_000_000;
        let handles: Vec<_> = (0..tasks)
            .map(|n| {
                let (lock, done) = (make(&format!("bench/{n}")), done.clone());
                tokio::spawn(async move {
                    while now() < until {
                        lock.release(lock.acquire().await).await;
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for handle in handles {
            handle.await?;
        }
        let (took, cpu) = (now() - start, cpu_time() - before);
        let done = done.load(Ordering::Relaxed) as f64;
        println!("{} {}", done / (took as f64 / 1e9), cpu / done);
    }
    Ok(())
}

//! Free locks: cycles of acquire and release on keys that nobody else wants, of several kinds in
//! turns.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::Outcome;
use crate::child::Worker;
use crate::contest::stands;
use crate::peers::{self, Kind};
use crate::stats::{head, median, row, shortened};

const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_millis(300);

pub(crate) struct Sample {
    rate: f64,
    cpu: f64,
    /// How long each cycle took in microseconds, of the first task, in this process.
    cycles: Vec<f64>,
}

type Taken = Result<Sample, Box<dyn std::error::Error>>;

/// What is measured.
pub(crate) struct Entry<'a> {
    name: &'static str,
    /// How many times its rate Latchwork's should be, with so many tasks.
    goal: fn(usize) -> Option<f64>,
    sample: Box<dyn FnMut(usize) -> Taken + 'a>,
}

impl<'a> Entry<'a> {
    /// Cycles in this process.
    pub(crate) fn here<F>(
        name: &'static str,
        goal: fn(usize) -> Option<f64>,
        runtime: &'a Runtime,
        cycles: impl Fn(Work) -> F + 'a,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let sample = move |tasks| Ok(sample(runtime, tasks, &cycles));
        Self { name, goal, sample: Box::new(sample) }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Cycles of Latchwork in this process.
    pub(crate) fn latchwork(
        name: &'static str,
        runtime: &'a Runtime,
        locks: latchwork::LockManager,
    ) -> Self {
        Self::here(name, |_| None, runtime, move |work| latchwork_cycles(locks.clone(), work))
    }

    /// Cycles of another lock, in a process of its own.
    pub(crate) fn of(
        kind: &Kind,
        url: &str,
        goal: fn(usize) -> Option<f64>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut worker = kind.start("free", url, &[])?;
        let sample = move |tasks| other_sample(&mut worker, tasks);
        Ok(Self { name: kind.name, goal, sample: Box::new(sample) })
    }
}

/// The samples of all, taken in turns.
pub(crate) fn in_turns(
    entries: &mut [Entry<'_>],
    tasks: usize,
) -> Result<Vec<Vec<Sample>>, Box<dyn std::error::Error>> {
    let mut samples: Vec<Vec<Sample>> = entries.iter().map(|_| Vec::new()).collect();
    // What happens once is not of a cycle: sessions, and leases that are granted ahead.
    for entry in &mut *entries {
        (entry.sample)(tasks)?;
    }
    for _ in 0..shortened(ROUNDS, 3) {
        for (entry, samples) in entries.iter_mut().zip(&mut samples) {
            samples.push((entry.sample)(tasks)?);
        }
    }
    Ok(samples)
}

/// Measures all with one and with 64 tasks: the bare requests first, then Latchwork, then others.
/// `setting` follows in the titles.
pub(crate) fn run(
    mut entries: Vec<Entry<'_>>,
    missing: &[(Kind, String)],
    setting: &str,
) -> Outcome {
    for tasks in [1, 64] {
        let samples = in_turns(&mut entries, tasks)?;
        println!("{tasks} task(s), each with a key of its own{setting}:\n");
        head(&[
            "what",
            "cycles a second",
            "to bare",
            "latchwork to it",
            "goal",
            "client CPU a cycle",
            "to bare",
        ]);
        let (bare, ours) = (&samples[0], &samples[1]);
        for (entry, rows) in entries.iter().zip(&samples) {
            let part = rate(ours) / rate(rows);
            let goal = (entry.goal)(tasks).map(|goal| stands(format!(">= {goal}"), part >= goal));
            row(&[
                entry.name.into(),
                format!("{:.0}", rate(rows)),
                format!("{:.2}", rate(rows) / rate(bare)),
                format!("{part:.2}"),
                goal.unwrap_or_else(|| "-".into()),
                format!("{:.2} us", cpu(rows)),
                format!("{:.2}", cpu(rows) / cpu(bare)),
            ]);
        }
        peers::missing_rows(missing, 7);
        println!();
    }
    Ok(())
}

/// Lets another process run so many tasks for a while.
fn other_sample(worker: &mut Worker, tasks: usize) -> Taken {
    worker.tell(&format!("{tasks} {}", LENGTH.as_millis()))?;
    let line = worker.line()?;
    let (rate, cpu) = line.split_once(' ').ok_or("two numbers")?;
    Ok(Sample { rate: rate.parse()?, cpu: cpu.parse()?, cycles: Vec::new() })
}

pub(crate) fn rate(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.rate).collect::<Vec<_>>())
}

pub(crate) fn cpu(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.cpu).collect::<Vec<_>>())
}

/// Runs so many tasks for a while.
fn sample<F>(runtime: &Runtime, tasks: usize, cycles: impl Fn(Work) -> F) -> Sample
where
    F: Future<Output = ()> + Send + 'static,
{
    let done = Arc::new(Done::default());
    let before = cpu_time();
    let start = Instant::now();
    runtime.block_on(async {
        let handles: Vec<_> = (0..tasks)
            .map(|n| {
                let done = done.clone();
                let work = Work { name: n, until: start + LENGTH, done, begun: None };
                tokio::spawn(cycles(work))
            })
            .collect();
        for handle in handles {
            handle.await.expect("no cycle fails");
        }
    });
    let took = start.elapsed().as_secs_f64();
    let cpu = (cpu_time() - before).as_secs_f64() * 1e6;
    let cycles = std::mem::take(&mut *done.cycles.lock().expect("nothing panics with it"));
    let done = done.count.load(Ordering::Relaxed) as f64;
    Sample { rate: done / took, cpu: cpu / done, cycles }
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// All times of all rounds.
pub(crate) fn cycles(rows: &[Sample]) -> Vec<f64> {
    rows.iter().flat_map(|s| &s.cycles).copied().collect()
}

/// What the tasks have done.
#[derive(Default)]
struct Done {
    count: AtomicU64,
    cycles: Mutex<Vec<f64>>,
}

pub(crate) struct Work {
    pub(crate) name: usize,
    until: Instant,
    done: Arc<Done>,
    begun: Option<Instant>,
}

impl Work {
    /// Whether there is to be one more cycle.
    pub(crate) fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        if let Some(begun) = self.begun.replace(now) {
            self.done.count.fetch_add(1, Ordering::Relaxed);
            // Of one task: so the lock is always free.
            if self.name == 0 {
                let took = (now - begun).as_secs_f64() * 1e6;
                self.done.cycles.lock().expect("nothing panics with it").push(took);
            }
        }
        now < self.until
    }
}

async fn latchwork_cycles(locks: latchwork::LockManager, mut work: Work) {
    let mutex = locks.mutex(format!("bench/{}", work.name));
    while work.goes_on() {
        let guard = mutex.try_acquire().await.expect("the store answers");
        guard.expect("the key is its own").release().await.expect("the store answers");
    }
}

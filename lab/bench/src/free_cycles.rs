//! Free locks: cycles of acquire and release on keys that nobody else wants, of several kinds in
//! turns.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use latchwork::BlockOn;
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::bars::FREE;
use crate::child::Worker;
use crate::free_child;
use crate::goals::{self, Goal};
use crate::peers::{self, Kind};
use crate::stats::{Best, beside, head, median, micros, row, shortened};
use crate::store::{Count, Store};
use crate::times::Times;

const ROUNDS: usize = 15;
const LENGTH: Duration = Duration::from_millis(300);

pub(crate) struct Sample {
    pub(crate) rate: f64,
    pub(crate) cpu: f64,
    /// Commands that the store got, a cycle.
    commands: f64,
    /// How long each cycle took.
    pub(crate) times: Times,
}

impl Sample {
    /// Without a count of commands.
    pub(crate) fn of(rate: f64, cpu: f64, times: Times) -> Self {
        Self { rate, cpu, commands: f64::NAN, times }
    }
}

pub(crate) type Taken = Result<Sample, Box<dyn std::error::Error>>;

/// What is measured.
pub(crate) struct Entry<'a> {
    name: &'static str,
    is_peer: bool,
    own_thread: bool,
    /// How many times its rate Latchwork's should be, with so many tasks.
    goal: Box<dyn Fn(usize) -> Option<Goal> + 'a>,
    /// How many times its client's CPU a cycle Latchwork's may be, with many tasks.
    cpu_goal: Option<f64>,
    /// How many times the rate of another row its own should be with one task.
    beside: Option<(&'static str, f64)>,
    commands: Box<dyn Fn() -> Count + 'a>,
    sample: Box<dyn FnMut(usize, Duration) -> Taken + 'a>,
}

impl<'a> Entry<'a> {
    /// Cycles in this process, with a connection on a thread of its own.
    pub(crate) fn here<F>(
        name: &'static str,
        runtime: &'a Runtime,
        cycles: impl Fn(Work) -> F + 'a,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::new(name, move |tasks, length| Ok(sample(runtime, tasks, length, &cycles)))
    }

    fn new(name: &'static str, sample: impl FnMut(usize, Duration) -> Taken + 'a) -> Self {
        Self {
            name,
            is_peer: false,
            own_thread: true,
            goal: Box::new(|_| None),
            cpu_goal: None,
            beside: None,
            commands: Box::new(|| Ok(f64::NAN)),
            sample: Box::new(sample),
        }
    }

    pub(crate) fn goal(mut self, goal: impl Fn(usize) -> Option<f64> + 'a) -> Self {
        self.goal = Box::new(move |tasks| goal(tasks).map(Goal::at_least));
        self
    }

    pub(crate) fn cpu_goal(mut self, most: f64) -> Self {
        self.cpu_goal = Some(most);
        self
    }

    pub(crate) fn beside(mut self, other: &'static str, at_least: f64) -> Self {
        self.beside = Some((other, at_least));
        self
    }

    /// Counts what a store gets from clients of this kind.
    pub(crate) fn counted(mut self, store: &'a dyn Store, kind: &'a Kind) -> Self {
        self.commands = Box::new(move || store.commands(kind));
        self
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Cycles of this program in a process of its own, see [`free_child`].
    pub(crate) fn apart(
        name: &'static str,
        (what, near): (&str, bool),
        url: &str,
        namespace: &[&str],
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut worker = Worker::spawn(command.args(["child-free", what, url]).args(namespace))?;
        match worker.line()? {
            line if line == "ready" => {}
            other => return Err(format!("{name}: {other:?} instead of \"ready\"").into()),
        }
        let sample = move |tasks, length| other_sample(&mut worker, tasks, length);
        Ok(Self { own_thread: !near, ..Self::new(name, sample) })
    }

    /// Cycles of Latchwork in a process of its own.
    pub(crate) fn latchwork(
        name: &'static str,
        store: &'a dyn Store,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let this = Self::apart(name, free_child::LATCHWORK, &store.address(), &[])?;
        Ok(this.counted(store, &peers::LATCHWORK))
    }

    /// Cycles of another lock, in a process of its own.
    pub(crate) fn of(
        kind: &'a Kind,
        store: &'a dyn Store,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let this = Self {
            is_peer: kind.is_peer(),
            own_thread: kind.own_thread,
            goal: Box::new(|_| kind.free_goal()),
            ..Self::started(kind, store)?
        };
        Ok(this.counted(store, kind))
    }

    /// Cycles of another lock, in a process of its own, without goals and without a count of commands.
    pub(crate) fn started(
        kind: &Kind,
        store: &dyn Store,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let mut worker = kind.start("free", &store.address(), &[])?;
        Ok(Self::new(kind.name, move |tasks, length| other_sample(&mut worker, tasks, length)))
    }

    fn take(&mut self, tasks: usize, length: Duration) -> Taken {
        let before = (self.commands)()?;
        let mut sample = (self.sample)(tasks, length)?;
        let cycles = sample.rate * length.as_secs_f64();
        sample.commands = ((self.commands)()? - before) / cycles;
        Ok(sample)
    }
}

/// The samples of all, taken in turns.
pub(crate) fn in_turns(
    entries: &mut [Entry<'_>],
    tasks: usize,
) -> Result<Vec<Vec<Sample>>, Box<dyn std::error::Error>> {
    in_turns_of(entries, tasks, LENGTH)
}

/// The same, each so long.
pub(crate) fn in_turns_of(
    entries: &mut [Entry<'_>],
    tasks: usize,
    length: Duration,
) -> Result<Vec<Vec<Sample>>, Box<dyn std::error::Error>> {
    let mut samples: Vec<Vec<Sample>> = entries.iter().map(|_| Vec::new()).collect();
    // What happens once is not of a cycle: sessions, and leases that are granted ahead.
    for entry in &mut *entries {
        entry.take(tasks, length)?;
    }
    for _ in 0..shortened(ROUNDS, 3) {
        for (entry, samples) in entries.iter_mut().zip(&mut samples) {
            samples.push(entry.take(tasks, length)?);
        }
    }
    Ok(samples)
}

/// Measures all with one and with 64 tasks: the bare requests first, then Latchwork, then others.
/// `setting` follows in the titles.
pub(crate) fn run(
    mut entries: Vec<Entry<'_>>,
    missing: &[(Kind, String)],
    store: &dyn Store,
    setting: &str,
) -> Outcome {
    for tasks in [1, 64] {
        let samples = in_turns(&mut entries, tasks)?;
        let tasks_each = if tasks == 1 { "one task".into() } else { format!("{tasks} tasks") };
        println!("{tasks_each}, each with a key of its own{setting}:\n");
        let titles = [
            "what",
            "connection",
            "cycles a second",
            "to bare",
            "latchwork to it",
            goals::TITLE,
            "cycle p50",
            "cycle p99",
            "client CPU a cycle",
            "to bare",
            "commands a cycle",
        ];
        head(&titles);
        let (bare, ours) = (&samples[0], &samples[1]);
        for (n, (entry, rows)) in entries.iter().zip(&samples).enumerate() {
            let part = rate(ours) / rate(rows);
            let beside = entry.beside.filter(|_| tasks == 1).and_then(|(name, least)| {
                let other = entries.iter().position(|entry| entry.name == name)?;
                let goal = Goal::at_least(least).of(format!("to {name}"));
                Some(goal.judge(rate(rows) / rate(&samples[other])))
            });
            let mut verdicts = Vec::from_iter((entry.goal)(tasks).map(|goal| goal.judge(part)));
            verdicts.extend(beside);
            if let Some(most) = entry.cpu_goal.filter(|_| tasks > 1) {
                verdicts.push(Goal::at_most(most).of("CPU").judge(cpu(ours) / cpu(rows)));
            }
            let times = times(rows);
            row(&[
                entry.name.into(),
                if entry.own_thread { "own thread" } else { "caller's" }.into(),
                format!("{:.0}", rate(rows)),
                format!("{:.2}", rate(rows) / rate(bare)),
                format!("{part:.2}"),
                goals::cell(&verdicts),
                micros(times.quantile(0.5)),
                micros(times.quantile(0.99)),
                format!("{:.2} us", cpu(rows)),
                format!("{:.2}", cpu(rows) / cpu(bare)),
                format!("{:.2}", commands(rows)),
            ]);
            if tasks == 1 {
                let name = if n == 1 { peers::LATCHWORK.name } else { entry.name };
                FREE.note(store.name(), name, rate(rows));
            }
        }
        peers::missing_rows(missing, titles.len());
        let seen = |is_peer: bool| -> Vec<(&str, f64)> {
            let wanted = |entry: &Entry<'_>| match is_peer {
                true => entry.is_peer,
                false => !entry.is_peer && !entry.name.starts_with(peers::LATCHWORK.name),
            };
            let some = entries.iter().zip(&samples).filter(|(entry, _)| wanted(entry));
            some.map(|(entry, rows)| (entry.name, rate(rows))).collect()
        };
        println!("\n{}\n", beside(rate(ours), &seen(true), &seen(false), Best::Most));
    }
    Ok(())
}

/// Lets another process run so many tasks for a while.
fn other_sample(worker: &mut Worker, tasks: usize, length: Duration) -> Taken {
    worker.tell(&format!("{tasks} {}", length.as_millis()))?;
    let line = worker.line()?;
    let (numbers, times) = Times::after_numbers(&line)?;
    let [rate, cpu] = numbers[..] else { return Err("two numbers".into()) };
    Ok(Sample::of(rate, cpu, times))
}

pub(crate) fn rate(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.rate).collect::<Vec<_>>())
}

pub(crate) fn cpu(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.cpu).collect::<Vec<_>>())
}

pub(crate) fn commands(rows: &[Sample]) -> f64 {
    median(&mut rows.iter().map(|s| s.commands).collect::<Vec<_>>())
}

/// Runs so many tasks for a while.
pub(crate) fn sample<F>(
    runtime: &Runtime,
    tasks: usize,
    length: Duration,
    cycles: impl Fn(Work) -> F,
) -> Sample
where
    F: Future<Output = ()> + Send + 'static,
{
    measured(length, |work| {
        runtime.block_on(async {
            let tasks: Vec<_> = (0..tasks).map(|n| tokio::spawn(cycles(work(n)))).collect();
            for task in tasks {
                task.await.expect("no cycle fails");
            }
        });
    })
}

/// The same with threads that block.
pub(crate) fn sample_of_threads(
    locks: &latchwork::LockManager,
    tasks: usize,
    length: Duration,
) -> Sample {
    measured(length, |work| {
        std::thread::scope(|scope| {
            for n in 0..tasks {
                let work = work(n);
                scope.spawn(|| latchwork_cycles(locks.clone(), work).block_on());
            }
        });
    })
}

fn measured(length: Duration, run: impl FnOnce(&dyn Fn(usize) -> Work)) -> Sample {
    let all = Arc::new(Mutex::new(Done::default()));
    let before = cpu_time();
    let start = Instant::now();
    run(&|name| Work {
        name,
        until: start + length,
        all: all.clone(),
        done: Done::default(),
        begun: None,
    });
    let took = start.elapsed().as_secs_f64();
    let cpu = (cpu_time() - before).as_secs_f64() * 1e6;
    let Done { count, times } = std::mem::take(&mut *all.lock().expect("nothing panics with it"));
    Sample { rate: count / took, cpu: cpu / count, commands: f64::NAN, times }
}

pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The times of all rounds.
pub(crate) fn times(rows: &[Sample]) -> Times {
    let mut all = Times::default();
    rows.iter().for_each(|sample| all.merge(&sample.times));
    all
}

/// What tasks have done.
#[derive(Default)]
struct Done {
    count: f64,
    times: Times,
}

pub(crate) struct Work {
    pub(crate) name: usize,
    until: Instant,
    done: Done,
    all: Arc<Mutex<Done>>,
    begun: Option<Instant>,
}

impl Work {
    /// Whether there is to be one more cycle.
    pub(crate) fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        if let Some(begun) = self.begun.replace(now) {
            self.done.count += 1.0;
            self.done.times.record((now - begun).as_nanos() as u64);
        }
        now < self.until
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut all = self.all.lock().expect("nothing panics with it");
        all.count += self.done.count;
        all.times.merge(&self.done.times);
    }
}

pub(crate) async fn latchwork_cycles(locks: latchwork::LockManager, mut work: Work) {
    let mutex = locks.mutex(format!("bench/{}", work.name));
    while work.goes_on() {
        // Where servers vote, one of the last release that answers late may spoil a try.
        let guard = loop {
            if let Some(guard) = mutex.try_acquire().await.expect("the store answers") {
                break guard;
            }
        };
        guard.release().await.expect("the store answers");
    }
}

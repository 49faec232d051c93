//! What a process of a measurement does with its locks, by the lines on its input. The drivers in other languages
//! speak the same words; `peers/rust` is built with this file too.
//!
//! | line | answer |
//! | --- | --- |
//! | `cycle TASKS UNTIL` | acquires and releases, a key for each task: `HANDOVERS OVERLAPS SECONDS CPU PAIRS.. times ACQUIRES times CYCLES` |
//! | `cycle TASKS UNTIL SCENE NUMBER` | the same on one key; each owner writes its name into a file, and looks who was there |
//! | `hold` | `acquired MOMENT`, and after the next line, whatever it is, `released MOMENT` |
//! | `use FROM TO` | uses each key once: `SECONDS FAILED CPU times TIMES` |
//! | `pace RATE MILLIS` | uses so many keys a second: `SECONDS DONE FAILED times TIMES` |
//! | `take COUNT [AT_ONCE]`, `held`, `cpu` | holds so many: `taken`; how many are still held; its processor time |
//!
//! Moments are nanoseconds of the monotonic clock, processor time is in microseconds.

use std::fs::File;
use std::io::BufRead;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::times::Times;

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;
pub(crate) type Outcome<T = ()> = Result<T, Failed>;

/// So many keys are used at a time.
const AT_ONCE: usize = 64;

/// A lock on one key.
pub(crate) trait Lock: Send + Sync + 'static {
    /// What proves that it is held.
    type Held: Send + 'static;

    /// Waits until it is held.
    fn acquire(&self) -> impl Future<Output = Outcome<Self::Held>> + Send;

    /// Gives it back.
    fn release(&self, held: Self::Held) -> impl Future<Output = Outcome> + Send;

    fn is_held(_held: &Self::Held) -> bool {
        true
    }
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

fn seconds_since(start: u64) -> f64 {
    (now() - start) as f64 / 1e9
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

/// What a task has done, and how its tasks are run: on the runtime, or each on a thread that blocks.
pub(crate) type Task = Pin<Box<dyn Future<Output = Outcome<Done>> + Send>>;
pub(crate) type Spawn = fn(Task) -> oneshot::Receiver<Outcome<Done>>;

/// Runs a task on this runtime.
pub(crate) fn spawn(task: Task) -> oneshot::Receiver<Outcome<Done>> {
    let (sender, done) = oneshot::channel();
    tokio::spawn(async { sender.send(task.await) });
    done
}

#[derive(Default)]
pub(crate) struct Done {
    pairs: u64,
    handovers: u64,
    overlaps: u64,
    acquires: Times,
    cycles: Times,
}

/// Does what happens once: a connection, and the scripts of a server.
pub(crate) async fn warm<L: Lock>(make: &impl Fn(&str) -> Outcome<L>) -> Outcome {
    let lock = make(&format!("warm/{}", std::process::id()))?;
    lock.release(lock.acquire().await?).await
}

/// Does what the lines say, with locks on the keys that it chooses.
pub(crate) async fn serve<L: Lock>(make: impl Fn(&str) -> Outcome<L>, spawn: Spawn) -> Outcome {
    let mut lines = input();
    let (mut bench, mut stock) = (None, Vec::new());
    println!("ready");
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["cycle", tasks, until, ref scene @ ..] => {
                cycle(&make, spawn, tasks.parse()?, until.parse()?, scene).await?;
            }
            ["hold"] => {
                let lock = match &bench {
                    Some(lock) => Arc::clone(lock),
                    None => bench.insert(Arc::new(make("bench")?)).clone(),
                };
                let (release, released) = oneshot::channel::<()>();
                let held = spawn(Box::pin(hold(lock, released)));
                lines.recv().await.ok_or("no word to release")?;
                drop(release);
                held.await??;
            }
            ["use", from, to] => {
                let (start, spent) = (now(), cpu_time());
                let one = |n| Ok(used(make(&format!("once/{n}"))?));
                let mut all = Uses::default();
                let each = |one| {
                    all.add(one);
                    Ok(())
                };
                spread(from.parse()?..to.parse()?, AT_ONCE, one, each).await?;
                let Uses { failed, times, .. } = all;
                let cpu = cpu_time() - spent;
                println!("{} {failed} {cpu} times {times}", seconds_since(start));
            }
            ["pace", rate, millis] => {
                let start = now();
                let until = start + millis.parse::<u64>()? * 1_000_000;
                let Uses { count, failed, times } = pace(&make, rate.parse()?, until).await?;
                println!("{} {count} {failed} times {times}", seconds_since(start));
            }
            ["take", count, ref at_once @ ..] => {
                let one = |n| {
                    let lock = make(&format!("stock/{n}"))?;
                    Ok(async move { lock.acquire().await })
                };
                let wanted = stock.len()..count.parse()?;
                let each = |held: Outcome<_>| {
                    stock.push(held?);
                    Ok(())
                };
                let at_once = at_once.first().map_or(Ok(1), |count| count.parse())?;
                spread(wanted, at_once, one, each).await?;
                println!("taken");
            }
            ["held"] => println!("{}", stock.iter().filter(|held| L::is_held(held)).count()),
            ["cpu"] => println!("{}", cpu_time()),
            _ => break,
        }
    }
    Ok(())
}

async fn hold<L: Lock>(lock: Arc<L>, released: oneshot::Receiver<()>) -> Outcome<Done> {
    let held = lock.acquire().await?;
    println!("acquired {}", now());
    // Its other end is dropped.
    let _ = released.await;
    let at = now();
    lock.release(held).await?;
    println!("released {at}");
    Ok(Done::default())
}

async fn cycle<L: Lock>(
    make: &impl Fn(&str) -> Outcome<L>,
    spawn: Spawn,
    tasks: u64,
    until: u64,
    scene: &[&str],
) -> Outcome {
    let scene = match scene {
        [path, number] => {
            let file = File::options().read(true).write(true).open(path)?;
            Some((Arc::new(file), number.parse::<u64>()?))
        }
        _ => None,
    };
    let (before, start) = (cpu_time(), now());
    let mut running = Vec::new();
    for n in 0..tasks {
        let own = format!("bench/{n}");
        let lock = make(if scene.is_some() { "bench" } else { &own })?;
        let name = |number: u64| (number << 32 | n | 1 << 63).to_le_bytes();
        let scene = scene.as_ref().map(|(file, number)| (file.clone(), name(*number)));
        running.push(spawn(Box::pin(turns(lock, until, scene))));
    }
    let mut all = Vec::new();
    for task in running {
        all.push(task.await??);
    }
    let (seconds, cpu) = (seconds_since(start), cpu_time() - before);
    let sum = |what: fn(&Done) -> u64| all.iter().map(what).sum::<u64>();
    print!("{} {} {seconds} {cpu}", sum(|it| it.handovers), sum(|it| it.overlaps));
    all.iter().for_each(|it| print!(" {}", it.pairs));
    let acquires = Times::merged(all.iter().map(|it| &it.acquires));
    println!(" times {acquires} times {}", Times::merged(all.iter().map(|it| &it.cycles)));
    Ok(())
}

async fn turns<L: Lock>(lock: L, until: u64, scene: Option<(Arc<File>, [u8; 8])>) -> Outcome<Done> {
    let (mut done, mut start) = (Done::default(), now());
    while start < until {
        let held = lock.acquire().await?;
        let acquired = now();
        done.acquires.record(acquired - start);
        match &scene {
            None => done.pairs += 1,
            Some((file, name)) if acquired < until => {
                let mut seen = [0; 8];
                file.read_exact_at(&mut seen, 0)?;
                file.write_all_at(name, 0)?;
                done.pairs += 1;
                done.handovers += u64::from(seen != *name);
                file.read_exact_at(&mut seen, 0)?;
                done.overlaps += u64::from(seen != *name);
            }
            // What comes too late is no turn, for then everybody gives up the contest.
            Some(_) => {}
        }
        lock.release(held).await?;
        let end = now();
        done.cycles.record(end - start);
        start = end;
    }
    Ok(done)
}

/// Uses a lock once: how long that took, and whether it did.
async fn used<L: Lock>(lock: L) -> (u64, Outcome) {
    let begun = now();
    let used = async { lock.release(lock.acquire().await?).await };
    let used = used.await;
    (now() - begun, used)
}

/// What became of many uses.
#[derive(Default)]
struct Uses {
    count: u64,
    failed: u64,
    times: Times,
}

impl Uses {
    fn add(&mut self, (took, used): (u64, Outcome)) {
        self.count += 1;
        self.times.record(took);
        if let Err(error) = used {
            eprintln!("{error}");
            self.failed += 1;
        }
    }
}

/// Runs something for each number, some at a time.
async fn spread<T, F>(
    numbers: Range<usize>,
    at_once: usize,
    one: impl Fn(usize) -> Outcome<F>,
    mut ended: impl FnMut(T) -> Outcome,
) -> Outcome
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let mut running = JoinSet::new();
    for number in numbers {
        if running.len() == at_once
            && let Some(one) = running.join_next().await
        {
            ended(one?)?;
        }
        running.spawn(one(number)?);
    }
    while let Some(one) = running.join_next().await {
        ended(one?)?;
    }
    Ok(())
}

/// Uses keys, each once, at even intervals.
async fn pace<L: Lock>(make: &impl Fn(&str) -> Outcome<L>, rate: f64, until: u64) -> Outcome<Uses> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1).div_f64(rate));
    let (mut running, mut all) = (JoinSet::new(), Uses::default());
    for number in 0_u64.. {
        ticks.tick().await;
        if now() >= until {
            break;
        }
        running.spawn(used(make(&format!("paced/{until}/{number}"))?));
    }
    while let Some(one) = running.join_next().await {
        all.add(one?);
    }
    Ok(all)
}

//! The load, in a process of its own: many connections that hold locks and renew them, and requests that
//! wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use super::api::{Api, Hold};
use super::http::Client;
use crate::roles::{Outcome, cpu_time, input, now};
use crate::times::Times;

/// What all connections do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// They are open.
    Idle,
    /// Each takes its share of the locks, and renews what it has.
    Hold,
    /// They hold and do not renew.
    Pause,
    Release,
}

/// What the connections have done since it was asked for last.
#[derive(Default)]
struct Seen {
    renewed: u64,
    failed: u64,
    times: Times,
}

/// What each connection is to do.
#[derive(Clone)]
struct Plan {
    api: Api,
    port: u16,
    ttl: Duration,
    share: usize,
    phase: watch::Receiver<Phase>,
    /// Told once for each phase that a connection has completed.
    ready: mpsc::UnboundedSender<Outcome>,
    seen: Arc<Mutex<Seen>>,
}

/// `API PORT CONNECTIONS SHARE TTL_MS`; then a line for each thing to do.
pub(super) async fn run(args: &[String]) -> Outcome {
    let [api, port, connections, share, ttl] = args else {
        return Err("API PORT CONNECTIONS SHARE TTL_MS".into());
    };
    let connections: usize = connections.parse()?;
    let (phases, phase) = watch::channel(Phase::Idle);
    let (ready, mut completed) = mpsc::unbounded_channel();
    let seen = Arc::<Mutex<Seen>>::default();
    let plan = Plan {
        api: Api::of(api).ok_or("service or gateway")?,
        port: port.parse()?,
        ttl: Duration::from_millis(ttl.parse()?),
        share: share.parse()?,
        phase,
        ready,
        seen: seen.clone(),
    };
    let mut waiters: Vec<AbortHandle> = Vec::new();
    let mut lines = input();
    while let Some(line) = lines.recv().await {
        let mut all = async || {
            for _ in 0..connections {
                completed.recv().await.unwrap_or_else(|| Err("no connection".into()))?;
            }
            Outcome::Ok(())
        };
        let start = now();
        match line.as_str() {
            "connect" => {
                for number in 0..connections {
                    let plan = plan.clone();
                    tokio::spawn(async move {
                        if let Err(error) = connection(number, &plan).await {
                            let _ = plan.ready.send(Err(error));
                        }
                    });
                }
                all().await?;
            }
            "take" => {
                phases.send_replace(Phase::Hold);
                all().await?;
            }
            "pause" => drop(phases.send_replace(Phase::Pause)),
            "go" => drop(phases.send_replace(Phase::Hold)),
            "release" => {
                phases.send_replace(Phase::Release);
                all().await?;
            }
            "withdraw" => waiters.drain(..).for_each(|waiter| waiter.abort()),
            "numbers" => {
                let Seen { renewed, failed, times } = std::mem::take(&mut *lock(&seen));
                println!("{renewed} {failed} {} times {times}", cpu_time());
                continue;
            }
            line => match line.split_once(' ') {
                Some(("wait", count)) => {
                    for number in 0..count.parse()? {
                        waiters.push(tokio::spawn(wait(number, plan.clone())).abort_handle());
                    }
                }
                _ => return Err(format!("nothing to do: {line:?}").into()),
            },
        }
        println!("{}", (now() - start) / 1_000_000);
    }
    Ok(())
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name of the lock that a connection holds first.
fn first(number: usize) -> String {
    format!("held/{number}/0")
}

/// Waits for a lock that is held, until it is aborted.
async fn wait(number: usize, plan: Plan) {
    let waiting = async {
        let mut client = Client::connect(plan.port).await?;
        let hold = plan.api.acquire(&mut client, &first(number), plan.ttl, plan.ttl * 20).await?;
        hold.release(&mut client).await
    };
    // What it gets is not free, so the request fails only if something is wrong.
    if let Err(error) = waiting.await {
        eprintln!("a waiting request: {error}");
    }
}

async fn connection(number: usize, plan: &Plan) -> Outcome {
    let Plan { api, port, ttl, share, .. } = *plan;
    let mut phase = plan.phase.clone();
    let done = || drop(plan.ready.send(Ok(())));
    let mut client = Client::connect(port).await?;
    // What comes with the first request is not of a hold.
    let keeper = api.begin(&mut client, ttl).await?;
    let name = format!("warm/{number}");
    api.take(&mut client, &name, ttl, keeper.as_ref()).await?.release(&mut client).await?;
    if let Some(keeper) = keeper {
        keeper.release(&mut client).await?;
    }
    done();
    let period = ttl / 3;
    // When each was renewed last. The first renewals come at different times, or all would come at once.
    let mut held: Vec<(Instant, Hold)> = Vec::new();
    let mut taken = 0;
    let mut completed = Phase::Idle;
    loop {
        let current = *phase.borrow_and_update();
        if current == Phase::Hold && taken < share {
            let spread = (number * 7_919 + taken * 104_729) % 1_000;
            let spread = period * spread as u32 / 1_000;
            if taken == 0 {
                let keeper = api.begin(&mut client, ttl).await?;
                held.extend(keeper.map(|keeper| (Instant::now() - spread, keeper)));
            }
            let name = match taken {
                0 => first(number),
                n => format!("held/{number}/{n}"),
            };
            let keeper = held.first().map(|(_, keeper)| keeper).filter(|_| api.keeps_many());
            let hold = api.take(&mut client, &name, ttl, keeper).await?;
            if !matches!(hold, Hold::Kept) {
                held.push((Instant::now() - spread, hold));
            }
            taken += 1;
        }
        if current == Phase::Release {
            for (_, hold) in held.drain(..) {
                hold.release(&mut client).await?;
            }
            taken = 0;
        }
        let is_complete = match current {
            Phase::Hold => taken == share,
            Phase::Release => true,
            Phase::Idle | Phase::Pause => false,
        };
        if is_complete && completed != current {
            completed = current;
            done();
        }
        let is_taking = current == Phase::Hold && taken < share;
        let next = held.iter().map(|(at, _)| *at + period).min().filter(|_| current == Phase::Hold);
        let sleep = async {
            match next {
                _ if is_taking => {}
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = phase.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                // Renewals that a pause has kept back do not all come at its end.
                if current == Phase::Pause {
                    let now = Instant::now();
                    held.iter_mut().filter(|(at, _)| *at + period < now).for_each(|(at, _)| *at += PAUSE);
                }
            }
            () = sleep => {}
        }
        if next.is_some_and(|at| at <= Instant::now()) {
            renew(&mut held, &mut client, period, &plan.seen).await;
        }
    }
}

/// Renews the hold that was renewed least recently.
async fn renew(
    held: &mut [(Instant, Hold)],
    client: &mut Client,
    period: Duration,
    seen: &Mutex<Seen>,
) {
    let Some((at, hold)) = held.iter_mut().min_by_key(|(at, _)| *at) else { return };
    let start = now();
    let renewed = hold.renew(client).await;
    let took = now() - start;
    *at += period;
    let mut seen = lock(seen);
    match renewed {
        Ok(()) => {
            seen.renewed += 1;
            seen.times.record(took);
        }
        Err(error) => {
            seen.failed += 1;
            // A service that stops says so to all.
            if seen.failed == 1 && !error.to_string().contains("Closed") {
                eprintln!("a renewal: {error}");
            }
        }
    }
}

/// How long a pause of the renewals is.
pub(super) const PAUSE: Duration = Duration::from_secs(4);

/// The same load without HTTP, by the library: `URL LOCKS WAITERS TTL_MS`; says when all are held, and how many still
/// are at the end.
pub(super) async fn own(args: &[String]) -> Outcome {
    let [url, locks, waiters, ttl] = args else { return Err("URL LOCKS WAITERS TTL_MS".into()) };
    let mut lines = input();
    let manager = latchwork::connect(url).await?.ttl(Duration::from_millis(ttl.parse()?));
    let all: Vec<usize> = (0..locks.parse()?).collect();
    let mut guards = Vec::new();
    // So many are taken at the same time.
    for some in all.chunks(100) {
        let takes = some.iter().map(|number| {
            let mutex = manager.mutex(format!("own/{number}"));
            async move { mutex.acquire().await }
        });
        guards.extend(futures_util::future::try_join_all(takes).await?);
    }
    for number in 0..waiters.parse()? {
        let mutex = manager.mutex(format!("own/{number}"));
        // Nobody gives it up before the process ends.
        tokio::spawn(async move { drop(mutex.acquire().await) });
    }
    println!("taken");
    lines.recv().await;
    println!("{}", guards.iter().filter(|guard| guard.ensure_held().is_ok()).count());
    // It ends with its process: nothing of it is measured.
    std::process::exit(0);
}

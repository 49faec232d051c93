//! What 64 waiters on one key of PostgreSQL cost the server: while they wait, and for each handover.

use std::time::Duration;

use crate::contest::PROCESSES;
use crate::peers::{self, ADVISORY, DISTRIBUTED_LOCK, Kind, LATCHWORK, SHEDLOCK};
use crate::roles::{Outcome, now};
use crate::stats::{head, row, shortened};
use crate::store::{OnDisk, Store};
use crate::times::Times;

const TASKS: usize = 8;
/// Until all of them wait.
const SETTLED: Duration = Duration::from_secs(2);
const WATCHED: Duration = Duration::from_secs(6);
const CONTEST: Duration = Duration::from_secs(4);
const REST: Duration = Duration::from_millis(500);

/// What the server has done so far: the moment, statements, notifications, and processor time, in seconds.
fn seen(store: &OnDisk) -> Outcome<[f64; 4]> {
    let [statements, notifications] = store.numbers(
        "SELECT sum(calls), coalesce(sum(rows) FILTER (WHERE query LIKE '%pg_notify%'), 0) \
         FROM pg_stat_statements",
    )?;
    Ok([now() as f64 / 1e9, statements, notifications, store.cpu()])
}

fn since(store: &OnDisk, then: [f64; 4]) -> Outcome<[f64; 4]> {
    let now = seen(store)?;
    Ok(std::array::from_fn(|n| now[n] - then[n]))
}

pub(crate) fn run() -> Outcome {
    let store = OnDisk::start()?;
    let (kinds, missing) = peers::install(&[LATCHWORK, ADVISORY, DISTRIBUTED_LOCK, SHEDLOCK]);
    println!("{PROCESSES} processes of {TASKS} tasks wait for one key:\n");
    let columns = head(
        "what | connections | statements a second, waiting | server CPU, waiting | handovers a second | statements a handover | notifications a handover | server CPU a handover",
    );
    for kind in &kinds {
        row(&measure(&store, kind)?);
    }
    peers::missing_rows(&missing, columns);
    Ok(())
}

fn measure(store: &OnDisk, kind: &Kind) -> Outcome<[String; 8]> {
    store.clear()?;
    let url = store.address();
    let scene = tempfile::NamedTempFile::new()?;
    std::fs::write(scene.path(), [0; 16])?;
    let (settled, watched) = (shortened(SETTLED, SETTLED / 2), shortened(WATCHED, WATCHED / 3));
    let contest = shortened(CONTEST, CONTEST / 4);
    let mut holder = kind.start(&url, 0)?;
    let mut waiters = kind.start_all(&url, 0, PROCESSES)?;
    holder.tell("hold")?;
    holder.moment("acquired")?;
    // It takes a moment to ask the server.
    let until = now() + (settled + watched + REST + contest).as_nanos() as u64;
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.tell(&format!("cycle {TASKS} {until} {} {number}", scene.path().display()))?;
    }
    std::thread::sleep(settled);
    let first = seen(store)?;
    std::thread::sleep(watched);
    let [took, statements, _, cpu] = since(store, first)?;
    let [connections] = store.numbers(
        "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'",
    )?;
    let first = seen(store)?;
    holder.tell("release")?;
    holder.moment("released")?;
    let (mut handovers, mut contested) = (0.0, None);
    for waiter in &mut waiters {
        let line = waiter.line()?;
        // Before what follows the contest.
        if contested.is_none() {
            contested = Some(since(store, first)?);
        }
        handovers += Times::after_numbers(&line)?.0.first().ok_or("a number")?;
    }
    let [lasted, asked, notified, spent] = contested.ok_or("waiters")?;
    Ok([
        kind.name.into(),
        connections.to_string(),
        format!("{:.1}", statements / took),
        format!("{:.2} % of one core", 100.0 * cpu / took),
        format!("{:.0}", handovers / lasted),
        format!("{:.2}", asked / handovers),
        format!("{:.2}", notified / handovers),
        format!("{:.0} us", 1e6 * spent / handovers),
    ])
}

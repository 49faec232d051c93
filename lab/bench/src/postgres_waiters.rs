//! What 64 waiters on one key of PostgreSQL cost the server: while they wait, and for each handover.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use latchwork_services::Folder;
use latchwork_services::program::{processes, stat};

use crate::Outcome;
use crate::peers::{self, ADVISORY, DISTRIBUTED_LOCK, Kind, LATCHWORK, SHEDLOCK};
use crate::postgres::{OnDisk, start};
use crate::roles::now;
use crate::stats::{head, row, shortened};
use crate::store::Store as _;
use crate::times::Times;

const PROCESSES: usize = 8;
const TASKS: usize = 8;
/// Until all of them wait.
const SETTLED: Duration = Duration::from_secs(2);
const WATCHED: Duration = Duration::from_secs(6);
const CONTEST: Duration = Duration::from_secs(4);

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What the server has done so far.
#[derive(Clone, Copy)]
struct Seen {
    at: u64,
    statements: f64,
    notifications: f64,
    /// In seconds.
    cpu: f64,
}

impl Seen {
    fn of(store: &OnDisk) -> Result<Self> {
        let said = store.server.psql(
            "SELECT sum(calls), coalesce(sum(rows) FILTER (WHERE query LIKE '%pg_notify%'), 0) \
             FROM pg_stat_statements",
        )?;
        let (statements, notifications) = said.split_once('|').ok_or("two numbers")?;
        Ok(Self {
            at: now(),
            statements: statements.parse()?,
            notifications: notifications.parse()?,
            cpu: processor_time(store.server.pid()),
        })
    }

    /// What was done since then, and in how many seconds.
    fn since(&self, then: &Self) -> (f64, Self) {
        let took = (self.at - then.at) as f64 / 1e9;
        let rest = Self {
            at: 0,
            statements: self.statements - then.statements,
            notifications: self.notifications - then.notifications,
            cpu: self.cpu - then.cpu,
        };
        (took, rest)
    }
}

/// User and system time of the server's processes, those that have ended among them, in seconds.
pub(crate) fn processor_time(server: u32) -> f64 {
    let parent = server.to_string();
    let sum = |fields: &[String], which: std::ops::Range<usize>| -> f64 {
        fields[which].iter().filter_map(|field| field.parse::<f64>().ok()).sum()
    };
    let ticks: f64 = processes()
        .into_iter()
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .map(|(pid, fields)| match &fields[1] {
            _ if pid == server as i32 => sum(&fields, 11..15),
            its if *its == parent => sum(&fields, 11..13),
            _ => 0.0,
        })
        .sum();
    ticks / 100.0
}

pub(crate) fn run() -> Outcome {
    let store = start()?;
    let (kinds, missing) = peers::install(vec![LATCHWORK, ADVISORY, DISTRIBUTED_LOCK, SHEDLOCK]);
    println!("{PROCESSES} processes of {TASKS} tasks wait for one key:\n");
    let titles = [
        "what",
        "connections",
        "statements a second, waiting",
        "server CPU, waiting",
        "handovers a second",
        "statements a handover",
        "notifications a handover",
        "server CPU a handover",
    ];
    head(&titles);
    for kind in &kinds {
        row(&measure(&store, kind)?);
    }
    peers::missing_rows(&missing, titles.len());
    Ok(())
}

fn measure(store: &OnDisk, kind: &Kind) -> Result<Vec<String>> {
    store.clear()?;
    let (url, folder) = (store.address(), Folder::new()?);
    let scene = folder.path().join("scene");
    File::create(&scene)?.write_all_at(&[0; 16], 0)?;
    let scene = scene.to_string_lossy().into_owned();
    let (settled, watched) = (shortened(SETTLED, SETTLED / 2), shortened(WATCHED, WATCHED / 3));
    let contest = shortened(CONTEST, CONTEST / 4);
    let mut holder = kind.start("handoff", &url, &[])?;
    let mut waiters = Vec::new();
    for n in 0..PROCESSES {
        let (tasks, number) = (TASKS.to_string(), n.to_string());
        waiters.push(kind.start("contend", &url, &[&scene, &tasks, &number])?);
    }
    let held = settled + watched + Duration::from_millis(500);
    holder.tell(&held.as_millis().to_string())?;
    let begun = holder.line()?;
    if !begun.starts_with("acquired") {
        return Err(format!("{}: {begun:?} instead of \"acquired\"", kind.name).into());
    }
    let until = now() + (held + contest).as_nanos() as u64;
    for waiter in &mut waiters {
        waiter.tell(&until.to_string())?;
    }
    std::thread::sleep(settled);
    let first = Seen::of(store)?;
    std::thread::sleep(watched);
    let (took, waiting) = Seen::of(store)?.since(&first);
    let connections = store
        .server
        .psql("SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'")?;
    holder.line()?;
    let first = Seen::of(store)?;
    let mut handovers = 0.0;
    let mut seen = None;
    for waiter in &mut waiters {
        let line = waiter.line()?;
        // Before what follows the contest.
        if seen.is_none() {
            seen = Some(Seen::of(store)?);
        }
        let (numbers, _) = Times::after_numbers(&line)?;
        handovers += numbers.first().ok_or("a number")?;
    }
    let (lasted, contested) = seen.ok_or("waiters")?.since(&first);
    Ok(vec![
        kind.name.into(),
        connections,
        format!("{:.1}", waiting.statements / took),
        format!("{:.2} % of one core", 100.0 * waiting.cpu / took),
        format!("{:.0}", handovers / lasted),
        format!("{:.2}", contested.statements / handovers),
        format!("{:.2}", contested.notifications / handovers),
        format!("{:.0} us", 1e6 * contested.cpu / handovers),
    ])
}

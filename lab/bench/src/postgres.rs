//! Locks on PostgreSQL, against the bare statements of a lock, advisory locks, and other locks.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use latchwork::BlockOn as _;
use latchwork_services::{PostgresOptions, PostgresServer};
use tempfile::TempDir;

use crate::free_cycles::{self, Entry};
use crate::goals::{self, Goal};
use crate::held_by_one::{MEMORY, held_by_one};
use crate::peers::{
    self, ADVISORY, COMMIT_AND_NOTIFY, DISTRIBUTED_LOCK, Kind, LATCHWORK, LATCHWORK_HANDOVER, PALS,
    SHEDLOCK, Waits,
};
use crate::stats::{head, median, row, shortened};
use crate::store::{Count, Store};
use crate::{Outcome, contest, free_child, handoffs};

/// What the others need, beside what `init` makes.
const TABLES: &str = "CREATE EXTENSION pg_stat_statements; \
    CREATE TABLE bench (k text PRIMARY KEY, owner bigint, ends timestamptz); \
    CREATE TABLE shedlock (name varchar(64) PRIMARY KEY, lock_until timestamp NOT NULL, \
        locked_at timestamp NOT NULL, locked_by varchar(255) NOT NULL)";

/// A server as Debian's package makes it, whose data is on a disk and synced to it.
pub(crate) struct OnDisk {
    pub(crate) server: PostgresServer,
    // Last: it is removed when the server has ended.
    folder: TempDir,
}

pub(crate) fn start() -> Result<OnDisk, Box<dyn std::error::Error>> {
    start_for(600)
}

/// The same, for so many connections.
pub(crate) fn start_for(connections: usize) -> Result<OnDisk, Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir_in(std::env::temp_dir())?;
    let options = PostgresOptions::new()
        .setting("fsync=on")
        .setting(format!("max_connections={connections}"))
        .setting("shared_preload_libraries=pg_stat_statements")
        .data_in(folder.path());
    let server = PostgresServer::start_with(&options)?;
    server.psql(TABLES)?;
    latchwork::init(&server.url()).block_on()?;
    Ok(OnDisk { server, folder })
}

impl OnDisk {
    fn say_sync(&self) -> Outcome {
        println!(
            "Before: a page written and synced to the disk of the server's data took {:.0} us.\n",
            sync(self.folder.path())?
        );
        Ok(())
    }
}

/// How long a write of one page to the disk of this folder takes, in microseconds: no commit that is durable is
/// quicker.
pub(crate) fn sync(folder: &Path) -> Result<f64, Box<dyn std::error::Error>> {
    let mut file = File::create(folder.join("sync"))?;
    file.write_all(&[0; 1 << 20])?;
    let mut took = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 8_192], 0)?;
        file.sync_data()?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(median(&mut took))
}

impl Store for OnDisk {
    fn name(&self) -> &'static str {
        "PostgreSQL"
    }

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn address_at(&self, ports: &[u16]) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", ports[0])
    }

    /// Statements, those of a transaction counted one by one.
    fn commands(&self, _kind: &Kind) -> Count {
        Ok(self.server.psql("SELECT sum(calls) FROM pg_stat_statements")?.parse()?)
    }

    /// A process that was killed may still be waited for by the server.
    fn clear(&self) -> Outcome {
        self.server.psql(
            "SELECT count(pg_terminate_backend(pid, 1000)) FROM pg_stat_activity \
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
        )?;
        self.server.psql(
            "DELETE FROM latchwork WHERE k <> ''; TRUNCATE latchwork_line, bench, shedlock",
        )?;
        Ok(())
    }
}

pub(crate) fn free() -> Outcome {
    let server = start()?;
    server.say_sync()?;
    let (kinds, missing) = peers::install(vec![DISTRIBUTED_LOCK, SHEDLOCK, PALS]);
    let url = server.address();
    let bare = |name, what| {
        Ok::<_, Box<dyn std::error::Error>>(
            Entry::apart(name, what, &url, &[])?.counted(&server, &LATCHWORK),
        )
    };
    let mut entries = vec![
        bare("bare, INSERT .. ON CONFLICT and DELETE", free_child::BARE_POSTGRES)?
            .goal(|_| Some(0.9)),
        Entry::latchwork("latchwork, with fencing token", &server)?,
        bare("bare, its DELETE asynchronous", free_child::BARE_POSTGRES_ASYNC)?,
        bare("pg_advisory_lock and unlock, no lease", free_child::ADVISORY)?,
    ];
    for kind in &kinds {
        let entry = Entry::of(kind, &server)?;
        // An advisory lock writes nothing to the disk.
        entries.push(if kind.waits == Waits::Told { entry.goal(|_| None) } else { entry });
    }
    free_cycles::run(entries, &missing, &server, "")
}

fn kinds() -> Vec<Kind> {
    vec![LATCHWORK, LATCHWORK_HANDOVER, ADVISORY, DISTRIBUTED_LOCK, SHEDLOCK, PALS]
}

/// Five times what a client that polls gets. Advisory locks are durable for nobody: no goal.
fn contended(kind: &Kind, _tasks: usize) -> Option<Goal> {
    (kind.waits == Waits::Polls).then(|| Goal::at_least(5.0))
}

pub(crate) fn contend() -> Outcome {
    let server = start()?;
    server.say_sync()?;
    contest::run(&server, kinds(), contest::APART, (3, Duration::from_secs(2)), contended)
}

pub(crate) fn handoff() -> Outcome {
    let server = start()?;
    server.say_sync()?;
    let goal = |kind: &Kind| match kind.waits {
        Waits::Polls => Some(Goal::at_most(0.5)),
        Waits::Rod if kind.name == ADVISORY.name => Some(Goal::at_most(1.5)),
        Waits::Rod | Waits::Told => None,
    };
    let kinds = vec![LATCHWORK, ADVISORY, COMMIT_AND_NOTIFY, DISTRIBUTED_LOCK, SHEDLOCK, PALS];
    handoffs::run(&server, kinds, goal)
}

const LOCKS: usize = 10_000;
/// The shortest that ShedLock keeps alive.
const TTL: Duration = Duration::from_secs(30);
/// The most statements a second.
const MOST: f64 = 10.0;

pub(crate) fn held() -> Outcome {
    let (kinds, missing) = peers::install(vec![LATCHWORK, SHEDLOCK]);
    println!("{LOCKS} locks with a ttl of {} s:\n", TTL.as_secs());
    let mut titles = vec![
        "what",
        "renews a lock every",
        "watched for",
        "statements a second",
        "client CPU",
        goals::TITLE,
    ];
    titles.extend(MEMORY);
    titles.push("still held");
    head(&titles);
    for kind in &kinds {
        let every = if kind.is_ours() { TTL / 3 } else { TTL / 2 };
        let watched = every * shortened(2, 1);
        let seen = held_by_one(kind, &start()?, LOCKS, TTL, watched)?;
        let mut verdicts = Vec::new();
        if kind.is_ours() {
            verdicts.push(Goal::at_most(MOST).of("statements").judge(seen.commands));
            verdicts.extend(seen.memory_verdicts());
        }
        let mut cells = vec![
            kind.name.into(),
            format!("{:.0} s", every.as_secs_f64()),
            format!("{:.0} s", watched.as_secs_f64()),
            format!("{:.1}", seen.commands),
            format!("{:.3} % of one core", seen.cpu),
            goals::cell(&verdicts),
        ];
        cells.extend(seen.memory());
        cells.push(seen.held);
        row(&cells);
    }
    peers::missing_rows(&missing, titles.len());
    Ok(())
}

//! A free lock against the system calls that it cannot do without.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};

use crate::Outcome;
use crate::goals::{self, Goal};
use crate::stats::{head, median, row};

const ROUNDS: usize = 60;
const CYCLES: u32 = 500;
/// How many times the bare calls that it cannot do without.
const MOST: f64 = 4.0;

pub(crate) fn run() -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let dir = tempfile::tempdir_in(std::env::current_dir()?)?;
    let bare = dir.path().join("bare");
    File::create(&bare)?.write_all_at(&[7; 256], 0)?;
    let url = format!("file://{}", dir.path().join("locks").display());
    let locks = runtime.block_on(latchwork::connect(&url))?;
    let memory = runtime.block_on(latchwork::connect("mem:"))?;
    let (mut one, mut two, mut file, mut mem) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        one.push(per_cycle(|| bare_calls(&bare)));
        two.push(per_cycle(|| {
            bare_calls(&bare);
            bare_calls(&bare);
        }));
        file.push(per_cycle(|| runtime.block_on(cycle(&locks))));
        mem.push(per_cycle(|| runtime.block_on(cycle(&memory))));
    }
    let (one, two) = (median(&mut one), median(&mut two));
    head(&[
        "what",
        "median of a cycle",
        "to open+flock+read+write+close once",
        "twice",
        goals::TITLE,
    ]);
    for (name, value) in [
        ("open, flock, read, write, close", one),
        ("the same twice (acquire, release)", two),
        ("file: acquire, release", median(&mut file)),
        ("mem: acquire, release", median(&mut mem)),
    ] {
        row(&[
            name.into(),
            format!("{value:.2} us"),
            format!("{:.2}", value / one),
            format!("{:.2}", value / two),
            match name.starts_with("file") {
                true => Goal::below(MOST).of("twice").judge(value / two).to_string(),
                false => "-".into(),
            },
        ]);
    }
    Ok(())
}

fn per_cycle(mut cycle: impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CYCLES {
        cycle();
    }
    start.elapsed().as_secs_f64() * 1e6 / f64::from(CYCLES)
}

async fn cycle(locks: &latchwork::LockManager) {
    let guard = locks.mutex("bench").try_acquire().await.expect("the store answers");
    let guard = guard.expect("nobody else is here");
    guard.release().await.expect("the store answers");
}

fn bare_calls(path: &Path) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("opens");
    flock(&file, FlockOperation::LockExclusive).expect("locks");
    let mut record = [0; 256];
    file.read_exact_at(&mut record, 0).expect("reads");
    file.write_all_at(&record, 0).expect("writes");
}

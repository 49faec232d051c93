//! A free run of a command under a lock, against the commands that do the same.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use latchwork_services::{EtcdOptions, EtcdServer, Folder, RedisOptions, RedisServer};

use crate::Outcome;
use crate::goals::{self, Goal};
use crate::installing::{self, ran};
use crate::stats::{head, median, quantile, row, shortened};
use crate::store::{Files, Store};

const ROUNDS: usize = 200;
/// How many times what flock takes a run on files may take.
const TO_FLOCK: f64 = 1.6;

/// A way to run `true`.
struct Way {
    name: &'static str,
    /// The way that it is compared with.
    against: usize,
    goal: Option<f64>,
    program: String,
    args: Vec<String>,
}

impl Way {
    fn new(name: &'static str, against: usize, program: &str, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        Self { name, against, goal: None, program: program.into(), args }
    }

    /// At most so many times what it is compared with.
    fn goal(mut self, most: f64) -> Self {
        self.goal = Some(most);
        self
    }

    /// Microseconds of a run.
    fn run(&self) -> Result<f64, String> {
        let start = Instant::now();
        ran(Command::new(&self.program).args(&self.args))?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }
}

pub(crate) fn run() -> Outcome {
    let latchwork = installing::command()?;
    let latchwork = latchwork.to_str().ok_or("a path of UTF-8")?;
    let files = Files(Folder::new()?);
    let file = files.0.path().join("flock");
    let redis = RedisServer::start(&RedisOptions::new())?;
    let etcd = EtcdServer::start(&EtcdOptions::new())?;
    let endpoint = format!("--endpoints=127.0.0.1:{}", etcd.port());
    let ours = |name, against, store: &dyn Store| {
        let url = store.address();
        Way::new(name, against, latchwork, &["--store", &url, "run", "bench", "--", "true"])
    };
    let path = path(&file)?;
    let ways = [
        Way::new("`true`", 0, "true", &[]),
        Way::new("`flock FILE true`", 1, "flock", &[path, "true"]),
        ours("`latchwork run NAME -- true`, file", 1, &files).goal(TO_FLOCK),
        Way::new("`etcdctl lock NAME -- true`", 3, "etcdctl", &[&endpoint, "lock", "b", "true"]),
        ours("`latchwork run NAME -- true`, etcd", 3, &etcd),
        ours("`latchwork run NAME -- true`, Redis", 5, &redis),
    ];
    let mut samples: Vec<Vec<f64>> = ways.iter().map(|_| Vec::new()).collect();
    let mut missing = vec![None; ways.len()];
    for round in 0..=shortened(ROUNDS, 40) {
        for ((way, samples), missing) in ways.iter().zip(&mut samples).zip(&mut missing) {
            match way.run() {
                _ if missing.is_some() => {}
                // The first run reads programs from the disk.
                Ok(_) if round == 0 => {}
                Ok(took) => samples.push(took),
                Err(reason) if round == 0 && way.program != latchwork => *missing = Some(reason),
                Err(reason) => return Err(format!("{}: {reason}", way.name).into()),
            }
        }
    }
    let titles = ["a free run", "median", "90 %", "to the other command", goals::TITLE, "runs"];
    head(&titles);
    let middles: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
    for ((n, way), (samples, missing)) in
        ways.iter().enumerate().zip(samples.iter_mut().zip(missing))
    {
        let mut cells = vec![way.name.to_string()];
        match missing {
            Some(reason) => cells.push(format!("missing: {reason}")),
            None => {
                let part = middles[n] / middles[way.against];
                let goal = way.goal.map(|most| Goal::at_most(most).judge(part).to_string());
                cells.extend([
                    format!("{:.2} ms", middles[n] / 1e3),
                    format!("{:.2} ms", quantile(samples, 0.9) / 1e3),
                    if way.against == n { "-".into() } else { format!("{part:.2}") },
                    goal.unwrap_or_else(|| "-".into()),
                    samples.len().to_string(),
                ]);
            }
        }
        cells.resize(titles.len(), "-".into());
        row(&cells);
    }
    Ok(())
}

fn path(path: &Path) -> Result<&str, String> {
    path.to_str().ok_or_else(|| format!("{}: no UTF-8", path.display()))
}

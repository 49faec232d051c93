//! A free run of a command under a lock, against the commands that do the same.

use std::process::Command;
use std::time::Instant;

use crate::goals::Goal;
use crate::installing::{self, ran};
use crate::roles::Outcome;
use crate::stats::{head, median, missing_row, quantile, row, shortened};
use crate::store::Which;

const ROUNDS: usize = 200;
/// How many times what flock takes a run on files may take.
const TO_FLOCK: f64 = 1.6;

/// A way to run `true`: its name, and the way that it is compared with.
type Way<'a> = (&'static str, usize, &'a str, &'a [&'a str]);

pub(crate) fn run() -> Outcome {
    let latchwork = installing::latchwork()?;
    let latchwork = latchwork.to_str().ok_or("a path of UTF-8")?;
    let file = tempfile::NamedTempFile::new_in(std::env::current_dir()?)?;
    let path = file.path().to_str().ok_or("a path of UTF-8")?;
    let (files, redis, etcd) = (Which::Files.start()?, Which::Redis.start()?, Which::Etcd.start()?);
    let endpoint = format!("--endpoints=127.0.0.1:{}", etcd.ports()[0]);
    let [files, redis, etcd] = [files.address(), redis.address(), etcd.address()];
    let [files, redis, etcd] =
        [&files, &redis, &etcd].map(|url| ["--store", url, "run", "bench", "--", "true"]);
    let ways: [Way<'_>; 6] = [
        ("`true`", 0, "true", &[]),
        ("`flock FILE true`", 1, "flock", &[path, "true"]),
        ("`latchwork run NAME -- true`, file", 1, latchwork, &files),
        ("`etcdctl lock NAME -- true`", 3, "etcdctl", &[&endpoint, "lock", "b", "true"]),
        ("`latchwork run NAME -- true`, etcd", 3, latchwork, &etcd),
        ("`latchwork run NAME -- true`, Redis", 5, latchwork, &redis),
    ];
    let mut samples = [(); 6].map(|()| Vec::new());
    let mut missing = [const { None }; 6];
    for round in 0..=shortened(ROUNDS, 40) {
        for (n, (name, _, program, args)) in ways.iter().enumerate() {
            if missing[n].is_some() {
                continue;
            }
            let start = Instant::now();
            match ran(Command::new(program).args(*args)) {
                // The first run reads programs from the disk.
                Ok(()) if round == 0 => {}
                Ok(()) => samples[n].push(start.elapsed().as_secs_f64() * 1e3),
                Err(reason) if round == 0 && *program != latchwork => missing[n] = Some(reason),
                Err(reason) => return Err(format!("{name}: {reason}").into()),
            }
        }
    }
    let columns = head("a free run | median | 90 % | to the other command | goal | runs");
    let middles: Vec<f64> = samples.iter_mut().map(|samples| median(samples)).collect();
    for (n, (name, against, ..)) in ways.iter().enumerate() {
        if let Some(reason) = &missing[n] {
            missing_row(name, reason, columns);
            continue;
        }
        let part = middles[n] / middles[*against];
        row(&[
            (*name).into(),
            format!("{:.2} ms", middles[n]),
            format!("{:.2} ms", quantile(&mut samples[n], 0.9)),
            if *against == n { "-".into() } else { format!("{part:.2}") },
            // On files.
            if n == 2 { Goal::at_most(TO_FLOCK).judge(part).to_string() } else { "-".into() },
            samples[n].len().to_string(),
        ]);
    }
    Ok(())
}

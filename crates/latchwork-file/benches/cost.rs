//! What a lock on the file backend costs, beside the bare system calls in the same run.
//!
//! `cargo bench -p latchwork-file` prints the table; the numbers of a loaded machine mean little.

#![allow(clippy::disallowed_methods, clippy::print_stdout, reason = "a benchmark")]

use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use latchwork_core::*;
use latchwork_file::FileBackend;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    if let Some(role) = std::env::args().nth(1).filter(|arg| !arg.starts_with('-')) {
        let dir = std::env::args_os().nth(2).unwrap();
        match role.as_str() {
            "flock" => turns_by_flock(Path::new(&dir)),
            "latchwork" => {
                let driver = Driver::start().unwrap();
                let backend = FileBackend::connect(&dir, driver.io()).unwrap();
                runtime.block_on(turns(&backend, &driver.io()));
            }
            _ => {}
        }
        return;
    }
    let driver = Driver::start().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let backend = FileBackend::connect(dir.path().join("locks"), driver.io()).unwrap();
    let io = driver.io();

    let bare = each(100_000, || bare(dir.path()));
    println!("bare open, flock, read, write, close  {:>9.2} us", micros(bare));
    let claims: Vec<_> = (0..1_000).map(|i| claim(&io, &format!("bench {i}"))).collect();
    let free = Instant::now();
    let rounds = 100;
    runtime.block_on(async {
        for _ in 0..rounds {
            for claim in &claims {
                let claim = Claim { id: ClaimId::random(), ..claim.clone() };
                assert!(matches!(backend.try_acquire(&claim).await, Ok(Attempt::Granted(_))));
                backend.release(&claim, Linger::None).await.unwrap();
            }
        }
    });
    let free = free.elapsed() / (rounds * claims.len() as u32);
    println!(
        "acquire and release of a free lock    {:>9.2} us   {:.1}x two bare rounds",
        micros(free),
        free.as_secs_f64() / (2.0 * bare.as_secs_f64())
    );
    let many: Vec<_> = (0..10_000).map(|i| claim(&io, &format!("many {i}"))).collect();
    let renewed = runtime.block_on(async {
        for claim in &many {
            backend.try_acquire(claim).await.unwrap();
        }
        let start = Instant::now();
        for answer in backend.renew_all(&many).await {
            assert!(matches!(answer, Ok(Renewal::Held { .. })));
        }
        start.elapsed()
    });
    println!("renewal of 10,000 claims              {:>9.2} ms", micros(renewed) / 1_000.0);

    let flock = median(dir.path(), "flock", || turns_by_flock(dir.path()));
    println!("turn by a blocked flock               {:>9.2} us", micros(flock));
    let path = dir.path().join("locks");
    let ours = median(&path, "latchwork", || runtime.block_on(turns(&backend, &io)));
    println!(
        "turn between two processes            {:>9.2} us   {:.1}x a blocked flock",
        micros(ours),
        ours.as_secs_f64() / flock.as_secs_f64()
    );
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn each(count: u32, mut run: impl FnMut()) -> Duration {
    let start = Instant::now();
    (0..count).for_each(|_| run());
    start.elapsed() / count
}

fn bare(dir: &Path) {
    let mut options = std::fs::OpenOptions::new();
    let file =
        options.read(true).write(true).create(true).truncate(false).open(dir.join("x")).unwrap();
    file.lock().unwrap();
    let mut bytes = [0; 200];
    let _ = file.read_at(&mut bytes, 0).unwrap();
    file.write_all_at(&bytes, 0).unwrap();
}

fn claim(io: &Io, key: &str) -> Claim {
    Claim {
        key: Key::new(key).unwrap(),
        id: ClaimId::random(),
        mode: Mode::Exclusive,
        order: Order::Fifo,
        ttl: Duration::from_secs(30),
        holder: Arc::from("bench"),
        waits: true,
        floor: 0,
        stamp: Stamp::new(io.now()),
    }
}

const TURNS: u64 = 5_000;

/// The median time from one holder's release to the next one's hold, the releaser being in
/// another process: each says when it released, and the other reads it when it holds.
fn median(dir: &Path, role: &str, run: impl FnOnce()) -> Duration {
    let said = std::fs::File::create(dir.join("said")).unwrap();
    said.write_all_at(&[0; 16], 0).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg(role)
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    run();
    let mut rest = String::new();
    child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
    let mut times: Vec<u64> = std::fs::read_to_string(dir.join(std::process::id().to_string()))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    times.sort_unstable();
    Duration::from_nanos(times[times.len() / 2])
}

/// Notes how long ago the other process released, if it was the other one.
struct Turns {
    said: std::fs::File,
    times: Vec<u64>,
    dir: std::path::PathBuf,
}

impl Turns {
    fn new(dir: &Path) -> Self {
        let mut options = std::fs::OpenOptions::new();
        let said = options.read(true).write(true).open(dir.join("said")).unwrap();
        Self { said, times: Vec::new(), dir: dir.to_owned() }
    }

    /// Called while holding; keeps the lock until the other one waits for sure.
    fn held(&mut self) {
        let now = boot_nanos();
        let mut bytes = [0; 16];
        self.said.read_exact_at(&mut bytes, 0).unwrap();
        let at = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let by = u64::from_le_bytes(bytes[8..].try_into().unwrap());
        if at != 0 && by != u64::from(std::process::id()) {
            self.times.push(now - at);
        }
        std::thread::sleep(Duration::from_micros(300));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&boot_nanos().to_le_bytes());
        bytes[8..].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
        self.said.write_all_at(&bytes, 0).unwrap();
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        let mut file =
            std::fs::File::create(self.dir.join(std::process::id().to_string())).unwrap();
        for time in &self.times {
            writeln!(file, "{time}").unwrap();
        }
    }
}

fn boot_nanos() -> u64 {
    latchwork_core::clock::boot_time().as_nanos()
}

fn turns_by_flock(dir: &Path) {
    let mut turns = Turns::new(dir);
    let file = std::fs::File::create(dir.join("lock")).unwrap();
    for _ in 0..TURNS {
        file.lock().unwrap();
        turns.held();
        file.unlock().unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
}

async fn turns(backend: &FileBackend, io: &Io) {
    let store = backend.capabilities().store;
    let mut turns = Turns::new(Path::new(store.strip_prefix("file://").unwrap()));
    for _ in 0..TURNS {
        let claim = claim(io, "turn");
        while let Attempt::Blocked(blocked) = backend.try_acquire(&claim).await.unwrap() {
            let _ = io.within(Duration::from_secs(1), backend.wait(&claim, &blocked)).await;
        }
        turns.held();
        backend.release(&claim, Linger::None).await.unwrap();
        std::thread::sleep(Duration::from_micros(100));
    }
}

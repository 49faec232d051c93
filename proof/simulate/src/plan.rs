//! What happens in one run, drawn from its seed: nothing else is left to chance.

use std::time::Duration;

use fastrand::Rng;

/// Faults and work begin within this time.
pub(crate) const ACTIVE: Duration = Duration::from_secs(30);
/// No fault lasts longer than this.
pub(crate) const LONGEST_FAULT: Duration = Duration::from_secs(12);

/// One run: what its seed has drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The seed, from which the delays of messages are drawn as well.
    pub seed: u64,
    /// The store.
    pub store: StoreKind,
    /// The ttl of all locks.
    pub ttl: Duration,
    /// How many millionths each server's clock is fast (or slow).
    pub server_rates: Vec<i64>,
    /// The machines: how many millionths the clock of each is fast.
    pub machine_rates: Vec<i64>,
    /// The tasks: the machine of each, and what it does in turn.
    pub tasks: Vec<(usize, Vec<Op>)>,
    /// What fails, and when.
    pub faults: Vec<Fault>,
    /// How many requests of a thousand are lost, and as many answers.
    pub losses: u32,
    /// How many messages of a thousand are late by up to two seconds.
    pub delays: u32,
}

/// The store of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// One server.
    One,
    /// The majority of three servers.
    Quorum,
}

impl StoreKind {
    /// Returns the number of servers.
    pub const fn servers(self) -> usize {
        match self {
            Self::One => 1,
            Self::Quorum => 3,
        }
    }
}

/// A lock that a task acquires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// A mutex; `fair` keeps handovers inside the process in the order of all.
    Mutex {
        /// Which of two keys.
        key: u8,
        /// Whether it is fair.
        fair: bool,
    },
    /// A read lock.
    Read,
    /// A write lock on the same key.
    Write,
    /// So many permits. Some tasks bring another limit than others, and some set it for all.
    Permits(u32),
    /// Both mutexes at once.
    Both,
}

/// The largest limit of permits that a task asks with.
pub(crate) const PERMITS: u32 = 3;

/// How a task acquires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// One try.
    Try,
    /// Waits without a limit.
    Wait,
    /// Waits for so long.
    Within(Duration),
    /// Waits, and drops the wait after so long.
    Cancel(Duration),
}

/// How a task ends a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Releases, and waits for the answer.
    Release,
    /// Drops the guard.
    Drop,
}

/// One acquire of a task, its hold, and a rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Which lock.
    pub lock: Lock,
    /// How it is acquired.
    pub start: Start,
    /// How long it is held.
    pub hold: Duration,
    /// How the hold ends.
    pub stop: Stop,
    /// How long the task rests afterwards.
    pub rest: Duration,
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// When it begins.
    pub at: Duration,
    /// How long it lasts.
    pub length: Duration,
    /// What it is.
    pub kind: FaultKind,
}

/// What fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// A machine's processes are stopped; its clocks go on.
    Stop {
        /// The machine.
        machine: usize,
    },
    /// A virtual machine stands still: its boot clock as well, and its wall clock is set right at
    /// the end.
    Pause {
        /// The machine.
        machine: usize,
    },
    /// A machine dies, and a process with the same tasks starts at the end.
    Kill {
        /// The machine.
        machine: usize,
    },
    /// Nothing passes between a machine and a server.
    Cut {
        /// The machine.
        machine: usize,
        /// The server.
        server: usize,
    },
    /// A server is stopped; its clock goes on.
    Freeze {
        /// The server.
        server: usize,
    },
    /// A server restarts with its data; connections break.
    Restart {
        /// The server.
        server: usize,
    },
    /// A server restarts without its data, and grants nothing for as long as a lease may last.
    Forget {
        /// The server.
        server: usize,
    },
}

fn millis(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..=to))
}

impl Plan {
    /// Draws the plan of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6c61_7463_6877);
        let store = if rng.u8(..).is_multiple_of(3) { StoreKind::Quorum } else { StoreKind::One };
        let calm = rng.u8(..).is_multiple_of(4);
        let ttl = Duration::from_millis([800, 2_000, 5_000][rng.usize(..3)]);
        let rate = |rng: &mut Rng| rng.i64(-4_000..=4_000);
        let server_rates: Vec<_> = (0..store.servers()).map(|_| rate(&mut rng)).collect();
        let machines = rng.usize(2..=3);
        let machine_rates: Vec<_> = (0..machines).map(|_| rate(&mut rng)).collect();
        let locks = rng.u8(..);
        let tasks = (0..machines * 2)
            .map(|task| {
                let ops = rng.usize(2..=5);
                (task % machines, (0..ops).map(|_| Op::draw(&mut rng, store, locks)).collect())
            })
            .collect();
        let faults = if calm { 0 } else { rng.usize(1..=5) };
        let mut faults: Vec<_> =
            (0..faults).map(|_| Fault::draw(&mut rng, machines, store.servers())).collect();
        faults.sort_by_key(|fault| fault.at);
        let (losses, delays) = match rng.u8(..) % 4 {
            _ if calm => (0, 0),
            0 => (100, 50),
            1 => (20, 100),
            _ => (0, 0),
        };
        Self { seed, store, ttl, server_rates, machine_rates, tasks, faults, losses, delays }
    }

    /// Whether nothing fails, so that all must be prompt.
    pub fn is_calm(&self) -> bool {
        self.faults.is_empty() && self.losses == 0 && self.delays == 0
    }

    /// The number of its parts that can be left out.
    pub fn size(&self) -> usize {
        self.faults.len() + self.tasks.iter().map(|(_, ops)| ops.len()).sum::<usize>()
    }
}

impl Op {
    fn draw(rng: &mut Rng, store: StoreKind, locks: u8) -> Self {
        // A quorum queues nobody, and counts no permits.
        let one = store == StoreKind::One;
        let mutex = |rng: &mut Rng| Lock::Mutex {
            key: rng.u8(..) % 2,
            fair: one && rng.u8(..).is_multiple_of(4),
        };
        let lock = match locks % 4 {
            0 => mutex(rng),
            1 => Lock::Mutex { key: 0, fair: one && rng.bool() },
            2 if rng.bool() => Lock::Read,
            2 => Lock::Write,
            _ if rng.u8(..).is_multiple_of(3) => Lock::Both,
            _ if one => Lock::Permits(rng.u32(1..=2)),
            _ => mutex(rng),
        };
        let start = match rng.u8(..) % 6 {
            0 => Start::Try,
            1 => Start::Within(millis(rng, 1, 4_000)),
            2 => Start::Cancel(millis(rng, 0, 3_000)),
            _ => Start::Wait,
        };
        let hold = match rng.u8(..) % 4 {
            0 => Duration::ZERO,
            1 => millis(rng, 1, 50),
            2 => millis(rng, 50, 2_000),
            _ => millis(rng, 1_000, 6_000),
        };
        let stop = if rng.u8(..).is_multiple_of(3) { Stop::Drop } else { Stop::Release };
        let rest = if rng.bool() { Duration::ZERO } else { millis(rng, 0, 3_000) };
        Self { lock, start, hold, stop, rest }
    }
}

impl Fault {
    fn draw(rng: &mut Rng, machines: usize, servers: usize) -> Self {
        let (machine, server) = (rng.usize(..machines), rng.usize(..servers));
        let kind = match rng.u8(..) % 8 {
            0 | 1 => FaultKind::Stop { machine },
            2 => FaultKind::Pause { machine },
            3 => FaultKind::Kill { machine },
            4 => FaultKind::Cut { machine, server },
            5 => FaultKind::Freeze { server },
            6 => FaultKind::Restart { server },
            _ => FaultKind::Forget { server },
        };
        let at = millis(rng, 0, ACTIVE.as_millis() as u64);
        let longest = LONGEST_FAULT.as_millis() as u64;
        let longest = if rng.bool() { longest } else { longest / 8 };
        Self { at, length: millis(rng, 1, longest), kind }
    }
}

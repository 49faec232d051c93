//! A run: workers at a store, faults, and what is said of it.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::clock::boot_time;
use latchwork_store::validity;

use crate::bounds::{Allowed, Bounds};
use crate::crew::Crew;
use crate::event::What;
use crate::evict::evict;
use crate::eye::{self, Judgement, Verdict};
use crate::faults::{ClientFault, Lister, Nemesis};
use crate::foreign::Foreign;
use crate::history::History;
use crate::log::Log;
use crate::luck::Luck;
use crate::pause::pause;
use crate::resource::Resource;
use crate::schedule::{Schedule, Stage};
use crate::service::{Fault, Service};
use crate::stores::LOSSES;
use crate::survey::Survey;
use crate::sweep::{CLOSED, sweep, until_free};
use crate::witness;
use crate::worker::Orders;
use crate::worker::wish::Kind;

/// What is run.
pub struct Plan {
    /// The address of the store, as [`latchwork::connect`] takes it.
    pub store: String,
    /// Other addresses of the same store, for the workers in turns: sides of the network that can
    /// be parted. Where there are none, all workers are on one side.
    pub sides: Vec<String>,
    /// This crate's program, which is also the worker.
    pub program: PathBuf,
    /// Where all logs go. Must exist and be empty; its path must be short enough for a socket.
    pub folder: PathBuf,
    /// What all random choices come from. The moments of a run are not repeated by it.
    pub seed: u64,
    /// How many worker processes.
    pub processes: u32,
    /// How many tasks in each; of every twelve, three are on the hot keys.
    pub tasks: u32,
    /// How many keys of each kind.
    pub keys: u32,
    /// The ttl of all locks.
    pub ttl: Duration,
    /// The longest hold, in ttls.
    pub longest: f64,
    /// For how long workers hold back answers of a file store, at most. Less than a quarter of the
    /// ttl, or they count as no answer.
    pub slow: Duration,
    /// When what happens.
    pub schedule: Schedule,
    /// What is done to workers.
    pub faults: Vec<ClientFault>,
    /// What is done to the store and the network.
    pub nemeses: Vec<Box<dyn Nemesis>>,
    /// Looks for what `inspect` cannot see.
    pub lister: Option<Box<dyn Lister>>,
    /// The service that the workers use instead of the library, if there is one.
    pub service: Option<Service>,
    /// Whether the clocks of workers stand still while they are stopped, as if their machines were
    /// paused: those of clients of the service, or those that the library reads.
    pub frozen_clock: bool,
    /// A client of another kind in the same contest, as one process more.
    pub foreign: Option<Foreign>,
    /// What the run is judged by.
    pub bounds: Bounds,
}

impl Plan {
    /// Three processes of ten tasks at a store, a calm minute.
    pub fn new(store: &str, program: PathBuf, folder: PathBuf) -> Self {
        let (ttl, processes) = (Duration::from_secs(2), 3);
        Self {
            store: store.into(),
            sides: Vec::new(),
            program,
            folder,
            seed: 1,
            processes,
            tasks: 10,
            keys: 1,
            ttl,
            longest: 2.0,
            slow: Duration::ZERO,
            schedule: Schedule::default(),
            faults: Vec::new(),
            nemeses: Vec::new(),
            lister: None,
            service: None,
            frozen_clock: false,
            foreign: None,
            bounds: Bounds::of_store(store, ttl),
        }
    }

    /// The namespace of all keys of the run.
    pub fn namespace(&self) -> String {
        format!("nemesis-{}-{}", std::process::id(), self.seed)
    }

    /// Puts a service between the workers and the store, and breaks it in these ways.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn serve(self, faults: &[Fault]) -> io::Result<Self> {
        self.serve_by(1, faults)
    }

    /// The same with so many instances, of which one at a time is broken. Their clients take turns between them, and
    /// none stops to renew.
    ///
    /// # Errors
    ///
    /// As [`serve`](Self::serve).
    pub fn serve_by(mut self, instances: usize, faults: &[Fault]) -> io::Result<Self> {
        let namespace = self.namespace();
        let service =
            Service::start(&self.program, &self.store, &namespace, &self.folder, instances)?;
        self.nemeses.extend(faults.iter().map(|fault| service.nemesis(*fault)));
        self.service = Some(service);
        self.bounds.of_service();
        Ok(self)
    }

    /// Sets the ttl, and the bounds that follow from it.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        let allowed = std::mem::take(&mut self.bounds.allowed);
        self.bounds = Bounds { allowed, ..Bounds::of_store(&self.store, ttl) };
        self
    }

    /// How late a holder may be told of a loss. After a pause of its machine the store has a moment to
    /// say whether the hold is lost; until then the hold is suspect.
    pub fn told(&self) -> Duration {
        let is_machine = self.frozen_clock && self.service.is_none();
        let settles = if is_machine { validity::settle(self.ttl) } else { Duration::ZERO };
        self.bounds.told + settles
    }

    /// Plays the run and judges it. `progress` is told what happens.
    ///
    /// # Errors
    ///
    /// What kept the run from being played to its end: a worker that failed, a store that cannot
    /// be reached. What was found in its history is no error.
    pub fn run(mut self, progress: &mut dyn FnMut(&str)) -> io::Result<Outcome> {
        self.bounds.travel = self.bounds.travel.max(self.slow);
        self.bounds.told = self.told();
        if self.frozen_clock && self.service.is_none() {
            // The store may have ended the claims of a machine that was paused.
            let allowed = |rule| Allowed { rule, fault: "stop".into(), after: self.ttl * 2 };
            self.bounds.allowed.extend(LOSSES.map(allowed));
        }
        if let Some(foreign) = &self.foreign {
            self.bounds.foreign = Some(foreign.bounds(self.ttl));
            self.bounds.takeover += foreign.noticed();
        }
        let beside = self.program.parent().unwrap_or(&self.folder);
        let foreign = self.foreign.map(|foreign| foreign.ready(beside)).transpose()?;
        let one_process = self.store == "mem:";
        if one_process && (self.processes > 1 || !self.faults.is_empty()) {
            let message = "mem: is a store of one process; use --processes 1 and no faults";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let namespace = self.namespace();
        let locks = runtime.block_on(latchwork::connect(&self.store)).map_err(io::Error::other)?;
        let locks = locks.namespace(&namespace);
        let fair = locks.capabilities().fifo;
        runtime.block_on(open(&locks, &self)).map_err(io::Error::other)?;
        let log = Arc::new(Log::open(&self.folder.join("run.log"), "run")?);
        let judge = Log::open(&self.folder.join("resource.log"), "resource")?;
        let resource = Resource::open(&self.folder.join("resource"), judge)?;
        let orders = Orders {
            store: self.store.clone(),
            namespace,
            name: String::new(),
            log: PathBuf::new(),
            resource: resource.path().to_owned(),
            seed: self.seed,
            tasks: self.tasks,
            keys: self.keys,
            ttl: self.ttl,
            longest: self.longest,
            slow: self.slow,
            fair,
            service: self.service.as_ref().map(Service::addresses),
            frozen_clock: self.frozen_clock,
            sweeps: one_process,
        };
        let prefix = format!("{}:", orders.namespace);
        let survey = match self.bounds.grain {
            Some(grain) if !one_process => {
                Some(Survey::start(&self.store, &orders.namespace, grain, log.clone())?)
            }
            _ => None,
        };
        let servers = witness::OfServers::start(log.clone(), &self.program);
        let sides = std::mem::take(&mut self.sides);
        let count = self.processes;
        let mut crew =
            Crew::start(&self.program, &self.folder, orders, sides, foreign, log.clone(), count)?;
        let mut stage = Stage {
            crew: &mut crew,
            resource: &resource,
            faults: &self.faults,
            nemeses: &mut self.nemeses,
            luck: Luck::of(self.seed, u64::MAX),
            evict: &mut |luck| {
                let evicted = evict(&locks, &prefix, self.service.as_ref(), &log, luck);
                runtime.block_on(evicted).map_err(io::Error::other)
            },
            log: log.clone(),
            ttl: self.ttl,
            progress,
        };
        self.schedule.play(&mut stage)?;
        drop(survey);
        // What there is of a run in which somebody failed is judged all the same.
        let limit = self.ttl.mul_f64(self.longest) + self.ttl + Duration::from_secs(8);
        let trouble = crew.finish(limit).err().map(|error| error.to_string());
        drop(servers);
        if !one_process {
            progress("looking for ghosts");
            // The lease behind a hold of the service is twice as long on stores that tie it to its instance.
            let leases = if self.service.is_some() { self.ttl * 3 } else { self.ttl };
            let earliest = boot_time().plus(leases + self.ttl / 4);
            let ends = self.bounds.ends.max(CLOSED);
            let limit = earliest.plus(ends.saturating_sub(leases));
            runtime.block_on(until_free(&locks, earliest, limit));
            runtime.block_on(sweep(&locks, &log)).map_err(io::Error::other)?;
        }
        if let Some(lister) = &mut self.lister {
            let limit = boot_time().plus(self.bounds.ends);
            let mut left = lister.leftovers()?;
            while !left.is_empty() && boot_time() < limit {
                pause(Duration::from_millis(200));
                left = lister.leftovers()?;
            }
            for name in left {
                log.note(None, What::Ghost { name: name.into(), what: "leftover".into() });
            }
        }
        let expected = self.expected(fair);
        if self.service.is_some() {
            // Some clients stop to renew.
            self.bounds.without.push("calm");
            // Where nothing but the clients and the evictions can end a hold, each loss has its cause.
            if !self.nemeses.is_empty() || self.frozen_clock {
                self.bounds.without.extend(["loss-reason", "release", "kept", "handed-on"]);
            }
        }
        let mut terms = self.bounds.words();
        for rule in expected.into_iter().filter(|rule| !self.bounds.without.contains(rule)) {
            terms.extend(["--require".into(), rule.into()]);
        }
        eye::write_terms(&self.folder, &terms)?;
        let outcome = Outcome::judge(self.folder, terms)?;
        Ok(Outcome { trouble, ..outcome })
    }

    /// The rules that must have something to examine in this run.
    fn expected(&self, fair: bool) -> Vec<&'static str> {
        let mut expected = vec![
            "attempts",
            "exclusion",
            "token-unique",
            "token-order",
            "forgotten-claim",
            "validity",
            "held",
            "fence",
            "writes",
            "ghost",
        ];
        // Where nothing but kills happens, a hold is lost if a worker takes it away by lot: in a short run perhaps none.
        let only_kills = self.nemeses.is_empty() && self.faults == [ClientFault::Kill];
        expected.extend((!only_kills).then_some("told"));
        if self.service.is_some() {
            expected.extend(["done-once", "release-counts"]);
            expected.extend(self.faults.contains(&ClientFault::Kill).then_some("takeover"));
            return expected;
        }
        expected.extend(["release", "handed-on"]);
        expected.extend((!only_kills).then_some("loss-reason"));
        // Of every twelve tasks one is fair; three on a key wait for each other.
        let fair_tasks = self.processes * ((self.tasks + 8) / 12);
        if fair && fair_tasks >= 3 * self.keys {
            expected.push("fair");
        }
        let only_workers = self.nemeses.is_empty() || self.schedule.calm > self.bounds.settle;
        // Among clients of another kind a key passes from one worker to another too rarely, and between faults of servers,
        // or beside the few kills of a short run, few waits end undisturbed.
        if self.processes > 1
            && self.bounds.queues
            && self.foreign.is_none()
            && only_workers
            && !only_kills
        {
            expected.push("unfairness");
        }
        // Between faults of servers few locks are released undisturbed.
        expected.extend(only_workers.then_some("release-counts"));
        if self.faults.contains(&ClientFault::Kill) && only_workers {
            expected.push("takeover");
        }
        // The others do not tell how long they keep a claim.
        if ["file:", "redis:", "postgres:", "etcd:"]
            .iter()
            .any(|scheme| self.store.starts_with(scheme))
        {
            expected.push("kept");
        }
        let quiet = self.faults.is_empty() && self.nemeses.is_empty();
        if quiet || self.schedule.calm > self.ttl * 4 {
            expected.push("calm");
        }
        expected
    }
}

/// Takes and releases every key once, so that no worker waits for what the first use of a
/// namespace costs: the quarantine of a guarded server.
async fn open(locks: &LockManager, plan: &Plan) -> Result<(), latchwork::Error> {
    use latchwork::ErrorKind::Unreachable;
    let locks = locks.clone().ttl(plan.ttl);
    for kind in Kind::ALL {
        for number in 0..kind.keys(plan.keys) {
            let limit = plan.bounds.settle + Duration::from_secs(5);
            let until = boot_time().plus(limit);
            let guard = loop {
                match locks.mutex(kind.key(number)).acquire_within(limit).await {
                    // A server that has just begun may be slow.
                    Err(error) if error.kind() == Unreachable && boot_time() < until => {}
                    guard => break guard?,
                }
            };
            guard.release().await?;
        }
    }
    Ok(())
}

/// A run that was played and judged.
#[derive(Debug)]
pub struct Outcome {
    /// What happened.
    pub history: History,
    /// What was said of it.
    pub judgement: Judgement,
    /// What kept a worker from coming to its end: it hangs, or it failed.
    pub trouble: Option<String>,
    /// Where the logs are.
    pub folder: PathBuf,
    /// The words by which it was judged.
    pub terms: Vec<String>,
}

impl Outcome {
    /// Judges the history in a folder by these words for the eye.
    ///
    /// # Errors
    ///
    /// A log that cannot be read, or no Python.
    pub fn judge(folder: PathBuf, terms: Vec<String>) -> io::Result<Self> {
        let history = History::read(&folder)?;
        let judgement = eye::judge(&folder, &terms)?;
        Ok(Self { history, judgement, trouble: None, folder, terms })
    }

    /// Whether every worker came to its end and no rule is violated.
    pub fn passed(&self) -> bool {
        self.trouble.is_none() && self.judgement.passed
    }

    /// What a rule said.
    pub fn verdict(&self, rule: &str) -> Option<&Verdict> {
        self.judgement.verdicts.iter().find(|verdict| verdict.rule == rule)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.judgement.said)?;
        if let Some(trouble) = &self.trouble {
            writeln!(f, "FAILED: {trouble}")?;
        }
        Ok(())
    }
}

//! Carries out a plan, from the first message to the last look at the stores.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::LockManager;
use latchwork_quorum::Quorum;
use latchwork_store::testing::SeededRandom;
use latchwork_store::{Backend, Io, Query};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use crate::judge::{Judge, Rule, Violation};
use crate::machine::{Machine, MachineClock};
use crate::network::{Link, Network};
use crate::plan::{ACTIVE, FaultKind, LONGEST_FAULT, Lock, Plan, StoreKind};
use crate::planted::Planted;
use crate::server::Server;
use crate::work::Worker;

/// What came out of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The first broken rule.
    pub violation: Option<Violation>,
    /// What happened, and when.
    pub log: Vec<(Duration, String)>,
    /// How long it took in virtual time.
    pub length: Duration,
}

/// Carries out a plan, perhaps with a planted bug. The same plan always takes the same course.
///
/// # Panics
///
/// Panics if the system gives no runtime, or inside of another runtime.
pub fn run(plan: &Plan, planted: Option<Planted>) -> Outcome {
    let _seeded = SeededRandom::on_this_thread(plan.seed);
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O");
    runtime.block_on(async {
        let start = Instant::now();
        let world = World::new(plan, planted);
        world.live().await;
        let judge = world.judge.clone();
        Outcome { violation: judge.violation(), log: judge.log(), length: start.elapsed() }
    })
}

struct World<'a> {
    plan: &'a Plan,
    planted: Option<Planted>,
    judge: Arc<Judge>,
    network: Arc<Network>,
    servers: Vec<Arc<Server>>,
    machines: Vec<Mutex<Process>>,
    workers: Vec<(usize, Worker)>,
}

/// The process that runs on a machine now.
struct Process {
    machine: Arc<Machine>,
    /// Open until the machine dies, or the run ends.
    _locks: LockManager,
}

/// How long the store may need for what comes after the last fault, for each operation.
const RECOVERY_LIMIT: Duration = Duration::from_secs(20);

impl<'a> World<'a> {
    fn new(plan: &'a Plan, planted: Option<Planted>) -> Self {
        let ops = || plan.tasks.iter().flat_map(|(_, ops)| ops);
        let several = ops().any(|op| op.lock == Lock::Both);
        let judge = Judge::new(plan.is_calm(), several);
        let network = Network::new(plan.seed, plan.losses, plan.delays);
        let rates = plan.server_rates.iter().enumerate();
        let servers: Vec<_> = rates
            .map(|(number, rate)| Arc::new(Server::new(number, *rate, plan.ttl, planted)))
            .collect();
        let workers = plan.tasks.iter().enumerate().map(|(number, (machine, ops))| {
            let worker = Worker {
                number,
                ops: ops.clone().into(),
                begun: Arc::new(AtomicUsize::new(0)),
                done: Arc::new(AtomicUsize::new(0)),
                judge: judge.clone(),
                ttl: plan.ttl,
            };
            (*machine, worker)
        });
        let workers = workers.collect();
        let mut world =
            Self { plan, planted, judge, network, servers, machines: Vec::new(), workers };
        world.machines =
            (0..plan.machine_rates.len()).map(|it| Mutex::new(world.boot(it))).collect();
        world
    }

    /// Starts a process on a machine, with its tasks.
    fn boot(&self, number: usize) -> Process {
        let rate = match self.planted {
            Some(Planted::ClocksAreSlow) => -50_000,
            _ => self.plan.machine_rates[number],
        };
        let late = match self.planted {
            Some(Planted::TimersAreLate) => Duration::from_secs(3),
            _ => Duration::ZERO,
        };
        let machine = Machine::new(MachineClock::new(rate, late));
        let io = machine.io(self.planted);
        let locks = LockManager::on_io(self.store(number, &machine, &io), io).ttl(self.plan.ttl);
        for (_, worker) in self.workers.iter().filter(|(on, _)| *on == number) {
            let (machine, locks) = (machine.clone(), locks.clone());
            machine.clone().spawn(worker.clone().run(machine, locks));
        }
        Process { machine, _locks: locks }
    }

    /// The store as a machine sees it.
    fn store(&self, number: usize, machine: &Arc<Machine>, io: &Io) -> Arc<dyn Backend> {
        let grants = Arc::new(Mutex::new(HashMap::new()));
        let link = |server: usize| {
            let target = match (self.planted, server) {
                (Some(Planted::OneServerVotesTwice), 0 | 1) => number % 2,
                _ => server,
            };
            let (machine, network) = (machine.clone(), self.network.clone());
            let server_there = self.servers[target].clone();
            let (way, planted, grants) = ((number, server), self.planted, grants.clone());
            let link = Link { machine, server: server_there, network, way, planted, grants };
            Arc::new(link) as Arc<dyn Backend>
        };
        match self.plan.store {
            StoreKind::One => link(0),
            StoreKind::Quorum => {
                let nodes = (0..self.servers.len()).map(link).collect();
                Quorum::new(nodes, io.clone()).expect("three nodes")
            }
        }
    }

    fn process<T>(&self, number: usize, look: impl FnOnce(&mut Process) -> T) -> T {
        look(&mut self.machines[number].lock().expect("a run is one thread"))
    }

    async fn live(&self) {
        let faults = self.plan.faults.iter().map(|fault| async {
            sleep(fault.at).await;
            self.judge.note(format!("fault: {:?} for {:?}", fault.kind, fault.length));
            self.suffer(fault.kind, sleep(fault.length)).await;
            self.judge.note(format!("over: {:?}", fault.kind));
            self.judge.check_exclusion();
        });
        let faults = futures_util::future::join_all(faults);
        let work = async {
            let holds: Duration = self
                .workers
                .iter()
                .flat_map(|(_, worker)| worker.ops.iter())
                .map(|op| op.hold + op.rest)
                .sum();
            let ops = self.plan.size() as u32;
            let end = Instant::now()
                + ACTIVE
                + LONGEST_FAULT
                + holds
                + ops * (RECOVERY_LIMIT + self.plan.ttl);
            while Instant::now() < end && self.judge.violation().is_none() {
                if self.workers.iter().all(|(_, worker)| worker.is_done()) {
                    return;
                }
                sleep(Duration::from_millis(250)).await;
                self.judge.check_exclusion();
            }
            let late = self.workers.iter().find(|(_, worker)| !worker.is_done());
            if let (Some((_, worker)), None) = (late, self.judge.violation()) {
                self.judge.broken(Rule::Served, worker.describe());
            }
        };
        let looks = async { tokio::join!(faults, work) };
        tokio::pin!(looks);
        let broken = async {
            // A run that has shown a bug is over.
            while self.judge.violation().is_none() {
                sleep(Duration::from_millis(250)).await;
            }
        };
        tokio::select! {
            biased;
            _ = &mut looks => {}
            () = broken => {}
        }
        if self.judge.violation().is_none() {
            self.look_for_leftovers().await;
        }
    }

    /// Lets a fault last.
    async fn suffer(&self, kind: FaultKind, length: impl Future<Output = ()>) {
        match kind {
            FaultKind::Stop { machine } => {
                let machine = self.process(machine, |it| it.machine.clone());
                machine.stop();
                if self.planted == Some(Planted::TheClockSleeps) {
                    machine.clock.stand();
                }
                length.await;
                if self.planted == Some(Planted::TheClockSleeps) {
                    machine.clock.run_on(false);
                }
                machine.go_on();
            }
            FaultKind::Pause { machine } => {
                let machine = self.process(machine, |it| it.machine.clone());
                machine.stop();
                machine.clock.stand();
                length.await;
                machine.clock.run();
                machine.go_on();
            }
            FaultKind::Kill { machine } => {
                self.process(machine, |it| it.machine.kill());
                length.await;
                // Two kills may overlap: a process that the other one has let begin ends here.
                self.process(machine, |it| it.machine.kill());
                let next = self.boot(machine);
                self.process(machine, |it| *it = next);
            }
            FaultKind::Cut { machine, server } => {
                self.network.cut((machine, server));
                length.await;
                self.network.heal((machine, server));
            }
            FaultKind::Freeze { server } => {
                self.servers[server].freeze();
                length.await;
                self.servers[server].thaw();
            }
            FaultKind::Restart { server } => self.servers[server].restart(),
            FaultKind::Forget { server } => self.servers[server].forget(),
        }
    }

    /// All has ended: the stores must be empty, at once if nothing failed.
    async fn look_for_leftovers(&self) {
        let wait = match self.judge.is_calm() {
            true => Duration::from_millis(500),
            false => self.plan.ttl * 2 + Duration::from_secs(5),
        };
        sleep(wait).await;
        for (number, server) in self.servers.iter().enumerate() {
            let all = server.inspect(Query::Prefix("".into())).await.unwrap_or_default();
            let left = all.iter().find(|it| !it.holders.is_empty() || !it.waiters.is_empty());
            if let Some(left) = left {
                let (holders, waiters) = (left.holders.len(), left.waiters.len());
                self.judge.broken(
                    Rule::NothingLeft,
                    format!(
                        "{} of server {number} has {holders} holders and {waiters} waiters",
                        left.key
                    ),
                );
            }
        }
    }
}

//! How a backend enrols: what to open, which clock to use, what it says of itself.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use latchwork_store::{Backend, Fencing, Io, Verb};

/// A backend under trial.
///
/// Every trial asks for a fresh store and opens a few clients on it, each as another process
/// would. A store that cannot be opened is a failure: the harness panics, it never skips.
pub trait Harness: Send + Sync + 'static {
    /// What the backend must say of itself, and keep.
    fn expected(&self) -> Expected;

    /// Which clock the trials run on.
    fn time(&self) -> Time;

    /// Makes an empty store that no other trial uses. What it needs (a folder, a server, a key
    /// prefix) belongs into the closure of the [`Store`] and ends with it. `io` is for the store
    /// itself; each client is given its own.
    fn fresh<'a>(&'a self, io: &'a Io) -> Verb<'a, Store>;

    /// The ttl of claims that are meant to run out.
    fn short_ttl(&self) -> Duration {
        match self.time() {
            Time::Paused => Duration::from_secs(10),
            Time::Real => Duration::from_millis(1_200),
        }
    }

    /// The ttl of claims that must not run out during a trial.
    fn long_ttl(&self) -> Duration {
        Duration::from_secs(120)
    }

    /// Whether the backend keeps this name for itself. It must refuse it as `Invalid`.
    fn is_reserved(&self, _name: &str) -> bool {
        false
    }

    /// How late the store may be with what it does "soon" or "then". Under real time the stall of
    /// the machine is added.
    fn slack(&self) -> Duration {
        match self.time() {
            Time::Paused => Duration::from_millis(20),
            Time::Real => Duration::from_millis(400),
        }
    }
}

/// The clock of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// A paused runtime: time moves when everybody sleeps, at once and exactly. For stores that
    /// take all their time from [`Io`].
    Paused,
    /// The machine's clock, with short ttls. For real stores.
    Real,
}

/// What a backend can do, as its author says; compared with what it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Read and write claims.
    pub shared: bool,
    /// Claims that replace a hold of their own holder.
    pub upgrade: bool,
    /// Permit claims.
    pub permits: bool,
    /// Claims with different limits of permits can share a key.
    pub mixed_limits: bool,
    /// The limit of permits can be set while the key is in use.
    pub resize: bool,
    /// Blocked claims keep a place in line.
    pub fifo: bool,
    /// A release can keep the key closed.
    pub linger: bool,
    /// Waits end because of the store.
    pub push: bool,
    /// Observers are notified of changes; see [`Backend::watch`].
    pub watch: bool,
    /// [`Claim::floor`](latchwork_store::Claim::floor) is honoured, as `Quorum` needs of its nodes.
    pub floor: bool,
    /// How far tokens can be relied on.
    pub fencing: Fencing,
}

impl Expected {
    /// Everything that the contract knows.
    pub const EVERYTHING: Self = Self {
        shared: true,
        upgrade: true,
        permits: true,
        mixed_limits: true,
        resize: true,
        fifo: true,
        linger: true,
        push: true,
        watch: true,
        floor: true,
        fencing: Fencing::Linearizable,
    };

    /// What a majority of several stores can do.
    pub const OF_A_MAJORITY: Self = Self {
        upgrade: false,
        permits: false,
        mixed_limits: false,
        resize: false,
        fifo: false,
        watch: false,
        fencing: Fencing::WhileDataSurvives,
        ..Self::EVERYTHING
    };
}

type Opener = Box<dyn Fn(Io) -> Verb<'static, Client> + Send + Sync>;

/// A store under trial: opens clients.
pub struct Store(Opener);

impl Store {
    /// A store whose clients are opened by `open`, each with the [`Io`] it shall use.
    pub fn new<F>(open: impl Fn(Io) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Client> + Send + 'static,
    {
        Self(Box::new(move |io| Box::pin(open(io))))
    }

    /// Opens one more client, as if by another process.
    pub(crate) async fn open(&self, io: &Io) -> Client {
        let tasks = Arc::new(AtomicUsize::new(0));
        let counted = {
            let (io, tasks) = (io.clone(), tasks.clone());
            move |task| {
                let running = Running::new(&tasks);
                io.spawn(async move {
                    let _running = running;
                    let task: latchwork_store::Task = task;
                    task.await;
                });
            }
        };
        let mut client = (self.0)(Io::new(counted, io.clock().clone())).await;
        client.tasks = tasks;
        client
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(tasks: &Arc<AtomicUsize>) -> Self {
        tasks.fetch_add(1, Ordering::SeqCst);
        Self(tasks.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is wrong with the way between a client and its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Requests do not arrive.
    LoseRequests,
    /// Requests arrive and take effect, and the answers are lost.
    LoseAnswers,
}

/// One client of a store.
pub struct Client {
    pub(crate) backend: Arc<dyn Backend>,
    kill: Option<Box<dyn FnOnce() + Send + Sync>>,
    fault: Option<Arc<dyn Fn(Fault) + Send + Sync>>,
    tasks: Arc<AtomicUsize>,
}

impl Client {
    /// A client whose only way to die is that its backend is dropped.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, kill: None, fault: None, tasks: Arc::default() }
    }

    /// Says how to end this client abruptly, before its backend is dropped.
    #[must_use]
    pub fn on_kill(mut self, kill: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.kill = Some(Box::new(kill));
        self
    }

    /// Says how to disturb the way between this client and its store.
    #[must_use]
    pub fn on_fault(mut self, fault: impl Fn(Fault) + Send + Sync + 'static) -> Self {
        self.fault = Some(Arc::new(fault));
        self
    }

    /// Ends the client without a word to the store; returns the number of its tasks that still
    /// run, to be read later.
    pub(crate) fn kill(mut self) -> Arc<AtomicUsize> {
        if let Some(kill) = self.kill.take() {
            kill();
        }
        self.tasks
    }

    /// Disturbs the way to the store; false if the harness cannot.
    pub(crate) fn set_fault(&self, fault: Fault) -> bool {
        self.fault.as_ref().map(|set| set(fault)).is_some()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

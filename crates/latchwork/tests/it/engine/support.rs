//! A store that can be told to misbehave, and that counts what it is asked.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork::{Event, LockManager, Observer};
use latchwork_store::testing::{PausedClock, paused_io};
use latchwork_store::*;

pub(crate) const SEC: Duration = Duration::from_secs(1);
pub(crate) const MS: Duration = Duration::from_millis(1);

/// The length of a pushed grant before its first renewal.
pub(crate) const PUSHED_TTL: Duration = Duration::from_secs(2);

/// A store's own clock, which a test can set and let run at another rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreClock {
    since: Moment,
    time: Duration,
    /// In thousandths of our rate.
    rate: u32,
}

impl StoreClock {
    fn read(&self, now: Moment) -> Duration {
        self.time + now.since(self.since) * self.rate / 1_000
    }
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// It never reaches the store, and an error says so after a while.
    LoseRequest,
    /// It takes effect, and the connection breaks before the answer.
    LoseAnswer,
    /// It takes effect, and the answer comes this much later.
    DelayAnswer(Duration),
    /// It is under way for this long before it takes effect, also if its caller goes meanwhile.
    DelayRequest(Duration),
    /// Neither an effect nor an answer, ever.
    Hang,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Try,
    Renew,
    Release,
}

type Plan = Box<dyn FnMut(Asked) -> Fault + Send>;

/// A backend over another one, with faults.
pub(crate) struct Faulty {
    pub(crate) doubts: Doubts,
    pub(crate) inner: Arc<MemoryBackend>,
    io: Io,
    plan: Mutex<Plan>,
    /// The store keeps claims so many times longer than it says.
    pub(crate) overtime: u32,
    /// It changes no hold between reading and writing.
    pub(crate) cannot_upgrade: AtomicBool,
    /// `wait` answers with the grant itself.
    pub(crate) pushes: AtomicBool,
    /// How long the next pushed grant is under way.
    pub(crate) push_delay: Mutex<Duration>,
    /// How far in the future the try was sent that the next push names.
    pub(crate) push_ahead: Mutex<Duration>,
    /// The store's own clock, if it tells the time.
    store_clock: Arc<Mutex<Option<StoreClock>>>,
    pub(crate) tries: AtomicU32,
    pub(crate) renewals: AtomicU32,
    /// How often it was asked to renew, whatever the number of claims.
    pub(crate) renewal_calls: AtomicU32,
    pub(crate) releases: AtomicU32,
    pub(crate) waits: AtomicU32,
}

impl Faulty {
    pub(crate) fn plan(&self, plan: impl FnMut(Asked) -> Fault + Send + 'static) {
        *self.plan.lock().unwrap() = Box::new(plan);
    }

    pub(crate) fn behave(&self) {
        self.plan(|_| Fault::None);
    }

    pub(crate) fn asked(&self) -> (u32, u32) {
        (self.tries.load(Ordering::SeqCst), self.releases.load(Ordering::SeqCst))
    }

    /// From now on the store tells the time, by a clock of this rate in thousandths of ours.
    pub(crate) fn clock_runs_at(&self, rate: u32) {
        let mut clock = self.store_clock.lock().unwrap();
        let now = self.io.now();
        let time = clock.map_or(Duration::from_secs(1_800_000_000), |clock| clock.read(now));
        *clock = Some(StoreClock { since: now, time, rate });
    }

    /// Sets the store's clock by this many milliseconds.
    pub(crate) fn step_clock(&self, by_ms: i64) {
        let mut clock = self.store_clock.lock().unwrap();
        let clock = clock.as_mut().expect("a store that tells the time");
        let by = Duration::from_millis(by_ms.unsigned_abs());
        if by_ms < 0 { clock.time -= by } else { clock.time += by }
    }

    /// Reads the store's own clock, whenever it is asked.
    fn store_time(&self) -> impl Fn() -> Option<Duration> + Send + 'static {
        let (clock, io) = (self.store_clock.clone(), self.io.clone());
        move || clock.lock().unwrap().map(|clock| clock.read(io.now()))
    }

    /// The claim as the store keeps it: by its own clock, and perhaps longer than it says.
    fn longer(&self, claim: &Claim) -> Claim {
        let rate = self.store_clock.lock().unwrap().map_or(1_000, |clock| clock.rate);
        claim.clone().with(|it| it.ttl = claim.ttl * self.overtime * 1_000 / rate)
    }

    async fn suffer<T: Send + 'static>(
        &self,
        asked: Asked,
        act: impl Future<Output = Result<T, BackendError>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let fault = (self.plan.lock().unwrap())(asked);
        let broken = |effect| {
            Err(BackendError::new(BackendErrorKind::Unreachable, effect, "the connection broke"))
        };
        match fault {
            Fault::None => act.await,
            Fault::LoseRequest => {
                self.io.sleep(MS).await;
                broken(Effect::Unknown)
            }
            Fault::LoseAnswer => {
                let _ = act.await;
                broken(Effect::Unknown)
            }
            Fault::DelayAnswer(delay) => {
                let answer = act.await;
                self.io.sleep(delay).await;
                answer
            }
            Fault::DelayRequest(delay) => {
                let io = self.io.clone();
                let sent = async move {
                    io.sleep(delay).await;
                    act.await
                };
                tokio::spawn(sent).await.expect("a store that does not panic")
            }
            Fault::Hang => std::future::pending().await,
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").finish_non_exhaustive()
    }
}

impl Backend for Faulty {
    latchwork_store::pass_on!(inner: inspect);

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.upgrade &= !self.cannot_upgrade.load(Ordering::SeqCst);
        capabilities
    }

    fn doubts(&self) -> Option<&Doubts> {
        Some(&self.doubts)
    }

    fn try_acquire<'a>(&'a self, claim: &'a Claim) -> Verb<'a, Result<Attempt, BackendError>> {
        Box::pin(async move {
            self.tries.fetch_add(1, Ordering::SeqCst);
            let (inner, longer, ttl) = (self.inner.clone(), self.longer(claim), claim.ttl);
            let store_time = self.store_time();
            let act = async move {
                let mut attempt = inner.try_acquire(&longer).await?;
                if let Attempt::Granted(grant) = &mut attempt {
                    grant.ttl = ttl;
                    grant.store_time = store_time();
                }
                Ok(attempt)
            };
            self.suffer(Asked::Try, act).await
        })
    }

    fn wait<'a>(
        &'a self,
        claim: &'a Claim,
        blocked: &'a Blocked,
    ) -> Verb<'a, Result<Wake, BackendError>> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let wake = self.inner.wait(claim, blocked).await?;
            if !self.pushes.load(Ordering::SeqCst) {
                return Ok(wake);
            }
            let pushed = claim.clone().with(|it| it.ttl = PUSHED_TTL);
            let Attempt::Granted(grant) = self.inner.try_acquire(&pushed).await? else {
                return Ok(Wake::Look);
            };
            let since_try = self.io.now().since(claim.stamp.sent_at());
            // The message is on its way for a while.
            let delay = std::mem::replace(&mut *self.push_delay.lock().unwrap(), 100 * MS);
            self.io.sleep(delay).await;
            let ahead = std::mem::take(&mut *self.push_ahead.lock().unwrap());
            let stamp = Stamp::new(claim.stamp.sent_at().plus(ahead));
            Ok(Wake::Admitted { grant, stamp, since_try })
        })
    }

    fn renew_all<'a>(
        &'a self,
        claims: &'a [Claim],
    ) -> Verb<'a, Vec<Result<Renewal, BackendError>>> {
        Box::pin(async move {
            self.renewal_calls.fetch_add(1, Ordering::SeqCst);
            let mut answers = Vec::new();
            for claim in claims {
                self.renewals.fetch_add(1, Ordering::SeqCst);
                let (inner, longer, asked) = (self.inner.clone(), self.longer(claim), claim.ttl);
                let time = self.store_time();
                let act = async move {
                    let mut answer = inner.renew_all(&[longer]).await.remove(0)?;
                    if let Renewal::Held { ttl, store_time, .. } = &mut answer {
                        (*ttl, *store_time) = (asked, time());
                    }
                    Ok(answer)
                };
                answers.push(self.suffer(Asked::Renew, act).await);
            }
            answers
        })
    }

    fn release<'a>(
        &'a self,
        claim: &'a Claim,
        linger: Linger,
    ) -> Verb<'a, Result<Released, BackendError>> {
        Box::pin(async move {
            self.releases.fetch_add(1, Ordering::SeqCst);
            let (inner, claim) = (self.inner.clone(), claim.clone());
            let act = async move { inner.release(&claim, linger).await };
            self.suffer(Asked::Release, act).await
        })
    }

    fn ttl_may_change(&self) -> bool {
        true
    }

    fn renews_for_others(&self) -> bool {
        true
    }
}

/// A store, a process on it, and the clock that a test can move.
pub(crate) struct World {
    pub(crate) store: Arc<Faulty>,
    pub(crate) locks: LockManager,
    pub(crate) io: Io,
    pub(crate) clock: Arc<PausedClock>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with_overtime(1)
    }

    /// A store that keeps claims so many times longer than it says.
    pub(crate) fn with_overtime(overtime: u32) -> Self {
        let (io, clock) = paused_io();
        let store = faulty(MemoryBackend::new(io.clone()), &io, overtime);
        let locks = LockManager::on_io(store.clone(), io.clone());
        Self { store, locks, io, clock }
    }

    /// Another process on the same store.
    pub(crate) fn another(&self) -> (Arc<Faulty>, LockManager) {
        let store = faulty(self.store.inner.beside(), &self.io, self.store.overtime);
        let locks = LockManager::on_io(store.clone(), self.io.clone());
        (store, locks)
    }

    /// Whether nothing is held and nobody waits.
    pub(crate) async fn is_empty(&self) -> bool {
        let all = Query::Prefix("".into());
        self.store.inner.inspect(&all).await.unwrap().is_empty()
    }

    /// Lets everything that can run now run.
    pub(crate) async fn settle(&self) {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
}

pub(crate) fn faulty(inner: Arc<MemoryBackend>, io: &Io, overtime: u32) -> Arc<Faulty> {
    Arc::new(Faulty {
        doubts: Doubts::default(),
        inner,
        io: io.clone(),
        plan: Mutex::new(Box::new(|_| Fault::None)),
        overtime,
        cannot_upgrade: AtomicBool::default(),
        pushes: AtomicBool::default(),
        push_delay: Mutex::new(100 * MS),
        push_ahead: Mutex::default(),
        store_clock: Arc::default(),
        tries: AtomicU32::default(),
        renewals: AtomicU32::default(),
        renewal_calls: AtomicU32::default(),
        releases: AtomicU32::default(),
        waits: AtomicU32::default(),
    })
}

/// Writes down what it is told of the store's clock and of doubt.
#[derive(Debug, Default)]
pub(crate) struct ClockNews(Mutex<Vec<String>>);

impl ClockNews {
    /// What was told since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Observer for ClockNews {
    fn event(&self, event: &Event<'_>) {
        let news = match event {
            Event::ClockStepped { key, by } => {
                format!("{key} stepped by {:.0} s", *by as f64 / 1e9)
            }
            Event::ClockUnsteady { key, ratio } => format!("{key} unsteady {ratio:.2}"),
            Event::Suspect { key, .. } => format!("{key} suspect"),
            _ => return,
        };
        self.0.lock().unwrap().push(news);
    }
}

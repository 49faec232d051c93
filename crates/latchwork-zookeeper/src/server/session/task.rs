//! The task of a session: connects, and writes the pulse.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::Fuse;
use latchwork_store::{BackendError, Io, random_between};
use latchwork_wire::note_unanswered;
use tokio::sync::mpsc;

use super::attach::Attach;
use super::link::land;
use super::messages::{Request, Welcome};
use super::mover::Mover;
use super::outlet::Outlet;
use super::proof::{Proof, Reading};
use super::transport::{Trouble, Way, outlasted};
use super::{Ended, Ensemble, Flight, Shared, locked};
use crate::names::Names;
use crate::server::errors::{full, no_answer, not_sent, unsent};

/// A heart-beat comes so many times within the timeout of a session.
const BEATS: u32 = 16;
/// A server that owes an answer and says nothing at all for this part of the timeout, within these
/// limits, ends its connection; but it takes no more than a quarter of the timeout.
const ANSWER_FRACTION: u32 = 8;
const ANSWER_LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// A connection may take so long to be made once a name is looked up, with all that is said at first: several round
/// trips.
const CONNECT_LIMITS: (Duration, Duration) = (Duration::from_millis(750), Duration::from_secs(4));
/// A lookup of names has a limit of its own, which is shorter.
const LOOKUP_LIMIT: Duration = Duration::from_secs(60);
/// The pause after all servers were tried in vain.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause while the servers take no more connections or refuse the login, up to ten times as long.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// A session that is to follow on another one waits no longer for its end.
const OTHERS_END: Duration = Duration::from_secs(2);
/// A node that nobody wants news of is forgotten after this, or after the timeout of the session.
const WATCHES_KEPT: Duration = Duration::from_secs(30);
/// What is said of a connection that ended without a word.
const ENDED: &str = "the connection has ended";

/// Runs a session until nobody needs it any more, or the servers have ended it.
pub(super) async fn run(
    ensemble: Arc<Ensemble>,
    timeout: Duration,
    shared: Arc<Shared>,
    flights: mpsc::UnboundedReceiver<Flight>,
    io: Io,
    after: Option<Ended>,
) {
    let server = random_between(Duration::ZERO, Duration::from_secs(1)).as_nanos() as usize;
    let mut task = Task {
        names: Names::new(&ensemble.config.chroot),
        server: server % ensemble.config.servers.len(),
        ensemble,
        timeout,
        shared,
        flights,
        io,
        waiting: VecDeque::new(),
        known: None,
        broke_at: None,
    };
    if let Some(after) = after
        && task.unless_not_needed(OTHERS_END, |_| after).await.is_err()
    {
        return;
    }
    task.live().await;
}

struct Task {
    ensemble: Arc<Ensemble>,
    names: Names,
    /// What is asked for, and then what was granted.
    timeout: Duration,
    shared: Arc<Shared>,
    flights: mpsc::UnboundedReceiver<Flight>,
    io: Io,
    /// Flights that were taken and not sent.
    waiting: VecDeque<Flight>,
    /// The session, once there is one.
    known: Option<Welcome>,
    /// When the last connection broke.
    broke_at: Option<Reading>,
    /// The server that is asked next.
    server: usize,
}

/// Nobody needs the session any more.
struct NotNeeded;

impl Task {
    async fn live(&mut self) {
        loop {
            let way = match self.attach().await {
                Ok(Some(way)) => way,
                Ok(None) => return self.fail_for_good(),
                Err(NotNeeded) => return,
            };
            let begun_at = self.io.now();
            self.broke_at = None;
            let serving = Serving(self.shared.clone());
            let Err(trouble) = self.serve(way).await else { return };
            self.broke_at = Some(Reading::now(&self.io));
            let message = format!("{}: {trouble}", self.ensemble.config.servers[self.server]);
            serving.fail(&no_answer(message));
            self.shared.watches.end_all();
            self.server = (self.server + 1) % self.ensemble.config.servers.len();
            if self.io.now().since(begun_at) < PAUSE {
                let pause = random_between(PAUSE / 4, PAUSE);
                if self.unless_not_needed(pause, |_| std::future::pending::<()>()).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Tells all who ask that the session is over.
    fn fail_for_good(&mut self) {
        self.flights.close();
        self.shared.watches.end_all();
        let Some(why) = self.shared.over.get().cloned() else { return };
        while let Ok(flight) = self.flights.try_recv() {
            self.waiting.push_back(flight);
        }
        self.fail_waiting(self.waiting.len(), &why);
    }

    fn fail_waiting(&mut self, first: usize, why: &BackendError) {
        for flight in self.waiting.drain(..first) {
            land(flight.answer, Vec::new(), Some(why.clone()));
        }
    }

    /// Connects to a server, and takes up the session there or begins it; `None` if it is over.
    async fn attach(&mut self) -> Result<Option<Way>, NotNeeded> {
        loop {
            let servers = self.ensemble.config.servers.len();
            let mut last = None;
            let (mut is_full, mut is_refused, mut is_out) = (false, false, false);
            let mut refusal = None;
            // Flights that arrive from here on get only the result of the next round.
            let asked_before = self.waiting.len();
            for _ in 0..servers {
                let limit = (self.timeout / 4).clamp(CONNECT_LIMITS.0, CONNECT_LIMITS.1);
                // The lookup of a name may take longer than that.
                let found = self.unless_not_needed(LOOKUP_LIMIT, |task| task.resolve()).await?;
                let hello = Reading::now(&self.io);
                let mut step = None;
                let connected = match found {
                    Some(Err(trouble)) => Some(Err(trouble)),
                    _ => self.unless_not_needed(limit, |task| task.connect()).await?,
                };
                let failed = match connected {
                    None => {
                        let server = &self.ensemble.config.servers[self.server];
                        note_unanswered(server, &self.io);
                        format!("no answer within {limit:?}")
                    }
                    Some(Ok(Some(way))) => {
                        self.ensemble.set_full(false);
                        *locked(&self.shared.proof) = Some(Proof::new(self.timeout, hello));
                        return Ok(Some(way));
                    }
                    Some(Ok(None)) => return Ok(None),
                    // They are read again at the next attempt.
                    Some(Err(Trouble::Files(error))) => {
                        step = error.next_step;
                        error.message
                    }
                    Some(Err(Trouble::Refused(error))) => {
                        let _ = self.shared.over.set(error);
                        return Ok(None);
                    }
                    Some(Err(Trouble::NotNow(error))) => {
                        let said = not_sent(&*error.message);
                        let step = error.next_step.clone();
                        last = Some(step.into_iter().fold(said, BackendError::with_next_step));
                        refusal = Some(error);
                        String::new()
                    }
                    Some(Err(Trouble::Full)) => {
                        is_full = true;
                        let server = &self.ensemble.config.servers[self.server];
                        last = Some(full(server));
                        String::new()
                    }
                    Some(Err(Trouble::NotTaken)) => {
                        is_refused = true;
                        "it does not take up this session".to_owned()
                    }
                    Some(Err(Trouble::Expired(session))) => outlasted(session),
                    Some(Err(Trouble::NotThere(error))) => {
                        is_out = true;
                        error.to_string()
                    }
                    Some(Err(Trouble::Io(error))) => {
                        step = unsent("", &error).next_step;
                        error.to_string()
                    }
                };
                if !failed.is_empty() {
                    let none = match servers {
                        1 => "the ZooKeeper server does not serve requests".to_owned(),
                        n => format!("none of the {n} ZooKeeper servers serves requests"),
                    };
                    let server = &self.ensemble.config.servers[self.server];
                    // That a server is full says more.
                    let said = not_sent(format!("{none}; {server}: {failed}"));
                    last = last.or_else(|| {
                        Some(step.into_iter().fold(said, BackendError::with_next_step))
                    });
                }
                self.server = (self.server + 1) % servers;
                if is_out {
                    break;
                }
            }
            let is_denied = refusal.is_some();
            if (is_refused || is_denied) && self.is_over_by_own_clock() {
                // Servers refuse a session that has seen more than they have: it ended long ago, and
                // their data is of before. A new one finds out.
                let ended = "the session has ended: no server took it up for longer than it lasts";
                let ended = || not_sent(ended).with_next_step("try again");
                let _ = self.shared.over.set(refusal.unwrap_or_else(ended));
                return Ok(None);
            }
            self.ensemble.set_full(is_full);
            if let Some(why) = last {
                self.fail_waiting(asked_before, &why);
            }
            let pause = match is_full || is_denied {
                true => random_between(FULL_PAUSE, FULL_PAUSE * 10),
                false => random_between(PAUSE / 4, PAUSE),
            };
            self.unless_not_needed(pause, |_| std::future::pending::<()>()).await?;
        }
    }

    /// Whether the servers must have ended the session, because they have not heard of it for so long.
    fn is_over_by_own_clock(&self) -> bool {
        let now = Reading::now(&self.io);
        self.broke_at.is_some_and(|broke_at| now.since(broke_at) >= self.timeout)
    }

    /// Runs `work` for at most `limit`, and collects meanwhile what is asked.
    async fn unless_not_needed<'a, T, F>(
        &'a mut self,
        limit: Duration,
        work: impl FnOnce(Attach<'a>) -> F,
    ) -> Result<Option<T>, NotNeeded>
    where
        F: Future<Output = T>,
    {
        let Self { ensemble, names, timeout, known, server, io, shared, .. } = self;
        let (flights, waiting) = (&mut self.flights, &mut self.waiting);
        let attach = Attach { ensemble, names, timeout, known, server, shared, io };
        let work = io.within(limit, work(attach));
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                flight = flights.recv() => match flight {
                    Some(flight) => waiting.push_back(flight),
                    None => return Err(NotNeeded),
                },
            }
        }
    }

    /// Serves a connection until it breaks (an error) or nobody needs the session any more.
    async fn serve(&mut self, way: Way) -> Result<(), String> {
        let Way { wire, drive } = way;
        let (least, most) = ANSWER_LIMITS;
        let patience = (self.timeout / ANSWER_FRACTION).clamp(least, most).min(self.timeout / 4);
        let pulse: Arc<str> = match &*locked(&self.shared.up) {
            Some(up) => up.pulse.clone(),
            None => return Err("no session".into()),
        };
        let shared = self.shared.clone();
        let beat_every = self.timeout / BEATS;
        let mut beaten_at = Reading::now(&self.io);
        let mut outlet = Outlet::new(drive.clone(), beaten_at.at);
        for flight in self.waiting.drain(..) {
            outlet.link.take(flight, beaten_at);
        }
        *locked(&shared.outlet) = Some(outlet);
        let (mover, mut broken) =
            Mover::new(wire, shared.clone(), self.ensemble.clone(), self.io.clone());
        drive.start(mover);
        // So often that no silence is overlooked for long, and a beat falls on a look.
        let looks = beat_every.as_nanos().div_ceil((patience / 2).as_nanos()).max(1);
        let look_every = beat_every / u32::try_from(looks).unwrap_or(u32::MAX);
        let mut look = self.io.sleep(look_every);
        // While it waits for its answer, this task reads the connection, even if another should.
        let mut beat = pin!(Fuse::terminated());
        loop {
            tokio::select! {
                biased;
                flight = next_flight(&shared, &mut self.flights) => {
                    // Given before there was a connection, or when too much was waiting.
                    let Some(flight) = flight else { break };
                    let now = Reading::now(&self.io);
                    shared.with_link(|link| link.take(flight, now));
                    drive.move_now();
                }
                why = &mut broken => return Err(why.unwrap_or_else(|_| ENDED.into())),
                _ = &mut beat => {}
                () = &mut look => {
                    // Those near it may be blocked.
                    drive.refresh();
                    let now = Reading::now(&self.io);
                    // A server that is slow with many answers is not silent.
                    let waited_for = |outlet: &Outlet| Some(outlet.link.oldest()?.max(outlet.heard_at));
                    let waits = locked(&shared.outlet).as_ref().and_then(waited_for);
                    if waits.is_some_and(|since| now.at.since(since) >= patience) {
                        return Err(format!("no answer within {patience:?}"));
                    }
                    if now.since(beaten_at) >= beat_every * 3 {
                        // Or its machine did. Until the heart-beats prove enough again, a new hello
                        // does.
                        return Err("this process was paused".into());
                    }
                    // What is a little early now would be late the next time.
                    if now.since(beaten_at).saturating_add(look_every / 2) >= beat_every {
                        beaten_at = now;
                        let (flight, landed) = Flight::new(vec![Request::set(&pulse)]);
                        shared.with_link(|link| link.take_pulse(flight, now));
                        drive.move_now();
                        beat.set(drive.answer(landed).fuse());
                        shared.watches.tidy(now.at, self.timeout.max(WATCHES_KEPT));
                    }
                    look = self.io.sleep(look_every);
                }
            }
        }
        // Without this request, the servers keep the session until it times out.
        let close = Flight { requests: vec![Request::close()], answer: None };
        let now = Reading::now(&self.io);
        shared.with_link(|link| link.take(close, now));
        drive.move_now();
        let _ = self.io.within(patience, drive.listen(broken)).await;
        Ok(())
    }
}

/// The next flight that is left to the task, as soon as the connection takes one.
async fn next_flight(
    shared: &Shared,
    flights: &mut mpsc::UnboundedReceiver<Flight>,
) -> Option<Flight> {
    poll_fn(|cx| match &mut *locked(&shared.outlet) {
        Some(outlet) => outlet.poll_open(cx),
        None => Poll::Pending,
    })
    .await;
    flights.recv().await
}

/// While it lives, a connection may be served. The connection ends with it.
struct Serving(Arc<Shared>);

impl Serving {
    /// Ends it, and tells those that wait for an answer.
    fn fail(self, why: &BackendError) {
        if let Some(mut link) = self.0.shut() {
            link.fail(why);
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.shut();
    }
}

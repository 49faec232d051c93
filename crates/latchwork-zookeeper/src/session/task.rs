//! The task of a session: connects, sends, reads, beats.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use latchwork_store::{BackendError, Io, random_between};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::attach::Attach;
use super::link::{Learnt, land};
use super::messages::{NEWS, News, Refusal, Request, Welcome};
use super::outlet::Outlet;
use super::proof::{Proof, Reading};
use super::transport::{Header, Trouble, Wire, first_frame, malformed};
use super::{Ended, Ensemble, Flight, Shared, locked};
use crate::errors::{full, no_answer, not_sent};
use crate::names::Names;

/// A heart-beat comes so many times within the timeout of a session.
const BEATS: u32 = 16;
/// A server that owes an answer and says nothing at all for this part of the timeout, within these
/// limits, ends its connection; but it takes no more than a quarter of the timeout.
const PATIENCE: u32 = 8;
const PATIENCE_LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3));
/// A connection may take so long to be made, with all that is said at first: several round trips.
const CONNECT_LIMITS: (Duration, Duration) = (Duration::from_millis(750), Duration::from_secs(4));
/// The pause after all servers were tried in vain.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause while the servers take no more connections, up to ten times as long.
const FULL_PAUSE: Duration = Duration::from_millis(100);
/// A session that is to follow on another one waits no longer for its end.
const OTHERS_END: Duration = Duration::from_secs(2);
/// As much is read at once.
const PIECE: usize = 16 * 1024;

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
        last_seen: 0,
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
    last_seen: i64,
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
            let wire = match self.attach().await {
                Ok(Some(wire)) => wire,
                Ok(None) => return self.fail_for_good(),
                Err(NotNeeded) => return,
            };
            let begun_at = self.io.now();
            self.broke_at = None;
            let ended = self.serve(wire).await;
            let outlet = locked(&self.shared.outlet).take();
            let Err(trouble) = ended else { return };
            self.broke_at = Some(Reading::now(&self.io));
            let message = format!("{}: {trouble}", self.ensemble.config.servers[self.server]);
            if let Some(mut outlet) = outlet {
                outlet.link.fail(&no_answer(message));
            }
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
    async fn attach(&mut self) -> Result<Option<Box<dyn Wire>>, NotNeeded> {
        loop {
            let servers = self.ensemble.config.servers.len();
            let mut last = None;
            let (mut is_full, mut is_refused) = (false, false);
            // Who asks from here on is told only what comes of the next round.
            let asked_before = self.waiting.len();
            for _ in 0..servers {
                let limit = (self.timeout / 4).clamp(CONNECT_LIMITS.0, CONNECT_LIMITS.1);
                let hello = Reading::now(&self.io);
                let failed = match self.unless_not_needed(limit, |task| task.connect()).await? {
                    None => format!("no answer within {limit:?}"),
                    Some(Ok(Some(wire))) => {
                        self.ensemble.set_full(false);
                        *locked(&self.shared.proof) = Some(Proof::new(self.timeout, hello));
                        return Ok(Some(wire));
                    }
                    Some(Ok(None)) => return Ok(None),
                    Some(Err(Trouble::Refused(error))) => {
                        let _ = self.shared.over.set(error);
                        return Ok(None);
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
                    Some(Err(Trouble::Io(error))) => error.to_string(),
                };
                if !failed.is_empty() {
                    let none = match servers {
                        1 => "ZooKeeper does not serve".to_owned(),
                        n => format!("none of {n} servers of ZooKeeper serves"),
                    };
                    let server = &self.ensemble.config.servers[self.server];
                    // That a server is full says more.
                    last = last.or_else(|| Some(not_sent(format!("{none}; {server}: {failed}"))));
                }
                self.server = (self.server + 1) % servers;
            }
            if is_refused && self.is_over_by_own_clock() {
                // Servers refuse a session that has seen more than they have: it ended long ago, and
                // their data is of before. A new one finds out.
                let ended = "the session has ended: no server took it up for longer than it lasts";
                let _ = self.shared.over.set(not_sent(ended).next_step("try again"));
                return Ok(None);
            }
            self.ensemble.set_full(is_full);
            if let Some(why) = last {
                self.fail_waiting(asked_before, &why);
            }
            let pause = match is_full {
                true => random_between(FULL_PAUSE, FULL_PAUSE * 10),
                false => random_between(PAUSE / 4, PAUSE),
            };
            self.unless_not_needed(pause, |_| std::future::pending::<()>()).await?;
        }
    }

    /// Whether the servers must have ended the session, for they have not heard of it for so long.
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
        let Self { ensemble, names, timeout, known, last_seen, server, io, shared, .. } = self;
        let (flights, waiting) = (&mut self.flights, &mut self.waiting);
        let attach = Attach {
            ensemble,
            names,
            timeout,
            known,
            last_seen: *last_seen,
            server: *server,
            shared,
        };
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
    async fn serve(&mut self, wire: Box<dyn Wire>) -> Result<(), String> {
        let (mut reader, writer) = tokio::io::split(wire);
        let (least, most) = PATIENCE_LIMITS;
        let patience = (self.timeout / PATIENCE).clamp(least, most).min(self.timeout / 4);
        let pulse: Arc<str> = match &*locked(&self.shared.up) {
            Some(up) => up.pulse.clone(),
            None => return Err("no session".into()),
        };
        let shared = self.shared.clone();
        let mut outlet = Outlet::new(writer);
        for flight in self.waiting.drain(..) {
            outlet.link.take(flight, Reading::now(&self.io));
        }
        *locked(&shared.outlet) = Some(outlet);
        let with_outlet = |act: &mut dyn FnMut(&mut Outlet)| {
            if let Some(outlet) = &mut *locked(&shared.outlet) {
                act(outlet);
            }
        };
        let beat_every = self.timeout / BEATS;
        let mut beaten_at = Reading::now(&self.io);
        // A server that is slow with many answers is not silent.
        let mut heard_at = beaten_at.at;
        // So often that no silence is overlooked for long, and a beat falls on a look.
        let looks = beat_every.as_nanos().div_ceil((patience / 2).as_nanos()).max(1);
        let look_every = beat_every / u32::try_from(looks).unwrap_or(u32::MAX);
        let mut look = self.io.sleep(look_every);
        let mut read = Vec::with_capacity(PIECE);
        loop {
            let mut is_open = false;
            with_outlet(&mut |outlet| is_open = outlet.is_open());
            let trouble = poll_fn(|cx| match &mut *locked(&shared.outlet) {
                Some(outlet) => outlet.poll(cx),
                None => Poll::Pending,
            });
            tokio::select! {
                biased;
                flight = self.flights.recv(), if is_open => {
                    // Given before there was a connection, or when too much was waiting.
                    let Some(flight) = flight else { break };
                    let (now, mut flight) = (Reading::now(&self.io), Some(flight));
                    with_outlet(&mut |outlet| {
                        if let Some(flight) = flight.take() {
                            outlet.link.take(flight, now);
                        }
                    });
                }
                error = trouble => return Err(error.to_string()),
                got = reader.read_buf(&mut read) => {
                    match got {
                        Ok(0) => return Err("the server closed the connection".into()),
                        Ok(_) => {
                            heard_at = self.io.now();
                            self.take_answers(&mut read)?;
                        }
                        Err(error) => return Err(error.to_string()),
                    }
                }
                () = &mut look => {
                    let now = Reading::now(&self.io);
                    let mut oldest = None;
                    with_outlet(&mut |outlet| oldest = outlet.link.oldest());
                    if oldest.is_some_and(|sent_at| now.at.since(sent_at.max(heard_at)) >= patience) {
                        return Err(format!("no answer within {patience:?}"));
                    }
                    if now.since(beaten_at) >= beat_every * 3 {
                        // Or its machine did. Until the heart-beats prove enough again, a new hello
                        // does.
                        return Err("this process stood still".into());
                    }
                    // What is a little early now would be late the next time.
                    if now.since(beaten_at).saturating_add(look_every / 2) >= beat_every {
                        beaten_at = now;
                        with_outlet(&mut |outlet| outlet.link.send_pulse(&pulse, now));
                        self.shared.watches.tidy();
                    }
                    look = self.io.sleep(look_every);
                }
            }
        }
        // Whoever ends without it is kept until the session has ended by itself.
        let Some(Outlet { mut link, mut writer, .. }) = locked(&shared.outlet).take() else {
            return Ok(());
        };
        let close = Flight { requests: vec![Request::close()], answer: None };
        link.take(close, Reading::now(&self.io));
        let goodbye = async {
            writer.write_all(&link.out).await?;
            writer.flush().await?;
            while reader.read_buf(&mut read).await? > 0 {
                read.clear();
            }
            std::io::Result::Ok(())
        };
        let _ = self.io.within(patience, goodbye).await;
        Ok(())
    }

    /// Hands on whole answers, and keeps the rest.
    fn take_answers(&mut self, read: &mut Vec<u8>) -> Result<(), String> {
        let shared = self.shared.clone();
        // Whoever is told may want to send at once: not while the way out is locked.
        let mut all_landed = Vec::new();
        let mut outlet = locked(&shared.outlet);
        let Some(Outlet { link, .. }) = &mut *outlet else {
            return Err("the connection is gone".into());
        };
        let mut taken = 0;
        let now = Reading::now(&self.io);
        while let Some((message, length)) =
            first_frame(&read[taken..]).map_err(|error| error.to_string())?
        {
            let (header, body) = Header::read(message).ok_or_else(|| malformed().to_string())?;
            self.last_seen = self.last_seen.max(header.seen);
            self.ensemble.saw(header.seen);
            if header.number == NEWS {
                if let Some(news) = News::read(body) {
                    for flight in self.shared.watches.news(&news.path) {
                        link.take(flight, now);
                    }
                }
            } else if header.number >= 0 {
                let reply = match header.refusal {
                    None => Ok(body.to_vec()),
                    Some(Refusal::SESSION_MOVED | Refusal::SESSION_EXPIRED) => {
                        return Err("the session is not here any more".into());
                    }
                    Some(refusal) => Err(refusal),
                };
                match link.answer(header.number, reply)? {
                    Some(Learnt::Write(sent)) => {
                        if let Some(proof) = &mut *locked(&self.shared.proof) {
                            proof.answered(sent, now.at);
                        }
                    }
                    Some(Learnt::Watch(path)) => self.shared.watches.stands(&path),
                    None => {}
                }
                all_landed.extend(link.landed());
            }
            taken += length;
        }
        read.drain(..taken);
        drop(outlet);
        for (answer, replies) in all_landed {
            land(Some(answer), replies, None);
        }
        Ok(())
    }
}

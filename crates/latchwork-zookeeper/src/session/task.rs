//! The task of a session: connects, sends, reads, beats.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use latchwork_core::{BackendError, BackendErrorKind, Io, Moment, random_between};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::messages::{Hello, Kind, NEWS, News, Refusal, Request, Welcome};
use super::proof::Proof;
use super::transport::{Header, Trouble, Wire, first_frame, greet, malformed, read_frame};
use super::{Flight, Landed, Reply, Shared, Up, access, locked};
use crate::config::{Endpoint, ZooKeeperConfig};
use crate::errors::{no_answer, not_sent};
use crate::names::{Names, parents};

/// A heart-beat comes so many times within the timeout of a session.
const BEATS: u32 = 16;
/// A request without answer for this part of the timeout ends its connection.
const PATIENCE: u32 = 8;
/// No connection is given up sooner, however short the session.
const LEAST_PATIENCE: Duration = Duration::from_millis(250);
/// A connection may take so long to be made, with all that is said at first: several round trips.
const CONNECT_LIMITS: (Duration, Duration) = (Duration::from_millis(750), Duration::from_secs(4));
/// Who asks only for the limits of sessions is content with another server sooner.
const PROBE_LIMIT: Duration = Duration::from_secs(2);
/// The pause after all servers were tried in vain.
const PAUSE: Duration = Duration::from_millis(100);
/// As much is read at once.
const PIECE: usize = 16 * 1024;
/// As much may wait to be written before requests are taken.
const MOST_WAITING: usize = 1 << 20;

/// Runs a session until nobody needs it any more, or the servers have ended it.
pub(super) async fn run(
    config: Arc<ZooKeeperConfig>,
    timeout: Duration,
    shared: Arc<Shared>,
    flights: mpsc::UnboundedReceiver<Flight>,
    io: Io,
) {
    let server = random_between(Duration::ZERO, Duration::from_secs(1)).as_nanos() as usize;
    let mut task = Task {
        names: Names::new(&config.chroot),
        server: server % config.servers.len(),
        config,
        timeout,
        shared,
        flights,
        io,
        waiting: VecDeque::new(),
        known: None,
        last_seen: 0,
    };
    task.live().await;
}

/// Which timeout a server grants to who asks for this one.
pub(crate) async fn probe(
    config: Arc<ZooKeeperConfig>,
    timeout_ms: i32,
    io: &Io,
) -> Result<Duration, BackendError> {
    let (answer, told) = oneshot::channel();
    let limits = io.clone();
    io.spawn(async move {
        let mut failure = not_sent("there is no server in the address");
        for server in &config.servers {
            let asked = limits.within(PROBE_LIMIT, ask_for(server, &config, timeout_ms)).await;
            failure = match asked {
                Some(Ok(timeout)) => return drop(answer.send(Ok(timeout))),
                Some(Err(Trouble::Refused(error))) => error,
                Some(Err(Trouble::Io(error))) => not_sent(format!("{server}: {error}")),
                None => not_sent(format!("{server}: no answer within {PROBE_LIMIT:?}")),
            };
        }
        let _ = answer.send(Err(failure));
    });
    told.await.unwrap_or_else(|_| Err(no_answer("the connections to ZooKeeper were closed")))
}

async fn ask_for(
    server: &Endpoint,
    config: &ZooKeeperConfig,
    timeout_ms: i32,
) -> Result<Duration, Trouble> {
    let hello = Hello { last_seen: 0, timeout_ms, session: 0, password: &[0; 16] };
    let (mut wire, welcome) = greet(server, config, hello).await?;
    let mut close = Vec::new();
    Request::close().write(1, &mut close);
    wire.write_all(&close).await?;
    wire.flush().await?;
    // It closes the connection when the session has ended.
    while wire.read(&mut [0; 64]).await.is_ok_and(|n| n > 0) {}
    match welcome.timeout_ms {
        1.. => Ok(Duration::from_millis(welcome.timeout_ms as u64)),
        _ => Err(std::io::Error::other("it gives no session").into()),
    }
}

struct Task {
    config: Arc<ZooKeeperConfig>,
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
            let mut link = Link::new();
            let begun_at = self.io.now();
            let ended = self.serve(wire, &mut link).await;
            let Err(trouble) = ended else { return };
            let message = format!("{}: {trouble}", self.config.servers[self.server]);
            link.fail(&no_answer(message));
            self.shared.watches.tell_all();
            self.server = (self.server + 1) % self.config.servers.len();
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
        self.shared.watches.tell_all();
        let Some(why) = self.shared.over.get().cloned() else { return };
        while let Ok(flight) = self.flights.try_recv() {
            self.waiting.push_back(flight);
        }
        self.fail_waiting(&why);
    }

    fn fail_waiting(&mut self, why: &BackendError) {
        for flight in self.waiting.drain(..) {
            land(flight.answer, Vec::new(), Some(why.clone()));
        }
    }

    /// Connects to a server, and takes up the session there or begins it; `None` if it is over.
    async fn attach(&mut self) -> Result<Option<Box<dyn Wire>>, NotNeeded> {
        loop {
            let mut last = String::new();
            for _ in 0..self.config.servers.len() {
                let limit = (self.timeout / 4).clamp(CONNECT_LIMITS.0, CONNECT_LIMITS.1);
                let hello_at = self.io.now();
                match self.unless_not_needed(limit, |task| task.connect()).await? {
                    None => last = format!("no answer within {limit:?}"),
                    Some(Ok(Some(wire))) => {
                        *locked(&self.shared.proof) = Some(Proof::new(self.timeout, hello_at));
                        return Ok(Some(wire));
                    }
                    Some(Ok(None)) => return Ok(None),
                    Some(Err(Trouble::Refused(error))) => {
                        let _ = self.shared.over.set(error);
                        return Ok(None);
                    }
                    Some(Err(Trouble::Io(error))) => last = error.to_string(),
                }
                last = format!("{}: {last}", self.config.servers[self.server]);
                self.server = (self.server + 1) % self.config.servers.len();
            }
            let none = match self.config.servers.len() {
                1 => "ZooKeeper does not serve".to_owned(),
                n => format!("none of {n} servers of ZooKeeper serves"),
            };
            self.fail_waiting(&not_sent(format!("{none}; {last}")));
            let pause = random_between(PAUSE / 4, PAUSE);
            self.unless_not_needed(pause, |_| std::future::pending::<()>()).await?;
        }
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
        let Self { config, names, timeout, known, last_seen, server, io, shared, .. } = self;
        let (flights, waiting) = (&mut self.flights, &mut self.waiting);
        let attach = Attach {
            config,
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
    async fn serve(&mut self, wire: Box<dyn Wire>, link: &mut Link) -> Result<(), String> {
        let (mut reader, mut writer) = tokio::io::split(wire);
        let patience = (self.timeout / PATIENCE).max(LEAST_PATIENCE);
        let pulse: Arc<str> = match &*locked(&self.shared.up) {
            Some(up) => up.pulse.clone(),
            None => return Err("no session".into()),
        };
        for flight in self.waiting.drain(..) {
            link.take(flight, self.io.now());
        }
        let beat_every = self.timeout / BEATS;
        let mut beaten_at = self.io.now();
        let mut beat = self.io.sleep(beat_every);
        let mut read = Vec::with_capacity(PIECE);
        let mut is_flushed = true;
        loop {
            tokio::select! {
                biased;
                flight = self.flights.recv(), if link.out.len() < MOST_WAITING => {
                    let Some(flight) = flight else { break };
                    let now = self.io.now();
                    link.take(flight, now);
                    // What was given meanwhile goes with it.
                    while link.out.len() < MOST_WAITING
                        && let Ok(flight) = self.flights.try_recv()
                    {
                        link.take(flight, now);
                    }
                }
                written = write(&mut writer, &link.out), if !link.out.is_empty() || !is_flushed => {
                    let taken = written.map_err(|error| error.to_string())?;
                    // With TLS what was taken is not yet sent.
                    is_flushed = link.out.is_empty();
                    link.out.drain(..taken);
                }
                got = reader.read_buf(&mut read) => {
                    match got {
                        Ok(0) => return Err("the server closed the connection".into()),
                        Ok(_) => self.take_answers(&mut read, link)?,
                        Err(error) => return Err(error.to_string()),
                    }
                }
                () = &mut beat => {
                    let now = self.io.now();
                    if link.oldest().is_some_and(|sent_at| now.since(sent_at) >= patience) {
                        return Err(format!("no answer within {patience:?}"));
                    }
                    if now.since(beaten_at) >= beat_every * 3 {
                        // Until the heart-beats prove enough again, a new hello does.
                        return Err("this process stood still".into());
                    }
                    beaten_at = now;
                    link.send_pulse(&pulse, now);
                    self.shared.watches.tidy();
                    beat = self.io.sleep(beat_every);
                }
            }
        }
        // Whoever ends without it is kept until the session has ended by itself.
        let close = Flight { requests: vec![Request::close()], answer: None };
        link.take(close, self.io.now());
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
    fn take_answers(&mut self, read: &mut Vec<u8>, link: &mut Link) -> Result<(), String> {
        let mut taken = 0;
        let now = self.io.now();
        while let Some((message, length)) =
            first_frame(&read[taken..]).map_err(|error| error.to_string())?
        {
            let (header, body) = Header::read(message).ok_or_else(|| malformed().to_string())?;
            self.last_seen = self.last_seen.max(header.seen);
            if header.number == NEWS {
                if let Some(news) = News::read(body) {
                    self.shared.watches.tell(&news.path);
                }
            } else if header.number >= 0 {
                let reply = match header.refusal {
                    None => Ok(body.to_vec()),
                    Some(Refusal::SESSION_MOVED | Refusal::SESSION_EXPIRED) => {
                        return Err("the session is not here any more".into());
                    }
                    Some(refusal) => Err(refusal),
                };
                if let Some(sent_at) = link.answer(header.number, reply)?
                    && let Some(proof) = &mut *locked(&self.shared.proof)
                {
                    proof.answered(sent_at, now);
                }
                link.land_front();
            }
            taken += length;
        }
        read.drain(..taken);
        Ok(())
    }
}

/// What connecting needs of the task.
struct Attach<'a> {
    config: &'a ZooKeeperConfig,
    names: &'a Names,
    timeout: &'a mut Duration,
    known: &'a mut Option<Welcome>,
    last_seen: i64,
    server: usize,
    shared: &'a Shared,
}

impl Attach<'_> {
    async fn connect(self) -> Result<Option<Box<dyn Wire>>, Trouble> {
        let server = &self.config.servers[self.server];
        let hello = Hello {
            last_seen: self.last_seen,
            timeout_ms: self.timeout.as_millis().try_into().unwrap_or(i32::MAX),
            session: self.known.as_ref().map_or(0, |known| known.session),
            password: self.known.as_ref().map_or(&[0; 16], |known| &*known.password),
        };
        let (mut wire, welcome) = greet(server, self.config, hello).await?;
        if welcome.session == 0 || welcome.timeout_ms <= 0 {
            if self.known.is_none() {
                return Err(std::io::Error::other("it gives no session").into());
            }
            let ended = not_sent("the session has ended: no server heard of it for too long");
            let _ = self.shared.over.set(ended.next_step("try again"));
            return Ok(None);
        }
        *self.timeout = Duration::from_millis(welcome.timeout_ms as u64);
        let pulse = self.names.pulse(welcome.session);
        let up = Up { id: welcome.session, pulse: (&*pulse).into() };
        *self.known = Some(welcome);
        self.make_pulse(&mut wire, &pulse).await?;
        *locked(&self.shared.up) = Some(up);
        Ok(Some(wire))
    }

    /// Makes sure that there is the node by which the session proves that it lives.
    async fn make_pulse(&self, wire: &mut Box<dyn Wire>, pulse: &str) -> Result<(), Trouble> {
        let access = access(self.config);
        let pulse_node = Request::create(Kind::Ephemeral, pulse, b"", access);
        let mut reply = self.ask(wire, &pulse_node).await?;
        if reply == Err(Refusal::NO_NODE) {
            for above in parents(pulse) {
                let node = Request::create(Kind::Container, above, b"", access);
                match self.ask(wire, &node).await? {
                    Ok(_) | Err(Refusal::NODE_EXISTS) => {}
                    Err(refusal) => return Err(self.refused(refusal, above)),
                }
            }
            reply = self.ask(wire, &pulse_node).await?;
        }
        match reply {
            Ok(_) | Err(Refusal::NODE_EXISTS) => Ok(()),
            Err(refusal) => Err(self.refused(refusal, pulse)),
        }
    }

    fn refused(&self, refusal: Refusal, path: &str) -> Trouble {
        let error = crate::errors::refused(refusal, path);
        match error.kind {
            BackendErrorKind::Denied | BackendErrorKind::Unsupported => Trouble::Refused(error),
            _ => std::io::Error::other(error.message).into(),
        }
    }

    /// One request, and the answer to it.
    async fn ask(&self, wire: &mut Box<dyn Wire>, request: &Request) -> Result<Reply, Trouble> {
        let mut frame = Vec::new();
        request.write(0, &mut frame);
        wire.write_all(&frame).await?;
        wire.flush().await?;
        loop {
            let message = read_frame(wire).await?;
            let (header, body) = Header::read(&message).ok_or_else(malformed)?;
            if header.number == 0 {
                return Ok(header.refusal.map_or_else(|| Ok(body.to_vec()), Err));
            }
        }
    }
}

/// Writes some of these bytes, or flushes if there are none; tells how many were taken.
async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<usize> {
    if bytes.is_empty() {
        return writer.flush().await.map(|()| 0);
    }
    match writer.write(bytes).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        taken => Ok(taken),
    }
}

/// A connection: what is to be written, and who waits for which answer.
struct Link {
    out: Vec<u8>,
    next: i32,
    sent: VecDeque<Sent>,
}

/// A flight on its way.
struct Sent {
    first: i32,
    writes: Vec<bool>,
    replies: Vec<Reply>,
    at: Moment,
    answer: Option<oneshot::Sender<Landed>>,
    is_pulse: bool,
}

impl Link {
    fn new() -> Self {
        Self { out: Vec::new(), next: 1, sent: VecDeque::new() }
    }

    fn take(&mut self, flight: Flight, now: Moment) {
        self.push(flight, now, false);
    }

    fn send_pulse(&mut self, pulse: &str, now: Moment) {
        let flight = Flight { requests: vec![Request::set(pulse)], answer: None };
        self.push(flight, now, true);
    }

    fn push(&mut self, flight: Flight, now: Moment, is_pulse: bool) {
        let Flight { requests, answer } = flight;
        // Whoever has asked may have given up since.
        if answer.as_ref().is_some_and(oneshot::Sender::is_closed) {
            return;
        }
        if requests.is_empty() {
            return land(answer, Vec::new(), None);
        }
        let first = self.next;
        for request in &requests {
            request.write(self.next, &mut self.out);
            self.next = self.next.checked_add(1).unwrap_or(1);
        }
        let writes = requests.iter().map(Request::is_write).collect::<Vec<_>>();
        let replies = Vec::with_capacity(writes.len());
        self.sent.push_back(Sent { first, writes, replies, at: now, answer, is_pulse });
    }

    fn oldest(&self) -> Option<Moment> {
        self.sent.front().map(|sent| sent.at)
    }

    /// Takes the answer with this number; tells when a write was sent that has been answered.
    fn answer(&mut self, number: i32, reply: Reply) -> Result<Option<Moment>, String> {
        let Some(sent) = self.sent.front_mut() else {
            return Err("an answer that nobody asked for".into());
        };
        let place = sent.replies.len();
        let mut expected = sent.first;
        for _ in 0..place {
            expected = expected.checked_add(1).unwrap_or(1);
        }
        if number != expected {
            return Err("an answer to another request".into());
        }
        if sent.is_pulse
            && let Err(refusal) = reply
        {
            return Err(format!("the node of the session: error {}", refusal.0));
        }
        let proves = sent.writes[place] && reply.is_ok();
        sent.replies.push(reply);
        Ok(proves.then_some(sent.at))
    }

    /// Tells the asker of the first flight, if it is complete.
    fn land_front(&mut self) {
        let is_complete = |sent: &Sent| sent.replies.len() == sent.writes.len();
        if self.sent.front().is_some_and(is_complete)
            && let Some(sent) = self.sent.pop_front()
        {
            land(sent.answer, sent.replies, None);
        }
    }

    /// The connection is gone: nobody gets another answer.
    fn fail(self: &mut Link, why: &BackendError) {
        for sent in self.sent.drain(..) {
            land(sent.answer, sent.replies, Some(why.clone()));
        }
    }
}

fn land(
    answer: Option<oneshot::Sender<Landed>>,
    replies: Vec<Reply>,
    trouble: Option<BackendError>,
) {
    if let Some(answer) = answer {
        // Nobody listens if the asker was dropped.
        let _ = answer.send(Landed { replies: replies.into_iter(), trouble });
    }
}

//! The proxy's thread: connections, and the bytes on them.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::control::{Fate, Shared, State};
use super::order::{Order, Step};
use super::pipe::{End, Gone, Pipe};
use super::zookeeper::{Said, Talk};
use super::{Cut, Direction, Protocol};
use crate::resp::{Framer, words};

const TO_SERVER: usize = Direction::ToServer as usize;
const TO_CLIENT: usize = Direction::ToClient as usize;

/// Takes connections until the proxy ends.
pub(super) async fn serve(
    shared: Arc<Shared>,
    listener: std::net::TcpListener,
    address: SocketAddrV4,
) {
    let mut changes = shared.subscribe();
    // Should the runtime not take it, the port is opened again below.
    let mut listener = TcpListener::from_std(listener).ok();
    let mut links = JoinSet::new();
    loop {
        let (ended, refuse) = {
            let state = shared.state();
            (state.ended, state.refuse_connections)
        };
        if ended {
            break;
        }
        if refuse {
            listener = None;
        } else if listener.is_none() {
            // The port is reserved; should it be taken all the same, the caller gives up.
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
        }
        shared.state().listening = listener.is_some();
        shared.progressed();
        tokio::select! {
            // The sender lives as long as `shared`.
            _ = changes.changed() => {}
            Some(end) = links.join_next(), if !links.is_empty() => {
                shared.state().panics += u64::from(end.is_err());
            }
            Ok((client, from)) = accept(listener.as_ref()), if listener.is_some() => {
                links.spawn(serve_connection(Arc::clone(&shared), client, from.ip()));
            }
        }
    }
    while links.join_next().await.is_some() {}
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// A connection that counts as open, until this is dropped: also if its task panics.
struct Open<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.state().open.remove(&self.id);
        self.shared.progressed();
    }
}

async fn serve_connection(shared: Arc<Shared>, client: TcpStream, from: IpAddr) {
    // Before it counts as open, so that no cut is missed.
    let mut changes = shared.subscribe();
    let (open, upstream) = {
        let mut state = shared.state();
        let id = state.next_connection;
        state.next_connection += 1;
        state.open.insert(id);
        state.counts.connections += 1;
        (Open { shared: &shared, id }, state.upstream)
    };
    shared.progressed();
    let server = loop {
        tokio::select! {
            server = TcpStream::connect(upstream) => break server,
            _ = changes.changed() => {
                if shared.state().ended_as(open.id).is_some() {
                    break Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    };
    match server {
        Ok(server) => {
            let mut link = Link::new(open.id, from, client, server);
            let how = link.run(&shared).await;
            if how == Cut::Abandon {
                let server = link.abandon();
                drop(open);
                while !shared.state().ended && changes.changed().await.is_ok() {}
                return reset(&server);
            }
            link.close(how);
        }
        Err(_) => reset(&client),
    }
}

impl State {
    /// How a connection is to end now, if it is.
    fn ended_as(&self, id: u64) -> Option<Cut> {
        let (before, how) = if self.ended { (u64::MAX, Cut::Reset) } else { self.cut };
        (id < before).then_some(how)
    }
}

/// Makes that dropping the stream resets the connection.
fn reset(stream: &TcpStream) {
    // A connection that is gone already needs no reset.
    let _ = stream.set_zero_linger();
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Client,
    /// A sentinel or a replica: not counted.
    Server,
    /// A replica that gets its master's stream, which is not made of answers.
    Stream,
}

impl Kind {
    fn after(self, words: &[&[u8]]) -> Self {
        let is = |n: usize, text: &str| {
            words.get(n).is_some_and(|word| word.eq_ignore_ascii_case(text.as_bytes()))
        };
        let sentinel = || words.get(2).is_some_and(|name| name.starts_with(b"sentinel-"));
        match self {
            Self::Stream => self,
            _ if is(0, "PSYNC") || is(0, "SYNC") => Self::Stream,
            _ if is(0, "REPLCONF") => Self::Server,
            _ if is(0, "CLIENT") && is(1, "SETNAME") && sentinel() => Self::Server,
            kind => kind,
        }
    }
}

struct Link {
    id: u64,
    /// The client's source address.
    from: IpAddr,
    /// Whom each direction ends at: the server, then the client.
    sinks: [TcpStream; 2],
    pipes: [Pipe; 2],
    commands: Framer,
    answers: Framer,
    order: Order,
    talk: Talk,
    kind: Kind,
    /// Commands whose answer has not been written to the client.
    unanswered: u64,
    /// Answers that are kept back.
    held: Vec<(Vec<u8>, u64)>,
    /// The connection ends as soon as what is due is written.
    cut: Option<Cut>,
    /// When something has come last.
    heard: Instant,
}

impl Link {
    fn new(id: u64, from: IpAddr, client: TcpStream, server: TcpStream) -> Self {
        // A connection that is gone already needs no settings.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        Self {
            id,
            from,
            sinks: [server, client],
            pipes: Default::default(),
            commands: Framer::of_commands(),
            answers: Framer::of_answers(),
            order: Order::default(),
            talk: Talk::default(),
            kind: Kind::Client,
            unanswered: 0,
            held: Vec::new(),
            cut: None,
            heard: Instant::now(),
        }
    }

    /// Passes bytes on until the connection is to end.
    async fn run(&mut self, shared: &Shared) -> Cut {
        let mut changes = shared.subscribe();
        let mut piece = vec![0; 64 * 1024];
        loop {
            let due = match self.pass(shared) {
                Ok(due) => due,
                Err(how) => return how,
            };
            let idle = shared.state().idle.map(|idle| self.heard + idle);
            let [server, client] = &self.sinks;
            let [up, down] = &self.pipes;
            let ready = tokio::select! {
                // The sender lives as long as `shared`.
                _ = changes.changed() => None,
                _ = client.readable(), if up.takes_more() => Some(TO_SERVER),
                _ = server.readable(), if down.takes_more() => Some(TO_CLIENT),
                _ = server.writable(), if up.blocked => None,
                _ = client.writable(), if down.blocked => None,
                () = sleep_until(due), if due.is_some() => None,
                () = sleep_until(idle), if idle.is_some() => return Cut::Finish,
            };
            if let Some(direction) = ready {
                self.read(shared, direction, &mut piece);
            }
        }
    }

    /// Writes what may be written, and tells when there will be more; an error ends the link.
    ///
    /// The lock is held meanwhile, so that nothing is written after a freeze or cut has returned.
    fn pass(&mut self, shared: &Shared) -> Result<Option<Instant>, Cut> {
        let state = shared.state();
        if let Some(how) = state.ended_as(self.id) {
            return Err(how);
        }
        let now = Instant::now();
        if !state.hold_answers {
            for (bytes, answers) in self.held.drain(..) {
                self.pipes[TO_CLIENT].push(now, &bytes, answers);
            }
        }
        let mut due = None;
        for direction in [TO_SERVER, TO_CLIENT] {
            let is_parted = state.parted.contains(&self.from);
            if state.frozen[direction] || is_parted || self.id < state.stranded {
                self.pipes[direction].blocked = false;
                continue;
            }
            let to_come = direction == TO_CLIENT && !self.held.is_empty();
            let (pipe, sink) = (&mut self.pipes[direction], &self.sinks[direction]);
            match pipe.flush(now, sink, to_come) {
                Ok(answers) => self.unanswered -= answers,
                Err(Gone::Source) => return Err(Cut::Reset),
                Err(Gone::Sink) => {
                    pipe.close();
                    // The other side learns it by the other direction, which may be frozen.
                    self.pipes[1 - direction].end(now, End::Reset);
                    due = Some(now);
                }
            }
            due = due.into_iter().chain(self.pipes[direction].next_due(to_come)).min();
        }
        match self.cut {
            Some(how) => Err(how),
            None if self.pipes.iter().all(|pipe| pipe.closed) => Err(Cut::Finish),
            None => Ok(due),
        }
    }

    /// Takes what one side has sent.
    fn read(&mut self, shared: &Shared, direction: usize, piece: &mut [u8]) {
        let source = &self.sinks[1 - direction];
        let got = source.try_read(piece);
        let mut state = shared.state();
        let due = Instant::now() + state.delay[direction];
        match got {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => self.pipes[direction].end(due, End::Reset),
            Ok(0) => self.pipes[direction].end(due, End::Finish),
            Ok(_) if self.id < state.stranded => {}
            Ok(n) => {
                self.heard = Instant::now();
                state.counts.bytes[direction] += n as u64;
                self.take(&mut state, shared.protocol, direction, &piece[..n], due);
            }
        }
        drop(state);
        shared.progressed();
    }

    fn take(
        &mut self,
        state: &mut State,
        protocol: Protocol,
        direction: usize,
        bytes: &[u8],
        due: Instant,
    ) {
        match protocol {
            Protocol::Redis if self.kind != Kind::Stream => match direction {
                TO_SERVER => self.take_commands(state, bytes, due),
                _ => self.take_answers(state, bytes, due),
            },
            Protocol::ZooKeeper => match direction {
                TO_SERVER => self.take_requests(state, bytes, due),
                _ => self.take_replies(state, bytes, due),
            },
            _ if direction == TO_CLIENT && state.lose_answers => {}
            _ if direction == TO_CLIENT && state.piece_is_lost() => self.cut = Some(Cut::Reset),
            _ => match state.trickle[direction] {
                Some(bits) => self.pipes[direction].trickle(due, bytes, bits),
                None => self.pipes[direction].push(due, bytes, 0),
            },
        }
    }

    fn take_commands(&mut self, state: &mut State, bytes: &[u8], due: Instant) {
        self.commands.feed(bytes);
        while self.cut.is_none() {
            let frame = match self.commands.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(_) => return self.cut = Some(Cut::Reset),
            };
            let words = words(frame);
            if words.is_empty() {
                self.pipes[TO_SERVER].push(due, frame, 0);
                continue;
            }
            self.kind = self.kind.after(&words);
            if self.kind != Kind::Client {
                state.counts.between_servers += 1;
                self.order.forwarded(&words, None);
                self.unanswered += 1;
                self.pipes[TO_SERVER].push(due, frame, 0);
                continue;
            }
            state.counts.round_trips += u64::from(self.unanswered == 0);
            self.unanswered += 1;
            match state.command(&words) {
                Fate::Forward(lost) => {
                    self.order.forwarded(&words, lost);
                    self.pipes[TO_SERVER].push(due, frame, 0);
                }
                Fate::Lose(cut) => {
                    state.counts.lost += 1;
                    self.unanswered -= 1;
                    self.cut = cut;
                }
                Fate::Refuse(answer) => {
                    if let Some(answer) = self.order.refused(answer) {
                        let due = Instant::now() + state.delay[TO_CLIENT];
                        deliver(state, self.client_side(), &answer, 1, due);
                    }
                }
            }
        }
    }

    fn take_answers(&mut self, state: &mut State, bytes: &[u8], due: Instant) {
        self.answers.feed(bytes);
        while self.cut.is_none() {
            let frame = match self.answers.frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(_) => return self.cut = Some(Cut::Reset),
            };
            let mut side = ClientSide {
                pipe: &mut self.pipes[TO_CLIENT],
                held: &mut self.held,
                unanswered: &mut self.unanswered,
            };
            let cut = &mut self.cut;
            let counted = self.kind == Kind::Client;
            self.order.message(frame, |step| match step {
                Step::Answer { bytes, last } => {
                    state.counts.answers += u64::from(last && counted);
                    deliver(state, side.again(), bytes, last.into(), due);
                }
                Step::Own(bytes) => deliver(state, side.again(), &bytes, 1, due),
                Step::Push(bytes) => {
                    state.counts.pushes += u64::from(counted);
                    if state.lose_answers || state.lose_pushes {
                        state.counts.lost += 1;
                    } else {
                        side.pipe.push(due, bytes, 0);
                    }
                }
                Step::Lost { last, cut: then } => {
                    state.counts.answers += u64::from(last);
                    state.counts.lost += u64::from(last);
                    *side.unanswered -= u64::from(last);
                    *cut = then;
                }
            });
        }
    }

    fn take_requests(&mut self, state: &mut State, bytes: &[u8], due: Instant) {
        self.talk.requests.feed(bytes);
        while self.cut.is_none() {
            let frame = match self.talk.requests.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(_) => return self.cut = Some(Cut::Reset),
            };
            let name = self.talk.name(&frame);
            state.counts.round_trips += u64::from(self.unanswered == 0);
            match state.command(&[name.as_bytes()]) {
                Fate::Lose(cut) => {
                    state.counts.lost += 1;
                    self.cut = cut;
                }
                // Answers are not made up here.
                Fate::Refuse(_) => self.cut = Some(Cut::Reset),
                Fate::Forward(lost) => {
                    self.unanswered += 1;
                    self.talk.forwarded(lost);
                    self.pipes[TO_SERVER].push(due, &frame, 0);
                }
            }
        }
    }

    fn take_replies(&mut self, state: &mut State, bytes: &[u8], due: Instant) {
        self.talk.answers.feed(bytes);
        while self.cut.is_none() {
            let frame = match self.talk.answers.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(_) => return self.cut = Some(Cut::Reset),
            };
            match self.talk.said(&frame) {
                Said::News => {
                    state.counts.pushes += 1;
                    match state.lose_answers || state.lose_pushes {
                        true => state.counts.lost += 1,
                        false => self.pipes[TO_CLIENT].push(due, &frame, 0),
                    }
                }
                Said::Answer => {
                    state.counts.answers += 1;
                    deliver(state, self.client_side(), &frame, 1, due);
                }
                Said::Lost(cut) => {
                    state.counts.answers += 1;
                    state.counts.lost += 1;
                    self.unanswered -= 1;
                    self.cut = cut;
                }
            }
        }
    }

    fn client_side(&mut self) -> ClientSide<'_> {
        ClientSide {
            pipe: &mut self.pipes[TO_CLIENT],
            held: &mut self.held,
            unanswered: &mut self.unanswered,
        }
    }

    /// Ends the client's side, and gives the server's.
    fn abandon(self) -> TcpStream {
        let [server, client] = self.sinks;
        reset(&client);
        server
    }

    fn close(self, how: Cut) {
        for stream in &self.sinks {
            match how {
                Cut::Reset | Cut::Abandon => reset(stream),
                // Closing with bytes unread would be a reset.
                Cut::Finish => while stream.try_read(&mut [0; 4096]).is_ok_and(|n| n > 0) {},
            }
        }
    }
}

/// Where answers go.
struct ClientSide<'a> {
    pipe: &'a mut Pipe,
    held: &'a mut Vec<(Vec<u8>, u64)>,
    unanswered: &'a mut u64,
}

impl ClientSide<'_> {
    fn again(&mut self) -> ClientSide<'_> {
        ClientSide { pipe: self.pipe, held: self.held, unanswered: self.unanswered }
    }
}

/// Sends an answer to the client, unless answers are lost or held back.
fn deliver(state: &mut State, side: ClientSide<'_>, bytes: &[u8], answers: u64, due: Instant) {
    if state.lose_answers {
        state.counts.lost += answers;
        *side.unanswered -= answers;
    } else if state.hold_answers {
        side.held.push((bytes.to_vec(), answers));
    } else {
        side.pipe.push(due, bytes, answers);
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

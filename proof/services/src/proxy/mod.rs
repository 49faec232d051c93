//! A TCP proxy that delays, cuts, freezes, loses and refuses on command, and counts.

mod control;
mod counts;
mod link;
mod order;
mod pipe;
mod zookeeper;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::wait::LIMIT;
use crate::{Error, Port, Result};
use control::{Refusal, Shared, State};
pub use counts::Counts;

/// What a proxy understands of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Redis' protocol, RESP2 and RESP3: commands are counted and can be refused or lost.
    Redis,
    /// ZooKeeper's protocol: requests are counted by name (`CREATE`, `WATCH`, ...) and can be lost;
    /// news of watches count as pushes.
    ZooKeeper,
    /// Nothing: for other stores, for TLS, and for links between servers.
    Plain,
}

/// A way through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
}

/// How a connection ends, on both its sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// At once (RST).
    Reset,
    /// As if the other side had closed it (FIN).
    Finish,
    /// At once at the client's side. The server's side stays open and silent until the proxy ends,
    /// as when a network forgets one of the two.
    Abandon,
}

/// What is swallowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// The answer: the server has applied the command.
    Answer,
    /// The command: the server never sees it.
    Command,
}

/// A loss that happens once, by the count of commands on all connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Counts commands of this name (upper case) only.
    pub of: Option<String>,
    /// Which one from now: 1 is the next.
    pub nth: u64,
    /// What is swallowed.
    pub what: Lost,
    /// Whether and how the connection is cut then.
    pub cut: Option<Cut>,
}

/// A TCP proxy in front of one server, on a port and a thread of its own.
///
/// Every control takes effect before its method returns: afterwards no byte passes that it
/// forbids. Dropping the proxy cuts its connections.
///
/// Replication and what sentinels send pass as well; their commands are counted apart. Under
/// [`Protocol::Redis`] it does not follow `MONITOR` and `CLIENT REPLY`, after which messages and
/// commands do not correspond; a connection with bytes that are no RESP is cut.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Shared with the proxies at the same port of other addresses.
    port: Arc<Port>,
}

impl Proxy {
    /// Starts a proxy in front of the Redis server on a port of this machine.
    ///
    /// # Errors
    ///
    /// If there is no port or thread for it.
    pub fn redis(upstream: u16) -> Result<Self> {
        Self::start(Protocol::Redis, (Ipv4Addr::LOCALHOST, upstream).into())
    }

    /// Starts a proxy in front of the ZooKeeper server on a port of this machine.
    ///
    /// # Errors
    ///
    /// If there is no port or thread for it.
    pub fn zookeeper(upstream: u16) -> Result<Self> {
        Self::start(Protocol::ZooKeeper, (Ipv4Addr::LOCALHOST, upstream).into())
    }

    /// Starts a proxy that does not look into the bytes.
    ///
    /// # Errors
    ///
    /// If there is no port or thread for it.
    pub fn plain(upstream: u16) -> Result<Self> {
        Self::start(Protocol::Plain, (Ipv4Addr::LOCALHOST, upstream).into())
    }

    /// Starts a proxy in front of any address.
    ///
    /// # Errors
    ///
    /// If there is no port or thread for it.
    pub fn start(protocol: Protocol, upstream: SocketAddr) -> Result<Self> {
        let (port, listener) = loop {
            let port = Port::reserve()?;
            let address = (Ipv4Addr::LOCALHOST, port.number());
            match TcpListener::bind(address) {
                Ok(listener) => break (port, listener),
                Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {}
                Err(e) => return Err(e.into()),
            }
        };
        Self::launch(protocol, upstream, Arc::new(port), listener)
    }

    /// Starts a proxy in front of the same server, at the same port of another loopback address.
    /// Clients that take the port alone from what servers tell them stay at the address that they
    /// know, and so on their own side of the network.
    ///
    /// # Errors
    ///
    /// If the port is taken there, or there is no thread.
    pub fn beside(&self, address: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind((address, self.port()))?;
        let upstream = self.shared.state().upstream;
        Self::launch(self.shared.protocol, upstream, self.port.clone(), listener)
    }

    fn launch(
        protocol: Protocol,
        upstream: SocketAddr,
        port: Arc<Port>,
        listener: TcpListener,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let SocketAddr::V4(address) = listener.local_addr()? else {
            return Err(Error::new("a proxy listens at an IPv4 address"));
        };
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared::new(protocol, upstream));
        let work = link::serve(Arc::clone(&shared), listener, address);
        let thread = std::thread::Builder::new()
            .name("proxy".into())
            .spawn(move || runtime.block_on(work))?;
        Ok(Self { shared, thread: Some(thread), port })
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The address for clients of Redis.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    /// Sends the connections that come from now on to another server.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        self.shared.change(|s| s.upstream = upstream);
    }

    /// Lets bytes that arrive from now on take this long, or up to 2 ms longer. Bytes stay in
    /// order, and many can be under way at once.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.change(|s| s.delay[direction as usize] = delay);
    }

    /// Lets bytes that arrive from now on come in bits of so many bytes, each so long after the one
    /// before it; or no longer. For [`Protocol::Plain`]: what a server sends together arrives apart.
    pub fn trickle(&self, direction: Direction, bits: Option<(usize, Duration)>) {
        self.shared.change(|s| s.trickle[direction as usize] = bits);
    }

    /// Holds back all bytes in one direction, ends of connections included, until thawed.
    pub fn freeze(&self, direction: Direction) {
        self.shared.change(|s| s.frozen[direction as usize] = true);
    }

    /// Lets bytes through again, beginning with those that were held back.
    pub fn thaw(&self, direction: Direction) {
        self.shared.change(|s| s.frozen[direction as usize] = false);
    }

    /// Freezes both directions, or thaws them.
    pub fn silence(&self, silent: bool) {
        self.shared.change(|s| s.frozen = [silent; 2]);
    }

    /// Makes a round trip take so much longer, half of it in each direction.
    pub fn set_round_trip(&self, trip: Duration) {
        self.delay(Direction::ToServer, trip / 2);
        self.delay(Direction::ToClient, trip / 2);
    }

    /// Holds back all bytes, in both directions, on the connections of clients with these source
    /// addresses, and on no others: a partition. None ends it, and lets through what was held back.
    pub fn part_from(&self, clients: &[Ipv4Addr]) {
        self.shared.change(|s| s.parted = clients.iter().copied().map(IpAddr::V4).collect());
    }

    /// Swallows everything that the server sends from now on (or no longer does).
    pub fn lose_answers(&self, lose: bool) {
        self.shared.change(|s| s.lose_answers = lose);
    }

    /// Swallows the `nth` piece that comes from the server, from now and on any connection, and
    /// then cuts its connection: for [`Protocol::Plain`], where a piece is what is read at once.
    pub fn lose_piece(&self, nth: u64) {
        self.shared.change(|s| s.lose_piece = nth);
    }

    /// Ends all connections and lets answers pass on those that are made then: after
    /// [`Self::lose_answers`], where what was swallowed has spoiled the connection.
    ///
    /// # Errors
    ///
    /// If that does not come true.
    pub fn begin_anew(&self) -> Result<()> {
        self.refuse_connections()?;
        self.cut(Cut::Reset)?;
        self.lose_answers(false);
        self.accept_connections()
    }

    /// Swallows the messages that nobody asked for from now on (or no longer does).
    pub fn lose_pushes(&self, lose: bool) {
        self.shared.change(|s| s.lose_pushes = lose);
    }

    /// Keeps answers back from now on, while pushes pass; `false` lets them go, in order.
    pub fn hold_answers(&self, hold: bool) {
        self.shared.change(|s| s.hold_answers = hold);
    }

    /// Plans a loss. Several may be planned; [`Counts::lost`] tells when it has happened.
    pub fn lose(&self, mut loss: Loss) {
        loss.nth = loss.nth.max(1);
        self.shared.change(|s| s.losses.push(loss));
    }

    /// Swallows the answer to the `nth` command from now and then cuts its connection.
    pub fn lose_answer(&self, nth: u64) {
        self.lose(Loss { of: None, nth, what: Lost::Answer, cut: Some(Cut::Reset) });
    }

    /// Swallows the answer to the `nth` command of this name from now and then cuts its connection.
    pub fn lose_answer_of(&self, name: &str, nth: u64) {
        let of = Some(name.to_ascii_uppercase());
        self.lose(Loss { of, nth, what: Lost::Answer, cut: Some(Cut::Reset) });
    }

    /// Answers a command with an error of this text instead of passing it on.
    pub fn refuse(&self, name: &str, error: &str) {
        self.refuse_if(name, error, |_| true);
    }

    /// As [`Self::refuse`], if the words of the command (name first) are such.
    pub fn refuse_if(
        &self,
        name: &str,
        error: &str,
        when: impl Fn(&[&[u8]]) -> bool + Send + Sync + 'static,
    ) {
        let answer = format!("-{error}\r\n").into_bytes();
        let name = name.to_ascii_uppercase();
        self.shared.change(|s| s.refusals.push(Refusal { name, answer, when: Arc::new(when) }));
    }

    /// Passes a command on again.
    pub fn allow(&self, name: &str) {
        self.shared.change(|s| s.refusals.retain(|r| !r.name.eq_ignore_ascii_case(name)));
    }

    /// Ends all connections and returns when they are ended.
    ///
    /// # Errors
    ///
    /// If they do not end.
    pub fn cut(&self, how: Cut) -> Result<()> {
        let mut before = 0;
        self.shared.change(|s| {
            before = s.next_connection;
            s.cut = (before, how);
        });
        self.await_state("the cut", |s| s.open.range(..before).next().is_none())
    }

    /// Closes each connection on which nothing has passed for so long, as HAProxy and nginx do.
    pub fn close_idle(&self, after: Duration) {
        self.shared.change(|s| s.idle = Some(after));
    }

    /// Swallows everything on the connections that are open, and ends none of them: as a middlebox
    /// does that has dropped idle connections and tells nobody. New connections pass.
    pub fn strand(&self) {
        self.shared.change(|s| s.stranded = s.next_connection);
    }

    /// Refuses new connections, as a port without a server does; those that are open go on.
    ///
    /// # Errors
    ///
    /// If the port cannot be closed.
    pub fn refuse_connections(&self) -> Result<()> {
        self.listen(false)
    }

    /// Takes new connections again.
    ///
    /// # Errors
    ///
    /// If the port cannot be opened.
    pub fn accept_connections(&self) -> Result<()> {
        self.listen(true)
    }

    fn listen(&self, listen: bool) -> Result<()> {
        self.shared.change(|s| s.refuse_connections = !listen);
        self.await_state("the port to change", |s| s.listening == listen)
    }

    /// How many connections are open.
    pub fn open_connections(&self) -> usize {
        self.shared.state().open.len()
    }

    /// What went through until now.
    pub fn counts(&self) -> Counts {
        self.shared.state().counts.clone()
    }

    /// Begins counting anew, and gives what was counted.
    pub fn reset_counts(&self) -> Counts {
        std::mem::take(&mut self.shared.state().counts)
    }

    /// Waits until the counts are such.
    ///
    /// # Errors
    ///
    /// If they are not within `limit`.
    pub fn wait_counts(&self, limit: Duration, such: impl Fn(&Counts) -> bool) -> Result<Counts> {
        match self.shared.wait(limit, |s| such(&s.counts)) {
            true => Ok(self.counts()),
            false => Err(Error::new(format!("waited {limit:?} and counted {:?}", self.counts()))),
        }
    }

    /// Waits until the counts are such, without blocking a runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropping it changes nothing.
    pub async fn counts_reach(&self, such: impl Fn(&Counts) -> bool) -> Counts {
        loop {
            let mut progress = std::pin::pin!(self.shared.progress_async.notified());
            progress.as_mut().enable();
            let counts = self.counts();
            if such(&counts) {
                return counts;
            }
            progress.await;
        }
    }

    fn await_state(&self, what: &str, done: impl Fn(&State) -> bool) -> Result<()> {
        if self.shared.wait(LIMIT, done) {
            return Ok(());
        }
        let State { open, next_connection, panics, .. } = &*self.shared.state();
        Err(Error::new(format!(
            "waited {LIMIT:?} for {what}: of {next_connection} connections, {open:?} are open, and \
             {panics} ended by a panic"
        )))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.change(|s| s.ended = true);
        if let Some(thread) = self.thread.take() {
            // It fails only if the thread panicked, which has been printed.
            let _ = thread.join();
        }
    }
}

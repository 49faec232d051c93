//! Connects to servers by their names.
//!
//! A name may have several addresses, and an address of a store several names; some of them may be
//! silent: a host that is off, or a family that is not routed. So the addresses race (RFC 8305): the
//! next one starts when the one before has failed or was silent for [`STAGGER`], families alternate,
//! and the first that answers is taken. What was silent is tried last for a while.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use latchwork_store::{Io, Moment};

use crate::address::Endpoint;
use crate::names;
use crate::silence::{SILENT, Silence};

/// An attempt that is silent for so long does not keep the next one waiting.
const STAGGER: Duration = Duration::from_millis(250);

/// Waits until the addresses of a server are known, so that the time limit of a connection does not include the lookup
/// of its name. Callers share a lookup, and it goes on if they give up. If it is late, the addresses that the
/// name had before count.
///
/// # Errors
///
/// That the name has no address, or that the lookup takes too long.
pub async fn resolve(server: &Endpoint, io: &Io) -> io::Result<()> {
    resolved(server, io).await.map(drop)
}

/// As [`resolve`], until the addresses of one of several servers are known.
///
/// # Errors
///
/// Those of all servers, each with its place.
pub async fn resolve_any(servers: &[Endpoint], io: &Io) -> Result<(), Vec<(usize, io::Error)>> {
    let lookups = servers.iter().map(|server| resolve(server, io)).collect();
    race(lookups, io).await.map(drop)
}

/// Notes that a server has not answered in time on the connection that was made to it last. If its name has several
/// addresses, that one is tried last for a while.
pub fn note_unanswered(server: &Endpoint, io: &Io) {
    silence(io).unanswered(server);
}

/// Notes that a server does not answer at this address, which is tried last for a while.
pub(crate) fn note_silent(address: &SocketAddr, io: &Io) {
    silence(io).mute(named(address), io.now());
}

/// Connects to a server: to the first of its addresses that answers. Its name is looked up unless that was
/// done within a second ([`resolve`]). Must be called inside the runtime of the `Io`.
///
/// A socket in the file system is read, written and shut down by the same calls as one of TCP, and the
/// type is only a name for its descriptor: nothing that concerns TCP alone is to be asked of it.
///
/// There is no time limit. Dropping the future ends all attempts.
///
/// # Errors
///
/// That the name has no address, or what each address has said.
pub async fn dial(server: &Endpoint, io: &Io) -> io::Result<TcpStream> {
    if server.is_socket() {
        return dial_socket(&server.host).await;
    }
    let addresses = by_turns(addresses_of(server, io).await?, io);
    let mut attempts = Vec::new();
    for (place, address) in addresses.iter().enumerate() {
        // The name is silent if the last of its addresses is.
        let is_last = place + 1 == addresses.len();
        let owing = [named(address)].into_iter().chain(is_last.then(|| server.clone()));
        attempts.push(connect(*address, owing.collect(), io));
    }
    match race(attempts, io).await {
        Ok((place, stream)) => {
            silence(io).forget(server);
            let is_one_of_several = addresses.len() > 1;
            let reached = is_one_of_several.then(|| (named(&addresses[place]), io.now()));
            silence(io).reached(server, reached);
            Ok(stream)
        }
        Err(errors) => Err(all_failed(
            errors.into_iter().map(|(place, error)| (addresses[place], error)).collect(),
        )),
    }
}

/// Connects to the first of several servers that answers, and tells its place among them. They are
/// tried in turns from the one at `first`, as the addresses of one are ([`dial`]).
///
/// # Errors
///
/// Those of all servers, each with its place, in the order in which they failed.
pub async fn dial_any(
    servers: &[Endpoint],
    first: usize,
    io: &Io,
) -> Result<(usize, TcpStream), Vec<(usize, io::Error)>> {
    let order = order(servers, first, io);
    let mut attempts = Vec::new();
    for place in &order {
        attempts.push(dial(&servers[*place], io));
    }
    match race(attempts, io).await {
        Ok((at, stream)) => Ok((order[at], stream)),
        Err(errors) => Err(errors.into_iter().map(|(at, error)| (order[at], error)).collect()),
    }
}

#[cfg(unix)]
async fn dial_socket(path: &str) -> io::Result<TcpStream> {
    let stream = tokio::net::UnixStream::connect(path).await?.into_std()?;
    Ok(TcpStream::from(std::os::fd::OwnedFd::from(stream)))
}

#[cfg(not(unix))]
async fn dial_socket(_: &str) -> io::Result<TcpStream> {
    Err(io::Error::other("this system has no sockets in its file system for this client"))
}

async fn connect(address: SocketAddr, owing: Vec<Endpoint>, io: &Io) -> io::Result<TcpStream> {
    let attempt = Attempt::begin(owing, io);
    let stream = tokio::net::TcpStream::connect(address).await;
    attempt.answered();
    let stream = stream?;
    stream.set_nodelay(true)?;
    stream.into_std()
}

/// An attempt for which these servers owe an answer.
struct Attempt<'a> {
    owing: Vec<Endpoint>,
    begun: Moment,
    io: &'a Io,
}

impl<'a> Attempt<'a> {
    fn begin(owing: Vec<Endpoint>, io: &'a Io) -> Self {
        let begun = io.now();
        owing.iter().for_each(|server| silence(io).asked(server.clone(), begun));
        Self { owing, begun, io }
    }

    fn answered(&self) {
        self.owing.iter().for_each(|server| silence(self.io).forget(server));
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        // It was given up before it says anything of the servers.
        if self.io.now().since(self.begun) < SILENT {
            self.answered();
        }
    }
}

/// The places of servers in turns from the one at `first`, those that were silent a moment ago last.
fn order(servers: &[Endpoint], first: usize, io: &Io) -> Vec<usize> {
    let mut order: Vec<_> = (0..servers.len()).map(|n| (first + n) % servers.len()).collect();
    order.sort_by_key(|&place| is_silent(&servers[place], io));
    order
}

/// Runs attempts until one succeeds. The next one starts when one before it has failed, or when the
/// last one has taken 250 ms. Returns the place of the attempt that succeeded, and drops the others.
///
/// # Errors
///
/// Those of all attempts, each with its place, in the order in which they failed.
pub async fn race<T, E, F>(attempts: Vec<F>, io: &Io) -> Result<(usize, T), Vec<(usize, E)>>
where
    F: Future<Output = Result<T, E>>,
{
    let mut attempts = attempts.into_iter().enumerate();
    let (mut running, mut errors) = (Vec::new(), Vec::new());
    loop {
        let next = attempts.next().map(|(place, attempt)| (place, Box::pin(attempt)));
        let is_last = next.is_none();
        running.extend(next);
        if running.is_empty() {
            return Err(errors);
        }
        let mut pause = pin!(io.sleep(STAGGER));
        let ended = poll_fn(|cx| {
            for at in 0..running.len() {
                if let Poll::Ready(ended) = running[at].1.as_mut().poll(cx) {
                    return Poll::Ready(Some((running.swap_remove(at).0, ended)));
                }
            }
            if is_last { Poll::Pending } else { pause.as_mut().poll(cx).map(|()| None) }
        });
        match ended.await {
            Some((place, Ok(done))) => return Ok((place, done)),
            Some((place, Err(error))) => errors.push((place, error)),
            None => {}
        }
    }
}

/// The addresses of a server, in the order of the system; none of a socket in the file system.
pub(crate) async fn resolved(server: &Endpoint, io: &Io) -> io::Result<Vec<SocketAddr>> {
    if server.is_socket() {
        return Ok(Vec::new());
    }
    addresses_of(server, io).await
}

async fn addresses_of(server: &Endpoint, io: &Io) -> io::Result<Vec<SocketAddr>> {
    if let Ok(number) = server.host.parse::<IpAddr>() {
        return Ok(vec![(number, server.port).into()]);
    }
    #[cfg(any(test, feature = "testing"))]
    if let Some(numbers) = crate::testing::addresses_of(&server.host) {
        return Ok(numbers.into_iter().map(|number| (number, server.port).into()).collect());
    }
    let mut found = names::addresses_of(&server.host, io).await?;
    found.iter_mut().for_each(|address| address.set_port(server.port));
    Ok(found)
}

/// The order of the system, but that families alternate, and what was silent comes last.
fn by_turns(addresses: Vec<SocketAddr>, io: &Io) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (ours, others): (Vec<_>, Vec<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let turn = |family: Vec<SocketAddr>, second| {
        family.into_iter().enumerate().map(move |(place, address)| (2 * place + second, address))
    };
    let mut all: Vec<_> = turn(ours, 0).chain(turn(others, 1)).collect();
    all.sort_by_key(|(place, address)| (is_silent(&named(address), io), *place));
    let mut addresses = Vec::new();
    for (_, address) in all {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// An address by its number.
pub(crate) fn named(address: &SocketAddr) -> Endpoint {
    Endpoint { host: address.ip().to_string(), port: address.port() }
}

/// Returns whether a server is silent, or was a moment ago. A client that has another server does not wait
/// for this one.
pub fn is_silent(server: &Endpoint, io: &Io) -> bool {
    silence(io).has(server, io.now())
}

/// The servers that were silent a moment ago, to all that use this `Io`.
fn silence(io: &Io) -> Arc<Silence> {
    io.shared()
}

/// One error of several: what each address has said, once.
fn all_failed(mut errors: Vec<(SocketAddr, io::Error)>) -> io::Error {
    let Some((_, first)) = errors.first() else { return io::ErrorKind::NotFound.into() };
    let (kind, text) = (first.kind(), first.to_string());
    if errors.iter().all(|(_, error)| error.to_string() == text) {
        return errors.swap_remove(0).1;
    }
    let said: Vec<_> =
        errors.iter().map(|(address, error)| format!("{}: {error}", address.ip())).collect();
    io::Error::new(kind, said.join("; "))
}

#[cfg(test)]
mod tests {
    use latchwork_store::testing::paused_io;

    use super::*;
    use crate::silence::REMEMBERED;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn families_alternate_and_what_was_silent_comes_last() {
        let (io, _) = paused_io();
        let [a, b, c, x, y] =
            ["[::a]:1", "[::b]:1", "[::c]:1", "10.9.9.1:1", "10.9.9.2:1"].map(address);
        assert_eq!(by_turns(vec![a, b, c, x, y], &io), [a, x, b, y, c]);
        assert_eq!(by_turns(vec![x, y, a, x], &io), [x, a, y]);
        silence(&io).asked(named(&a), io.now());
        assert_eq!(by_turns(vec![a, b, x], &io), [a, x, b]);
        io.sleep(SILENT).await;
        assert_eq!(by_turns(vec![a, b, x], &io), [x, b, a]);
        let servers = [named(&a), named(&b), named(&x)];
        assert_eq!(order(&servers, 0, &io), [1, 2, 0]);
        assert_eq!(order(&servers, 2, &io), [2, 1, 0]);
        io.sleep(REMEMBERED).await;
        assert_eq!(by_turns(vec![a, b, x], &io), [a, x, b]);
    }

    /// H514: the first address takes the connection and says nothing on it.
    #[tokio::test(start_paused = true)]
    async fn h514_an_address_that_only_accepts_is_tried_last() {
        let (io, _) = paused_io();
        let [mute, good] = ["10.9.9.1:1", "10.9.9.2:1"].map(address);
        let server = Endpoint { host: "mute.test".into(), port: 1 };
        silence(&io).reached(&server, Some((named(&mute), io.now())));
        io.sleep(SILENT).await;
        assert_eq!(by_turns(vec![mute, good], &io), [mute, good]);
        note_unanswered(&server, &io);
        assert_eq!(by_turns(vec![mute, good], &io), [good, mute]);
        assert!(!is_silent(&server, &io));
    }

    /// An attempt that ends after so many milliseconds.
    async fn attempt(io: &Io, ms: u64, ended: Result<char, char>) -> Result<char, char> {
        io.sleep(Duration::from_millis(ms)).await;
        ended
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_attempt_starts_when_one_fails_or_is_late() {
        let io = &paused_io().0;
        for (attempts, won, after) in [
            (vec![(10, Ok('a')), (0, Ok('b'))], Ok((0, 'a')), 10),
            (vec![(10, Err('a')), (10, Ok('b'))], Ok((1, 'b')), 20),
            (vec![(9_000, Ok('a')), (10, Ok('b'))], Ok((1, 'b')), 260),
            (vec![(300, Ok('a')), (9_000, Ok('b'))], Ok((0, 'a')), 300),
            (vec![(9_000, Ok('a')), (10, Err('b')), (10, Ok('c'))], Ok((2, 'c')), 270),
            (vec![(300, Err('a')), (20, Err('b'))], Err(vec![(1, 'b'), (0, 'a')]), 300),
            (vec![], Err(vec![]), 0),
        ] {
            let begun = io.now();
            let attempts = attempts.into_iter().map(|(ms, ended)| attempt(io, ms, ended));
            assert_eq!(race(attempts.collect(), io).await, won);
            assert_eq!(io.now().since(begun), Duration::from_millis(after));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_is_silent_until_it_answers() {
        let (io, _) = paused_io();
        let server = named(&address("10.9.9.1:1"));
        let ms = Duration::from_millis;
        for (takes, answers, is_silent_then) in
            [(ms(100), false, false), (ms(100), true, false), (ms(200), false, true)]
        {
            let attempt = Attempt::begin(vec![server.clone()], &io);
            assert!(!is_silent(&server, &io));
            io.sleep(takes).await;
            if answers {
                attempt.answered();
            }
            drop(attempt);
            io.sleep(SILENT).await;
            assert_eq!(is_silent(&server, &io), is_silent_then);
        }
        Attempt::begin(vec![server.clone()], &io).answered();
        assert!(!is_silent(&server, &io), "it has answered");
    }

    #[test]
    fn each_address_that_fails_is_told() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let both = |second| {
            all_failed(vec![(address("[::1]:1"), refused()), (address("127.0.0.1:1"), second)])
        };
        let said = both(io::ErrorKind::TimedOut.into());
        assert_eq!(said.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(said.to_string(), "::1: connection refused; 127.0.0.1: timed out");
        assert_eq!(both(refused()).to_string(), "connection refused");
    }
}

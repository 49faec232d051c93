//! Connects to a server that may take connections and say nothing on them: its process has stopped, or a
//! balancer has no server behind it.
//!
//! If the name of the server has another address, a second attempt begins beside the first one, which goes on: a
//! server that is only slow is used as well.

use std::future::{Future, poll_fn};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use latchwork_store::Io;

use crate::address::Endpoint;
use crate::dial::{is_silent, named, note_silent, resolved};

/// So many attempts are made at most, whatever the number of addresses.
const MOST: usize = 4;

/// The connections that the attempts to reach one server have made so far.
#[derive(Debug, Default)]
pub struct Reached(Mutex<Vec<Option<SocketAddr>>>);

impl Reached {
    /// Notes a connection. One to a socket in the file system has no address.
    pub fn note(&self, stream: &TcpStream) {
        self.lock().push(stream.peer_addr().ok());
    }

    /// Returns whether a connection was made.
    pub fn is_any(&self) -> bool {
        !self.lock().is_empty()
    }

    /// Whether the server has an address that was not reached, and was not silent a moment ago. If so, those
    /// that were reached are tried last for a while.
    async fn leaves_another(&self, server: &Endpoint, io: &Io) -> bool {
        let reached: Vec<_> = self.lock().iter().flatten().copied().collect();
        if reached.is_empty() {
            // Its addresses race already.
            return false;
        }
        let mut all = resolved(server, io).await.unwrap_or_default().into_iter();
        let leaves = all.any(|at| !reached.contains(&at) && !is_silent(&named(&at), io));
        if leaves {
            reached.iter().for_each(|address| note_silent(address, io));
        }
        leaves
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<SocketAddr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a connection by `make`, which dials the server, notes the stream, and waits for the server's first words.
/// If that takes longer than `patience`, and the name of the server has another address, a further attempt
/// begins. The first that succeeds is taken, and the others are dropped. What a server has said is an answer as well: an
/// error that `is_said` ends them all. Another one, of a connection that was reset, is made again while an attempt hears
/// nothing: after a quarter of `patience`, and then more rarely.
///
/// There is no time limit.
///
/// # Errors
///
/// That of the attempt that fails last.
pub async fn first_to_answer<T, E, F>(
    server: &Endpoint,
    reached: &Reached,
    patience: Duration,
    io: &Io,
    make: impl Fn() -> F,
    is_said: impl Fn(&E) -> bool,
) -> Result<T, E>
where
    F: Future<Output = Result<T, E>>,
{
    let (mut running, mut left) = (vec![Box::pin(make())], MOST - 1);
    let (mut has_failed, mut again) = (false, patience / 4);
    loop {
        let mut pause = pin!(io.sleep(if has_failed { again } else { patience }));
        let ended = poll_fn(|cx| {
            for at in 0..running.len() {
                if let Poll::Ready(ended) = running[at].as_mut().poll(cx) {
                    drop(running.swap_remove(at));
                    return Poll::Ready(Some(ended));
                }
            }
            if left == 0 { Poll::Pending } else { pause.as_mut().poll(cx).map(|()| None) }
        });
        match ended.await {
            Some(Err(error)) if !running.is_empty() && !is_said(&error) => has_failed = true,
            Some(ended) => return ended,
            None if has_failed || reached.leaves_another(server, io).await => {
                running.push(Box::pin(make()));
                left -= 1;
                if std::mem::take(&mut has_failed) {
                    again *= 2;
                }
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{IpAddr, Ipv4Addr};

    use latchwork_store::testing::paused_io;

    use super::*;
    use crate::testing::name_host;

    const PATIENCE: Duration = Duration::from_millis(500);

    fn address(last: u8) -> SocketAddr {
        (Ipv4Addr::new(10, 9, 8, last), 1).into()
    }

    /// Connects to a server of these addresses, each of which answers after so many milliseconds, if it does. Returns
    /// which one was taken, after how long, and after how many attempts.
    async fn taken(host: &str, answers: &[Option<u64>], io: &Io) -> (Option<usize>, u64, usize) {
        let all: Vec<_> = (0..answers.len()).map(|n| address(n as u8)).collect();
        name_host(host, &all.iter().map(SocketAddr::ip).collect::<Vec<IpAddr>>());
        let server = Endpoint { host: host.into(), port: 1 };
        let (reached, attempts, begun) = (Reached::default(), Cell::new(0), io.now());
        let make = || async {
            attempts.set(attempts.get() + 1);
            let is_quiet = |at: &usize| !is_silent(&named(&all[*at]), io);
            let at = (0..all.len()).find(is_quiet).unwrap_or(0);
            reached.lock().push(Some(all[at]));
            match answers[at] {
                Some(ms) => io.sleep(Duration::from_millis(ms)).await,
                None => std::future::pending().await,
            }
            Ok::<_, ()>(at)
        };
        let made = first_to_answer(&server, &reached, PATIENCE, io, make, |()| false);
        let made = io.within(Duration::from_secs(9), made).await;
        (made.map(Result::unwrap), io.now().since(begun).as_millis() as u64, attempts.get())
    }

    /// H528: an address that answers nothing costs half a second, and nothing the next time.
    #[tokio::test(start_paused = true)]
    async fn h528_another_address_is_tried_beside_one_that_says_nothing() {
        let (io, _) = paused_io();
        let mute_first = [None, Some(10)];
        assert_eq!(taken("a.test", &mute_first, &io).await, (Some(1), 510, 2));
        assert_eq!(taken("a.test", &mute_first, &io).await, (Some(1), 10, 1));
        let (io, _) = paused_io();
        let two_mute = [None, None, Some(10)];
        assert_eq!(taken("b.test", &two_mute, &io).await, (Some(2), 1_010, 3));
        let (io, _) = paused_io();
        assert_eq!(taken("c.test", &[Some(600), None], &io).await, (Some(0), 600, 2), "it is slow");
        let (io, _) = paused_io();
        assert_eq!(taken("d.test", &[None], &io).await, (None, 9_000, 1), "there is no other");
        assert!(!is_silent(&named(&address(0)), &io));
        let (io, _) = paused_io();
        assert_eq!(taken("e.test", &[None; 9], &io).await, (None, 9_000, MOST));
    }

    /// H549: beside an address that says nothing, the connection to another one is reset or refused.
    #[tokio::test(start_paused = true)]
    async fn h549_a_connection_that_is_reset_beside_a_mute_one_is_made_again() {
        let (io, _) = paused_io();
        name_host("g.test", &[address(0).ip(), address(1).ip()]);
        let server = Endpoint { host: "g.test".into(), port: 1 };
        let refused = || std::future::ready(Err::<(), _>("refused"));
        let reached = Reached::default();
        let made = first_to_answer(&server, &reached, PATIENCE, &io, refused, |_| false).await;
        assert_eq!(made, Err("refused"), "nothing else is under way");
        for (resets, taken) in [(1, Some(645)), (2, Some(905)), (3, None)] {
            let (reached, attempts, begun) = (Reached::default(), Cell::new(0), io.now());
            let make = || async {
                let attempt = attempts.replace(attempts.get() + 1);
                reached.lock().push(Some(address(u8::from(attempt > 0))));
                if attempt == 0 {
                    std::future::pending::<()>().await;
                }
                io.sleep(Duration::from_millis(10)).await;
                if attempt > resets { Ok(()) } else { Err(()) }
            };
            let made = first_to_answer(&server, &reached, PATIENCE, &io, make, |()| false);
            let made = io.within(Duration::from_secs(9), made).await;
            let took = io.now().since(begun).as_millis() as u64;
            assert_eq!(made.map(|made| made.map(|()| took)), taken.map(Ok), "{resets} resets");
            assert_eq!(attempts.get(), (resets + 2).min(MOST));
        }
    }

    /// An attempt that fails beside another one does not end it, and the error is that of the last one.
    #[tokio::test(start_paused = true)]
    async fn the_error_is_that_of_the_last_attempt() {
        let (io, _) = paused_io();
        name_host("f.test", &[address(0).ip(), address(1).ip()]);
        let server = Endpoint { host: "f.test".into(), port: 1 };
        let (reached, attempts) = (Reached::default(), Cell::new(0));
        let make = || async {
            let attempt = attempts.replace(attempts.get() + 1);
            reached.lock().push(Some(address(attempt)));
            io.sleep(Duration::from_millis(if attempt == 0 { 800 } else { 100 })).await;
            Err::<(), _>(attempt)
        };
        let made = first_to_answer(&server, &reached, PATIENCE, &io, &make, |_| false).await;
        assert_eq!((made, attempts.replace(0)), (Err(2), 3));
        // A password is refused by the second one: it is not tried again.
        reached.lock().clear();
        let made = first_to_answer(&server, &reached, PATIENCE, &io, make, |_| true).await;
        assert_eq!((made, attempts.get()), (Err(1), 2));
    }
}

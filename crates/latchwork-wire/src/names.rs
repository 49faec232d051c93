//! Looks up the names of hosts: each name once at a time, for all callers that use an [`Io`].
//!
//! A lookup takes as long as the name servers do: 5 s and more if the first one is off. A caller has less time than
//! that, so a lookup goes on without its callers, and the next one waits for the same.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use latchwork_store::{Io, Moment};
use tokio::sync::{oneshot, watch};

/// A lookup that takes longer is late: the addresses that the name had before are used.
const LATE: Duration = Duration::from_millis(250);
/// A caller waits no longer for a name that had no address before.
const PATIENCE: Duration = Duration::from_secs(10);
/// The answer of a lookup counts for so long, also for callers that had given up.
const FRESH: Duration = Duration::from_secs(1);
/// After this another lookup may start beside one that has not ended.
const STUCK: Duration = Duration::from_secs(60);

/// The addresses that a name had before count for so long after the first lookup that has not confirmed them. Later they
/// may be those of another server.
const UNCONFIRMED: Duration = Duration::from_secs(60 * 60);

/// So many lookups of one name run at most.
const MOST: usize = 3;

/// The lookups under way, and the newest answers.
#[derive(Debug, Default)]
pub(crate) struct Names(Mutex<HashMap<String, Name>>);

#[derive(Debug, Default)]
struct Name {
    /// The addresses that the last lookup found, and when.
    known: Option<(Moment, Vec<SocketAddr>)>,
    /// When the first lookup began that has not found addresses since.
    unconfirmed: Option<Moment>,
    /// The newest lookup, while it runs, and since when.
    running: Option<(Moment, Answer)>,
    /// The number of the newest lookup.
    newest: u64,
    /// How many run, with those that others have overtaken.
    open: usize,
}

/// The answer of a lookup, once there is one.
type Answer = watch::Receiver<Option<Found>>;
type Found = Result<Vec<SocketAddr>, (io::ErrorKind, String)>;

/// The addresses of a host, in the order of the system, with no port.
pub(crate) async fn addresses_of(host: &str, io: &Io) -> io::Result<Vec<SocketAddr>> {
    let (mut answer, known) = match io.shared::<Names>().ask(host, io)? {
        Asked::Fresh(addresses) => return Ok(addresses),
        Asked::Running(answer, known) => (answer, known),
    };
    let limit = if known.is_some() { LATE } else { PATIENCE };
    let found = io.within(limit, answer.wait_for(Option::is_some)).await;
    match (found, known) {
        (Some(Ok(found)), _) => match &*found {
            Some(Ok(addresses)) => Ok(addresses.clone()),
            Some(Err((kind, text))) => Err(io::Error::new(*kind, text.clone())),
            None => Err(ended()),
        },
        (Some(Err(_)), _) => Err(ended()),
        (None, Some(known)) => Ok(known),
        (None, None) => {
            let text = format!(
                "the lookup of the name {host:?} takes longer than {PATIENCE:?}: check the name servers of this machine"
            );
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        }
    }
}

fn ended() -> io::Error {
    io::Error::other("the lookup of the name has ended")
}

enum Asked {
    Fresh(Vec<SocketAddr>),
    /// With the addresses that the name had before.
    Running(Answer, Option<Vec<SocketAddr>>),
}

impl Names {
    fn ask(self: &Arc<Self>, host: &str, io: &Io) -> io::Result<Asked> {
        let now = io.now();
        let mut names = self.lock();
        let name = names.entry(host.to_owned()).or_default();
        if let Some((at, addresses)) = &name.known
            && now.since(*at) < FRESH
        {
            return Ok(Asked::Fresh(addresses.clone()));
        }
        let unconfirmed = *name.unconfirmed.get_or_insert(now);
        let known = name.known.as_ref().filter(|_| now.since(unconfirmed) < UNCONFIRMED);
        let known = known.map(|(_, addresses)| addresses.clone());
        if let Some((since, answer)) = &name.running
            && (now.since(*since) < STUCK || name.open >= MOST)
        {
            return Ok(Asked::Running(answer.clone(), known));
        }
        let (tell, answer) = watch::channel(None);
        name.running = Some((now, answer.clone()));
        name.newest += 1;
        name.open += 1;
        let number = name.newest;
        drop(names);
        if let Err(error) = self.clone().begin(host, number, tell, io) {
            self.end(host, number, None);
            return Err(error);
        }
        Ok(Asked::Running(answer, known))
    }

    /// Ends a lookup. One that was overtaken changes nothing else.
    fn end(&self, host: &str, number: u64, known: Option<(Moment, Vec<SocketAddr>)>) {
        let mut names = self.lock();
        let name = names.entry(host.to_owned()).or_default();
        name.open = name.open.saturating_sub(1);
        if name.newest == number {
            name.running = None;
            if known.is_some() {
                (name.known, name.unconfirmed) = (known, None);
            }
        }
    }

    fn begin(
        self: Arc<Self>,
        host: &str,
        number: u64,
        tell: watch::Sender<Option<Found>>,
        io: &Io,
    ) -> io::Result<()> {
        let look_up = system_lookup(host, io)?;
        let (host, clock) = (host.to_owned(), io.clone());
        io.spawn(async move {
            let found = match look_up.await {
                Ok(Ok(found)) if found.is_empty() => {
                    Err((io::ErrorKind::NotFound, "the name has no address".to_owned()))
                }
                Ok(found) => found.map_err(|error| (error.kind(), error.to_string())),
                Err(_) => Err((io::ErrorKind::Other, ended().to_string())),
            };
            let known = found.as_ref().ok().map(|addresses| (clock.now(), addresses.clone()));
            self.end(&host, number, known);
            tell.send_replace(Some(found));
        });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the system. The thread is its own: one that cannot be had is an error, and one that hangs keeps no runtime
/// alive.
fn system_lookup(
    host: &str,
    io: &Io,
) -> io::Result<oneshot::Receiver<io::Result<Vec<SocketAddr>>>> {
    let (told, found) = oneshot::channel();
    #[cfg(any(test, feature = "testing"))]
    if let Some((numbers, after)) = crate::testing::looked_up(host) {
        let sleep = io.sleep(after);
        io.spawn(async move {
            sleep.await;
            let _ = told
                .send(Ok(numbers.into_iter().map(|number| SocketAddr::new(number, 0)).collect()));
        });
        return Ok(found);
    }
    #[cfg(not(any(test, feature = "testing")))]
    let _ = io;
    let host = host.to_owned();
    let look_up = move || {
        // The client may have ended.
        let _ = told.send((host, 0_u16).to_socket_addrs().map(Iterator::collect));
    };
    let started = thread::Builder::new().name("latchwork-names".into()).spawn(look_up);
    started.map_err(|error| {
        io::Error::new(error.kind(), format!("no thread looks the name up: {error}"))
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use latchwork_store::testing::paused_io;

    use super::*;
    use crate::testing::{lookups_of, name_host, name_host_slowly};

    const A: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 1));
    const B: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 2));

    async fn found(host: &str, io: &Io) -> Result<Vec<IpAddr>, String> {
        let found = addresses_of(host, io).await.map_err(|error| error.to_string())?;
        Ok(found.iter().map(SocketAddr::ip).collect())
    }

    /// H513: each caller has less time than the lookup needs.
    #[tokio::test(start_paused = true)]
    async fn h513_a_lookup_outlives_the_callers_that_give_up() {
        let (io, _) = paused_io();
        name_host_slowly("h513.test", &[A], Duration::from_secs(5));
        let two = Duration::from_secs(2);
        assert_eq!(io.within(two, found("h513.test", &io)).await, None);
        assert_eq!(io.within(two, found("h513.test", &io)).await, None);
        assert_eq!(io.within(two, found("h513.test", &io)).await, Some(Ok(vec![A])));
        assert_eq!(lookups_of("h513.test"), 1);
        name_host("h513.test", &[]);
    }

    /// H513: the name server is slow, and the name has another address by now.
    #[tokio::test(start_paused = true)]
    async fn h513_a_late_lookup_gives_the_last_known_addresses() {
        let (io, _) = paused_io();
        let name = "late.h513.test";
        name_host_slowly(name, &[A], Duration::from_millis(1));
        assert_eq!(found(name, &io).await, Ok(vec![A]));
        io.sleep(FRESH).await;
        name_host_slowly(name, &[B], Duration::from_secs(5));
        let begun = io.now();
        assert_eq!(found(name, &io).await, Ok(vec![A]));
        assert_eq!(io.now().since(begun), LATE);
        io.sleep(Duration::from_secs(5)).await;
        assert_eq!(found(name, &io).await, Ok(vec![B]));
        assert_eq!(lookups_of(name), 2);
        name_host(name, &[]);
    }

    /// H513: no name server answers for more than an hour. Long before, the connection to the server was made.
    #[tokio::test(start_paused = true)]
    async fn h513_addresses_that_no_lookup_confirms_count_for_an_hour() {
        let (io, _) = paused_io();
        let name = "hours.h513.test";
        name_host_slowly(name, &[A], Duration::from_millis(1));
        assert_eq!(found(name, &io).await, Ok(vec![A]));
        io.sleep(UNCONFIRMED * 10).await;
        name_host_slowly(name, &[B], UNCONFIRMED * 2);
        let begun = io.now();
        while io.now().since(begun) < UNCONFIRMED - 2 * LATE {
            assert_eq!(found(name, &io).await, Ok(vec![A]));
            io.sleep(Duration::from_secs(60)).await;
        }
        io.sleep(Duration::from_secs(60)).await;
        assert!(found(name, &io).await.unwrap_err().contains("takes longer than"));
        io.sleep(UNCONFIRMED * 2).await;
        assert_eq!(found(name, &io).await, Ok(vec![B]));
        name_host(name, &[]);
    }

    /// H513: a name server never answers.
    #[tokio::test(start_paused = true)]
    async fn h513_a_lookup_without_end_is_named() {
        let (io, _) = paused_io();
        let name = "never.h513.test";
        name_host_slowly(name, &[A], Duration::from_secs(1_000_000));
        let error = found(name, &io).await.unwrap_err();
        assert!(error.contains("the lookup of the name \"never.h513.test\""), "{error}");
        io.sleep(STUCK).await;
        name_host_slowly(name, &[B], Duration::from_secs(1));
        assert_eq!(found(name, &io).await, Ok(vec![B]));
        name_host(name, &[]);
    }

    /// H513: a name server answers after another lookup has begun, with the address of an hour ago.
    #[tokio::test(start_paused = true)]
    async fn h513_a_lookup_that_was_overtaken_changes_nothing() {
        let (io, _) = paused_io();
        let name = "overtaken.h513.test";
        name_host_slowly(name, &[A], STUCK + Duration::from_secs(20));
        found(name, &io).await.unwrap_err();
        io.sleep(STUCK).await;
        name_host_slowly(name, &[B], Duration::from_millis(1));
        assert_eq!(found(name, &io).await, Ok(vec![B]));
        io.sleep(Duration::from_secs(11)).await;
        name_host_slowly(name, &[B], Duration::from_secs(5));
        assert_eq!(found(name, &io).await, Ok(vec![B]), "the overtaken one has ended");
        name_host(name, &[]);
    }
}

//! Connects to as many servers as a majority needs.

use std::sync::Arc;
use std::time::Duration;

use latchwork_quorum::Quorum;
use latchwork_store::{Backend, Error, ErrorKind, Io};
use tokio::sync::mpsc::unbounded_channel;

use super::config::{Config, endpoint};
use crate::backend::RedisBackend;
use crate::config::RedisConfig;
use crate::protocol::store::Store;
use crate::server::facts::Facts;
use crate::server::seat::Seat;

/// When a majority is reached, the others have so much longer; then they are connected when they
/// are first asked.
const GRACE: Duration = Duration::from_millis(50);

/// Connects to a majority of the servers at least. The others may be down: each is connected as
/// soon as it answers.
///
/// # Errors
///
/// If no majority can be used, the servers that cannot with the reason of each: `Unreachable`, or
/// what all of them say. `Invalid` if two addresses lead to one server. One that is found later to lead to the server of
/// another has no vote, and its requests fail with the same error.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub async fn connect(config: Config, io: Io) -> Result<Arc<Quorum>, Error> {
    within(GRACE, config, io).await
}

/// The same with another time for the minority.
pub(super) async fn within(grace: Duration, config: Config, io: Io) -> Result<Arc<Quorum>, Error> {
    let seats = Seat::for_all(config.nodes.iter().map(endpoint));
    let node = |(node, seat): (&RedisConfig, &Seat)| {
        Store::seated(node.clone(), io.clone(), Some(seat.clone()))
    };
    let stores: Vec<Arc<Store>> = config.nodes.iter().zip(&seats).map(node).collect();
    let reached = reach(&config, &stores, &seats, grace, &io).await?;
    let node = |(index, store)| {
        let facts = reached.iter().find(|(reached, _)| *reached == index).map(|(_, facts)| facts);
        Arc::new(RedisBackend::new(store, facts)) as Arc<dyn Backend>
    };
    let nodes = stores.into_iter().enumerate().map(node).collect();
    Quorum::named(config.shown(), nodes, io)
}

/// Waits until a majority is reached, or cannot be; returns the nodes that are.
async fn reach(
    config: &Config,
    stores: &[Arc<Store>],
    seats: &[Seat],
    grace: Duration,
    io: &Io,
) -> Result<Vec<(usize, Facts)>, Error> {
    let (sender, mut reached) = unbounded_channel();
    for (index, store) in stores.iter().enumerate() {
        let (store, sender) = (store.clone(), sender.clone());
        io.spawn(async move {
            let _ = sender.send((index, store.reach().await));
        });
    }
    drop(sender);
    let majority = stores.len() / 2 + 1;
    let mut usable: Vec<(usize, Facts)> = Vec::new();
    let mut failures: Vec<(usize, Error)> = Vec::new();
    loop {
        let next = if usable.len() < majority {
            reached.recv().await
        } else {
            io.within(grace, reached.recv()).await.flatten()
        };
        match next {
            Some((index, Ok(facts))) => usable.push((index, facts)),
            Some((index, Err(error))) if seats[index].is_refused() => {
                return Err(error.with_store(config.shown().into()));
            }
            Some((index, Err(error))) => failures.push((index, error)),
            None => break,
        }
    }
    if usable.len() >= majority { Ok(usable) } else { Err(too_few(config, failures)) }
}

/// The error that too few nodes can be used; it names the others.
fn too_few(config: &Config, mut failures: Vec<(usize, Error)>) -> Error {
    failures.sort_unstable_by_key(|(index, _)| *index);
    let mut kinds = failures.iter().map(|(_, error)| error.kind());
    let first = kinds.next().unwrap_or(ErrorKind::Unreachable);
    let kind = if kinds.all(|kind| kind == first) { first } else { ErrorKind::Unreachable };
    let each: Vec<String> = failures.iter().map(|(_, error)| error.message().to_owned()).collect();
    let (some, all) = (failures.len(), config.nodes.len());
    let message = format!("{some} of {all} nodes cannot be used: {}", each.join("; "));
    let step = failures.iter().find_map(|(_, error)| error.next_step().map(str::to_owned));
    let error = Error::new(kind, message).with_store(config.shown().into());
    match step {
        Some(step) => error.with_next_step(step),
        None => error,
    }
}

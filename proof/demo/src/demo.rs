//! All scenes, one after the other.

use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::task::Poll;
use std::time::Duration;

use latchwork::{Error, ErrorKind};
use latchwork_store::random_u128;
use serde_json::json;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::Args;
use crate::picture;
use crate::report::Outcome;
use crate::say::{self, Say};
use crate::scene::Stage;
use crate::shop;
use crate::tally::Tally;
use crate::words::{EXPIRY, Place, Scene};

/// How long what the locks leave to the background may take at the end.
const CLOSING: Duration = Duration::from_secs(1);

/// Plays the four scenes, prints what was counted, and tells by the exit code whether the two with
/// a lock of Latchwork were exact.
pub(crate) async fn run(args: &Args, say: &Say) -> Result<u8, Error> {
    // What ends the demo early, from here on.
    let mut signals = listen().map_err(broken)?;
    let store = &args.store.clone().map_or_else(latchwork::default_store, Ok)?;
    let manager = latchwork::connect(store).await?;
    let name = &format!("latchwork-demo-{:016x}", random_u128() as u64);
    let ttls = manager.capabilities().ttl.clone();
    let ttl = EXPIRY.max(*ttls.start()).min(*ttls.end());
    let place = &place(store, name);
    let shop = shop::create(place.as_ref(), store).map_err(broken)?;
    let stage = Stage { args, store, locks: &manager, name, ttl, shop, place };
    let played = tokio::select! {
        biased;
        played = play(&stage, say) => Ok(played),
        signal = next(&mut signals) => Err(signal),
    };
    let removed = stage.shop.remove();
    let _ = tokio::time::timeout(CLOSING, manager.close()).await;
    let tallies = match played {
        Ok(tallies) => &tallies.map_err(broken)?,
        Err(signal) => return Ok(end_by(signal)),
    };
    removed.map_err(broken)?;
    let drawn = args.svg.as_deref().map(|file| write(file, &picture::draw(tallies)).map(|()| file));
    let drawn = drawn.transpose();
    let svg = drawn.as_ref().ok().copied().flatten();
    let locks = &*manager.capabilities().store;
    let outcome = Outcome { args, locks, place: place.as_ref(), ttl, tallies, svg };
    let code = match say.json {
        true => say.print(&outcome.json().to_string()),
        false => say.print(&outcome.text()),
    };
    // What was counted is not lost with the picture.
    drawn?;
    if outcome.is_as_promised() {
        return Ok(code);
    }
    say.fail("Inexact", "with the lock the stock was not sold exactly, or no late write came");
    Ok(say::BROKEN)
}

async fn play(stage: &Stage<'_>, say: &Say) -> io::Result<Vec<Tally>> {
    let mut tallies = Vec::new();
    for scene in Scene::ALL {
        let (number, of) = (scene.number(), Scene::ALL.len());
        let message = format!("scene {number} of {of}: {}", scene.name());
        let event = json!({"event": "scene", "message": message, "scene": number.to_string()});
        say.note(&message, event);
        tallies.push(stage.play(scene).await?);
    }
    Ok(tallies)
}

/// Where the stock is: in the Redis server of the locks, in a file beside other stores, and for a
/// store inside this process in the process.
fn place(store: &str, name: &str) -> Option<Place> {
    match store.split_once(':').map_or("", |(scheme, _)| scheme) {
        "mem" => None,
        "redis" => Some(Place::Redis(name.to_owned())),
        _ => Some(Place::Folder(std::env::temp_dir().join(name))),
    }
}

fn write(file: &Path, picture: &str) -> Result<(), Error> {
    std::fs::write(file, picture).map_err(|error| {
        let message = format!("svg: cannot write {}: {error}", file.display());
        Error::new(ErrorKind::Invalid, message).with_next_step("name a file that can be written")
    })
}

fn listen() -> io::Result<Vec<(SignalKind, Stream)>> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    kinds.into_iter().map(|kind| Ok((kind, signal(kind)?))).collect()
}

/// Completes with the next signal.
async fn next(signals: &mut [(SignalKind, Stream)]) -> libc::c_int {
    poll_fn(|cx| {
        let came = |(kind, stream): &mut (SignalKind, Stream)| {
            stream.poll_recv(cx).is_ready().then_some(kind.as_raw_value())
        };
        signals.iter_mut().find_map(came).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// Ends this process by a signal that it has listened to, so that a shell learns what ended it.
#[expect(unsafe_code, reason = "a handled signal has to be unhandled")]
fn end_by(number: libc::c_int) -> u8 {
    // SAFETY: the default action needs no handler, and both calls only read their arguments.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::raise(number);
    }
    // It is blocked: what a shell would have made of it.
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

pub(crate) fn broken(error: impl Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("demo: {error}"))
}

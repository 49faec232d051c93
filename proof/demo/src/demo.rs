//! All scenes, one after the other.

use std::fmt::Display;
use std::io;
use std::path::Path;
use std::time::Duration;

use latchwork::{Error, ErrorKind};
use latchwork_store::random_u128;
use serde_json::json;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::args::Args;
use crate::picture;
use crate::report::{self, Framework, Outcome};
use crate::say::{self, Say};
use crate::scene::Stage;
use crate::shop::{self, FileShop, MemoryShop, Shop};
use crate::tally::Tally;
use crate::words::{EXPIRY, Place, Scene};

/// How long what the locks leave to the background may take at the end.
const CLOSING: Duration = Duration::from_secs(1);

/// Plays the four scenes, prints what was counted, and tells by the exit code whether the two with
/// a lock of Latchwork were exact.
pub(crate) async fn run(args: &Args, say: &Say) -> Result<u8, Error> {
    let mut signals = Signals::new().map_err(broken)?;
    let store = args.store.clone().map_or_else(latchwork::default_store, Ok)?;
    let store = store.as_str();
    let manager = latchwork::connect(store).await?;
    let name = format!("latchwork-demo-{:016x}", random_u128() as u64);
    let ttls = manager.capabilities().ttl.clone();
    let ttl = EXPIRY.max(*ttls.start()).min(*ttls.end());
    let place = place(store, &name);
    let shop = open(place.as_ref(), store).map_err(broken)?;
    let stage = Stage {
        buyers: args.buyers,
        stock: args.stock,
        store,
        locks: &manager,
        lock: &name,
        ttl,
        shop: &*shop,
        place: place.as_ref(),
    };
    let played = tokio::select! {
        biased;
        played = play(&stage, say) => Ok(played),
        signal = signals.next() => Err(signal),
    };
    let removed = shop.remove();
    let _ = tokio::time::timeout(CLOSING, manager.close()).await;
    let tallies = match played {
        Ok(tallies) => tallies.map_err(broken)?,
        Err(signal) => return Ok(end_by(signal)),
    };
    removed.map_err(broken)?;
    let drawn =
        args.svg.as_deref().map(|file| write(file, &picture::draw(&tallies)).map(|()| file));
    let drawn = drawn.transpose();
    let outcome = Outcome {
        store: &manager.capabilities().store,
        framework: framework(place.as_ref()),
        buyers: args.buyers,
        stock: args.stock,
        ttl,
        tallies: &tallies,
        svg: drawn.as_ref().ok().copied().flatten(),
    };
    let code = match say.json {
        true => say.print(&report::json(&outcome).to_string()),
        false => say.print(&report::text(&outcome)),
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

fn open(place: Option<&Place>, store: &str) -> io::Result<Box<dyn Shop>> {
    Ok(match place {
        None => Box::new(MemoryShop::new()),
        Some(Place::Folder(folder)) => Box::new(FileShop::create(folder)?),
        Some(place) => shop::open(place, store)?,
    })
}

fn framework(place: Option<&Place>) -> Framework {
    match place {
        None => Framework::Tasks,
        Some(Place::Folder(folder)) => Framework::File(folder.clone()),
        Some(Place::Redis(prefix)) => Framework::Redis(prefix.clone()),
    }
}

fn write(file: &Path, picture: &str) -> Result<(), Error> {
    std::fs::write(file, picture).map_err(|error| {
        let message = format!("svg: cannot write {}: {error}", file.display());
        Error::new(ErrorKind::Invalid, message).with_next_step("name a file that can be written")
    })
}

/// What ends the demo early, as long as this value lives.
struct Signals {
    interrupt: Stream,
    terminate: Stream,
    hangup: Stream,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Completes with the next one.
    async fn next(&mut self) -> libc::c_int {
        tokio::select! {
            _ = self.interrupt.recv() => libc::SIGINT,
            _ = self.terminate.recv() => libc::SIGTERM,
            _ = self.hangup.recv() => libc::SIGHUP,
        }
    }
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

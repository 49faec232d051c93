//! `latchwork demo stock`: shows what goes wrong without a lock, and what does not with one.

use std::io;
use std::path::Path;

use latchwork::store::random_u128;
use latchwork::{Error, ErrorKind};
use rustix::process::Signal;

use crate::args::{DemoArgs, StockArgs};
use crate::demo::picture;
use crate::demo::scene::Stage;
use crate::demo::shop::{self, FileShop, MemoryShop, Shop};
use crate::demo::tally::Tally;
use crate::demo::words::{EXPIRY, Place, Scene};
use crate::exit;
use crate::output::Output;
use crate::output::stock::{Framework, Outcome};
use crate::process::signals::{Signals, be_hit_by};

/// Shows something.
pub(crate) async fn run(args: &DemoArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let DemoArgs::Stock(args) = args;
    stock(args, store, output).await
}

/// Plays the four scenes, prints what was counted, and tells by the exit code whether the two with
/// a lock of Latchwork were exact.
async fn stock(args: &StockArgs, store: &str, output: &Output) -> Result<u8, Error> {
    let mut signals = Signals::ending().map_err(broken)?;
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
        played = play(&stage, output) => Ok(played),
        signal = signals.next() => Err(signal),
    };
    let removed = shop.remove();
    super::close(&manager).await;
    let tallies = match played {
        Ok(tallies) => tallies.map_err(broken)?,
        Err(signal) => return Ok(give_up(signal)),
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
    let code = output.stock(&outcome);
    // What was counted is not lost with the picture.
    drawn?;
    if outcome.is_as_promised() {
        return Ok(code);
    }
    output.fail("Inexact", "with the lock the stock was not sold exactly, or no late write came");
    Ok(exit::BROKEN)
}

async fn play(stage: &Stage<'_>, output: &Output) -> io::Result<Vec<Tally>> {
    let mut tallies = Vec::new();
    for scene in Scene::ALL {
        let (number, of) = (scene.number(), Scene::ALL.len());
        let message = format!("scene {number} of {of}: {}", scene.name());
        output.note("scene", &message, &[("scene", &number.to_string())]);
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
        Error::new(ErrorKind::Invalid, message).next_step("name a file that can be written")
    })
}

fn give_up(signal: Signal) -> u8 {
    be_hit_by(signal, false);
    exit::code_of_signal(signal.as_raw())
}

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Corrupt, format!("demo: {error}"))
}

//! `latchwork top`: all locks on the terminal, live.

use std::io::{self, IsTerminal};
use std::pin::Pin;
use std::time::Duration;

use crossterm::event::{Event, EventStream};
use futures_util::{FutureExt, StreamExt};
use latchwork::{Error, ErrorKind, LockManager};
use latchwork_store::clock::boot_time;
use latchwork_store::{Key, Moment, Snapshot};
use rustix::process::Signal;

use super::Context;
use crate::args::TopArgs;
use crate::exit;
use crate::process::signals::{Signals, asks_to_end, be_hit_by};
use crate::process::timer::Naps;
use crate::top::draw;
use crate::top::keys::{Wish, press};
use crate::top::pace::{self, Pace};
use crate::top::screen::{Screen, give_back};
use crate::top::view::View;

/// The time between two pictures, so that the bars drain smoothly.
const PICTURE: Duration = Duration::from_millis(250);

/// A reading of all locks, or of those on the screen.
type Reading<T> = Pin<Box<dyn Future<Output = T>>>;

/// Shows the locks until a key or a signal ends it.
pub(crate) async fn run(args: &TopArgs, place: &Context) -> Result<u8, Error> {
    if let Some(why) = unfit(place) {
        place.output.fail("Usage", why);
        return Ok(exit::USAGE);
    }
    // An address that is wrong is an error and no picture.
    let manager = match place.is_missing() {
        true => None,
        false => Some(place.look().await?),
    };
    let has_colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let view = View::new(place.store.shown(), args.prefix.clone(), has_colour);
    let ended = Top::start(view, place, manager).map_err(broken);
    let ended = match ended {
        Ok(mut top) => top.run().await,
        Err(error) => Err(error),
    };
    give_back();
    match ended? {
        End::Asked => Ok(0),
        End::By(signal) => {
            be_hit_by(signal, false);
            Ok(exit::code_of_signal(signal.as_raw()))
        }
    }
}

/// Why nothing can be drawn here.
fn unfit(place: &Context) -> Option<&'static str> {
    if place.output.json {
        return Some("`top` prints no JSON; use `latchwork --json ls --watch`");
    }
    if !io::stdout().is_terminal() {
        return Some(
            "`top` needs a terminal, and standard output is none; use `latchwork ls --watch`",
        );
    }
    if !io::stdin().is_terminal() {
        return Some(
            "`top` needs a terminal, and standard input is none; use `latchwork ls --watch`",
        );
    }
    if std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb") {
        return Some(
            "the terminal cannot be drawn on (TERM is dumb or not set); use `latchwork ls --watch`",
        );
    }
    None
}

fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Closed, format!("cannot use the terminal: {error}"))
        .with_next_step("run `latchwork ls --watch`")
}

/// Why it ended.
enum End {
    /// A person asked for it.
    Asked,
    /// A signal did.
    By(Signal),
}

/// The display, and what it waits for.
struct Top<'a> {
    place: &'a Context,
    manager: Option<LockManager>,
    view: View,
    screen: Screen,
    keys: EventStream,
    signals: Signals,
    naps: Naps,
    all: Option<Reading<Result<Vec<Snapshot>, Error>>>,
    shown: Option<Reading<Vec<Snapshot>>>,
    pace: Pace,
    all_at: Moment,
    shown_at: Moment,
    /// When the readings that are under way began.
    all_begun: Moment,
    shown_begun: Moment,
}

/// What has happened.
enum News {
    Signal(Signal),
    Key(Option<io::Result<Event>>),
    All(Result<Vec<Snapshot>, Error>),
    Shown(Vec<Snapshot>),
    Time,
}

impl<'a> Top<'a> {
    fn start(view: View, place: &'a Context, manager: Option<LockManager>) -> io::Result<Self> {
        let mut signals = Signals::ending()?;
        signals.add_stops()?;
        let now = boot_time();
        Ok(Self {
            place,
            manager,
            view,
            screen: Screen::take()?,
            keys: EventStream::new(),
            signals,
            naps: Naps::new()?,
            all: None,
            shown: None,
            pace: Pace::default(),
            all_at: now,
            shown_at: now,
            all_begun: now,
            shown_begun: now,
        })
    }

    async fn run(&mut self) -> Result<End, Error> {
        loop {
            let now = boot_time();
            self.ask(now).await?;
            let view = &mut self.view;
            self.screen.draw(|frame| draw::frame(view, frame, now)).map_err(broken)?;
            if let Some(end) = self.react().await? {
                return Ok(end);
            }
        }
    }

    /// Begins the readings that are due.
    async fn ask(&mut self, now: Moment) -> Result<(), Error> {
        if self.view.paused_at.is_some() {
            return Ok(());
        }
        if self.all.is_none() && now >= self.all_at {
            if self.manager.is_none() && self.place.exists() {
                self.manager = Some(self.place.look().await?);
            }
            self.all_begun = now;
            let prefix = self.view.prefix.clone();
            self.all = Some(match self.manager.clone() {
                Some(manager) => Box::pin(async move { manager.list(&prefix).await }),
                None => Box::pin(async { Ok(Vec::new()) }),
            });
        }
        let is_slow = self.view.freshness.next_at.zip(self.view.freshness.read_at);
        let is_slow = is_slow.is_some_and(|(next, read)| pace::is_slow(next.since(read)));
        if let (None, Some(manager), true) =
            (&self.shown, &self.manager, is_slow && now >= self.shown_at)
        {
            self.shown_begun = now;
            let keys = self.view.on_screen();
            let (manager, namespace) = (manager.clone(), self.place.namespace.clone());
            self.shown = Some(Box::pin(inspect(manager, namespace, keys)));
        }
        Ok(())
    }

    /// Waits for what comes next, and takes it in.
    async fn react(&mut self) -> Result<Option<End>, Error> {
        let (all, shown) = (&mut self.all, &mut self.shown);
        let news = tokio::select! {
            biased;
            signal = self.signals.next() => News::Signal(signal),
            key = self.keys.next() => News::Key(key),
            answer = async { all.as_mut().expect("is there").await }, if all.is_some() => News::All(answer),
            answer = async { shown.as_mut().expect("is there").await }, if shown.is_some() => News::Shown(answer),
            _ = self.naps.nap(PICTURE) => News::Time,
        };
        let now = boot_time();
        match news {
            News::Signal(signal) if asks_to_end(signal) => return Ok(Some(End::By(signal))),
            News::Signal(Signal::TSTP) => self.stop(false)?,
            News::Signal(_) => self.screen.take_again().map_err(broken)?,
            News::Key(first) => return self.type_in(first, now),
            News::All(answer) => self.take_all(answer, now)?,
            News::Shown(answer) => {
                self.shown = None;
                self.shown_at = now.plus(pace::after_shown(now.since(self.shown_begun)));
                if self.view.paused_at.is_none() {
                    for seen in answer {
                        self.view.read_one(seen, now);
                    }
                }
            }
            News::Time => {}
        }
        Ok(None)
    }

    /// Takes in all keys that are there, so that one picture shows what a fast typist did.
    fn type_in(
        &mut self,
        first: Option<io::Result<Event>>,
        now: Moment,
    ) -> Result<Option<End>, Error> {
        let mut next = Some(first);
        while let Some(event) = next {
            match event {
                // The terminal is gone.
                None => return Ok(Some(End::By(Signal::HUP))),
                Some(Err(error)) => return Err(broken(error)),
                Some(Ok(Event::Key(key))) => match press(&mut self.view, key, now) {
                    Wish::Quit => return Ok(Some(End::Asked)),
                    Wish::Stop => self.stop(true)?,
                    Wish::Redraw => self.screen.take_again().map_err(broken)?,
                    Wish::None => {}
                },
                Some(Ok(_)) => {}
            }
            next = self.keys.next().now_or_never();
        }
        Ok(None)
    }

    /// Takes in what was read of all locks.
    fn take_all(&mut self, answer: Result<Vec<Snapshot>, Error>, now: Moment) -> Result<(), Error> {
        self.all = None;
        let took = now.since(self.all_begun);
        match answer {
            // What is frozen stays as it is.
            Ok(_) if self.view.paused_at.is_some() => self.all_at = now,
            Ok(all) => {
                let pause = self.pace.after_all(took, all.len());
                self.all_at = now.plus(pause);
                self.view.read_all(all, now, pause);
            }
            Err(error) if error.kind() == ErrorKind::Unreachable => {
                self.all_at = now.plus(pace::after_failure(took));
                self.view.freshness.error = Some(error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Gives the terminal back and is stopped; returns when it is continued.
    fn stop(&mut self, whole_group: bool) -> Result<(), Error> {
        give_back();
        be_hit_by(Signal::TSTP, whole_group);
        self.screen.take_again().map_err(broken)
    }
}

/// Reads these locks, one after the other. Those that the store does not tell are left as they were.
async fn inspect(manager: LockManager, namespace: String, keys: Vec<Key>) -> Vec<Snapshot> {
    let mut all = Vec::with_capacity(keys.len());
    for key in keys {
        let name = match &*namespace {
            "" => Some(key.as_str()),
            namespace => {
                key.as_str().strip_prefix(namespace).and_then(|rest| rest.strip_prefix(':'))
            }
        };
        let Some(name) = name else { continue };
        match manager.inspect(name).await {
            Ok(seen) => all.push(seen),
            // The reading of all locks tells of it.
            Err(_) => break,
        }
    }
    all
}

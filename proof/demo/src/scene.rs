//! One scene: the shop opens, buyers buy, one of them may be stopped, everybody goes home.

use std::io;
use std::time::Duration;

use latchwork::LockManager;
use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::buyer::SLOW;
use crate::crowd::{Crowd, Processes, Tasks};
use crate::shop::Shop;
use crate::tally::Tally;
use crate::words::{Event, Invitation, Order, Place, Said, Scene};

/// How long a scene may take, beside what its leases take.
const LIMIT: Duration = Duration::from_secs(60);

/// The buyer who is stopped.
const STOPPED: u32 = 1;

/// What all scenes have in common.
pub(crate) struct Stage<'a> {
    pub(crate) buyers: u32,
    pub(crate) stock: u32,
    pub(crate) store: &'a str,
    pub(crate) locks: &'a LockManager,
    /// The name of the lock.
    pub(crate) lock: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) shop: &'a dyn Shop,
    /// Where buyers that are processes find the shop; `None` if they are tasks.
    pub(crate) place: Option<&'a Place>,
}

impl Stage<'_> {
    /// Plays a scene and counts what happened.
    pub(crate) async fn play(&self, scene: Scene) -> io::Result<Tally> {
        self.shop.fill(self.stock)?;
        let orders: Vec<_> = (1..=self.buyers).map(|buyer| self.order(scene, buyer)).collect();
        let crowd = self.invite(&orders)?;
        let limit = LIMIT + 10 * self.ttl;
        let said = tokio::select! {
            biased;
            said = Play { stage: self, crowd, said: Vec::new() }.run(scene) => said?,
            () = tokio::time::sleep(limit) => {
                let message = format!("scene {} did not end within {limit:?}", scene.number());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        };
        Ok(Tally::of(scene, self.stock, self.shop.read()?, &said))
    }

    fn order(&self, scene: Scene, buyer: u32) -> Order {
        let waits_at_till = scene == Scene::Fenced && buyer == STOPPED;
        Order {
            buyer,
            scene,
            stock: self.stock,
            lock: self.lock.to_owned(),
            ttl: self.ttl,
            waits_at_till,
            // A task is renewed by a thread that nobody stops, so its hold ends by itself.
            max_hold: (waits_at_till && self.place.is_none()).then_some(SLOW + self.ttl),
        }
    }

    fn invite<'b>(&'b self, orders: &'b [Order]) -> io::Result<Crowd<'b>> {
        let Some(place) = self.place else {
            return Ok(Crowd::Tasks(Tasks::start(orders, self.shop, self.locks)?));
        };
        let invite = |order: &Order| Invitation {
            order: order.clone(),
            store: self.store.to_owned(),
            place: place.clone(),
        };
        Ok(Crowd::Processes(Processes::start(&orders.iter().map(invite).collect::<Vec<_>>())?))
    }
}

/// A scene that is played.
struct Play<'a> {
    stage: &'a Stage<'a>,
    crowd: Crowd<'a>,
    said: Vec<Said>,
}

impl Play<'_> {
    async fn run(mut self, scene: Scene) -> io::Result<Vec<Said>> {
        let buyers = self.stage.buyers;
        let ready = |said: &Said| said.event == Event::Ready;
        self.hear(|all| all.iter().filter(|said| ready(said)).count() == buyers as usize).await?;
        if scene == Scene::Fenced {
            self.stop_at_the_till().await?;
        } else {
            for buyer in 1..=buyers {
                self.crowd.go(buyer)?;
            }
        }
        self.hear(|_| false).await?;
        let done = self.said.iter().filter(|said| said.event == Event::Done).count();
        if done < buyers as usize {
            return Err(io::Error::other("a buyer has ended too early"));
        }
        Ok(self.said)
    }

    /// Lets one buyer in, and stops it when it is about to write. The others come in then, wait for
    /// its lease to end, and sell half of the stock before it wakes up.
    async fn stop_at_the_till(&mut self) -> io::Result<()> {
        self.crowd.go(STOPPED)?;
        self.hear(|all| all.last().is_some_and(|said| said.event == Event::AtTill)).await?;
        self.crowd.stop(STOPPED).await?;
        self.note(boot_time(), Event::Stopped);
        for buyer in (1..=self.stage.buyers).filter(|&buyer| buyer != STOPPED) {
            self.crowd.go(buyer)?;
        }
        let half = self.stage.stock.div_ceil(2) as usize;
        let sold = |said: &&Said| matches!(said.event, Event::Sold { .. });
        self.hear(|all| all.iter().filter(sold).count() >= half).await?;
        self.crowd.go(STOPPED)?;
        self.note(boot_time(), Event::Continued);
        self.crowd.cont(STOPPED)
    }

    fn note(&mut self, at: Moment, event: Event) {
        self.said.push(Said { buyer: STOPPED, at, event });
    }

    /// Listens until enough was said, or to the end.
    async fn hear(&mut self, enough: impl Fn(&[Said]) -> bool) -> io::Result<()> {
        while !enough(&self.said) {
            let Some(said) = self.crowd.next().await? else { return Ok(()) };
            if let Event::Failed(message) = said.event {
                return Err(io::Error::other(format!("buyer {}: {message}", said.buyer)));
            }
            self.said.push(said);
        }
        Ok(())
    }
}

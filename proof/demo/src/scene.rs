//! One scene: the shop opens, buyers buy, one of them may be stopped, everybody goes home.

use std::io::{self, PipeWriter, Write};
use std::mem;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use latchwork::LockManager;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Args;
use crate::buyer::{Buyer, Hears, ROLE, SLOW, hears};
use crate::shop::Shop;
use crate::tally::Tally;
use crate::words::{Event, Order, Place, Said, Scene, line, now};

/// How long a scene may take, beside what its leases take.
const LIMIT: Duration = Duration::from_secs(60);

/// The buyer who is stopped.
const STOPPED: u32 = 1;

/// What all scenes have in common.
pub(crate) struct Stage<'a> {
    pub(crate) args: &'a Args,
    pub(crate) store: &'a str,
    pub(crate) locks: &'a LockManager,
    /// The name of the lock.
    pub(crate) name: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) shop: Arc<dyn Shop>,
    /// Where buyers that are processes find the shop; `None` if they are tasks.
    pub(crate) place: &'a Option<Place>,
}

impl Stage<'_> {
    /// Plays a scene and counts what happened.
    pub(crate) async fn play(&self, scene: Scene) -> io::Result<Tally> {
        let stock = self.args.stock;
        self.shop.fill(stock)?;
        let limit = LIMIT + 10 * self.ttl;
        let said = timeout(limit, self.hear_all(scene)).await.map_err(|_| {
            let message = format!("scene {} did not end within {limit:?}", scene.number());
            io::Error::new(io::ErrorKind::TimedOut, message)
        })??;
        Ok(Tally::of(scene, stock, self.shop.read()?, &said))
    }

    /// In the last scene, lets one buyer in, and stops it when it is about to write. The others come in then, wait for
    /// its lease to end, and sell half of the stock before it wakes up.
    async fn hear_all(&self, scene: Scene) -> io::Result<Vec<Said>> {
        let (buyers, half) = (self.args.buyers, self.args.stock.div_ceil(2));
        let stops = scene == Scene::Fenced;
        let mut crowd = self.invite(scene)?;
        crowd.hear(buyers, |event| *event == Event::Ready).await?;
        if stops {
            crowd.go(STOPPED)?;
            crowd.hear(1, |event| *event == Event::AtTill).await?;
            crowd.stop(STOPPED).await?;
        }
        for buyer in (1..=buyers).filter(|&buyer| !(stops && buyer == STOPPED)) {
            crowd.go(buyer)?;
        }
        if stops {
            crowd.hear(half, |event| matches!(event, Event::Sold { .. })).await?;
            crowd.go(STOPPED)?;
            crowd.cont(STOPPED)?;
        }
        if crowd.hear(u32::MAX, |event| *event == Event::Done).await? < buyers {
            return Err(io::Error::other("a buyer has ended too early"));
        }
        Ok(mem::take(&mut crowd.said))
    }

    fn invite(&self, scene: Scene) -> io::Result<Crowd> {
        let (heard, says) = io::pipe()?;
        let mut crowd = Crowd {
            words: Vec::new(),
            children: Vec::new(),
            tasks: JoinSet::new(),
            heard: hears(heard)?,
            said: Vec::new(),
        };
        for buyer in 1..=self.args.buyers {
            let (waits_at_till, is_task) =
                (scene == Scene::Fenced && buyer == STOPPED, self.place.is_none());
            let order = Order {
                buyer,
                scene,
                stock: self.args.stock,
                store: self.store.to_owned(),
                place: self.place.clone(),
                lock: self.name.to_owned(),
                ttl: self.ttl,
                waits_at_till,
                // A task is renewed by a thread that nobody stops, so its hold ends by itself.
                max_hold: (waits_at_till && is_task).then_some(SLOW + self.ttl),
            };
            let (word, mut speak) = io::pipe()?;
            let says = says.try_clone()?;
            if is_task {
                let locks = Some(self.locks.clone());
                let buyer = Buyer::new(order, Arc::clone(&self.shop), locks, hears(word)?, says);
                crowd.tasks.spawn(buyer.run());
            } else {
                // The running file, also when its name is gone or has another file by now.
                let mut command = Command::new("/proc/self/exe");
                command.arg0("latchwork-buyer").arg(ROLE);
                // Not hit by the Ctrl-C of a terminal: the demo ends them.
                command.process_group(0).stdin(word).stdout(says);
                crowd.children.push(command.spawn()?);
                speak.write_all(line(&order)?.as_bytes())?;
            }
            crowd.words.push(speak);
        }
        Ok(crowd)
    }
}

/// The buyers of one scene: tasks, which end with it, or this binary started again, killed when dropped.
struct Crowd {
    words: Vec<PipeWriter>,
    children: Vec<Child>,
    tasks: JoinSet<()>,
    heard: Hears,
    said: Vec<Said>,
}

impl Crowd {
    /// Listens until so many said what is wanted, or to the end. How many did.
    async fn hear(&mut self, most: u32, wanted: impl Fn(&Event) -> bool) -> io::Result<u32> {
        loop {
            let count = self.said.iter().filter(|said| wanted(&said.event)).count() as u32;
            if count >= most {
                return Ok(count);
            }
            let Some(line) = self.heard.next_line().await? else { return Ok(count) };
            let said: Said = serde_json::from_str(&line)
                .map_err(|_| io::Error::other(format!("a buyer says {line:?}")))?;
            if let Event::Failed(message) = said.event {
                return Err(io::Error::other(format!("buyer {}: {message}", said.buyer)));
            }
            self.said.push(said);
        }
    }

    /// Lets a buyer go in, or on.
    fn go(&mut self, buyer: u32) -> io::Result<()> {
        let went = self.words[buyer as usize - 1].write_all(b"go\n");
        went.map_err(|_| io::Error::other("a buyer has gone too early"))
    }

    fn pid(&self, buyer: u32) -> Option<Pid> {
        self.children.get(buyer as usize - 1).map(Pid::from_child)
    }

    /// Stops a buyer that waits at the till, and returns when it stands still. A task does already.
    async fn stop(&mut self, buyer: u32) -> io::Result<()> {
        if let Some(pid) = self.pid(buyer) {
            kill_process(pid, Signal::STOP)?;
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            while waitid(WaitId::Pid(pid), options)?.is_none() {
                sleep(Duration::from_millis(1)).await;
            }
        }
        self.said.push(Said { buyer, at: now(), event: Event::Stopped });
        Ok(())
    }

    /// Lets it run again.
    fn cont(&mut self, buyer: u32) -> io::Result<()> {
        self.said.push(Said { buyer, at: now(), event: Event::Continued });
        self.pid(buyer).map_or(Ok(()), |pid| Ok(kill_process(pid, Signal::CONT)?))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Most have ended by themselves.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

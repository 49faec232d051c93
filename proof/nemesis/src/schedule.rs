//! When what is broken: windows with a fault between calm ones.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use latchwork_store::Moment;
use latchwork_store::clock::boot_time;

use crate::crew::Crew;
use crate::event::What;
use crate::faults::{ClientFault, Nemesis};
use crate::log::Log;
use crate::luck::Luck;
use crate::pause::pause;
use crate::resource::Resource;

/// The name of the fault that takes locks away.
pub(crate) const EVICT: &str = "evict";

/// The times of a run.
#[derive(Debug, Clone, Copy)]
pub struct Schedule {
    /// The whole run, until the workers are sent home. Each fault has its turn, even if that takes
    /// longer.
    pub length: Duration,
    /// Each fault window.
    pub fault: Duration,
    /// The calm before each, and at the end.
    pub calm: Duration,
    /// How many faults at most happen in one window. Of those of workers, it is one.
    pub together: usize,
}

impl Default for Schedule {
    fn default() -> Self {
        let five = Duration::from_secs(5);
        Self { length: Duration::from_secs(60), fault: five, calm: five, together: 1 }
    }
}

/// What a schedule is played with.
pub(crate) struct Stage<'a> {
    pub(crate) crew: &'a mut Crew,
    pub(crate) resource: &'a Resource,
    pub(crate) faults: &'a [ClientFault],
    pub(crate) nemeses: &'a mut [Box<dyn Nemesis>],
    pub(crate) luck: Luck,
    pub(crate) log: Arc<Log>,
    pub(crate) ttl: Duration,
    /// Takes one lock away.
    pub(crate) evict: &'a mut dyn FnMut(&mut Luck) -> io::Result<()>,
    pub(crate) progress: &'a mut dyn FnMut(&str),
}

impl Schedule {
    /// Plays all windows; each fault has its turn, from a random first one on.
    pub(crate) fn play(&self, stage: &mut Stage<'_>) -> io::Result<()> {
        let kinds = stage.faults.len() + stage.nemeses.len();
        let window = self.calm + self.fault + self.calm;
        if kinds > 0 && self.length < window {
            let message = format!("a run of {:?} has no room for a fault: {window:?}", self.length);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut turn = stage.luck.below(kinds);

        let end = boot_time().plus(self.length);
        let mut played = 0;
        while played < kinds || (kinds > 0 && boot_time().plus(window) <= end) {
            played += 1;
            (stage.progress)("calm");
            pause(self.calm);
            let together = stage.beside(turn % kinds, self.together.saturating_sub(1));
            stage.strike(&together, boot_time().plus(self.fault))?;
            turn += 1;
        }
        (stage.progress)("calm, to the end");
        let rest = if played > 0 { self.calm } else { Duration::ZERO };
        pause(end.since(boot_time()).max(rest));
        Ok(())
    }
}

impl Stage<'_> {
    /// The fault whose turn it is, and by lot so many others that can happen at the same time.
    fn beside(&mut self, first: usize, others: usize) -> Vec<usize> {
        let kinds = self.faults.len() + self.nemeses.len();
        let mut together = vec![first];
        for _ in 0..others {
            let other = self.luck.below(kinds);
            // This thread makes the faults of workers, one kind at a time.
            let of_workers = |kind: &usize| *kind < self.faults.len();
            let is_second = of_workers(&other) && together.iter().any(of_workers);
            if !together.contains(&other) && !is_second {
                together.push(other);
            }
        }
        together
    }

    /// Makes all these faults until then.
    fn strike(&mut self, kinds: &[usize], until: Moment) -> io::Result<()> {
        let faults = self.faults;
        let of_workers = kinds.iter().find_map(|kind| faults.get(*kind).copied());
        let of_servers = kinds.iter().filter_map(|kind| kind.checked_sub(faults.len()));
        let (mut struck, mut done) = (Vec::new(), Ok(()));
        for place in of_servers {
            let nemesis = &mut self.nemeses[place];
            let fault: Arc<str> = nemesis.name().into();
            (self.progress)(&fault);
            self.log.note(None, What::Struck { fault });
            struck.push(place);
            done = done.and(nemesis.strike(&mut self.luck));
        }
        if done.is_ok() {
            match of_workers {
                Some(fault) => done = self.disturb(fault, until),
                None => pause(until.since(boot_time())),
            }
        }
        for place in struck.into_iter().rev() {
            let nemesis = &mut self.nemeses[place];
            let healed = nemesis.heal();
            self.log.note(None, What::Healed { fault: nemesis.name().into() });
            done = done.and(healed);
        }
        done
    }

    /// Makes a fault of workers until then.
    fn disturb(&mut self, fault: ClientFault, until: Moment) -> io::Result<()> {
        match fault {
            ClientFault::Kill => {
                (self.progress)("kill");
                while boot_time() < until {
                    let rest = self.luck.times(self.ttl, 0.0..0.5);
                    let victim = self.victim();
                    self.crew.kill(victim, rest)?;
                    pause(self.luck.times(self.ttl, 0.3..0.8));
                }
                Ok(())
            }
            ClientFault::Stop => {
                (self.progress)("stop");
                while boot_time() < until {
                    let length = self.luck.times(self.ttl, 0.5..3.0);
                    let victims = self.victims();
                    self.crew.stop(&victims, length)?;
                    pause(self.luck.times(self.ttl, 0.1..0.5));
                }
                Ok(())
            }
            ClientFault::Evict => {
                (self.progress)(EVICT);
                self.log.note(None, What::Struck { fault: EVICT.into() });
                let mut evicted = Ok(());
                while evicted.is_ok() && boot_time() < until {
                    evicted = (self.evict)(&mut self.luck);
                    pause(self.luck.times(self.ttl, 0.05..0.3));
                }
                self.log.note(None, What::Healed { fault: EVICT.into() });
                evicted
            }
        }
    }

    /// Mostly one; sometimes more, but never all: somebody must be there to be admitted.
    fn victims(&mut self) -> Vec<usize> {
        let mut victims = vec![self.victim()];
        while victims.len() + 1 < self.crew.count() && self.luck.percent(25) {
            let other = self.luck.below(self.crew.count());
            if !victims.contains(&other) {
                victims.push(other);
            }
        }
        victims
    }

    /// Mostly one that is likely to hold a lock; most often the one that has for longest.
    fn victim(&mut self) -> usize {
        let holders = self.resource.likely_holders(self.ttl / 4);
        let aimed = match self.luck.below(5) {
            _ if holders.is_empty() => None,
            0..3 => holders.first(),
            3 => holders.get(self.luck.below(holders.len())),
            _ => None,
        };
        let place = aimed.and_then(|name| self.crew.place(name));
        place.unwrap_or_else(|| self.luck.below(self.crew.count()))
    }
}

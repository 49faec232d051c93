//! The worker processes of a run: started, killed, stopped, and sent home.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use latchwork_services::ring_for_step;
use latchwork_store::clock::boot_time;
use rustix::process::{Pid, Signal, kill_process};

use crate::event::What;
use crate::foreign::Ready;
use crate::log::Log;
use crate::pause::pause;
use crate::worker::{Orders, Pauses};

/// The workers of a run. Dropping it kills those that are left.
pub(crate) struct Crew {
    program: PathBuf,
    folder: PathBuf,
    orders: Orders,
    sides: Vec<String>,
    foreign: Option<Ready>,
    log: Arc<Log>,
    members: Vec<Member>,
}

struct Member {
    life: u32,
    name: Arc<str>,
    is_foreign: bool,
    child: Child,
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Crew {
    /// Starts `count` workers, each by the orders but for its own name, log and seed, and its side
    /// of the network, where there are several; and one client of another kind, if there is one.
    pub(crate) fn start(
        program: &Path,
        folder: &Path,
        orders: Orders,
        sides: Vec<String>,
        foreign: Option<Ready>,
        log: Arc<Log>,
        count: u32,
    ) -> io::Result<Self> {
        let (program, folder) = (program.to_owned(), folder.to_owned());
        let all = count as usize + usize::from(foreign.is_some());
        let mut crew = Self { program, folder, orders, sides, foreign, log, members: Vec::new() };
        for index in 0..all {
            let member = crew.hire(index, 0, index == count as usize)?;
            crew.members.push(member);
        }
        Ok(crew)
    }

    fn hire(&self, index: usize, life: u32, is_foreign: bool) -> io::Result<Member> {
        let foreign = self.foreign.as_ref().filter(|_| is_foreign);
        let kind = foreign.map_or("w", |ready| ready.foreign.name);
        let name = format!("{kind}{index}.{life}");
        let seed = (index as u64) << 32 | u64::from(life);
        let orders = Orders {
            store: self.store_of(index),
            log: self.folder.join(format!("{name}.log")),
            seed: self.orders.seed ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            name: name.clone(),
            ..self.orders.clone()
        };
        let said = File::create(self.folder.join(format!("{name}.said")))?;
        let mut command = match foreign {
            Some(foreign) => foreign.command(),
            None => Command::new(&self.program),
        };
        if foreign.is_none() {
            command.arg("worker");
        }
        let child = command
            .args(orders.to_flags())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(said)
            .spawn()?;
        Ok(Member { life, name: name.into(), is_foreign, child })
    }

    /// The address of the store, for this worker: they may stand on different sides of a partition.
    fn store_of(&self, index: usize) -> String {
        match self.sides.len() {
            0 => self.orders.store.clone(),
            sides => self.sides[index % sides].clone(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.members.len()
    }

    /// The place of the worker with this name, if it lives.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.members.iter().position(|member| &*member.name == name)
    }

    /// Kills a worker, and starts its next life after a pause.
    pub(crate) fn kill(&mut self, index: usize, rest: Duration) -> io::Result<()> {
        let member = &mut self.members[index];
        let ended = member.child.try_wait()?;
        self.log.note(None, What::Killed { whom: member.name.clone() });
        member.child.kill()?;
        member.child.wait()?;
        if let Some(status) = ended {
            return Err(self.trouble(index, &format!("ended by itself: {status}")));
        }
        pause(rest);
        let Member { life, is_foreign, .. } = self.members[index];
        self.members[index] = self.hire(index, life + 1, is_foreign)?;
        Ok(())
    }

    /// Stops some workers for a while, all at once. If their clocks stand still, it is as if their
    /// machines were paused: those go on with a wall clock that was set.
    pub(crate) fn stop(&mut self, places: &[usize], length: Duration) -> io::Result<()> {
        for member in places.iter().map(|place| &self.members[*place]) {
            self.log.note(None, What::Stopped { whom: member.name.clone() });
            kill_process(Pid::from_child(&member.child), Signal::STOP)?;
        }
        let since = boot_time();
        pause(length);
        for member in places.iter().map(|place| &self.members[*place]) {
            let is_machine = self.orders.frozen_clock && !member.is_foreign;
            let is_machine = is_machine && self.orders.service.is_none();
            if is_machine {
                let log = self.folder.join(format!("{}.log", member.name));
                Pauses::open(&log)?.add(since, boot_time())?;
            }
            kill_process(Pid::from_child(&member.child), Signal::CONT)?;
            if is_machine {
                ring_for_step(member.child.id()).map_err(io::Error::other)?;
            }
            self.log.note(None, What::Continued { whom: member.name.clone() });
        }
        Ok(())
    }

    /// Tells all workers to come to an end, and waits until they have.
    pub(crate) fn finish(mut self, limit: Duration) -> io::Result<()> {
        for member in &mut self.members {
            drop(member.child.stdin.take());
        }
        let until = boot_time().plus(limit);
        for index in 0..self.members.len() {
            let status = loop {
                if let Some(status) = self.members[index].child.try_wait()? {
                    break status;
                }
                if boot_time() >= until {
                    return Err(self.trouble(index, &format!("did not end within {limit:?}")));
                }
                pause(Duration::from_millis(5));
            };
            if !status.success() {
                return Err(self.trouble(index, &format!("ended with {status}")));
            }
        }
        Ok(())
    }

    fn trouble(&self, index: usize, what: &str) -> io::Error {
        let name = &self.members[index].name;
        let said = std::fs::read_to_string(self.folder.join(format!("{name}.said")));
        let said = said.unwrap_or_default();
        io::Error::other(format!("worker {name} {what}\n{}", said.trim_end()))
    }
}

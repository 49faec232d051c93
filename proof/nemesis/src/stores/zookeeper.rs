//! ZooKeeper with three servers, as `docs/zookeeper.md` describes it.

use std::fs;
use std::io;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{
    Direction, Error, Process, Result, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer,
};

use super::members::{self, Members};
use super::network::{Reach, Reached};
use super::{ServerLog, TWO_HOLDERS, the, with_options};
use crate::faults::{Lister, Nemesis};
use crate::repeated::Repeated;

/// After so many ticks of 200 ms without an answer, a leader and a follower leave each other.
const SYNC_LIMIT: u32 = 5;

/// What a server tells of elections, and of what it takes over from its leader.
const TALKS: &str = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info";

/// Three servers, which reach each other through proxies, and are reached through others.
#[derive(Debug)]
pub struct ZooKeeper {
    ensemble: Arc<Mutex<ZooKeeperEnsemble>>,
    reach: Reach,
}

impl ZooKeeper {
    /// Starts the servers, to be used with these options of a Latchwork address.
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(options: &str) -> io::Result<Self> {
        let own = ZooKeeperOptions::new().sync_limit(SYNC_LIMIT).links().flag(TALKS);
        let ensemble = ZooKeeperEnsemble::start(3, &own)?;
        let ports: Vec<_> = ensemble.members().iter().map(ZooKeeperServer::port).collect();
        let reach = Reach::open(&ports, options)?;
        Ok(Self { ensemble: Arc::new(Mutex::new(ensemble)), reach })
    }
}

impl Reached for ZooKeeper {
    const FAULTS: &'static [&'static str] = members::FAULTS;

    fn excused_with(fault: &str, _: &str) -> &'static [&'static str] {
        // The holder learns of it at its next renewal.
        if fault == "delete" { TWO_HOLDERS } else { &[] }
    }

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn address(&self, hosts: &str) -> String {
        with_options(&format!("zk://{hosts}"), &self.reach.options)
    }

    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        if fault == "delete" {
            let hosts = self.reach.ways.own_hosts();
            return Some(Repeated::boxed("delete", ttl / 10..ttl / 4, move |_| delete_one(&hosts)));
        }
        members::of(&self.ensemble, fault, ttl)
    }

    fn own_lister(&self) -> Option<Box<dyn Lister>> {
        Some(Box::new(Leftovers(self.ensemble.clone())))
    }

    fn own_logs(&self) -> Vec<ServerLog> {
        let ensemble = the(&self.ensemble);
        let mut logs = Vec::new();
        for (n, server) in ensemble.members().iter().enumerate() {
            logs.push(ServerLog::of(format!("zookeeper-{n}"), server));
            // Its transactions and snapshots: servers that disagree have been seen.
            let data = fs::read_dir(server.folder().join("data/version-2"));
            for file in data.into_iter().flatten().flatten() {
                let name = format!("zookeeper-{n}-{}", file.file_name().display());
                logs.push(ServerLog::of_file(name, &file.path()));
            }
        }
        logs
    }
}

impl Members for ZooKeeperEnsemble {
    fn count(&self) -> usize {
        self.members().len()
    }

    fn leader(&self) -> Result<usize> {
        ZooKeeperEnsemble::leader(self)
    }

    fn process(&mut self, member: usize) -> &mut Process {
        self.member_mut(member)
    }

    fn relaunch(&mut self, member: usize) -> Result<()> {
        self.member_mut(member).relaunch()
    }

    fn replace(&mut self, member: usize) -> Result<()> {
        self.member_mut(member).relaunch_empty()
    }

    fn settle(&mut self) -> Result<()> {
        self.await_serving()
    }

    fn silence(&self, leader: usize, directions: &[Direction], silent: bool) -> Result<()> {
        for follower in (0..self.count()).filter(|member| *member != leader) {
            let link = self.link(follower, leader)?;
            for direction in directions {
                match silent {
                    true => link.freeze(*direction),
                    false => link.thaw(*direction),
                }
            }
        }
        Ok(())
    }

    fn set_round_trip(&self, trip: Duration) -> Result<()> {
        let all = 0..self.count();
        for (from, to) in all.clone().flat_map(|from| all.clone().map(move |to| (from, to))) {
            if from != to {
                self.link(from, to)?.set_round_trip(trip);
            }
        }
        Ok(())
    }
}

/// Deletes the node of some claim, by another client's hand.
fn delete_one(hosts: &str) -> Result<()> {
    const SCRIPT: &str = include_str!("delete_node.py");
    let output = Command::new("/usr/bin/python3").args(["-c", SCRIPT, hosts]).output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            Err(Error::new(format!("python3 with kazoo (package python3-kazoo): {said}")))
        }
    }
}

/// Lists nodes of claims that live on with some session, as the leader tells.
struct Leftovers(Arc<Mutex<ZooKeeperEnsemble>>);

impl Lister for Leftovers {
    fn leftovers(&mut self) -> io::Result<Vec<String>> {
        let ensemble = the(&self.0);
        let leader = ensemble.leader()?;
        let dump = ensemble.members()[leader].ask("dump")?;
        let paths = dump.lines().map(str::trim).filter(|line| line.starts_with('/'));
        // The sessions of the run itself have their pulses yet.
        let claims = paths.filter(|path| !path.starts_with("/.latchwork/"));
        Ok(claims.map(str::to_owned).collect())
    }
}

//! etcd with three members, as `docs/etcd.md` describes it.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{Direction, EtcdCluster, EtcdOptions, Process, Result, etcdctl};

use super::members::{self, Members};
use super::network::{Reach, Reached};
use super::{ServerLog, TWO_HOLDERS, the, with_options};
use crate::faults::{Lister, Nemesis};
use crate::repeated::Repeated;

/// Three members, which reach each other through proxies, and are reached through others.
#[derive(Debug)]
pub struct Etcd {
    cluster: Arc<Mutex<EtcdCluster>>,
    reach: Reach,
}

impl Etcd {
    /// Starts the members, to be used with these options of a Latchwork address.
    ///
    /// # Errors
    ///
    /// What kept them from starting.
    pub fn start(options: &str) -> io::Result<Self> {
        let cluster = EtcdCluster::start_with_proxies(3, &EtcdOptions::new());
        let cluster = cluster?;
        let ports: Vec<_> = cluster.members().iter().map(|member| member.port()).collect();
        let reach = Reach::open(&ports, options)?;
        Ok(Self { cluster: Arc::new(Mutex::new(cluster)), reach })
    }
}

impl Reached for Etcd {
    const FAULTS: &'static [&'static str] = members::FAULTS;

    fn excused_with(fault: &str, _: &str) -> &'static [&'static str] {
        match fault {
            // A leader that goes on may end leases that were kept alive at its successor.
            "leader-stop" => TWO_HOLDERS,
            // The holder learns of it afterwards.
            "delete" => TWO_HOLDERS,
            _ => &[],
        }
    }

    fn reach(&self) -> &Reach {
        &self.reach
    }

    fn address(&self, hosts: &str) -> String {
        with_options(&format!("etcd://{hosts}"), &self.reach.options)
    }

    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        if fault == "delete" {
            let cluster = self.cluster.clone();
            return Some(Repeated::boxed("delete", ttl / 20..ttl / 4, move |luck| {
                let cluster = the(&cluster);
                let places = places(&cluster)?;
                let Some(place) = places.get(luck.below(places.len())) else { return Ok(()) };
                let port = cluster.members()[0].port();
                etcdctl(port, &["del", place]).map(drop)
            }));
        }
        members::of(&self.cluster, fault, ttl)
    }

    fn own_lister(&self) -> Option<Box<dyn Lister>> {
        Some(Box::new(Leftovers(self.cluster.clone())))
    }

    fn own_logs(&self) -> Vec<ServerLog> {
        let cluster = the(&self.cluster);
        let members = cluster.members().iter().enumerate();
        members.map(|(n, member)| ServerLog::of(format!("etcd-{n}"), member)).collect()
    }
}

impl Members for EtcdCluster {
    fn count(&self) -> usize {
        self.members().len()
    }

    fn leader(&self) -> Result<usize> {
        EtcdCluster::leader(self)
    }

    fn process(&mut self, member: usize) -> &mut Process {
        self.member_mut(member)
    }

    fn relaunch(&mut self, member: usize) -> Result<()> {
        self.member_mut(member).relaunch()
    }

    fn replace(&mut self, member: usize) -> Result<()> {
        EtcdCluster::replace(self, member)
    }

    fn settle(&mut self) -> Result<()> {
        self.await_healthy()
    }

    /// What they say to it goes another way: this is a partition in one direction.
    fn silence(&self, leader: usize, _: &[Direction], silent: bool) -> Result<()> {
        EtcdCluster::silence(self, leader, silent);
        Ok(())
    }

    fn set_round_trip(&self, trip: Duration) -> Result<()> {
        EtcdCluster::set_round_trip(self, trip);
        Ok(())
    }
}

/// All keys: claims, and what closes a lock.
fn places(cluster: &EtcdCluster) -> io::Result<Vec<String>> {
    let port = cluster.members()[0].port();
    let keys = etcdctl(port, &["get", "", "--prefix", "--keys-only"])?;
    Ok(keys.split_whitespace().map(str::to_owned).collect())
}

struct Leftovers(Arc<Mutex<EtcdCluster>>);

impl Lister for Leftovers {
    fn leftovers(&mut self) -> io::Result<Vec<String>> {
        places(&the(&self.0))
    }
}

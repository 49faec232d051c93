//! Several members of etcd.

use std::time::Duration;

use crate::etcd::{EtcdOptions, EtcdPorts, EtcdServer};
use crate::port::despite_collisions;
use crate::proxy::Proxy;
use crate::wait::{LIMIT, until};
use crate::{Direction, Result};

/// Several members of one cluster. Dropping the value kills all of them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    /// In front of each member, for the other ones, if there are any.
    ways: Vec<Proxy>,
}

impl EtcdCluster {
    /// Starts so many members, and waits until each is healthy.
    ///
    /// # Errors
    ///
    /// If that does not come true; the text has the end of a log.
    pub fn start(members: usize, options: &EtcdOptions) -> Result<Self> {
        Self::start_so(members, options, false)
    }

    /// As [`Self::start`], with members that can be silenced.
    ///
    /// # Errors
    ///
    /// As [`Self::start`].
    pub fn start_with_proxies(members: usize, options: &EtcdOptions) -> Result<Self> {
        Self::start_so(members, options, true)
    }

    fn start_so(members: usize, options: &EtcdOptions, with_proxies: bool) -> Result<Self> {
        despite_collisions(|| {
            let (mut ports, mut ways, mut peers) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..members {
                let own = EtcdPorts::reserve()?;
                if with_proxies {
                    let way = Proxy::plain(own.peer_port())?;
                    peers.push(format!("http://127.0.0.1:{}", way.port()));
                    ways.push(way);
                } else {
                    peers.push(own.peer_url());
                }
                ports.push(own);
            }
            let list = peers.iter().enumerate().map(|(n, peer)| format!("m{n}={peer}"));
            let all = list.collect::<Vec<_>>().join(",");
            let mut cluster = Self { members: Vec::new(), ways };
            for (n, ports) in ports.into_iter().enumerate() {
                let member = EtcdServer::launch(options, &format!("m{n}"), &peers[n], &all, ports)?;
                cluster.members.push(member);
            }
            for member in &mut cluster.members {
                member.await_ready()?;
            }
            cluster.members[0].make_root(options)?;
            Ok(cluster)
        })
    }

    /// Lets nothing through any more that a member says to the other ones, or again. What they say
    /// to it goes another way: a member asks each other one for what that has to say.
    ///
    /// # Panics
    ///
    /// If the cluster was started without proxies.
    pub fn silence(&self, member: usize, silent: bool) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            match silent {
                true => self.ways[member].freeze(direction),
                false => self.ways[member].thaw(direction),
            }
        }
    }

    /// Lets the members hear of each other only after this long, there and back: a round trip between
    /// two members takes so long, or up to 4 ms longer.
    ///
    /// # Panics
    ///
    /// If the cluster was started without proxies.
    pub fn set_round_trip(&self, trip: Duration) {
        assert!(!self.ways.is_empty(), "a cluster that was started with proxies");
        for way in &self.ways {
            way.delay(Direction::ToServer, trip / 2);
            way.delay(Direction::ToClient, trip / 2);
        }
    }

    /// All members.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// A member, to kill, stop or restart it.
    pub fn member_mut(&mut self, member: usize) -> &mut EtcdServer {
        &mut self.members[member]
    }

    /// The address for Latchwork: all members.
    pub fn url(&self) -> String {
        let hosts = self.members.iter().map(|member| format!("127.0.0.1:{}", member.port()));
        format!("etcd://{}", hosts.collect::<Vec<_>>().join(","))
    }

    /// Which member leads, as a member that answers says.
    ///
    /// # Errors
    ///
    /// If nobody leads, or says so, for long.
    pub fn leader(&self) -> Result<usize> {
        until(LIMIT, "a leader of etcd", || {
            let leads = self.members.iter().position(EtcdServer::is_leader);
            leads.ok_or("none says that it leads")
        })
    }
}

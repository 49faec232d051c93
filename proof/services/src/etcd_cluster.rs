//! Several members of etcd.

use std::time::Duration;

use crate::etcd::{EtcdOptions, EtcdPorts, EtcdServer, etcdctl};
use crate::port::despite_collisions;
use crate::proxy::Proxy;
use crate::wait::{LIMIT, until};
use crate::{Error, Result};

/// Several members of one cluster. Dropping the value kills all of them.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<EtcdServer>,
    /// In front of each member, for the other ones, if there are any.
    ways: Vec<Proxy>,
    /// Where the other ones reach each member.
    peers: Vec<String>,
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
            let mut cluster = Self { members: Vec::new(), ways, peers };
            for (n, ports) in ports.into_iter().enumerate() {
                let name = format!("m{n}");
                let member = EtcdServer::launch(options, &name, &cluster.peers[n], &all, ports)?;
                cluster.members.push(member);
            }
            cluster.await_healthy()?;
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
        self.ways[member].silence(silent);
    }

    /// Lets the members hear of each other only after this long, there and back: a round trip between
    /// two members takes so long, or up to 4 ms longer.
    ///
    /// # Panics
    ///
    /// If the cluster was started without proxies.
    pub fn set_round_trip(&self, trip: Duration) {
        assert!(!self.ways.is_empty(), "a cluster that was started with proxies");
        self.ways.iter().for_each(|way| way.set_round_trip(trip));
    }

    /// All members.
    pub fn members(&self) -> &[EtcdServer] {
        &self.members
    }

    /// A member, to kill, stop or restart it.
    pub fn member_mut(&mut self, member: usize) -> &mut EtcdServer {
        &mut self.members[member]
    }

    /// Waits until every member answers and knows a leader.
    ///
    /// # Errors
    ///
    /// If one has ended, or does not come to that.
    pub fn await_healthy(&mut self) -> Result<()> {
        self.members.iter_mut().try_for_each(EtcdServer::await_ready)
    }

    /// Replaces a member whose disk is lost: the others remove it and add it again, and it starts
    /// with nothing. Does not wait until it has what they have.
    ///
    /// # Errors
    ///
    /// If the others have no majority for that.
    pub fn replace(&mut self, member: usize) -> Result<()> {
        self.replace_as(member, &[])
    }

    /// As [`Self::replace`], by a learner: it has no vote, and is not promoted.
    ///
    /// # Errors
    ///
    /// As [`Self::replace`].
    pub fn replace_by_learner(&mut self, member: usize) -> Result<()> {
        self.replace_as(member, &["--learner"])
    }

    fn replace_as(&mut self, member: usize, options: &[&str]) -> Result<()> {
        self.members[member].kill();
        let port = self.members[(member + 1) % self.members.len()].port();
        let peer = self.peers[member].clone();
        let list = etcdctl(port, &["member", "list"])?;
        let is_it = |line: &&str| line.split(", ").any(|field| field == peer);
        let id = list.lines().find(is_it).and_then(|line| line.split(',').next());
        let id = id.ok_or_else(|| Error::new(format!("no member at {peer}:\n{list}")))?;
        change_members(port, &["remove", id], "not found")?;
        let (name, peer) = (format!("m{member}"), format!("--peer-urls={peer}"));
        let add = [&["add", &name, &peer], options].concat();
        change_members(port, &add, "already exists")?;
        self.members[member].relaunch_empty()
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

/// Changes the members, again and again: they refuse it until they have seen each other for a while.
/// A change whose answer was lost is `done`, as the next answer says.
fn change_members(port: u16, words: &[&str], done: &str) -> Result<()> {
    let words = [&["--command-timeout=5s", "member"], words].concat();
    until(LIMIT, "a change of the members", || match etcdctl(port, &words) {
        Err(error) if !error.to_string().contains(done) => Err(error),
        _ => Ok(()),
    })
}

//! The ways from the workers to the servers of a store, and what can be done to them.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use latchwork_services::Direction::{ToClient, ToServer};
use latchwork_services::{Cut, Direction, Proxy, Result};

use super::{ServerLog, Store};
use crate::faults::{Lister, Nemesis};
use crate::luck::Luck;
use crate::pause::pause;
use crate::repeated::{Repeated, millis};

/// All that can be done to the ways.
const FAULTS: &[&str] = &["cuts", "lost-answers", "late", "partition", "strand"];

/// A store that is reached by such ways. What it says here makes a [`Store`] of it.
pub(super) trait Reached {
    /// The faults of its servers and of what they keep, beside those of the ways.
    const FAULTS: &'static [&'static str];

    /// The rules that the documents excuse under a fault, with these options of the address.
    fn excused_with(fault: &str, options: &str) -> &'static [&'static str];

    fn reach(&self) -> &Reach;

    /// Its address, with these hosts.
    fn address(&self, hosts: &str) -> String;

    /// The fault of this name, if it is not one of the ways.
    fn own_nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>>;

    /// As [`Store::lister`].
    fn own_lister(&self) -> Option<Box<dyn Lister>> {
        None
    }

    /// As [`Store::logs`].
    fn own_logs(&self) -> Vec<ServerLog>;
}

/// The names of all faults of such a store.
pub(super) fn faults_of<R: Reached>() -> Vec<&'static str> {
    [FAULTS, R::FAULTS].concat()
}

impl<R: Reached> Store for R {
    fn url(&self) -> String {
        self.address(&hosts(&self.reach().ways.own))
    }

    fn sides(&self) -> Vec<String> {
        self.reach().ways.sides.iter().map(|side| self.address(&hosts(side))).collect()
    }

    fn faults(&self) -> Vec<&'static str> {
        faults_of::<R>()
    }

    fn excused(&self, fault: &str) -> &'static [&'static str] {
        R::excused_with(fault, &self.reach().options)
    }

    fn nemesis(&self, fault: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
        of(&self.reach().ways, fault, ttl).or_else(|| self.own_nemesis(fault, ttl))
    }

    fn lister(&self) -> Option<Box<dyn Lister>> {
        self.own_lister()
    }

    fn logs(&self) -> Vec<ServerLog> {
        self.own_logs()
    }
}

/// The ways to such a store, and the options of its address.
#[derive(Debug)]
pub(super) struct Reach {
    pub(super) ways: Arc<Ways>,
    pub(super) options: String,
}

impl Reach {
    pub(super) fn open(servers: &[u16], options: &str) -> Result<Self> {
        Ok(Self { ways: Arc::new(Ways::open(servers)?), options: options.to_owned() })
    }
}

/// The ways to each server, in the order of the servers: those of the two halves of the workers,
/// and those of the run itself.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) sides: [Vec<Proxy>; 2],
    own: Vec<Proxy>,
}

impl Ways {
    pub(super) fn open(servers: &[u16]) -> Result<Self> {
        let side = || servers.iter().map(|port| Proxy::plain(*port)).collect::<Result<Vec<_>>>();
        Ok(Self { sides: [side()?, side()?], own: side()? })
    }

    /// All servers, by the ways of the run itself.
    pub(super) fn own_hosts(&self) -> String {
        hosts(&self.own)
    }

    /// The way of the run itself to a server.
    pub(super) fn own(&self, server: usize) -> &Proxy {
        &self.own[server]
    }

    /// All ways to a server.
    fn all(&self, server: usize) -> impl Iterator<Item = &Proxy> {
        self.sides.iter().chain([&self.own]).map(move |ways| &ways[server])
    }

    /// Lets all ways to a server lead to another one, from their next connections on.
    pub(super) fn lead(&self, server: usize, port: u16) {
        let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        self.all(server).for_each(|way| way.set_upstream(upstream));
    }

    /// The ways of one half of the workers to some of the servers; to all of them as often as not.
    fn some(&self, luck: &mut Luck) -> Vec<&Proxy> {
        let side = &self.sides[luck.below(2)];
        if luck.percent(50) {
            return side.iter().collect();
        }
        let first = luck.below(side.len());
        let count = 1 + luck.below(side.len() - 1);
        (first..first + count).map(|n| &side[n % side.len()]).collect()
    }
}

/// The servers, by these ways.
pub(super) fn hosts(ways: &[Proxy]) -> String {
    let hosts = ways.iter().map(|way| format!("127.0.0.1:{}", way.port()));
    hosts.collect::<Vec<_>>().join(",")
}

/// One direction or both.
fn directions(luck: &mut Luck) -> &'static [Direction] {
    match luck.below(3) {
        0 => &[ToServer],
        1 => &[ToClient],
        _ => &[ToServer, ToClient],
    }
}

/// The fault of this name, if it is one of the network.
fn of(ways: &Arc<Ways>, name: &str, ttl: Duration) -> Option<Box<dyn Nemesis>> {
    let ways = ways.clone();
    Some(match name {
        "cuts" => Repeated::boxed("cuts", millis(10, 200), move |luck| {
            let how = [Cut::Reset, Cut::Finish, Cut::Abandon][luck.below(3)];
            let cut = |way: &Proxy| way.cut(how);
            ways.some(luck).into_iter().try_for_each(cut)
        }),
        "lost-answers" => Repeated::boxed("lost-answers", millis(5, 100), move |luck| {
            let lossy = ways.some(luck);
            lossy.iter().for_each(|way| way.lose_answers(true));
            pause(luck.times(ttl, 0.02..0.4));
            lossy.iter().try_for_each(|way| way.begin_anew())
        }),
        "late" => Repeated::boxed("late", millis(1, 100), move |luck| {
            let (slow, directions) = (ways.some(luck), directions(luck));
            let late = luck.times(ttl, 0.02..0.2);
            let set = |late| {
                let each = |way: &&Proxy| directions.iter().for_each(|to| way.delay(*to, late));
                slow.iter().for_each(each);
            };
            set(late);
            pause(luck.times(ttl, 0.1..0.6));
            set(Duration::ZERO);
            Ok(())
        }),
        "partition" => Repeated::boxed("partition", ttl / 8..ttl / 2, move |luck| {
            let (parted, directions) = (ways.some(luck), directions(luck));
            for way in &parted {
                directions.iter().for_each(|to| way.freeze(*to));
            }
            pause(luck.times(ttl, 0.1..1.3));
            for way in &parted {
                directions.iter().for_each(|to| way.thaw(*to));
            }
            Ok(())
        }),
        "strand" => Repeated::boxed("strand", ttl / 2..ttl, move |luck| {
            ways.some(luck).into_iter().for_each(Proxy::strand);
            Ok(())
        }),
        _ => return None,
    })
}

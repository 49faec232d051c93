//! Servers that vote, and what can be done to them: for etcd and ZooKeeper alike.
//!
//! One fault of the servers happens at a time, and each ends with all of them serving, so that
//! there is a majority in between. Faults of the ways to them are made beside these.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use latchwork_services::{Direction, Process, Result};

use super::the;
use crate::faults::Nemesis;
use crate::luck::Luck;
use crate::pause::pause;
use crate::repeated::Repeated;

/// All that can be done to such servers, and to what they keep.
pub(super) const FAULTS: &[&str] = &[
    "member-kill",
    "leader-kill",
    "all-kill",
    "member-stop",
    "leader-stop",
    "silence",
    "slow-members",
    "member-wipe",
    "delete",
];

/// Several servers that are one store as long as most of them can vote.
pub(super) trait Members: Send + 'static {
    fn count(&self) -> usize;
    fn leader(&self) -> Result<usize>;
    fn process(&mut self, member: usize) -> &mut Process;
    /// Starts one again with its data, and does not wait.
    fn relaunch(&mut self, member: usize) -> Result<()>;
    /// Starts one again with nothing, as that store wants it, and does not wait.
    fn replace(&mut self, member: usize) -> Result<()>;
    /// Waits until all of them serve.
    fn settle(&mut self) -> Result<()>;
    /// Keeps from the others what a leader says, and perhaps what they say to it; or no longer.
    fn silence(&self, leader: usize, directions: &[Direction], silent: bool) -> Result<()>;
    /// Lets them hear of each other so late, there and back.
    fn set_round_trip(&self, trip: Duration) -> Result<()>;
}

/// The fault of this name, if it is one of members.
pub(super) fn of<M: Members>(
    members: &Arc<Mutex<M>>,
    name: &str,
    ttl: Duration,
) -> Option<Box<dyn Nemesis>> {
    let (members, often) = (members.clone(), ttl / 4..ttl);
    let fault = move |name, act: fn(&mut M, &mut Luck, Duration) -> Result<()>| {
        Repeated::boxed(name, often, move |luck| act(&mut the(&members), luck, ttl))
    };
    Some(match name {
        "member-kill" => fault("member-kill", |all, luck, ttl| {
            let victim = luck.below(all.count());
            down(all, &[victim], luck.times(ttl, 0.0..0.5), M::relaunch)
        }),
        "leader-kill" => fault("leader-kill", |all, luck, ttl| {
            let leader = all.leader()?;
            down(all, &[leader], luck.times(ttl, 0.0..1.0), M::relaunch)
        }),
        "all-kill" => fault("all-kill", |all, luck, ttl| {
            let everybody: Vec<_> = (0..all.count()).collect();
            down(all, &everybody, luck.times(ttl, 0.0..0.3), M::relaunch)
        }),
        "member-wipe" => fault("member-wipe", |all, luck, ttl| {
            let victim = luck.below(all.count());
            down(all, &[victim], luck.times(ttl, 0.0..0.3), M::replace)
        }),
        "member-stop" => fault("member-stop", |all, luck, ttl| {
            let victim = (all.leader()? + 1 + luck.below(all.count() - 1)) % all.count();
            still(all, victim, luck.times(ttl, 0.1..1.3))
        }),
        "leader-stop" => fault("leader-stop", |all, luck, ttl| {
            let leader = all.leader()?;
            still(all, leader, luck.times(ttl, 0.2..1.6))
        }),
        "silence" => fault("silence", |all, luck, ttl| {
            use Direction::{ToClient, ToServer};
            let leader = all.leader()?;
            let both = [ToClient, ToServer];
            let directions = if luck.percent(50) { &both[..] } else { &both[..1] };
            all.silence(leader, directions, true)?;
            pause(luck.times(ttl, 0.3..1.5));
            all.silence(leader, directions, false)?;
            all.settle()
        }),
        "slow-members" => fault("slow-members", |all, luck, ttl| {
            all.set_round_trip(luck.times(Duration::from_millis(1), 5.0..120.0))?;
            pause(luck.times(ttl, 0.3..1.0));
            all.set_round_trip(Duration::ZERO)
        }),
        _ => return None,
    })
}

/// Kills some, and starts them again after a while.
fn down<M: Members>(
    all: &mut M,
    victims: &[usize],
    rest: Duration,
    again: fn(&mut M, usize) -> Result<()>,
) -> Result<()> {
    victims.iter().for_each(|victim| all.process(*victim).kill());
    pause(rest);
    victims.iter().try_for_each(|victim| again(all, *victim))?;
    all.settle()
}

/// Lets one stand still for a while.
fn still<M: Members>(all: &mut M, victim: usize, length: Duration) -> Result<()> {
    all.process(victim).stop()?;
    pause(length);
    all.process(victim).cont()?;
    all.settle()
}

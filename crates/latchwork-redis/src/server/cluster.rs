//! The nodes of a Cluster and the slots they serve.
//!
//! The map is read again when a server redirects a request, when a node cannot be reached, and when a
//! connection breaks on which a claim waits for messages. Several nodes are asked at once, and the one
//! with the newest epoch is believed: a node that was cut off from the others has an old map.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use latchwork_store::{BackendError, BackendErrorKind, Effect, Io, Moment, random_u128};
use latchwork_wire::race;
use redis::{Value, cmd};

use crate::config::Endpoint;
use crate::lock;
use crate::server::access::Access;
use crate::server::facts::Facts;
use crate::server::hosts::Host;
use crate::server::inbox::Inbox;
use crate::server::link::{Link, LinkId};
use crate::server::node::{Node, Target, Use};
use crate::server::reply::{pairs, text};
use crate::server::responses::Responses;
use crate::server::slot::SLOTS;

/// How long the nodes may take to send the map of the slots.
const LIMIT: Duration = Duration::from_millis(500);
/// How many nodes are asked at once.
const AT_ONCE: usize = 5;
/// Answers of a replaced master that come later than this do not count.
const GRACE: Duration = Duration::from_millis(100);
/// After a redirection, the whole map is read again, but not more often than this.
const REFRESH_PAUSE: Duration = Duration::from_secs(1);

/// A Cluster as far as it is known.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Endpoint>,
    access: Arc<Access>,
    io: Io,
    inbox: Arc<dyn Inbox>,
    me: Weak<Self>,
    map: Mutex<Map>,
    /// Held by the task that reads the map: the others wait for its result.
    refreshing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Map {
    nodes: HashMap<Endpoint, Member>,
    /// The master of each slot, where known.
    slots: Vec<Option<Endpoint>>,
    /// How often the map was read, when last, and with what outcome.
    rounds: u64,
    asked_at: Moment,
    outcome: Result<(), BackendError>,
}

#[derive(Debug, Clone)]
struct Member {
    commands: Arc<Node>,
    /// Created when a claim waits for a key there.
    messages: Option<Arc<Node>>,
}

/// The Cluster as one node sees it.
struct View {
    /// It reports that the Cluster is ok.
    good: bool,
    epoch: u64,
    slots: Vec<Option<Endpoint>>,
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Endpoint>,
        access: Arc<Access>,
        io: Io,
        inbox: Arc<dyn Inbox>,
    ) -> Arc<Self> {
        let map = Map {
            nodes: HashMap::new(),
            slots: vec![None; usize::from(SLOTS)],
            rounds: 0,
            asked_at: Moment::from_nanos(0),
            outcome: Ok(()),
        };
        Arc::new_cyclic(|me| Self {
            seeds,
            access,
            io,
            inbox,
            me: me.clone(),
            map: Mutex::new(map),
            refreshing: tokio::sync::Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        lock(&self.map)
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    fn make(&self, endpoint: &Endpoint, usage: Use) -> Arc<Node> {
        let target = Target::Fixed(endpoint.clone());
        Node::new(target, usage, self.access.clone(), self.io.clone(), self.inbox.clone())
    }

    /// The node at this address, for commands.
    pub(crate) fn at(&self, endpoint: &Endpoint) -> Arc<Node> {
        let make = || Member { commands: self.make(endpoint, Use::Commands), messages: None };
        self.lock().nodes.entry(endpoint.clone()).or_insert_with(make).commands.clone()
    }

    /// The only other master with this port.
    pub(crate) fn other_at(&self, port: u16, asked: &Endpoint) -> Option<Endpoint> {
        let map = self.lock();
        let mut others: Vec<_> =
            map.slots.iter().flatten().filter(|at| at.port == port && *at != asked).collect();
        others.sort_unstable();
        others.dedup();
        if let [only] = others[..] { Some(only.clone()) } else { None }
    }

    fn master_of(&self, slot: u16) -> Option<Endpoint> {
        self.lock().slots[usize::from(slot)].clone()
    }

    async fn known_master_of(&self, slot: u16) -> Result<Endpoint, BackendError> {
        if let Some(endpoint) = self.master_of(slot) {
            return Ok(endpoint);
        }
        self.refresh().await?;
        self.master_of(slot).ok_or_else(|| {
            BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                format!("no node of the Cluster serves slot {slot}"),
            )
            .with_next_step("see CLUSTER INFO, and assign the slot to a node")
        })
    }

    /// The connection to the master of a slot.
    pub(crate) async fn link(&self, slot: u16) -> Result<Arc<Link>, BackendError> {
        let master = self.known_master_of(slot).await?;
        let node = self.at(&master);
        let error = match node.link().await {
            Ok(link) => {
                if link.is_silent() {
                    // The node may have stopped, and another one may serve its slots.
                    self.refresh_soon();
                }
                return Ok(link);
            }
            Err(error) => error,
        };
        self.refresh().await?;
        let new = self.known_master_of(slot).await?;
        if new == master {
            return Err(error);
        }
        self.at(&new).link().await
    }

    /// The node on which messages for keys of a slot come.
    pub(crate) async fn subscriber(&self, slot: u16) -> Result<Arc<Node>, BackendError> {
        let master = self.known_master_of(slot).await?;
        drop(self.at(&master)); // makes the entry
        let mut map = self.lock();
        let member = map.nodes.get_mut(&master);
        let make = || self.make(&master, Use::Messages(self.me.clone()));
        Ok(match member {
            Some(member) => member.messages.get_or_insert_with(make).clone(),
            None => make(),
        })
    }

    /// The connection on which messages of a channel of this slot come, if they do.
    pub(crate) fn subscribed_on(&self, slot: u16, channel: &str) -> Option<LinkId> {
        let node = {
            let map = self.lock();
            let master = map.slots[usize::from(slot)].as_ref();
            master.and_then(|master| map.nodes.get(master)?.messages.clone())
        };
        let link = node.and_then(|node| node.current())?;
        link.is_subscribed(channel).then_some(link.id)
    }

    /// The capabilities of a master.
    pub(crate) async fn facts(&self) -> Result<Facts, BackendError> {
        let masters = self.masters();
        let mut attempts = Vec::new();
        for master in &masters {
            attempts.push(master.link());
        }
        let reached = race(attempts, &self.io).await;
        reached.map(|(_, link)| link.facts.clone()).map_err(|errors| {
            if let Some((_, error)) = errors.into_iter().next() {
                return error;
            }
            BackendError::new(
                BackendErrorKind::Unreachable,
                Effect::NotApplied,
                "no node of the Cluster serves any slot",
            )
            .with_next_step("see CLUSTER INFO, and assign the slots to nodes")
        })
    }

    /// The nodes that serve slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        let mut masters: Vec<_> = self.lock().slots.iter().flatten().cloned().collect();
        masters.sort_unstable();
        masters.dedup();
        masters.iter().map(|master| self.at(master)).collect()
    }

    /// Messages of this node may have been lost: the claims that wait for its keys check again.
    pub(crate) fn check_slots_of(&self, target: &Target) {
        let Target::Fixed(endpoint) = target else { return };
        let served: Vec<bool> =
            self.lock().slots.iter().map(|master| master.as_ref() == Some(endpoint)).collect();
        self.inbox.check_again(&|slot| slot.is_some_and(|slot| served[usize::from(slot)]));
    }

    /// A server says that a slot is elsewhere.
    pub(crate) fn moved(&self, slot: u16, to: Endpoint) {
        let mut map = self.lock();
        let place = &mut map.slots[usize::from(slot)];
        if place.as_ref() != Some(&to) {
            *place = Some(to.clone());
            drop(map);
            self.inbox.check_again(&|of| of == Some(slot));
            self.refresh_soon();
        }
    }

    /// Reads the map in the background, unless that was done a moment ago.
    fn refresh_soon(&self) {
        let now = self.io.now();
        {
            let mut map = self.lock();
            if now.since(map.asked_at) < REFRESH_PAUSE {
                return;
            }
            map.asked_at = now;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.io.spawn(async move { drop(me.refresh().await) });
    }

    /// Reads the map of the slots. A call during another one waits for that one's result.
    pub(crate) async fn refresh(&self) -> Result<(), BackendError> {
        let rounds = self.lock().rounds;
        let _refreshing = self.refreshing.lock().await;
        {
            let map = self.lock();
            if map.rounds != rounds {
                return map.outcome.clone();
            }
        }
        let outcome = self.ask().await.map(|view| self.learn(view));
        let mut map = self.lock();
        map.rounds += 1;
        map.asked_at = self.io.now();
        map.outcome = outcome.clone();
        outcome
    }

    async fn ask(&self) -> Result<View, BackendError> {
        let mut known: Vec<Endpoint> = self.lock().nodes.keys().cloned().collect();
        known.extend(self.seeds.iter().cloned());
        known.sort_unstable();
        known.dedup();
        let first = random_u128() as usize % known.len().max(1);
        known.rotate_left(first);
        let mut problem = None;
        for some in known.chunks(AT_ONCE) {
            match self.ask_some(some).await {
                Ok(view) => return Ok(view),
                Err(error) => problem = error.or(problem),
            }
        }
        Err(problem.unwrap_or_else(|| BackendError::no_answer(LIMIT)))
    }

    /// The newest view of a majority of these nodes, or of those that answer in time.
    async fn ask_some(&self, some: &[Endpoint]) -> Result<View, Option<BackendError>> {
        let mut views = Responses::new(some, LIMIT, &self.access, &self.io, |endpoint| {
            let (node, from) = (self.at(endpoint), endpoint.clone());
            async move { view_of(&node, &from).await }
        });
        let (mut best, mut answers, mut problem) = (None::<View>, 0, None);
        while let Some(view) = views.next(best.is_some()).await {
            match view {
                Ok(view) => {
                    answers += 1;
                    let rank = |view: &View| (view.good, view.epoch);
                    if best.as_ref().is_none_or(|best| rank(best) < rank(&view)) {
                        best = Some(view);
                    }
                    if answers > some.len() / 2 {
                        break;
                    }
                }
                Err(error) => problem = Some(error),
            }
        }
        best.ok_or(problem)
    }

    fn learn(&self, view: View) {
        let mut moved = vec![false; usize::from(SLOTS)];
        let mut succeeded = Vec::new();
        {
            let mut map = self.lock();
            for (slot, (old, new)) in map.slots.iter().zip(&view.slots).enumerate() {
                moved[slot] = old.is_some() && old != new;
            }
            let serving: HashSet<_> = view.slots.iter().flatten().cloned().collect();
            let has_lost_all = |at: &Endpoint| {
                !serving.contains(at) && map.slots.iter().flatten().any(|had| had == at)
            };
            succeeded.extend(
                map.nodes.iter().filter(|(at, _)| has_lost_all(at)).flat_map(|(_, member)| {
                    [Some(member.commands.clone()), member.messages.clone()]
                }),
            );
            // Nodes that serve no slot any more are dropped with their connections.
            map.nodes.retain(|at, _| serving.contains(at) || self.seeds.contains(at));
            for (_, member) in map.nodes.iter_mut().filter(|(at, _)| !serving.contains(at)) {
                member.messages = None;
            }
            map.slots = view.slots;
        }
        if !succeeded.is_empty() {
            let pause = self.io.sleep(GRACE);
            self.io.spawn(async move {
                // If the node is running, it redirects its requests itself.
                pause.await;
                succeeded.iter().flatten().for_each(|node| node.mark_superseded());
            });
        }
        // Messages about these keys come from other nodes now.
        self.inbox.check_again(&|slot| slot.is_some_and(|slot| moved[usize::from(slot)]));
    }
}

async fn view_of(node: &Node, from: &Endpoint) -> Result<View, BackendError> {
    let link = node.link().await?;
    let mut info = cmd("CLUSTER");
    info.arg("INFO");
    let mut slots = cmd("CLUSTER");
    slots.arg("SLOTS");
    let (info, slots) = tokio::join!(link.send(&info), link.send(&slots));
    let info = info.map(|answer| crate::server::reply::text(&answer).unwrap_or_default());
    let info = info.map_err(|failure| failure.error)?;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    Ok(View {
        good: field("cluster_state") == Some("ok"),
        epoch: field("cluster_current_epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0),
        slots: read(&slots.map_err(|failure| failure.error)?, from),
    })
}

/// The masters in an answer to `CLUSTER SLOTS`.
fn read(answer: &Value, from: &Endpoint) -> Vec<Option<Endpoint>> {
    let mut slots = vec![None; usize::from(SLOTS)];
    for (range, master) in ranges(answer, from) {
        slots[range].fill(Some(master));
    }
    slots
}

/// The ranges of slots in an answer to `CLUSTER SLOTS`, and the master of each.
fn ranges(
    answer: &Value,
    from: &Endpoint,
) -> impl Iterator<Item = (RangeInclusive<usize>, Endpoint)> {
    let ranges = if let Value::Array(ranges) = answer { &ranges[..] } else { &[] };
    ranges.iter().filter_map(|range| {
        let Value::Array(parts) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), rest @ ..] = &master[..] else { return None };
        let host = match Host::read(text(host).as_deref()) {
            Host::Named(name) => name,
            Host::Asked => from.host.clone(),
            // The node's other names follow its id.
            Host::Unknown => other_name(rest.get(1)).unwrap_or_else(|| from.host.clone()),
        };
        let port = u16::try_from(*port).ok()?;
        let first = usize::try_from(*first).unwrap_or(0);
        let last = usize::try_from(*last).unwrap_or(0).min(usize::from(SLOTS) - 1);
        (first <= last).then_some((first..=last, Endpoint { host, port }))
    })
}

/// A name from pairs such as `ip`, `127.0.0.1`.
fn other_name(names: Option<&Value>) -> Option<String> {
    let names = pairs(names?)?;
    names.into_iter().find_map(|(_, name)| Host::read(Some(&text(name)?)).name())
}

#[cfg(test)]
mod tests {
    use latchwork_services::hostile::survives;

    use super::*;
    use crate::server::values::value_of;

    #[test]
    fn reads_ranges_and_nodes_without_a_name() {
        let text = |text: &str| Value::BulkString(text.into());
        let range = |first, last, host: Value, port| {
            let master = Value::Array(vec![host, Value::Int(port), text("id")]);
            Value::Array(vec![Value::Int(first), Value::Int(last), master])
        };
        let answer = Value::Array(vec![
            range(0, 1, text("a"), 1),
            range(3, 3, Value::Nil, 2),
            range(4, 4, text("?"), 3),
            range(5, 5, text("[::1]"), 5),
            range(16_383, 99_999, text(""), 4),
        ]);
        let from = Endpoint { host: "here".into(), port: 9 };
        let slots = read(&answer, &from);
        let at = |host: &str, port| Some(Endpoint { host: host.into(), port });
        assert_eq!(slots[0], at("a", 1));
        assert_eq!(slots[1], at("a", 1));
        assert_eq!(slots[2], None);
        assert_eq!(slots[3], at("here", 2));
        assert_eq!(slots[4], at("here", 3));
        assert_eq!(slots[5], at("::1", 5));
        assert_eq!(slots[16_383], at("here", 4));
    }

    /// H252: with `cluster-preferred-endpoint-type hostname` a node without one is `?`, and has its address apart.
    #[test]
    fn h252_a_host_that_is_not_known_is_found_by_its_address() {
        let answer = b"*1\r\n*3\r\n:0\r\n:9\r\n*4\r\n$1\r\n?\r\n:7\r\n$2\r\nid\r\n\
            *2\r\n$2\r\nip\r\n$8\r\n10.0.0.2\r\n";
        let from = Endpoint { host: "here".into(), port: 9 };
        let slots = read(&value_of(answer).unwrap(), &from);
        assert_eq!(slots[3], Some(Endpoint { host: "10.0.0.2".into(), port: 7 }));
    }

    #[test]
    fn hostile_answers_about_slots_name_slots_that_exist() {
        let sample = b"*2\r\n*3\r\n:0\r\n:8191\r\n*3\r\n$1\r\na\r\n:1\r\n$2\r\nid\r\n\
            *3\r\n:8192\r\n:16383\r\n*2\r\n$1\r\nb\r\n:2\r\n";
        let from = Endpoint { host: "here".into(), port: 9 };
        survives("CLUSTER SLOTS", &[sample], |bytes| {
            let Some(answer) = value_of(bytes) else { return };
            assert!(ranges(&answer, &from).all(|(range, _)| *range.end() < usize::from(SLOTS)));
        });
    }
}

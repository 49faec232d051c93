//! What the model knows at one moment: nodes, clients, and what is under way between them.
//!
//! Everything that belongs to a node lies in its own record, also the messages that it has not
//! taken yet and what the clients have heard from it. So nodes can change places without changing
//! anything else, and [`State::sort_nodes`] may put them into one order.

use std::fmt;

/// How many nodes there are. Three is the smallest number with a minority.
pub const NODES: usize = 3;
/// The smallest number of nodes of which two always share one.
pub const MAJORITY: usize = NODES / 2 + 1;
/// How many clients want the key.
pub const CLIENTS: usize = 2;
/// How long a node keeps a claim, and the longest ttl that the guard allows.
pub const TTL: Tick = 2;

/// A moment, or a length of time. All that happens between two ticks happens at one moment.
pub type Tick = i8;

/// A fencing token.
pub type Token = i16;

/// One state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The time. All clocks that measure lengths agree on it.
    pub now: Tick,
    /// The nodes, in an order that means nothing.
    pub nodes: [Node; NODES],
    /// The clients.
    pub clients: [Client; CLIENTS],
    /// How many restarts there have been.
    pub restarts: u8,
    /// How many snapshots were taken after the first moment.
    pub snapshots: u8,
    /// Whether the clock of a node has jumped.
    pub jumped: bool,
    /// What an outside judge has seen of the holds.
    pub judge: Judge,
}

/// One store, and everything that lies between it and the clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node {
    /// Who has the key here.
    pub key: Option<Lease>,
    /// The largest token that the node remembers.
    pub largest: Token,
    /// What the restart guard has written down.
    pub marker: Marker,
    /// How far the node's clock has jumped ahead.
    pub ahead: Tick,
    /// What the node would come back with from its last snapshot.
    pub snapshot: Snapshot,
    /// What was sent to the node and has not arrived. A message that never arrives is lost.
    pub inbox: Vec<Message>,
    /// What each client has heard from the node and goes by now.
    pub votes: [Vote; CLIENTS],
}

/// What a node has written to its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Snapshot {
    /// See [`Node::key`].
    pub key: Option<Lease>,
    /// See [`Node::largest`].
    pub largest: Token,
    /// Whether there was a marker. To the node that reads it, it is that of an earlier life.
    pub marked: bool,
}

/// A key as a node has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lease {
    /// Whose it is.
    pub claim: Claim,
    /// When it ends, by the node's own clock.
    pub until: Tick,
}

/// One round of votes of a client. A client never uses a name twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// Whose round it is.
    pub client: u8,
    /// Which of the client's rounds.
    pub round: u8,
}

/// The restart guard's marker. Of the identity in it only one thing is ever asked: whether it is
/// that of the server which looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Marker {
    /// Grants are free: the node has lost nothing so far.
    Open,
    /// There is none: the data are gone.
    Missing,
    /// It came back with an old snapshot: its identity is that of an earlier life.
    EarlierLife,
    /// A quarantine that began at this moment, by the node's own clock.
    Closed(Tick),
    /// Grants are free again: a quarantine is over.
    Served,
}

/// A request on its way to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Message {
    /// Whose claim it is about.
    pub claim: Claim,
    /// What is asked.
    pub kind: Kind,
    /// The least token that the node is to remember.
    pub floor: Token,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Grant the key.
    Try,
    /// Remember the token under which the key is about to be held.
    Confirm,
    /// Start the ttl anew.
    Renew,
    /// Take a claim back that was lost here but is held at a majority.
    Plant,
    /// Free the key.
    Release,
}

/// What a client has heard from a node in its present phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Vote {
    /// Nothing.
    Silent,
    /// The claim is granted, and this token remembered.
    Granted(Token),
    /// The claim was present, and its ttl started anew.
    Present,
    /// The claim was not there to be renewed.
    Gone,
}

/// One who wants the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Client {
    /// The round that it is in, or that comes next.
    pub round: u8,
    /// How many renewals it has begun in this round.
    pub renewals: u8,
    /// The largest token that it has held.
    pub largest: Token,
    /// What it is doing.
    pub phase: Phase,
}

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Nothing.
    Idle,
    /// It has asked all nodes for the key.
    Trying {
        /// When.
        sent: Tick,
    },
    /// A majority has granted the key, and has yet to remember the token.
    Confirming {
        /// When the nodes were asked for the key.
        sent: Tick,
        /// The token.
        token: Token,
    },
    /// It holds the key.
    Held {
        /// The moment from which on it counts on nothing any more.
        until: Tick,
        /// The token.
        token: Token,
    },
    /// It holds the key and has asked all nodes to start the ttl anew.
    Renewing {
        /// As in `Held`.
        until: Tick,
        /// The token.
        token: Token,
        /// When the nodes were asked.
        sent: Tick,
    },
}

/// What an outside judge has seen. Nobody in the model reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Judge {
    /// The claim that began to hold last, and its token.
    pub latest: Option<(Claim, Token)>,
    /// Whether a hold of one client came after a hold of the other.
    pub succession: bool,
    /// Whether a hold began with a token that was not larger than that of the one before.
    pub token_fell: bool,
    /// Whether a hold went on after another had begun.
    pub reentered: bool,
}

impl State {
    /// Nothing has happened yet; the nodes remember these tokens.
    pub fn new(tokens: [Token; NODES]) -> Self {
        Self {
            now: 0,
            nodes: tokens.map(Node::new),
            clients: [Client::new(); CLIENTS],
            restarts: 0,
            snapshots: 0,
            jumped: false,
            judge: Judge { latest: None, succession: false, token_fell: false, reentered: false },
        }
    }

    /// Puts the nodes into one order, the same for all states that differ only in the order.
    ///
    /// That is sound because no rule names a node: whatever can happen from a state can happen
    /// from its sorted twin, with the nodes renamed, and no property looks at an order.
    pub fn sort_nodes(&mut self) {
        self.nodes.sort_unstable();
    }

    /// The claim of the round that a client is in.
    pub fn claim(&self, client: usize) -> Claim {
        Claim { client: client as u8, round: self.clients[client].round }
    }

    /// Whether a claim is that of a round which is not over.
    pub fn is_current(&self, claim: Claim) -> bool {
        self.claim(claim.client()) == claim && self.clients[claim.client()].phase != Phase::Idle
    }
}

impl Node {
    fn new(largest: Token) -> Self {
        Self {
            key: None,
            largest,
            marker: Marker::Open,
            ahead: 0,
            snapshot: Snapshot { key: None, largest, marked: true },
            inbox: Vec::new(),
            votes: [Vote::Silent; CLIENTS],
        }
    }

    /// What a snapshot taken at this moment would have.
    pub fn contents(&self) -> Snapshot {
        let marked = self.marker != Marker::Missing;
        Snapshot { key: self.key, largest: self.largest, marked }
    }

    /// Whether this claim has the key here.
    pub fn holds(&self, claim: Claim) -> bool {
        self.key.is_some_and(|key| key.claim == claim)
    }

    /// Whether this claim has the key here, or comes back with the last snapshot.
    pub fn may_hold(&self, claim: Claim) -> bool {
        let keys = [self.key, self.snapshot.key];
        keys.iter().flatten().any(|key| key.claim == claim)
    }

    /// Puts a message into the inbox. A later one of the same kind takes the place of the earlier.
    pub fn send(&mut self, message: Message) {
        self.inbox.retain(|old| (old.claim, old.kind) != (message.claim, message.kind));
        self.inbox.push(message);
        self.inbox.sort_unstable();
    }

    /// Takes a message out of the inbox.
    pub fn take(&mut self, claim: Claim, kind: Kind) -> Option<Message> {
        let at = self.inbox.iter().position(|m| (m.claim, m.kind) == (claim, kind))?;
        Some(self.inbox.remove(at))
    }
}

impl Claim {
    /// The number of the client.
    pub fn client(self) -> usize {
        usize::from(self.client)
    }
}

impl Client {
    fn new() -> Self {
        Self { round: 0, renewals: 0, largest: 0, phase: Phase::Idle }
    }

    /// Whether the client would say, asked at this moment, that it holds the key.
    pub fn is_valid(&self, now: Tick) -> bool {
        match self.phase {
            Phase::Held { until, .. } | Phase::Renewing { until, .. } => now < until,
            _ => false,
        }
    }
}

/// `1a` is the first round of client 1.
impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.client + 1, char::from(b'a' + self.round))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Try => "try",
            Self::Confirm => "confirm",
            Self::Renew => "renew",
            Self::Plant => "plant",
            Self::Release => "release",
        })
    }
}

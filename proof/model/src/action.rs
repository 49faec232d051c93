//! One step of the model, and how it is written.

use std::fmt;
use std::str::FromStr;

use crate::state::{CLIENTS, Claim, Kind, NODES};

/// One step of the model. Nothing else ever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time goes on. Leases and validities that end now are over.
    Tick,
    /// A client begins a round: it asks all nodes for the key.
    Try {
        /// Which client.
        client: usize,
    },
    /// A request arrives, the node answers, and the client hears the answer.
    ///
    /// That the client hears it at once takes nothing away from safety: it counts from the moment
    /// of its request, so an answer that comes later lets it hold later, but not for longer.
    Deliver {
        /// Which node.
        node: usize,
        /// What the request is.
        kind: Kind,
        /// Whose.
        claim: Claim,
    },
    /// A request arrives, and the answer is lost.
    DeliverUnheard {
        /// Which node.
        node: usize,
        /// What the request is.
        kind: Kind,
        /// Whose.
        claim: Claim,
    },
    /// A holder asks all nodes to start the ttl anew.
    Renew {
        /// Which client.
        client: usize,
    },
    /// A holder ends its hold.
    Release {
        /// Which client.
        client: usize,
    },
    /// A client ends a round that has not become a hold.
    GiveUp {
        /// Which client.
        client: usize,
    },
    /// A node ends and comes back.
    Restart {
        /// Which node.
        node: usize,
        /// With its last snapshot; otherwise with nothing.
        old_snapshot: bool,
    },
    /// A node writes a snapshot to its disk.
    Save {
        /// Which node.
        node: usize,
    },
    /// The clock of a node jumps ahead.
    Jump {
        /// Which node.
        node: usize,
    },
}

impl Action {
    /// The node at which it happens.
    pub fn node(self) -> Option<usize> {
        match self {
            Self::Deliver { node, .. }
            | Self::DeliverUnheard { node, .. }
            | Self::Restart { node, .. }
            | Self::Save { node }
            | Self::Jump { node } => Some(node),
            _ => None,
        }
    }
}

const UNHEARD: &str = " and is not heard";

/// Nodes, clients and rounds are written from 1 and from `a`: `node 2 answers try 1a`.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("a tick"),
            Self::Try { client } => write!(f, "client {} tries", client + 1),
            Self::Deliver { node, kind, claim } => {
                write!(f, "node {} answers {kind} {claim}", node + 1)
            }
            Self::DeliverUnheard { node, kind, claim } => {
                write!(f, "node {} answers {kind} {claim}{UNHEARD}", node + 1)
            }
            Self::Renew { client } => write!(f, "client {} renews", client + 1),
            Self::Release { client } => write!(f, "client {} releases", client + 1),
            Self::GiveUp { client } => write!(f, "client {} gives up", client + 1),
            Self::Restart { node, old_snapshot: false } => {
                write!(f, "node {} restarts empty", node + 1)
            }
            Self::Restart { node, old_snapshot: true } => {
                write!(f, "node {} restarts with an old snapshot", node + 1)
            }
            Self::Save { node } => write!(f, "node {} saves a snapshot", node + 1),
            Self::Jump { node } => write!(f, "the clock of node {} jumps", node + 1),
        }
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let wrong = || format!("{line:?} is no step of the model");
        let words: Vec<&str> = line.split(' ').collect();
        let client = |word: &str| number(word, CLIENTS).ok_or_else(wrong);
        let node = |word: &str| number(word, NODES).ok_or_else(wrong);
        let asked = |node_word: &str, kind: &str, claim: &str| {
            let kinds = [Kind::Try, Kind::Confirm, Kind::Renew, Kind::Plant, Kind::Release];
            let kind = kinds.into_iter().find(|k| k.to_string() == kind).ok_or_else(wrong)?;
            Ok::<_, String>((node(node_word)?, kind, claim_of(claim).ok_or_else(wrong)?))
        };
        Ok(match words[..] {
            ["a", "tick"] => Self::Tick,
            ["client", who, "tries"] => Self::Try { client: client(who)? },
            ["client", who, "renews"] => Self::Renew { client: client(who)? },
            ["client", who, "releases"] => Self::Release { client: client(who)? },
            ["client", who, "gives", "up"] => Self::GiveUp { client: client(who)? },
            ["node", at, "answers", kind, claim] => {
                let (node, kind, claim) = asked(at, kind, claim)?;
                Self::Deliver { node, kind, claim }
            }
            ["node", at, "answers", kind, claim, "and", "is", "not", "heard"] => {
                let (node, kind, claim) = asked(at, kind, claim)?;
                Self::DeliverUnheard { node, kind, claim }
            }
            ["node", at, "restarts", "empty"] => {
                Self::Restart { node: node(at)?, old_snapshot: false }
            }
            ["node", at, "restarts", "with", "an", "old", "snapshot"] => {
                Self::Restart { node: node(at)?, old_snapshot: true }
            }
            ["node", at, "saves", "a", "snapshot"] => Self::Save { node: node(at)? },
            ["the", "clock", "of", "node", at, "jumps"] => Self::Jump { node: node(at)? },
            _ => return Err(wrong()),
        })
    }
}

/// A number that counts from 1.
fn number(word: &str, end: usize) -> Option<usize> {
    word.parse::<usize>().ok()?.checked_sub(1).filter(|number| *number < end)
}

fn claim_of(word: &str) -> Option<Claim> {
    let (client, round) = word.split_at_checked(1)?;
    let &[round @ b'a'..=b'z'] = round.as_bytes() else { return None };
    Some(Claim { client: number(client, CLIENTS)? as u8, round: round - b'a' })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_read_as_it_is_written() {
        let claim = Claim { client: 1, round: 2 };
        let all = [
            Action::Tick,
            Action::Try { client: 0 },
            Action::Deliver { node: 2, kind: Kind::Plant, claim },
            Action::DeliverUnheard { node: 0, kind: Kind::Confirm, claim },
            Action::Renew { client: 1 },
            Action::Release { client: 1 },
            Action::GiveUp { client: 0 },
            Action::Restart { node: 1, old_snapshot: false },
            Action::Restart { node: 1, old_snapshot: true },
            Action::Save { node: 0 },
            Action::Jump { node: 2 },
        ];
        for action in all {
            assert_eq!(action.to_string().parse(), Ok(action));
        }
        for wrong in ["", "client 3 tries", "node 0 restarts empty", "node 1 answers try 1A"] {
            assert!(wrong.parse::<Action>().is_err(), "{wrong:?}");
        }
    }
}

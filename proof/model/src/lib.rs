//! A model of the quorum protocol, small enough for a checker to visit every state.
//!
//! Use it to see that a rule of the protocol is needed, and to try a change of it before it is
//! written: change the rule here, search, and read the story of what goes wrong. The model knows
//! nothing of the code and the code nothing of the model. That the code does what the model says is
//! for the tests of `Quorum` and of the Redis scripts to show.
//!
//! ```text
//! cargo run -p latchwork-model --release -- list
//! cargo run -p latchwork-model --release -- search
//! cargo run -p latchwork-model --release -- tell R3
//! ```
//!
//! What was found, with numbers: `docs/model.md`.
//!
//! # What is modelled
//!
//! Two clients that want one key for themselves, and three nodes. A majority of the nodes decides.
//! [`State`] is all that there is at one moment, [`Action`] all that can happen next, and the
//! checker takes every step from every state. Time is a small number, and a ttl is two ticks.
//! Every message may arrive at any later time, in any order, or never.
//!
//! | step | what it stands for in the code |
//! | --- | --- |
//! | `client 1 tries` | `try_acquire` and `propose` in core's `quorum.rs` and `quorum/acquire.rs` |
//! | `node 2 answers try 1a` | `try.lua` behind `guard.lua` and `guard_try.lua`; then `Vote::count` in `quorum/acquire.rs` and `Size::grant` in `quorum/tally.rs` |
//! | `node 2 answers confirm 1a` | `renew.lua` with a floor; then `Vote::confirm` in `quorum/acquire.rs` |
//! | `client 1 renews` | `renew_all` in `quorum/hold.rs` |
//! | `node 2 answers renew 1a` | `renew.lua`; then `Ballot` and `declare` in `quorum/hold.rs`, and in `lease.rs` that an answer counts only before the validity is over |
//! | `node 2 answers plant 1a` | `plant` in `quorum/hold.rs` |
//! | `client 1 releases` | `release` in `quorum/hold.rs` |
//! | `client 1 gives up` | a `Vote` that is dropped or loses: `clear_up` in `quorum/acquire.rs` |
//! | `node 2 answers release 1a` | `release.lua` |
//! | `a tick` | keys expire at the nodes; `validity.rs` and `lease.rs` end holds, and `reaper.rs` gives them back |
//! | `node 2 restarts ...` | what `guard.rs` and `docs/guard.md` are there for |
//! | `node 2 saves a snapshot` | an RDB file |
//! | `the clock of node 2 jumps` | a step of a server's wall clock, by which Redis lets keys expire |
//!
//! The rules of the nodes are in `node.rs`, those of the clients in `client.rs`; [`Rules`] names
//! the choices among them, [`World`] what may happen.
//!
//! # What must hold
//!
//! [`EXCLUSION`]: no two clients would say at one moment that they hold the key. [`TOKEN_ORDER`]: a
//! hold that begins after another has ended has a larger token. [`NO_REENTRY`]: a hold does not go
//! on after another has begun. And so that nothing holds just because nothing happens, each model
//! must show a grant, two holders one after the other, and what else its world allows: a renewal, a
//! grant after a quarantine, and so on.
//!
//! # What is left out
//!
//! - Readers, permits (which a quorum refuses), waiting, wake-ups, lingers, handover in the process.
//! - Drift. All clocks run at one rate, and validity is the whole ttl: there is no margin to hide in.
//! - Whatever only makes a client stop earlier: being told by a majority that the claim is lost, a
//!   grant that is given back because half of its ttl is over, `max_hold`, the limit of each node.
//! - Renewals that are repeated before they were answered.
//! - The marker's own life: a restarted node begins its quarantine at once, which is the worst case.
//! - Eviction of a single key, and clocks that are set back.
//! - Whether anybody ever gets the lock: nothing here is about progress.
//!
//! # How it is kept small
//!
//! - **Answers come with their votes.** A client hears an answer in the step in which the node gives
//!   it. An answer that comes later lets the client decide later, while its validity ends at the
//!   same moment, for it counts from the request. So the client of the model is valid whenever the
//!   real one is. What an answer that comes too late leaves behind is a lost answer, and those are
//!   steps of their own ([`World::lost_answers`]).
//! - **A lost message is one that never arrives.** A step that loses it would lead nowhere else.
//! - **Nodes are sorted** ([`State::sort_nodes`]), which makes up to six states one.
//! - **Messages that can do nothing any more are dropped**: a renewal or a release at a node that
//!   does not have the claim, where no try of it can arrive any more.
//! - **What time has ended ends at the tick.** A client whose validity is over ends its round at
//!   once, and a key that is over is dropped at once: nobody could use either.
//! - **Rounds that are over leave nothing**, unless [`World::slow_ends`] says so.
//!
//! # How to read a counter-example
//!
//! A story is a list of steps, one in a line, with what each changes as a remark. `1a` is the first
//! round of client 1, `1b` its second. "Until 3" means that at 3 it is over. Tokens by the clock
//! begin at 16, and four of them make a tick. The files in `stories/` are what `search` prints, and
//! the tests take them step by step: in the broken model they must lead to the violation, and in
//! the mended one they must not.

mod action;
mod client;
mod model;
mod node;
mod properties;
mod rules;
mod search;
mod state;
pub mod story;
mod variants;

pub use action::Action;
pub use properties::{EXCLUSION, NO_REENTRY, TOKEN_ORDER, violated};
pub use rules::{Confirm, Guard, Quorum, Relearn, Rules, Tokens, World};
pub use search::{Found, Progress, Search};
pub use state::*;
pub use variants::{Broken, Variant, all, named};

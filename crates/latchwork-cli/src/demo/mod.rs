//! `latchwork demo stock`: the inventory of the articles about distributed locks, for real.
//!
//! Buyers read how much there is, pack a unit and write one less. Each is a process of its own,
//! this binary started again, or for a store inside this process a task. Nothing is scripted but
//! how long packing takes and, in the last scene, who is stopped: what the table and the picture
//! tell is counted from what the buyers reported.
//!
//! | file | what is in it |
//! | --- | --- |
//! | `words.rs` | the orders that a buyer gets and what it says |
//! | `shop.rs`, `redis_shop.rs` | the stock, a fence on it, and the lock of the articles |
//! | `buyer.rs`, `buyer_main.rs` | what a buyer does; a buyer as a process |
//! | `crowd.rs` | all buyers of a scene: started, heard, stopped |
//! | `scene.rs` | one scene, from opening the shop to the last buyer's leaving |
//! | `tally.rs` | counts what was reported |
//! | `picture.rs` | draws it |

pub(crate) mod buyer;
pub(crate) mod buyer_main;
mod crowd;
pub(crate) mod picture;
mod redis_shop;
pub(crate) mod scene;
pub(crate) mod shop;
pub(crate) mod tally;
pub(crate) mod words;

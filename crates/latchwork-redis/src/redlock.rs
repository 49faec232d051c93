//! One lock over several independent Redis servers (Redlock).
//!
//! [`Quorum`] of `latchwork-quorum` counts the votes. This module makes its nodes: each is a single server
//! with the restart guard on, and may be down when the store is connected.

mod config;
mod connect;
mod doctor;
mod init;

pub use config::Config;
pub use connect::connect;
pub use doctor::doctor;
pub use init::init;

#[cfg(doc)]
use latchwork_quorum::Quorum;

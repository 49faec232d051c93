//! One lock over several independent Redis servers (Redlock).
//!
//! The votes are counted by [`Quorum`] of `latchwork-quorum`; here is what makes a node of it: a
//! single server, with the restart guard on, that may be down when the store is connected.

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

//! A descriptor that keeps a session alive.

#[cfg(unix)]
use std::sync::Arc;

/// A descriptor that keeps this backend's session alive for as long as any process has it open.
///
/// A wrapper of commands gives it to a guardian process: then the claims of a killed wrapper stay
/// closed until the guardian has ended the command.
///
/// Give it a duplicate (`try_clone`): the descriptor itself may be one that a forked child does not keep
/// (`CloseOnFork`).
#[cfg(unix)]
#[derive(Debug, Clone)]
pub struct Lifeline(pub Arc<std::os::fd::OwnedFd>);

/// A descriptor that keeps this backend's session alive; there is none on this system.
#[cfg(not(unix))]
#[derive(Debug, Clone)]
pub struct Lifeline(std::convert::Infallible);

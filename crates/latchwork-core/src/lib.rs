//! The lock protocol of Latchwork, above every store.
pub mod backend;
mod backoff;
mod capabilities;
pub mod clock;
mod error;
mod io;
mod key;
pub mod kit;
mod memory;
mod quorum;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod token;
pub mod validity;

pub use backend::*;
pub use backoff::{Backoff, random_between, random_u128};
pub use capabilities::{Capabilities, Fencing, Lifeline};
pub use clock::{Clock, Moment, Sleep};
pub use error::*;
pub use io::{Io, Task};
pub use key::Key;
pub use memory::MemoryBackend;
pub use quorum::Quorum;
pub use token::FencingToken;

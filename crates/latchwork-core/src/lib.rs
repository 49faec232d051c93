//! The lock protocol of Latchwork, above every store.

mod acquire;
pub mod backend;
mod backoff;
mod capabilities;
pub mod clock;
mod driver;
mod engine;
mod error;
mod fence;
mod guard;
mod io;
mod key;
pub mod kit;
mod lease;
mod local_queue;
mod manager;
mod memory;
mod mutex;
mod observe;
mod options;
mod reaper;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod timer;
mod token;
pub mod validity;
mod watchdog;

pub use backend::*;
pub use backoff::{Backoff, random_between, random_u128};
pub use capabilities::{Capabilities, Fencing, Lifeline};
pub use clock::{Clock, Moment, Sleep};
pub use driver::Driver;
pub use error::*;
pub use fence::{Fence, Fenced};
pub use guard::Guard;
pub use io::{Io, Task};
pub use key::Key;
pub use lease::HoldState;
pub use local_queue::Handover;
pub use manager::{ForceReleased, LockManager};
pub use memory::MemoryBackend;
pub use mutex::Mutex;
pub use observe::{Event, Observer};
pub use token::FencingToken;

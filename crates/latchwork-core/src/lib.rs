//! The lock protocol of Latchwork, above every store.
pub mod backend;
mod backoff;
mod capabilities;
pub mod clock;
mod error;
mod io;
mod key;
pub mod kit;
mod token;
pub mod validity;

pub use backend::*;
pub use backoff::{Backoff, random_between, random_u128};
pub use capabilities::{Capabilities, Fencing, Lifeline};
pub use clock::{Clock, Moment, Sleep};
pub use error::*;
pub use io::{Io, Task};
pub use key::Key;
pub use token::FencingToken;

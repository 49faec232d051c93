//! The store for tests of users' code: `latchwork::testing`.

mod clock;
mod counts;
mod loss;
mod scripts;
#[cfg(target_os = "linux")]
mod threads;

use std::time::Duration;

const SEC: Duration = Duration::from_secs(1);
/// The default ttl.
const TTL: Duration = Duration::from_secs(30);

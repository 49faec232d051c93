//! The machine's boot clock, for stores that are tried under real time.

use std::time::Duration;

use latchwork_core::clock::{boot_time, wall_time};
use latchwork_core::{Clock, Moment, Sleep};
use tokio::runtime::Handle;

/// The machine's boot clock, with sleeps on the runtime behind `handle`.
#[derive(Debug)]
pub(crate) struct BootClock {
    handle: Handle,
}

impl BootClock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        boot_time()
    }

    fn wall(&self) -> Duration {
        wall_time()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        if at == Moment::NEVER {
            return Box::pin(std::future::pending());
        }
        let handle = self.handle.clone();
        Box::pin(async move {
            loop {
                let left = at.since(boot_time());
                if left.is_zero() {
                    return;
                }
                let nap = {
                    let _inside = handle.enter();
                    #[expect(clippy::disallowed_methods, reason = "this is the clock to sleep on")]
                    tokio::time::sleep(left)
                };
                nap.await;
            }
        })
    }
}

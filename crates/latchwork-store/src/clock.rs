//! The only clock, which counts suspended time. All code that needs the time reads it here.
//!
//! A lease runs on while a machine sleeps, so it must be judged by a clock that does too. Rust's
//! `Instant` and tokio's timers use `CLOCK_MONOTONIC`, which stops during suspend on Linux;
//! [`Clock::now`] is `CLOCK_BOOTTIME`.

#![expect(clippy::disallowed_methods, reason = "the one module that reads time")]

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;

/// A point in time on the boot clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// A moment that never comes.
    pub const NEVER: Moment = Moment(u64::MAX);

    /// Creates a moment from its number of nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the moment `after` later, or [`Moment::NEVER`] if the number would overflow.
    #[must_use]
    pub const fn plus(self, after: Duration) -> Self {
        let nanos = after.as_nanos();
        if nanos > u64::MAX as u128 {
            return Self::NEVER;
        }
        Self(self.0.saturating_add(nanos as u64))
    }

    /// Returns the moment `before` earlier, but not before the clock's start.
    #[must_use]
    pub const fn minus(self, before: Duration) -> Self {
        let nanos = before.as_nanos();
        if nanos > u64::MAX as u128 {
            return Self(0);
        }
        Self(self.0.saturating_sub(nanos as u64))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER {
            return f.write_str("Moment(never)");
        }
        write!(f, "Moment({:?})", Duration::from_nanos(self.0))
    }
}

/// A sleep on a [`Clock`]; it owns what it needs and may be polled on any runtime.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The time for the engine and for backends.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on the boot clock.
    fn now(&self) -> Moment;

    /// Now, on the wall clock: time since 1970. For "until the end of the period", token floors
    /// and the comparison with the boot clock; never for validity.
    fn wall(&self) -> Duration;

    /// Completes when the boot clock has reached `at`, also when the machine slept meanwhile.
    fn sleep_until(&self, at: Moment) -> Sleep;

    /// Completes when the wall clock was set after this call, as it is after a virtual machine was
    /// paused. It may also complete for no reason.
    ///
    /// A clock that is not told of it is looked at every half second.
    fn stepped(&self) -> Sleep {
        self.sleep_until(self.now().plus(LONGEST_NAP))
    }
}

/// The longest sleep on systems that cannot wake a sleeper for the event that it waits for.
pub const LONGEST_NAP: Duration = Duration::from_millis(500);

/// Notifies sleepers of steps of the wall clock.
#[derive(Debug, Default)]
pub struct Steps {
    count: AtomicU64,
    told: Notify,
}

impl Steps {
    /// Notifies the sleepers that the wall clock was set.
    pub fn tell(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.told.notify_waiters();
    }

    /// Completes when the wall clock is set after this call.
    pub fn next(self: &Arc<Self>) -> Sleep {
        let (this, seen) = (self.clone(), self.count.load(Ordering::SeqCst));
        Box::pin(async move {
            loop {
                let told = this.told.notified();
                tokio::pin!(told);
                // Enlist before looking, or a step in between would go unnoticed.
                told.as_mut().enable();
                if this.count.load(Ordering::SeqCst) != seen {
                    return;
                }
                told.await;
            }
        })
    }
}

/// Reads the boot clock of this machine.
pub fn boot_time() -> Moment {
    #[cfg(target_os = "linux")]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // On the BSDs and macOS the monotonic clock goes on during sleep.
    #[cfg(all(unix, not(target_os = "linux")))]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    #[cfg(unix)]
    {
        let t = rustix::time::clock_gettime(ID);
        Moment((t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64))
    }
    #[cfg(not(unix))]
    {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        Moment(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }
}

/// Reads the wall clock of this machine: time since 1970, or zero before it.
pub fn wall_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_do_not_wrap() {
        let start = Moment::from_nanos(5);
        assert_eq!(start.since(Moment::from_nanos(9)), Duration::ZERO);
        assert_eq!(start.plus(Duration::MAX), Moment::NEVER);
        assert_eq!(start.minus(Duration::MAX), Moment::from_nanos(0));
        assert_eq!(start.plus(Duration::from_nanos(2)).since(start), Duration::from_nanos(2));
    }

    #[test]
    fn the_boot_clock_runs() {
        let first = boot_time();
        assert!(boot_time() >= first);
        assert!(wall_time() > Duration::from_secs(1_600_000_000));
    }
}

//! Exit codes. Those of sysexits where one fits, those of a shell for the command itself.

use latchwork::{Error, ErrorKind};

/// `status`: the lock is held.
pub(crate) const HELD: u8 = 0;
/// `status`: nobody holds the lock.
pub(crate) const FREE: u8 = 1;
/// `status`: the task was done, and its period is closed.
pub(crate) const DONE: u8 = 2;
/// A usage error, a bad value, or something this store cannot do.
pub(crate) const USAGE: u8 = 64;
/// The store did not answer.
pub(crate) const UNREACHABLE: u8 = 69;
/// Something is broken: damaged data, a guardian that died, an output that cannot be written.
pub(crate) const BROKEN: u8 = 70;
/// The store is not fit for locks: `doctor` found something critical.
pub(crate) const UNFIT: u8 = 71;
/// The lock was lost while the command ran, and the command was ended.
pub(crate) const LOST: u8 = 73;
/// The lock was not free in time, or another reader upgrades its hold.
pub(crate) const TIMED_OUT: u8 = 75;
/// Credentials or rights were refused.
pub(crate) const DENIED: u8 = 77;
/// The key is in use as another kind of lock.
pub(crate) const MISMATCH: u8 = 78;
/// The command could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// The code for an error of the library.
pub(crate) fn code_of(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::UpgradeConflict => TIMED_OUT,
        ErrorKind::Unreachable | ErrorKind::Busy => UNREACHABLE,
        ErrorKind::Denied => DENIED,
        ErrorKind::Unsupported | ErrorKind::Invalid => USAGE,
        ErrorKind::Mismatch => MISMATCH,
        ErrorKind::Lost => LOST,
        _ => BROKEN,
    }
}

/// The code for a command that a signal ended, as shells count it.
pub(crate) fn code_of_signal(number: i32) -> u8 {
    u8::try_from(128 + number).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_code_that_the_help_names() {
        for (kind, code) in [
            (ErrorKind::TimedOut, 75),
            (ErrorKind::UpgradeConflict, 75),
            (ErrorKind::Unreachable, 69),
            (ErrorKind::Busy, 69),
            (ErrorKind::Denied, 77),
            (ErrorKind::Unsupported, 64),
            (ErrorKind::Mismatch, 78),
            (ErrorKind::Invalid, 64),
            (ErrorKind::Closed, 70),
            (ErrorKind::Corrupt, 70),
            (ErrorKind::Lost, 73),
            (ErrorKind::Forked, 70),
        ] {
            assert_eq!(code_of(&Error::new(kind, "x")), code, "{kind:?}");
        }
        assert_eq!(code_of_signal(9), 137);
    }
}
